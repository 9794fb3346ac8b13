"""Update, forget, restore and undo memories, and link them; purge.py removes them for good.

A feature that stores more than memories (the graph, consolidation, programs) adds its part as EditHooks of the store.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from athena.core.values import Call, Kind
from athena.errors import Conflict, Denied, InvalidInput, NotFound
from athena.memory import history_rows, link_rows, list_rows, rows, write
from athena.memory.history_rows import CallOrigin, ChangeRow
from athena.memory.index import encode_missing
from athena.memory.lookup import Ref, locate, locate_any, refuse_changed, refuse_shared
from athena.memory.prepare import add_vectors, prepare_memory
from athena.memory.rows import RELATED_ACTION, MemoryRow
from athena.memory.store import Store
from athena.memory.values import Change, Draft, Memory, Stored, clean_tags, extend_memory, format_preview
from athena.storage import calls, scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter, split_batches, tag_key

PURGED = "purged"
FORGOTTEN_AT_ONCE = 50
SUPERSEDED_MESSAGE = "this was created again since; undo again takes back the change before it"


async def update_memory(
    store: Store,
    ref: Ref,
    changes: dict[str, Any],
    call: Call,
    redacted: tuple[str, ...] = (),
    expect_updated: float | None = None,
) -> Stored:
    """Change content, tags, memory_type, metadata or importance; history keeps the old state.

    With `expect_updated`, the time of the last change that the caller knows of, raise Conflict after a later one.
    """
    now = store.clock()
    before = await store.database.read(lambda tx: locate(tx, call.scope, ref))
    prepared = prepare_memory(_merge_changes(before.memory, changes, call), before.memory.created)
    if prepared.draft.content != before.memory.content:
        prepared = (await add_vectors(store.encoder, [prepared], set()))[0]

    async def write_update(tx: Transaction) -> Stored:
        async def apply_changes(call_id: int) -> int:
            row = refuse_shared(await locate(tx, call.scope, before.memory.id), call)
            refuse_changed(row, expect_updated)
            new = prepared
            if row.to_snapshot() != before.to_snapshot():  # changed since it was read: merge with its state now
                new = prepare_memory(_merge_changes(row.memory, changes, call), row.memory.created)
            _refuse_duplicate(row, await rows.find_rows_by_digest(tx, row.scope, new.digest))
            await history_rows.insert_row_change(tx, row, call_id, now, "updated")
            await write.rewrite_memory(store, tx, row, new, now)
            return row.memory.id

        return await _fetch_updated(tx, int(await calls.run_once(tx, call, apply_changes)), call, redacted)

    stored = await store.database.write(write_update)
    await encode_missing(store)
    return stored


async def restore_version(store: Store, ref: Ref, version: str, expect_updated: float | None, call: Call) -> Stored:
    """Let a memory say again what it said when it had a hash, as the words of whoever said it then."""
    now = store.clock()

    async def write_version(tx: Transaction) -> Stored:
        async def restore_text(call_id: int) -> int:
            row = refuse_shared(await locate(tx, call.scope, ref), call)
            refuse_changed(row, expect_updated)
            state = await history_rows.fetch_version(tx, row.scope, row.memory.id, version.strip().lower())
            if state is None:
                raise NotFound(
                    f"memory {row.memory.hash} has no version {version!r:.70}", hint="its history names them"
                )
            said = {name: state[name] for name in ("content", "digest", "metadata", "author") if name in state}
            await history_rows.insert_row_change(tx, row, call_id, now, "updated")
            await _restore_snapshot(store, tx, row, row.to_snapshot() | {"author": "agent"} | said, now)
            return row.memory.id

        return await _fetch_updated(tx, int(await calls.run_once(tx, call, restore_text)), call, ())

    stored = await store.database.write(write_version)
    await encode_missing(store)
    return stored


async def _fetch_updated(tx: Transaction, memory_id: int, call: Call, redacted: tuple[str, ...]) -> Stored:
    visible = await scopes.fetch_visible_ids(tx, call.scope)
    memory = (await rows.fetch_memories(tx, visible, [memory_id]))[memory_id]
    return extend_memory(Stored, memory, "updated", redacted)


def _merge_changes(memory: Memory, changes: dict[str, Any], call: Call) -> Draft:
    """Return a memory's content with changes; new metadata are added to the old, and a null removes a key."""
    merged = memory.metadata | (changes.get("metadata") or {})
    metadata = {key: value for key, value in merged.items() if value is not None}
    draft = Draft.from_memory(memory, **changes | {"metadata": metadata})
    return draft if draft.content == memory.content else replace(draft, author=call.author)


