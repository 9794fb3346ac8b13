"""Home: what is new, what is due, what waits for a person, how things are, and what a new session would be told."""

import asyncio
import re
from typing import Any, NamedTuple

from starlette.responses import Response

from athena.server.page.site import PageRequest, View

NEWEST_SHOWN = 6
BRIEFING_LINE_PATTERN = re.compile(r"- (?:\[([0-9a-f]{8})\] )?(.*)")


class BriefingSection(NamedTuple):
    """A part of a briefing: its heading, and lines with the hash of what each tells of."""

    heading: str
    lines: list[tuple[str, str]]


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
        "home_part.html" if page.is_fragment else "home.html",
        health=facts["health"],
        stats=facts["stats"],
        newest=facts["list_memories"],
        due=facts["due_tasks"],
        waiting=facts["list_runs"],
        servers=attention,
        questions=facts["list_open_questions"],
        briefing=facts["briefing"],
        sections_told=split_briefing(facts["briefing"].text),
    )


def split_briefing(text: str) -> list[BriefingSection]:
    """Return what a session would be told, without the frame that is for models."""
    sections: list[BriefingSection] = []
    for line in text.splitlines()[2:-1]:  # the first two lines and the last are that frame
        match = BRIEFING_LINE_PATTERN.fullmatch(line)
        if match is None and line.endswith(":"):
            sections.append(BriefingSection(line[:-1], []))
        elif match is not None:
            if not sections:
                sections.append(BriefingSection("", []))
            sections[-1].lines.append((match[1] or "", match[2]))
        elif sections and sections[-1].lines:  # a line that goes on
            name, before = sections[-1].lines[-1]
            sections[-1].lines[-1] = (name, f"{before} {line.strip()}")
    return sections


VIEWS = (View("GET", "/", show_home),)
