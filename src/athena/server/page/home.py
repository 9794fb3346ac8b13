"""Home: what is new, what is due, what waits for a person, and how things are."""

import asyncio
from typing import Any

from starlette.responses import Response

from athena.server.page.site import PageRequest, View

NEWEST_SHOWN = 6


async def show_home(page: PageRequest) -> Response:
    names: dict[str, dict[str, Any]] = {
        "health": {},
        "stats": {},
        "list_memories": {"k": NEWEST_SHOWN},
        "due_tasks": {"within": "7 days", "limit": 6},
        "list_runs": {"status": "needs_approval", "limit": 10},
        "list_servers": {},
        "list_open_questions": {},
        "briefing": {},
    }
    results = await asyncio.gather(*(page.call(name, **arguments) for name, arguments in names.items()))
    facts = dict(zip(names, results, strict=True))
    attention = [server for server in facts["list_servers"] if server.status in ("waiting", "changed", "failing")]
    return page.render(
        "home.html",
        health=facts["health"],
        stats=facts["stats"],
        newest=facts["list_memories"],
        due=facts["due_tasks"],
        waiting=facts["list_runs"],
        servers=attention,
        questions=facts["list_open_questions"],
        briefing=facts["briefing"],
    )


async def keep_learned(page: PageRequest) -> Response:
    """Confirm one of two statements that contradict each other."""
    await page.call("keep_learned", memory_id=page.form.get("memory_id", ""))
    return page.go_back("/", "Noted: this one holds")


async def drop_learned(page: PageRequest) -> Response:
    """Forget something that was learned, and do not learn it again."""
    memory_id = int(page.form.get("memory_id", "0"))
    await page.call("drop_learned", memory_ids=[memory_id])
    return page.go_back("/", "Forgotten, and not learned again", (("undo", {}),))


VIEWS = (
    View("GET", "/", show_home),
    View("POST", "/learned/keep", keep_learned),
    View("POST", "/learned/drop", drop_learned),
)
