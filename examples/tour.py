"""A guided tour: what a coding agent could remember about a project, and how it finds it again.

Everything happens in a temporary store; your own is not opened. With ATHENA_DATABASE_URL it happens in that database,
in a project that is emptied at the end.
"""

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from datetime import date, timedelta
from typing import Any, TypeVar

from athena import api
from athena.app import connect
from athena.app.settings import load_settings
from athena.core.threads import run_sync
from athena.core.tokens import count_tokens_exactly
from athena.errors import AthenaError

T = TypeVar("T")
COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ
LAST_WEEK = date.today() - timedelta(days=date.today().weekday() + 5)  # its Wednesday
DECISIONS = [
    "We decided on session cookies instead of JWT for the web shop, because we must be able to revoke a login",
    "We decided to keep prices as integers in cents; floats lost a cent in the March invoices",
    "We decided to run background work with a table in PostgreSQL, not with Redis: one thing less to operate",
    "We decided that every public endpoint gets a rate limit of 60 requests a minute for each customer",
]
NOTES = {
    "deploy": [
        "Deploys run on Fridays at 15:00 from the main branch, after the smoke tests",
        "To roll back, run `make rollback`, then write in the ops channel which version is live",
        "Database migrations run before the new code starts, so each must work with the old code as well",
        "The image is built once and promoted from staging to production; it is never built twice",
        "A release needs two approvals, and one of them from the team that runs it at night",
        "The canary gets five percent of the traffic for ten minutes before the rest follows",
    ],
    "bug": [
        "Checkout failed for customers without a postcode: the tax service returns 422 for an empty string",
        "The nightly export ran out of memory because it loaded all orders; it reads them in batches of 500 now",
        "Search results were stale after a price change, because the cache key lacked the currency",
        "Flaky test test_refund_twice: two refunds in one millisecond got the same number; a sequence fixed it",
        "The login page hung on slow networks: the font file was 2 MB. A subset has 40 KB",
        "Emails went out twice after a restart: the queue acknowledged only at the end of a batch",
        "Discounts above 100 percent gave negative totals; the form and the API both check now",
    ],
    "people": [
        "Mara owns payments and reviews every change under billing/",
        "Jonas is on call this month; Priya takes over on the first",
        "The customer Northwind insists on invoices in Norwegian",
        "Lena decides about texts; ask her before renaming anything that users see",
    ],
    "style": [
        "Tests are named as sentences and use a real database, never a mock",
        "Money never leaves the billing module as a float",
        "Log lines carry the request id; without it support cannot follow a complaint",
        "Feature flags live at most one release, then the losing branch is deleted",
        "Commit messages say why; the diff says what",
        "A new dependency needs a note on why twenty lines of our own would not do",
    ],
    "setup": [
        "Run the shop locally with `make dev`; it listens on port 8080",
        "The staging database is read-only for people; write through the admin tool",
        "Integration tests need the tax service stub: `make stubs` starts it",
        "On a new machine, copy .env.example to .env; nothing in it is secret",
        "The test suite takes four minutes on two cores; `make quick` runs the fast half",
    ],
}


PROJECT = "shop"
OTHERS = ["another"]  # a second project


def paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if COLOUR else text


def heading(text: str) -> None:
    print(f"\n{paint(text, '1')}")


def timed(function: Callable[..., T], *args: Any, **kwargs: Any) -> tuple[T, float]:
    """Call a function and return its result and the milliseconds it took."""
    began = time.perf_counter()
    return function(*args, **kwargs), (time.perf_counter() - began) * 1000


def ask(call: str, function: Callable[..., api.CompactSearchResult], *args: Any, **kwargs: Any) -> int:
    """Show a call, what it found and how long it took; return how many tokens came back."""
    found, took = timed(function, *args, **kwargs)
    print(paint(f">>> {call}", "36"))
    print(f"{found}\n{paint(f'{took:.1f} ms', '2')}")
    return count_tokens_exactly(str(found))


def athena(*words: str) -> None:
    """Run a command of the command line and show it."""
    print(paint("$ athena " + " ".join(f'"{word}"' if " " in word else word for word in words), "36"), flush=True)
    subprocess.run([sys.executable, "-m", "athena", *words], check=True, timeout=60, stderr=subprocess.STDOUT)


def fill() -> tuple[int, int]:
    """Keep the project's memories; return how many there are and how many tokens they have."""
    items: list[dict[str, Any]] = [
        {"content": text, "tags": ["decision"], "memory_type": "decision", "metadata": {"date": str(LAST_WEEK)}}
        for text in DECISIONS
    ]
    items += [{"content": text, "tags": [tag]} for tag, texts in NOTES.items() for text in texts]
    _, took = timed(api.store_batch, items)
    size = sum(count_tokens_exactly(item["content"]) for item in items)
    heading(f"1. Remember: {len(items)} memories, {size:,} tokens, stored in {took:.0f} ms (model start included)")
    print("Decisions, bugs, people, habits of a small web shop: what an agent learns in a week and then forgets.")
    return len(items), size


