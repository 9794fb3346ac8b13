"""Changing, forgetting, restoring and undoing; and removing for good."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from athena.core.values import Call, Kind, Scope
from athena.errors import Conflict, InvalidInput, NotFound, Unavailable
from athena.memory import history_rows, write
from athena.memory import rows as memory_rows
from athena.memory.consolidation import rows as consolidation_rows
from athena.memory.graph import relations as relating
from athena.memory.graph import rows
from athena.memory.graph.values import ENTITY_SERIAL, OBSERVATION_TYPE
from athena.memory.history_rows import ChangeRow
from athena.memory.index import encode_missing
from athena.memory.lookup import Ref, locate, locate_any
from athena.memory.prepare import add_vectors, prepare_memory
from athena.memory.rows import RELATED_ACTION, Kept
from athena.memory.store import Store
from athena.memory.values import SERIAL_KEY, Change, Draft, Memory, Stored, format_preview, to_stored_memory
from athena.storage import calls, passages, runs, scopes, workspaces
from athena.storage.database import Transaction
from athena.storage.filters import Filter

PURGED = "purged"
SUPERSEDED_MESSAGE = "this was made anew since; undo again takes back the change before it"


async def update_memory(
    store: Store, ref: Ref, changes: dict[str, Any], call: Call, redacted: tuple[str, ...] = ()
) -> Stored:
    """Set what is given of content, tags, memory_type, metadata and importance; the old state stays in history."""
    now = store.clock()
    before = await store.database.read(lambda tx: locate(tx, call.scope, ref))
    prepared = prepare_memory(_merge_changes(before.memory, changes), before.memory.created)
    if prepared.draft.content != before.memory.content:
        prepared = (await add_vectors(store.encoder, [prepared], set()))[0]

    async def write_update(tx: Transaction) -> Stored:
        async def apply_changes(number: int) -> int:
            kept = await locate(tx, call.scope, before.memory.id)
            one = prepared
            if (
                kept.to_snapshot() != before.to_snapshot()
            ):  # changed meanwhile: apply the same changes to what it is now
                one = prepare_memory(_merge_changes(kept.memory, changes), kept.memory.created)
            others = await memory_rows.find_memory_rows(tx, [kept.scope], "m.digest = :digest", digest=one.digest)
            _refuse_duplicate(kept, others)
            await history_rows.insert_change(tx, kept.scope, kept.memory.id, number, now, "updated", kept.to_snapshot())
            await write.rewrite_memory(store, tx, kept, one, now)
            return kept.memory.id

        changed = int(await calls.run_once(tx, call, apply_changes))
        visible = await scopes.fetch_visible_ids(tx, call.scope)
        return to_stored_memory(
            (await memory_rows.fetch_memories(tx, visible, [changed]))[changed], "updated", redacted
        )

    memory = await store.database.write(write_update)
    await encode_missing(store)
    return memory


def _merge_changes(memory: Memory, changes: dict[str, Any]) -> Draft:
    """Return what a memory would be with these changes; metadata is merged, a null in it removes a key."""
    metadata = memory.metadata | (changes.get("metadata") or {})
    return Draft(
        changes.get("content", memory.content),
        changes.get("tags", memory.tags),
        changes.get("memory_type", memory.memory_type),
        {key: value for key, value in metadata.items() if value is not None},
        changes.get("importance", memory.importance),
    )


def _refuse_duplicate(kept: Kept, others: list[Kept]) -> None:
    """Let `kept` have a text, unless another memory has it."""
    for other in others:
        if other.memory.id != kept.memory.id and other.deleted is None:
            raise Conflict(
                f"another memory says exactly this already: {other.memory.hash} {format_preview(other.memory.content, 60)!r}",
                hint=f"use {other.memory.hash} instead, or forget one of the two",
            )


async def forget(store: Store, refs: Sequence[Ref], kind: Kind | None, call: Call) -> int:
    """Forget what exists and return how many there were; undo brings them back."""

    async def find_named(tx: Transaction) -> list[Kept]:
        found: dict[int, Kept] = {}
        for ref in refs:
            try:
                kept = await locate_any(tx, call.scope, ref, kind)
            except NotFound:
                continue
            _refuse_entity(kept, "delete_entities deletes it with what was observed of it")
            found[kept.memory.id] = kept
        return list(found.values())

    return await forget_rows(store, find_named, call)


def _refuse_entity(kept: Kept, hint: str) -> None:
    """Refuse to part an entity from what was observed of it."""
    if kept.memory.metadata.get(SERIAL_KEY) == ENTITY_SERIAL:
        raise InvalidInput(f"{kept.memory.id} is the entity {format_preview(kept.memory.content, 60)!r}", hint=hint)


async def forget_matching(store: Store, only: Filter, expect: int | None, call: Call) -> int:
    """Forget all of the project that pass a filter, if they are exactly as many as the caller expects."""

    async def find_matching(tx: Transaction) -> list[Kept]:
        numbers = await memory_rows.list_own_memory_ids(tx, only)
        if expect != len(numbers):
            raise Conflict(
                f"{len(numbers):,} memories would be forgotten" + ("" if expect is None else f", not {expect:,}"),
                hint=f"if that is right, repeat with expect={len(numbers)}",
            )
        visible = await scopes.fetch_visible_ids(tx, call.scope)
        return [kept for n in numbers for kept in await memory_rows.find_memory_rows(tx, visible, "m.id = :id", id=n)]

    return await forget_rows(store, find_matching, call)


async def forget_rows(store: Store, chosen: Callable[[Transaction], Awaitable[list[Kept]]], call: Call) -> int:
    """Forget what a read in the same transaction chooses."""
    now = store.clock()

    async def write_forgotten(tx: Transaction) -> int:
        async def hide_rows(number: int) -> int:
            kept = await chosen(tx)
            for one in kept:
                await history_rows.insert_change(
                    tx, one.scope, one.memory.id, number, now, "forgotten", one.to_snapshot()
                )
                await write.hide_memory(store, tx, one, now)
            return len(kept)

        return int(await calls.run_once(tx, call, hide_rows))

    return await store.database.write(write_forgotten)


async def restore_memory(store: Store, ref: Ref, kind: Kind | None, call: Call) -> bool:
    """Bring what was forgotten back; False if it was there all along."""
    now = store.clock()

    async def write_restored(tx: Transaction) -> bool:
        async def restore_row(number: int) -> bool:
            kept = await locate_any(tx, call.scope, ref, kind, deleted=True)
            if kept.deleted is None:
                return False
            _refuse_entity(kept, "undo brings back what delete_entities deleted")
            if await _is_orphaned(tx, kept):
                raise Conflict("the entity of this observation was deleted", hint="make the entity first")
            await history_rows.insert_change(
                tx, kept.scope, kept.memory.id, number, now, "restored", kept.to_snapshot()
            )
            await _restore_snapshot(store, tx, kept, kept.to_snapshot() | {"deleted": None}, now)
            return True

        return bool(await calls.run_once(tx, call, restore_row))

    return await store.database.write(write_restored)


async def undo_change(store: Store, call: Call) -> list[Change]:
    """Take back what the newest call changed in this project, and return the steps taken back."""
    now = store.clock()

    async def write_undone(tx: Transaction) -> list[Change]:
        texts: dict[int, str] = {}  # not part of what is kept with the call's key: a purge could not reach them there

        async def undo_steps(number: int) -> list[list[Any]]:
            steps = await history_rows.fetch_last_call_changes(tx, call.scope.project)
            if not steps:
                raise NotFound("there is nothing to undo in this project")
            return [await _undo_step(store, tx, step, number, now, texts) for step in steps]

        undone = await calls.run_once(tx, call, undo_steps)
        changes = []
        for action, scope, memory in undone:
            found = (await memory_rows.fetch_memories(tx, [scope], [memory], forgotten=True)).get(memory)
            before = {"hash": found.hash if found else "", "content": texts.get(memory, found.content if found else "")}
            changes.append(Change(now, action, "undo", before))
        return changes

    changes = await store.database.write(write_undone)
    await encode_missing(store)
    return changes


async def _undo_step(
    store: Store, tx: Transaction, step: ChangeRow, call: int, now: float, texts: dict[int, str]
) -> list[Any]:
    """Undo one step of a memory or a relation; relations have negative numbers in what is returned."""
    if step.action in (relating.LINKED, relating.UNLINKED):
        number = -int((step.before or {})["relation"])
        done, texts[number] = await relating.undo_relation(tx, step, now)
        await history_rows.mark_change_undone(tx, step)
        return [f"undid: {step.action}" if done else SUPERSEDED_MESSAGE, step.scope, number]
    if step.action == relating.ALIASED:
        await relating.undo_aliases(tx, step)
        return [f"undid: {step.action}", step.scope, step.memory]
    return [await _undo_memory_step(store, tx, step, call, now, texts), step.scope, step.memory]


async def _undo_memory_step(
    store: Store, tx: Transaction, step: ChangeRow, call: int, now: float, texts: dict[int, str]
) -> str:
    """Undo one step. What it undoes stays in the history, so that nothing is ever lost by it."""
    if step.action == PURGED:
        await history_rows.mark_change_undone(tx, step)
        return "a purge cannot be undone; undo again takes back the change before it"
    found = await memory_rows.find_memory_rows(tx, [step.scope], "m.id = :id", id=step.memory)
    if not found:
        await history_rows.mark_change_undone(tx, step)
        return "this memory was removed for good; undo again takes back the change before it"
    kept = found[0]
    texts[step.memory] = kept.memory.content
    if await history_rows.has_later_change(tx, step):
        raise Conflict(
            f"memory {kept.memory.hash} was changed since, from another project",
            hint="update it, or undo that change where it was made",
        )
    if step.before is not None and step.action != RELATED_ACTION and await _is_superseded(tx, kept, step.before):
        await history_rows.mark_change_undone(tx, step)
        return SUPERSEDED_MESSAGE
    if step.action == RELATED_ACTION:
        await memory_rows.delete_link(tx, step.scope, step.memory, **(step.before or {}))
    elif step.before is not None:
        await _restore_snapshot(store, tx, kept, step.before, now)
    elif kept.deleted is None:
        await write.hide_memory(store, tx, kept, now)
    await history_rows.mark_change_undone(tx, step)
    if step.action != RELATED_ACTION:
        await history_rows.insert_change(
            tx, step.scope, step.memory, call, now, "undone", kept.to_snapshot(), undone=True
        )
    return f"undid: {step.action}"


async def _is_superseded(tx: Transaction, kept: Kept, state: dict[str, Any]) -> bool:
    """Tell whether another row has the place of one that is to come back."""
    if state["deleted"] is not None or kept.deleted is None:
        return False
    others = await memory_rows.find_memory_rows(tx, [kept.scope], "m.digest = :digest", digest=state["digest"])
    return any(o.deleted is None and o.memory.id != kept.memory.id for o in others) or await _is_orphaned(tx, kept)


async def _is_orphaned(tx: Transaction, kept: Kept) -> bool:
    """Tell whether something is an observation of an entity that is not there."""
    if kept.memory.memory_type != OBSERVATION_TYPE or await scopes.fetch_scope_kind(tx, kept.scope) != "entity":
        return False
    return not await rows.fetch_entities_by_id(tx, [kept.scope], [int(kept.memory.metadata["session_id"])])


async def _restore_snapshot(store: Store, tx: Transaction, kept: Kept, state: dict[str, Any], now: float) -> None:
    """Put a memory into the state of a snapshot."""
    if state["deleted"] is not None:
        if kept.deleted is None:
            await write.hide_memory(store, tx, kept, now)
        return
    draft = Draft(state["content"], tuple(state["tags"]), state["memory_type"], state["metadata"], state["importance"])
    others = await memory_rows.find_memory_rows(tx, [kept.scope], "m.digest = :digest", digest=state["digest"])
    _refuse_duplicate(kept, others)
    one = prepare_memory(draft, kept.memory.created)._replace(happened=state["happened"])
    await write.rewrite_memory(store, tx, kept, one, now)


async def _list_purgeable(tx: Transaction, refs: Sequence[Ref] | None, scope: Scope) -> list[int]:
    """Return which memories a purge would remove: those named, else all forgotten ones of the project."""
    if refs is None:
        return await memory_rows.list_forgotten_ids(tx, await scopes.fetch_project_ids(tx, scope))
    found: dict[int, None] = {}
    for ref in refs:
        kept = await locate_any(tx, scope, ref, None, deleted=True)
        found[kept.memory.id] = None
        if kept.memory.metadata.get(SERIAL_KEY) == ENTITY_SERIAL:
            found |= dict.fromkeys(await rows.list_observation_ids(tx, kept.scope, kept.memory.id))
    return list(found)


async def count_purgeable(store: Store, refs: Sequence[Ref] | None, scope: Scope) -> int:
    return len(await store.database.read(lambda tx: _list_purgeable(tx, refs, scope)))


async def purge(store: Store, refs: Sequence[Ref] | None, expect: int | None, call: Call) -> int:
    """Remove memories for good, from every table, index and file: those named, else all forgotten ones."""

    async def write_purge(tx: Transaction) -> int:
        async def purge_rows(number: int) -> int:
            chosen = await _list_purgeable(tx, refs, call.scope)
            if expect != len(chosen):
                raise Conflict(
                    f"{len(chosen):,} memories would be removed for good",
                    hint=f"to do so, repeat with expect={len(chosen)}",
                )
            numbers = await scopes.fetch_all_visible_ids(tx, call.scope)
            for memory in chosen:
                for kept in await memory_rows.find_memory_rows(tx, numbers, "m.id = :id", id=memory):
                    await _purge_row(store, tx, kept)
            if refs is None:
                await rows.purge_relations(tx, await scopes.fetch_project_ids(tx, call.scope))
            await store.database.vectors.delete_retired(tx)
            await consolidation_rows.clear_progress(tx)
            if chosen:
                await _forget_copies(tx, call.scope)
                scope = await scopes.ensure_scope(tx, call.scope)
                await history_rows.insert_change(tx, scope, 0, number, store.clock(), PURGED, None)
            return len(chosen)

        return int(await calls.run_once(tx, call, purge_rows))

    removed = await store.database.write(write_purge)
    if not await store.database.compact():
        raise Unavailable(
            f"{removed:,} memories are removed, but another process still reads the store's files as they were",
            hint="close it and purge again: until then the files may hold their text",
        )
    return removed


async def _forget_copies(tx: Transaction, scope: Scope) -> None:
    """Let go of what programs may have kept of a memory without being told to: long values, variables, answers."""
    await workspaces.delete_handles(tx, scope)
    await workspaces.delete_workspaces(tx, scope)
    await runs.clear_run_contents(tx, scope)


async def _purge_row(store: Store, tx: Transaction, kept: Kept) -> None:
    if kept.deleted is None:
        await store.database.fulltext.remove_passages(
            tx, await passages.list_memory_passages(tx, kept.scope, kept.memory.id)
        )
    await store.database.vectors.retire_passages(tx, kept.scope, kept.memory.id)
    for scope, number in await memory_rows.list_quoting_rows(
        tx, kept.memory.id
    ):  # patterns, lessons and forgotten twins
        for other in await memory_rows.find_memory_rows(tx, [scope], "m.id = :id", id=number):
            await _purge_row(store, tx, other)
    await history_rows.delete_changes(tx, kept.scope, kept.memory.id)
    await rows.purge_relations(tx, [kept.scope], kept.digest)
    await relating.forget_aliases(tx, kept)
    await memory_rows.delete_memory(tx, kept.scope, kept.memory.id)


async def relate_memories(store: Store, ref: Ref, other: Ref, relation: str, call: Call) -> None:
    """Note that two memories belong together."""
    if relation in memory_rows.RESERVED_RELATIONS:
        raise InvalidInput(f"{relation!r} is a relation of Athena's own", hint="call it something else")
    now = store.clock()

    async def write_relation(tx: Transaction) -> None:
        async def link_memories(number: int) -> None:
            one, two = await locate(tx, call.scope, ref), await locate(tx, call.scope, other)
            if one.memory.id == two.memory.id:
                raise InvalidInput("a memory cannot be related to itself")
            for kept in (one, two):  # so that neither is purged meanwhile
                await memory_rows.lock_memory(tx, kept)
            if await memory_rows.insert_link(tx, one.scope, one.memory.id, two.memory.id, relation, now):
                before = {"other": two.memory.id, "relation": relation}
                await history_rows.insert_change(tx, one.scope, one.memory.id, number, now, RELATED_ACTION, before)

        await calls.run_once(tx, call, link_memories)

    await store.database.write(write_relation)
