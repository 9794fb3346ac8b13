"""Find one memory by its id, its hash or the beginning of its hash; list memories, tags and changes."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from athena.core.values import Call, Kind, Page, Scope
from athena.errors import Conflict, Denied, InvalidInput, NotFound
from athena.memory import history_rows, link_rows, list_rows, rows
from athena.memory.rows import MemoryRow
from athena.memory.store import Store
from athena.memory.values import Change, ChangingCall, Memory, RecentChange, extend_memory, format_preview
from athena.storage import scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter

Ref = int | str
LOOKUP_HINTS = {
    "memory": "recall finds memories by what they say",
    "event": "recall_events finds events",
    "task": "list_tasks shows the tasks there are",
}
OTHER_KINDS: tuple[Kind, ...] = ("event", "task", "pattern", "entity")
MIN_HASH_DIGITS = 4  # of a hash's beginning that is a number
MAX_SHOWN_CHARS = 500  # of a text that was changed, in the error that says so
HASH_PATTERN = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True, slots=True)
class Related:
    relation: str
    id: int
    hash: str


@dataclass(frozen=True, slots=True)
class WithRelated(Memory):
    """A memory, and the ones it belongs together with."""

    related: tuple[Related, ...]


@dataclass(frozen=True, slots=True)
class TagCount:
    tag: str
    count: int


async def locate(tx: Transaction, scope: Scope, ref: Ref, *, include_deleted: bool = False) -> MemoryRow:
    """Return the memory that `ref` names, with `include_deleted` also a forgotten one; raise NotFound or Conflict."""
    visible = await scopes.fetch_visible_ids(tx, scope)
    candidates = await _find_candidates(tx, visible, ref, scope.kind)
    if include_deleted:  # the project's own rows come before the shared project's, forgotten or not
        candidates.sort(key=lambda row: visible.index(row.scope))
        candidates = [row for row in candidates if row.scope == candidates[0].scope]
    live = [row for row in candidates if row.deleted is None]
    matches = live or (candidates if include_deleted else [])
    if not matches and candidates:
        raise NotFound(f"{scope.kind} {ref} was forgotten", hint="restore_memory brings it back")
    if not matches:
        raise NotFound(
            f"there is no {scope.kind} {ref!r} in this project",
            hint=LOOKUP_HINTS.get(scope.kind, LOOKUP_HINTS["memory"]),
        )
    if len({row.digest for row in matches}) > 1:
        raise _create_conflict(ref, matches)
    return matches[0]


async def locate_shown(tx: Transaction, scope: Scope, ref: Ref) -> MemoryRow:
    """Return the memory that `ref` names, where whoever calls vouches for its text; an earlier text's hash is refused.

    A hash stands for the text that it was shown with, and anybody may have changed that since.
    """
    row = await locate(tx, scope, ref)
    text = ref.strip().lower() if isinstance(ref, str) else ""
    if not (row.digest.startswith(text) or (text.isdigit() and int(text) == row.memory.id)):
        raise create_changed(row)
    return row


def refuse_changed(row: MemoryRow, expect_updated: float | None) -> None:
    """Raise Conflict if a row was changed after the time that a caller knows as that of its last change."""
    if expect_updated is not None and row.memory.updated != expect_updated:
        raise create_changed(row)


def create_changed(row: MemoryRow) -> Conflict:
    """Create the error for a memory that is not any more as the caller has seen it."""
    text = format_preview(row.memory.content, MAX_SHOWN_CHARS)
    return Conflict(
        f"number {row.memory.id} was changed since; it says now: {text!r}",
        hint=f"look at it again, and decide then; its hash is {row.memory.hash} now",
    )


def refuse_shared(row: MemoryRow, call: Call) -> MemoryRow:
    """Return a row that a call may change; raise Denied for what all projects read, if a program or a model calls."""
    if call.is_confined and row.memory.project != call.scope.project:
        message = f"programs and models of a project cannot change what the project {row.memory.project} has"
        raise Denied(f"{message}: {row.memory.hash}", hint=f"a person can, with --project {row.memory.project}")
    return row


async def locate_any(
    tx: Transaction, scope: Scope, ref: Ref, kind: Kind | None, *, include_deleted: bool = False
) -> MemoryRow:
    """Return the one row of a kind that `ref` names; without a kind, a memory before anything else."""
    if kind is not None:
        return await locate(tx, scope.with_kind(kind), ref, include_deleted=include_deleted)
    try:
        return await locate(tx, scope, ref, include_deleted=include_deleted)
    except NotFound:
        if await _find_candidates(tx, await scopes.fetch_visible_ids(tx, scope), ref, scope.kind):
            raise  # it names a forgotten memory, so nothing else
        matches = []
        for other_kind in OTHER_KINDS:
            with suppress(NotFound):
                matches.append(await locate(tx, scope.with_kind(other_kind), ref, include_deleted=include_deleted))
        if len(matches) > 1:
            raise _create_conflict(ref, matches) from None
        if not matches:
            raise
        return matches[0]


async def _find_candidates(tx: Transaction, scope_ids: list[int], ref: Ref, kind: Kind) -> list[MemoryRow]:
    if isinstance(ref, int):
        return await rows.find_rows_by_id(tx, scope_ids, ref) if abs(ref) < 1 << 63 else []
    text = ref.strip().lower()
    is_number = text.isascii() and text.isdigit() and len(text) < 8
    by_id = await rows.find_rows_by_id(tx, scope_ids, int(text)) if is_number else []
    if is_number and len(text) < MIN_HASH_DIGITS:  # a mistyped id must not match another memory's hash
        return by_id
    if not HASH_PATTERN.fullmatch(text):
        raise InvalidInput(
            f"{ref!r:.40} is not {format_possessive(kind)} hash or id", hint="a hash is hex digits, an id a number"
        )
    if matches := [*by_id, *await rows.find_rows_by_hash_prefix(tx, scope_ids, text)]:
        return matches  # a number may be both, then the caller is asked which
    old_ids = await rows.find_ids_by_old_hash_prefix(tx, scope_ids, text)
    return [row for memory_id in old_ids for row in await rows.find_rows_by_id(tx, scope_ids, memory_id)]


def format_possessive(kind: Kind) -> str:
    return f"an {kind}'s" if kind in ("event", "entity") else f"a {kind}'s"


def _create_conflict(ref: Ref, matches: Sequence[MemoryRow]) -> Conflict:
    listed = "; ".join(f"{row.memory.hash} {format_preview(row.memory.content, 40)!r}" for row in matches[:5])
    return Conflict(
        f"{ref} could be any of {len(matches)}: {listed}",
        hint="use more digits of the hash; over an API, an id is a number, not a text",
    )


async def get_memory(store: Store, ref: Ref, scope: Scope) -> WithRelated:
    """Return a memory with its links; if `ref` names none, an event or a task, since briefings name those too."""

    async def read_memory(tx: Transaction) -> WithRelated:
        memory = (await locate_any(tx, scope, ref, None)).memory
        links = await link_rows.list_links(tx, await scopes.fetch_visible_ids(tx, scope), memory.id)
        return extend_memory(WithRelated, memory, tuple(Related(*link) for link in links))

    return await store.database.read(read_memory)


async def list_newest(
    store: Store, criteria: Filter, limit: int, offset: int, after: Ref | None = None
) -> Page[Memory]:
    """Return a page of memories, the newest first; `after` names the last one of the page before."""

    async def read_page(tx: Transaction) -> Page[Memory]:
        position = None
        if after is not None:  # it may have been forgotten since
            row = await locate(tx, criteria.scope, after, include_deleted=True)
            position = list_rows.Position(row.happened, row.memory.id)
        newest = await list_rows.list_newest_memories(tx, criteria, limit, offset, position)
        total = await list_rows.count_memories(tx, criteria, is_shown=False)  # a program gets the page alone
        return Page(newest, total)

    return await store.database.read(read_page)


async def list_tags(store: Store, scope: Scope) -> list[TagCount]:
    async def read_tags(tx: Transaction) -> list[tuple[str, int]]:
        return await list_rows.count_tags(tx, await scopes.fetch_visible_ids(tx, scope))

    return [TagCount(tag, count) for tag, count in await store.database.read(read_tags)]


async def list_recent_changes(store: Store, scope: Scope, after: int | None, limit: int) -> list[RecentChange]:
    async def read_changes(tx: Transaction) -> list[RecentChange]:
        scope_ids = await scopes.fetch_all_visible_ids(tx, scope)
        return await history_rows.list_recent_changes(tx, scope_ids, after, limit)

    return await store.database.read(read_changes)


async def list_changing_calls(store: Store, scope: Scope, surfaces: list[str], since: float) -> list[ChangingCall]:
    return await store.database.read(lambda tx: history_rows.list_changing_calls(tx, scope.project, surfaces, since))


async def list_changes(
    store: Store, ref: Ref, kind: Kind | None, limit: int | None, offset: int, scope: Scope
) -> Page[Change]:
    async def read_changes(tx: Transaction) -> Page[Change]:
        row = await locate_any(tx, scope, ref, kind, include_deleted=True)
        return Page(*await history_rows.list_changes(tx, row.scope, row.memory.id, limit, offset))

    return await store.database.read(read_changes)