def search() -> list[int]:
    heading("2. Search by words")
    sizes = [ask("api.search('tax service', limit=2)", api.search, "tax service", limit=2)]
    heading("3. Search by meaning: none of these words is in the memory")
    question = "which programmer is responsible for credit cards?"
    sizes.append(ask(f"api.search({question!r}, limit=1)", api.search, question, limit=1))
    heading("4. Time in plain words is a filter (the decisions carry a date; lists show the day of storing)")
    question = "what did we decide about login last week?"
    sizes.append(ask(f"api.recall({question!r}, limit=2)", api.recall, question, limit=2))
    heading("5. Tags")
    sizes.append(ask("api.search_by_tag('people', limit=2)", api.search_by_tag, "people", limit=2))
    return sizes


def change() -> None:
    heading("6. Change a memory; what it said before stays in its history")
    first = api.search("when do we deploy", limit=1).memories[0].hash
    changed = api.update(first, content="Deploys run on Mondays at 10:00 from the main branch, after the smoke tests")
    print(paint(f">>> api.update({first!r}, content='Deploys run on Mondays ...')", "36") + f"\n{changed}")
    athena("show", changed, "--history")
    heading("7. Forget it, and take that back")
    athena("forget", changed)
    athena("undo")
    heading("8. Secrets never reach the file")
    athena("remember", "The CI token is ghp_" + "x7Kq" * 9 + ", renew it in May", "--tags", "setup")
    athena("recall", "CI token", "-k", "1")


def isolate() -> None:
    heading("9. Projects do not see each other")
    another = OTHERS[0]
    api.store("This project deploys by hand, on Tuesdays", project=another)
    question = "when do we deploy"
    ask(f"api.search({question!r}, limit=1)", api.search, question, limit=1)
    ask(f"api.search({question!r}, limit=1, project={another!r})", api.search, question, limit=1, project=another)


def warm() -> float:
    """Return the median time of a search, in milliseconds."""
    questions = ["how do I roll back", "who reviews payments", "why was the export slow", "port of the dev server"] * 5
    return sorted(timed(api.search, question)[1] for question in questions)[len(questions) // 2]


def own_store(url: str | None) -> str:
    try:
        return load_settings().db_path if url is None else str(run_sync(call("health", PROJECT)).data["location"])
    except AthenaError as error:
        return f"(not known: {error})"


def call(operation: str, project: str, **arguments: Any) -> Coroutine[Any, Any, connect.OperationResult]:
    return connect.AppConnection(connect.shared_app, project, "python").call(operation, arguments)


def leave_nothing(project: str) -> None:
    """Remove for good what the tour kept in a database that is not its own."""
    ids = [memory["id"] for memory in run_sync(call("list_memories", project, k=1_000)).data]
    if ids:
        run_sync(call("forget_batch", project, memory_ids=ids))
    run_sync(call("purge", project, expect=run_sync(call("purge", project, dry_run=True)).data))


def main() -> None:
    url = os.environ.get("ATHENA_DATABASE_URL")
    own = own_store(None) if url is None else ""
    with tempfile.TemporaryDirectory(prefix="athena-tour-") as folder:
        for name in [name for name in os.environ if name.startswith("ATHENA_")]:
            del os.environ[name]
        home, keys = os.path.join(folder, "data"), os.path.join(folder, "keys")
        os.environ |= {"ATHENA_HOME": home, "ATHENA_VAULT_KEY_FOLDER": keys, "ATHENA_PROJECT": "shop"}
        where = "in a temporary store"
        if url is not None:
            os.environ |= {"ATHENA_DATABASE_URL": url, "ATHENA_PROJECT": f"tour {secrets.token_hex(4)}"}
            OTHERS[0] = f"{os.environ['ATHENA_PROJECT']}, another"
            own = own_store(url)
            where = f"in {own}"
        print(paint(f"Athena: long-term memory for AI agents. A tour {where}.", "1"))
        count, size = fill()
        sizes = search()
        change()
        isolate()
        heading("What it cost")
        print(f"stored     {size:,} tokens (o200k) in {count} memories")
        print(f"returned   {sum(sizes) / len(sizes):,.0f} tokens a question; all memories would be {size:,}")
        print(f"search     {warm():.1f} ms, median of 20 in this process")
        if url is not None:
            for project in (os.environ["ATHENA_PROJECT"], OTHERS[0]):
                leave_nothing(project)
        api.close()
    heading("Your turn")
    print(f"Your own memories will be in {own}; the tour left nothing there.")
    print('  .venv/bin/athena remember "Deploys run on Fridays at 15:00" --tags deploy')
    print('  .venv/bin/athena recall "when do we ship?"')
    print("  .venv/bin/athena tools")


if __name__ == "__main__":
    main()
