"""Write a session as a page for people: what was said, done and kept, in order of time, as Markdown or HTML."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from html import escape
from itertools import groupby
from typing import IO, Literal, NamedTuple

from athena.core import clock
from athena.core.values import Kind, Scope
from athena.errors import InvalidInput, NotFound
from athena.memory import list_rows
from athena.memory.list_rows import Position
from athena.memory.sessions import rows as session_rows
from athena.memory.sessions.events import clean_session_id
from athena.memory.sessions.values import DURATION_KEY, OUTCOME_KEY
from athena.memory.store import Store
from athena.memory.values import Memory
from athena.storage.database import Transaction
from athena.storage.filters import Filter

PageFormat = Literal["markdown", "html"]
PAGE_ROWS = 500
MAX_SEARCHED_SESSIONS = 1_000  # among which the beginning of an id is looked for
ROLE_KEY = "role"
KINDS: tuple[Kind, ...] = ("event", "memory")
FENCE_PATTERN = re.compile("`{3,}")
HTML_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem }}
h2 {{ font-size: 1rem; margin: 1.5rem 0 0 }} time, .facts {{ color: #666; font-weight: normal }}
.kept {{ border-left: 3px solid #888; padding-left: 1rem }}
pre {{ font: inherit; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0.25rem 0 }}</style></head><body>
"""
HTML_END = "</body></html>\n"


class PageEntry(NamedTuple):
    """What happened or was kept at a moment of a session."""

    at: float
    id: int
    title: str
    facts: str  # its outcome, duration or tags, in words
    text: str
    is_kept: bool  # a memory, not an event


async def write_session_page(
    store: Store, project: str, session: str, page_format: PageFormat, stream: IO[str]
) -> dict[str, int]:
    """Write all that belongs to a session, named by its id or how that begins; return how much it is."""
    scope = Scope.from_name(project)
    name = await store.database.read(lambda tx: _find_session(tx, scope, clean_session_id(session)))
    entries: list[PageEntry] = []
    for kind in KINDS:
        entries += await _read_entries(store, Filter(scope.with_kind(kind), session=name), is_kept=kind == "memory")
    entries.sort()
    write = _write_html if page_format == "html" else _write_markdown
    stream.writelines(write(name, project, entries))
    counts = Counter("memories" if entry.is_kept else "events" for entry in entries)
    return {"events": counts["events"], "memories": counts["memories"]}


async def _find_session(tx: Transaction, scope: Scope, session: str) -> str:
    filters = [Filter(scope.with_kind(kind)) for kind in KINDS]
    for kind_filter in filters:
        if await session_rows.session_exists(tx, kind_filter.scope, session):
            return session
    names: dict[str, None] = {}
    for kind_filter in filters:
        names |= dict.fromkeys(await session_rows.list_sessions(tx, kind_filter, MAX_SEARCHED_SESSIONS))
    matches = [name for name in names if name.startswith(session)]
    if not matches:
        hint = "athena call list_sessions names those of this project; --project names another"
        raise NotFound(f"there is no session {session!r:.80}", hint=hint)
    if len(matches) > 1:
        raise InvalidInput(f"{len(matches)} sessions begin with {session!r:.80}", hint="give more of the id")
    return matches[0]


async def _read_entries(store: Store, row_filter: Filter, *, is_kept: bool) -> list[PageEntry]:
    entries: list[PageEntry] = []
    after: Position | None = None
    while True:

        async def read_rows(tx: Transaction, after: Position | None = after) -> list[tuple[float, Memory]]:
            tx.chars_left = math.inf  # a person writes all of it to a file
            return await list_rows.list_memories_by_time(tx, row_filter, PAGE_ROWS, after=after, oldest=True)

        page = await store.database.read(read_rows)
        entries += [_create_entry(at, memory, is_kept) for at, memory in page]
        if len(page) < PAGE_ROWS:
            return entries
        after = Position(page[-1][0], page[-1][1].id)


def _create_entry(at: float, memory: Memory, is_kept: bool) -> PageEntry:
    facts = []
    if (outcome := memory.metadata.get(OUTCOME_KEY)) and not is_kept:
        facts.append(str(outcome))
    if isinstance(duration := memory.metadata.get(DURATION_KEY), int | float) and not is_kept:
        facts.append(f"{duration / 1_000:,.1f} s")
    if is_kept:
        facts += [f"#{tag}" for tag in memory.tags]
    role = memory.metadata.get(ROLE_KEY)
    title = str(role) if is_kept and role and memory.memory_type == "message" else memory.memory_type
    return PageEntry(at, memory.id, title, ", ".join(facts), memory.content, is_kept)


def _format_head(name: str, project: str, entries: list[PageEntry]) -> tuple[str, str]:
    """Return the title of the page, and a line that says whose it is and when it was."""
    first, last = (clock.to_local_time(entries[i].at) for i in (0, -1))
    end = f"{last:%H:%M}" if last.date() == first.date() else f"{last:%Y-%m-%d %H:%M}"
    return f"Session {name}", f"{project}, {first:%Y-%m-%d %H:%M} to {end}"


def _group_days(entries: Iterable[PageEntry]) -> Iterator[tuple[str, list[PageEntry]]]:
    for day, group in groupby(entries, lambda entry: f"{clock.to_local_time(entry.at):%A, %Y-%m-%d}"):
        yield day, list(group)


def _write_markdown(name: str, project: str, entries: list[PageEntry]) -> Iterator[str]:
    title, line = _format_head(name, project, entries)
    yield f"# {title}\n\n{line}\n"
    for day, group in _group_days(entries):
        yield f"\n## {day}\n"
        for entry in group:
            facts = f" ({entry.facts})" if entry.facts else ""
            kept = "kept: " if entry.is_kept and entry.title not in ("user", "assistant") else ""
            yield f"\n### {clock.to_local_time(entry.at):%H:%M} {kept}{entry.title}{facts}\n\n{_quote(entry.text)}\n"


def _quote(text: str) -> str:
    """Return a text as a block of Markdown that ends with it: one line as it is, more of them quoted or fenced."""
    if "```" in text or text.startswith("    "):
        fence = "`" * (max((len(run) for run in FENCE_PATTERN.findall(text)), default=2) + 1)
        return f"{fence}\n{text}\n{fence}"
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def _write_html(name: str, project: str, entries: list[PageEntry]) -> Iterator[str]:
    title, line = _format_head(name, project, entries)
    yield HTML_HEAD.format(title=escape(title))
    yield f"<h1>{escape(title)}</h1>\n<p>{escape(line)}</p>\n"
    for day, group in _group_days(entries):
        yield f"<h2>{day}</h2>\n"
        for entry in group:
            at = f"<time>{clock.to_local_time(entry.at):%H:%M}</time>"
            facts = f' <span class="facts">{escape(entry.facts)}</span>' if entry.facts else ""
            kind = "kept" if entry.is_kept else "event"
            yield f'<section class="{kind}">\n<h3>{at} {escape(entry.title)}{facts}</h3>\n'
            yield f"<pre>{escape(entry.text)}</pre>\n</section>\n"
    yield HTML_END
