"""Finding one memory by what people call it: its number, its hash, or the beginning of its hash."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from athena.core.values import Kind, Page, Scope
from athena.errors import Conflict, InvalidInput, NotFound
from athena.memory import history_rows, rows
from athena.memory import rows as memory_rows
from athena.memory.rows import Kept
from athena.memory.store import Store
from athena.memory.values import Change, Memory, format_preview
from athena.storage import scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter

Ref = int | str
LOOKUP_HINTS = {
    "memory": "recall finds memories by what they say",
    "event": "recall_events finds events",
    "task": "list_tasks shows the tasks there are",
}
OTHER_KINDS: tuple[Kind, ...] = ("event", "task", "pattern", "entity")  # beside memories
HASH_PATTERN = re.compile(r"[0-9a-f]{1,64}")


async def locate(tx: Any, scope: Scope, ref: Ref, *, deleted: bool = False) -> Kept:
    """Return the one memory that `ref` names; forgotten ones only where `deleted` says so."""
    numbers = await scopes.fetch_visible_ids(tx, scope)
    found = await _find_candidates(tx, numbers, ref, scope.kind)
    if deleted:  # the project's own before what is known everywhere, forgotten or not
        found.sort(key=lambda kept: numbers.index(kept.scope))
        found = [kept for kept in found if kept.scope == found[0].scope]
    live = [kept for kept in found if kept.deleted is None]
    chosen = live or (found if deleted else [])
    if not chosen and found:
        raise NotFound(f"{scope.kind} {ref} was forgotten", hint="restore_memory brings it back")
    if not chosen:
        raise NotFound(
            f"there is no {scope.kind} {ref!r} in this project",
            hint=LOOKUP_HINTS.get(scope.kind, LOOKUP_HINTS["memory"]),
        )
    if len({kept.digest for kept in chosen}) > 1:
        raise _create_conflict(ref, chosen)
    return chosen[0]


async def locate_any(tx: Any, scope: Scope, ref: Ref, kind: Kind | None, *, deleted: bool = False) -> Kept:
    """Return the one thing that `ref` names, of a kind; without one, a memory before anything else."""
    if kind is not None:
        return await locate(tx, scope.with_kind(kind), ref, deleted=deleted)
    try:
        return await locate(tx, scope, ref, deleted=deleted)
    except NotFound:
        if await _find_candidates(tx, await scopes.fetch_visible_ids(tx, scope), ref, scope.kind):
            raise  # a memory is meant, which was forgotten
        found = []
        for other in OTHER_KINDS:
            with suppress(NotFound):
                found.append(await locate(tx, scope.with_kind(other), ref, deleted=deleted))
        if len(found) > 1:
            raise _create_conflict(ref, found) from None
        if not found:
            raise
        return found[0]


def format_possessive(kind: Kind) -> str:
    return "an event's" if kind == "event" else "an entity's" if kind == "entity" else f"a {kind}'s"


async def _find_candidates(tx: Any, numbers: list[int], ref: Ref, kind: Kind) -> list[Kept]:
    if isinstance(ref, int):
        if abs(ref) >= 1 << 63:
            return []
        return await rows.find_memory_rows(tx, numbers, "m.id = :id", id=ref)
    text = ref.strip().lower()
    is_number = text.isascii() and text.isdigit() and len(text) < 8
    if is_number and (found := await rows.find_memory_rows(tx, numbers, "m.id = :id", id=int(text))):
        return found
    if is_number and len(text) < 4:  # a slip in an id must not hit another memory's hash
        return []
    if not HASH_PATTERN.fullmatch(text):
        raise InvalidInput(
            f"{ref!r:.40} is not {format_possessive(kind)} hash or id", hint="a hash is hex digits, an id a number"
        )
    found = await rows.find_memory_rows(tx, numbers, "m.digest >= :low AND m.digest < :high", low=text, high=text + "g")
    if found:
        return found
    older = await rows.find_ids_by_old_digest(tx, numbers, text, text + "g")
    return [kept for number in older for kept in await rows.find_memory_rows(tx, numbers, "m.id = :id", id=number)]


def _create_conflict(ref: Ref, found: Sequence[Kept]) -> Conflict:
    listed = "; ".join(f"{kept.memory.hash} {format_preview(kept.memory.content, 40)!r}" for kept in found[:5])
    return Conflict(f"{ref} could be any of {len(found)}: {listed}", hint="use more digits of the hash")


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


async def get_memory(store: Store, ref: Ref, scope: Scope) -> WithRelated:
    """Return a memory whole; where there is none of that name, an event or a task: briefings name those too."""

    async def read_memory(tx: Transaction) -> WithRelated:
        m = (await locate_any(tx, scope, ref, None)).memory
        links = await rows.list_links(tx, await scopes.fetch_visible_ids(tx, scope), m.id)
        return WithRelated(
            m.id, m.hash, m.content, m.tags, m.memory_type, m.metadata, m.created, m.updated, m.importance, m.project,
            tuple(Related(*row) for row in links),
        )  # fmt: skip

    return await store.database.read(read_memory)


async def list_newest(store: Store, only: Filter, limit: int, offset: int) -> Page[Memory]:
    async def read_page(tx: Transaction) -> Page[Memory]:
        return Page(
            await memory_rows.list_newest_memories(tx, only, limit, offset), await memory_rows.count_memories(tx, only)
        )

    return await store.database.read(read_page)


async def list_tags(store: Store, scope: Scope) -> list[TagCount]:
    rows = await store.database.read(lambda tx: memory_rows.count_tags(tx, Filter(scope)))
    return [TagCount(tag, count) for tag, count in rows]


async def list_changes(store: Store, ref: Ref, kind: Kind | None, scope: Scope) -> list[Change]:
    async def read_changes(tx: Transaction) -> list[Change]:
        kept = await locate_any(tx, scope, ref, kind, deleted=True)
        return await history_rows.list_changes(tx, kept.scope, kept.memory.id)

    return await store.database.read(read_changes)
