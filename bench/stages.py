"""A fresh process that searches once and prints the time of each step; `bench.cold` starts it."""

import time

BEGAN = time.monotonic()  # the same clock in all processes


def main(query: str) -> None:
    """Repeat the first call of `api.search`, with a timestamp between the steps."""
    from athena import api
    from athena.app import connect

    imported = time.monotonic()
    app = connect.shared_app()
    opened = time.monotonic()

    import json

    from bench.parts import Parts, watch_search

    with Parts() as parts:
        watch_search(parts, app)
        loading = time.monotonic()
        app.store.encoder.embedder.load()
        loaded = time.monotonic()
        found = api.search(query)
        searched = time.monotonic()
    api.close()
    closed = time.monotonic()
    spent = {
        "import athena.api": imported - BEGAN,
        "open the store": opened - imported,
        "load the model": loaded - loading,
        **{f"search: {name}": seconds for name, seconds in parts.spent.items()},
        "search: the rest": searched - loaded - sum(parts.spent.values()),
        "close the store": closed - searched,
    }
    print(json.dumps({"began": BEGAN, "spent": spent, "found": len(found.memories), "ended": time.monotonic()}))