def _refuse_duplicate(row: MemoryRow, others: list[MemoryRow]) -> None:
    """Raise Conflict if another live memory has the text that `row` is to get."""
    for other in others:
        if other.memory.id != row.memory.id and other.deleted is None:
            preview = format_preview(other.memory.content, 60)
            raise Conflict(
                f"another memory says exactly this already: {other.memory.hash} {preview!r}",
                hint=f"use {other.memory.hash} instead, or forget one of the two",
            )


async def forget(store: Store, refs: Sequence[Ref], kind: Kind | None, call: Call) -> int:
    """Forget those memories that exist and return how many there were; undo brings them back."""

    async def find_named(tx: Transaction) -> list[int]:
        named: dict[int, None] = {}
        for ref in refs:
            try:
                row = refuse_shared(await locate_any(tx, call.scope, ref, kind), call)
            except NotFound:
                continue
            for hooks in store.edit_hooks:
                hooks.check_forget(row)
            named[row.memory.id] = None
        return list(named)

    return await forget_rows(store, find_named, call)


async def forget_matching(store: Store, criteria: Filter, expect: int | None, call: Call) -> int:
    """Forget all memories of the project that match, if there are exactly as many as the caller expects."""

    async def find_matching(tx: Transaction) -> list[int]:
        ids = await list_rows.list_own_memory_ids(tx, criteria)
        if expect != len(ids):
            raise Conflict(
                f"{count_memories(ids)} would be forgotten" + ("" if expect is None else f", not {expect:,}"),
                hint=f"if that is right, repeat with expect={len(ids)}",
            )
        return ids

    return await forget_rows(store, find_matching, call)


async def forget_rows(store: Store, find_ids: Callable[[Transaction], Awaitable[list[int]]], call: Call) -> int:
    """Forget the rows whose ids `find_ids` returns, which runs in the same transaction."""
    now = store.clock()

    async def write_forgotten(tx: Transaction) -> int:
        async def hide_rows(call_id: int) -> int:
            ids, visible = await find_ids(tx), await scopes.fetch_all_visible_ids(tx, call.scope)
            for batch in split_batches(ids, FORGOTTEN_AT_ONCE):  # each may be long
                forgotten = await rows.list_rows_by_id(tx, visible, batch)
                await history_rows.insert_row_changes(tx, forgotten, call_id, now, "forgotten")
                await write.hide_memories(store, tx, forgotten, now)
            return len(ids)

        return int(await calls.run_once(tx, call, hide_rows))

    return await store.database.write(write_forgotten)


async def tag_memories(
    store: Store, refs: Sequence[Ref], added: Sequence[str], removed: Sequence[str], call: Call
) -> int:
    """Add tags to memories and take others away; return how many changed."""
    now, gone = store.clock(), {tag_key(tag) for tag in removed}

    async def write_tags(tx: Transaction) -> int:
        async def change_tags(call_id: int) -> int:
            count = 0
            for ref in refs:
                row = await locate(tx, call.scope, ref)
                kept = tuple(tag for tag in row.memory.tags if tag_key(tag) not in gone)
                count += await _set_tags(store, tx, row, clean_tags([*kept, *added]), call_id, now)
            return count

        return int(await calls.run_once(tx, call, change_tags))

    return await store.database.write(write_tags)


async def merge_memories(store: Store, ref: Ref, others: Sequence[Ref], call: Call) -> int:
    """Give a memory the tags of others and forget those; return its id."""
    now = store.clock()

    async def write_merged(tx: Transaction) -> int:
        async def merge_rows(call_id: int) -> int:
            row = await locate(tx, call.scope, ref)
            found = {other.memory.id: other for other in [await locate(tx, call.scope, each) for each in others]}
            found.pop(row.memory.id, None)
            tags = clean_tags([tag for each in (row, *found.values()) for tag in each.memory.tags])
            await _set_tags(store, tx, row, tags, call_id, now)
            await history_rows.insert_row_changes(tx, list(found.values()), call_id, now, "forgotten")
            await write.hide_memories(store, tx, list(found.values()), now)
            return row.memory.id

        return int(await calls.run_once(tx, call, merge_rows))

    return await store.database.write(write_merged)


async def _set_tags(
    store: Store, tx: Transaction, row: MemoryRow, tags: tuple[str, ...], call_id: int, now: float
) -> bool:
    """Give a memory these tags; return whether that changed it."""
    if tags == row.memory.tags:
        return False
    await history_rows.insert_row_change(tx, row, call_id, now, "updated")
    prepared = prepare_memory(Draft.from_memory(row.memory, tags=tags), row.memory.created)
    await write.rewrite_memory(store, tx, row, prepared, now)
    return True


