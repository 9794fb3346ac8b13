"""Finding one memory by what people call it: its number, its hash, or the beginning of its hash."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from athena.core.scope import Kind, Scope
from athena.errors import Conflict, InvalidInput, NotFound
from athena.memory import rows
from athena.memory.rows import Kept
from athena.memory.values import format_preview
from athena.storage import scopes

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