async def restore_memory(
    store: Store, ref: Ref, kind: Kind | None, call: Call, may_take_back: Callable[[CallOrigin], bool]
) -> bool:
    """Bring back a forgotten memory; return False if it was never forgotten.

    Where the caller may not take back that it was forgotten, it comes back as the caller's words.
    """
    now = store.clock()

    async def write_restored(tx: Transaction) -> bool:
        async def restore_row(call_id: int) -> bool:
            row = await locate_any(tx, call.scope, ref, kind, include_deleted=True)
            if row.deleted is None:
                return False
            refuse_shared(row, call)
            for hooks in store.edit_hooks:
                await hooks.check_restore(tx, row)
            origin = await history_rows.fetch_last_origin(tx, row.scope, row.memory.id)
            state = row.to_snapshot() | {"deleted": None}
            if (origin is None or not may_take_back(origin)) and call.author != "person":
                state["author"] = call.author if row.memory.author == "person" else row.memory.author
            await history_rows.insert_row_change(tx, row, call_id, now, "restored")
            await _restore_snapshot(store, tx, row, state, now)
            return True

        return bool(await calls.run_once(tx, call, restore_row))

    return await store.database.write(write_restored)


async def undo_change(
    store: Store,
    call: Call,
    may_take_back: Callable[[CallOrigin], bool],
    surfaces: Sequence[str] | None = None,
    number: int | None = None,
) -> list[Change]:
    """Undo the changes of the newest call in this project, of some surfaces or of all, and return them.

    Raise Denied if the caller may not take it back, and Conflict if it is not the call with `number`.
    """
    now = store.clock()

    async def write_undone(tx: Transaction) -> list[Change]:
        # Kept out of the result that is stored under the call's key, where a purge could not reach them.
        texts: dict[int, str] = {}

        async def undo_last_call(call_id: int) -> list[list[Any]]:
            last = await history_rows.fetch_last_call(tx, call.scope.project, surfaces)
            if number is not None and (last is None or last.id != number):
                raise Conflict(
                    "this is not your last change any more, or it was undone already: nothing was taken back",
                    hint="the history of what it changed has every earlier text",
                )
            if last is None:
                raise await _create_nothing_to_undo(tx, call)
            if await history_rows.was_imported(tx, last.id):
                raise NotFound(
                    "the last change is the import of a whole store, and undo takes back only what came after it",
                    hint="to take back a single memory: forget it, or update it",
                )
            if not may_take_back(last.origin):
                raise Denied(f"only a person takes back the last change ({last.origin.operation})", hint="athena undo")
            undone = []
            for step in await history_rows.list_call_changes(tx, last.id):  # one after the other: each may be long
                step = step._replace(before=await history_rows.fetch_before(tx, step.scope, step.id) or None)
                undone.append([*await _undo_step(store, tx, step, call_id, now, texts), last.origin.surface])
            return undone

        undone = await calls.run_once(tx, call, undo_last_call)
        changes = []
        for message, scope, row_id, surface in undone:
            memory = (await rows.fetch_memories(tx, [scope], [row_id], include_deleted=True)).get(row_id)
            text = texts.get(row_id, memory.content if memory else "")
            changes.append(
                Change(now, message, "undo", {"hash": memory.hash if memory else "", "content": text}, surface),
            )
        return changes

    changes = await store.database.write(write_undone)
    await encode_missing(store)
    return changes


async def _create_nothing_to_undo(tx: Transaction, call: Call) -> NotFound:
    other = await history_rows.fetch_last_call(tx, call.scope.project, None)
    if other is None:
        return NotFound("there is nothing to undo in this project")
    operation, surface = other.origin
    return NotFound(
        f"you have changed nothing here that could be undone; the last change is {operation}, by {surface}",
        hint="undo(anyone=True), on the command line `athena undo --anyone`, takes that back",
    )


async def _undo_step(
    store: Store, tx: Transaction, step: ChangeRow, call_id: int, now: float, texts: dict[int, str]
) -> list[Any]:
    """Undo one change; return a message, the scope and the id of the row, and add the row's text to `texts`."""
    for hooks in store.edit_hooks:
        undone = await hooks.undo_change(tx, step, now)
        if undone is not None:
            await history_rows.mark_change_undone(tx, step)
            if undone.text is not None:
                texts[undone.row_id] = undone.text
            return [f"undid: {step.action}" if undone.applied else SUPERSEDED_MESSAGE, step.scope, undone.row_id]
    return [await _undo_memory_step(store, tx, step, call_id, now, texts), step.scope, step.memory]


async def _undo_memory_step(
    store: Store, tx: Transaction, step: ChangeRow, call_id: int, now: float, texts: dict[int, str]
) -> str:
    """Undo one change of a memory; history keeps the undone state, so that nothing is lost."""
    if step.action == PURGED:
        await history_rows.mark_change_undone(tx, step)
        return "a purge cannot be undone; undo again takes back the change before it"
    matches = await rows.find_rows_by_id(tx, [step.scope], step.memory)
    if not matches:
        await history_rows.mark_change_undone(tx, step)
        return "this memory was removed for good; undo again takes back the change before it"
    row = matches[0]
    texts[step.memory] = row.memory.content
    if await history_rows.has_later_change(tx, step):
        raise Conflict(
            f"memory {row.memory.hash} was changed since, by another caller or from another project",
            hint="update it, or undo that change where it was made",
        )
    if step.action == RELATED_ACTION:
        await link_rows.delete_link(tx, step.scope, step.memory, **(step.before or {}))
        await history_rows.mark_change_undone(tx, step)
        return f"undid: {step.action}"
    if step.before is not None and await _is_superseded(store, tx, row, step.before):
        await history_rows.mark_change_undone(tx, step)
        return SUPERSEDED_MESSAGE
    if step.before is not None:
        await _restore_snapshot(store, tx, row, step.before, now)
    elif row.deleted is None:
        await write.hide_memory(store, tx, row, now)
    await history_rows.mark_change_undone(tx, step)
    await history_rows.insert_row_change(tx, row, call_id, now, "undone", undone=True)
    return f"undid: {step.action}"


async def _is_superseded(store: Store, tx: Transaction, row: MemoryRow, state: dict[str, Any]) -> bool:
    """Return whether a deleted row cannot come back: another one has its text, or its owner no longer exists."""
    if state["deleted"] is not None or row.deleted is None:
        return False
    for other in await rows.find_rows_by_digest(tx, row.scope, state["digest"]):
        if other.deleted is None and other.memory.id != row.memory.id:
            return True
    return any([await hooks.is_orphaned(tx, row) for hooks in store.edit_hooks])


async def _restore_snapshot(store: Store, tx: Transaction, row: MemoryRow, state: dict[str, Any], now: float) -> None:
    """Set a memory to the state of a snapshot."""
    if state["content"] != row.memory.content:  # what only its history repeated, its text may repeat again
        await link_rows.quote_again(tx, row.scope, row.memory.id)
    if state["deleted"] is not None:
        if row.deleted is None:
            await write.hide_memory(store, tx, row, now)
        return
    _refuse_duplicate(row, await rows.find_rows_by_digest(tx, row.scope, state["digest"]))
    draft = Draft(state["content"], tuple(state["tags"]), state["memory_type"], state["metadata"], state["importance"])
    draft = replace(draft, author=state.get("author", "agent"))
    prepared = prepare_memory(draft, row.memory.created)._replace(happened=state["happened"])
    await write.rewrite_memory(store, tx, row, prepared, now)


async def relate_memories(store: Store, ref: Ref, other: Ref, relation: str, call: Call) -> None:
    """Link two memories."""
    # what is contradicted is no longer told: a person's words may be taken back by a person alone
    if relation in rows.RESERVED_RELATIONS or (relation == rows.CONTRADICTED_BY and call.is_confined):
        raise InvalidInput(f"{relation!r} is a relation of Athena's own", hint="call it something else")
    now = store.clock()

    async def write_relation(tx: Transaction) -> None:
        async def link_memories(call_id: int) -> None:
            source = refuse_shared(await locate(tx, call.scope, ref), call)
            target = refuse_shared(await locate(tx, call.scope, other), call)  # it shows the relation, too
            if source.memory.id == target.memory.id:
                raise InvalidInput("a memory cannot be related to itself")
            for row in (source, target):  # so that no concurrent purge removes one of them
                await rows.lock_memory(tx, row)
            ids = source.memory.id, target.memory.id
            await link_rows.insert_recorded_link(tx, source.scope, *ids, relation, now, call_id)

        await calls.run_once(tx, call, link_memories)

    await store.database.write(write_relation)


def count_memories(ids: Sequence[Any]) -> str:
    return f"{len(ids):,} {'memory' if len(ids) == 1 else 'memories'}"
