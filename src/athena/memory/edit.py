"""Changing, forgetting, restoring and undoing; and removing for good."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from athena.core.call import Call
from athena.core.scope import Kind, Scope
from athena.errors import Conflict, InvalidInput, NotFound, Unavailable
from athena.memory import history, link_rows, write_rows
from athena.memory import rows as memory_rows
from athena.memory.consolidation import run_rows
from athena.memory.graph import relation_rows, rows
from athena.memory.graph import relations as relating
from athena.memory.graph.values import ENTITY, OBSERVATION
from athena.memory.history import Step
from athena.memory.index import settle
from athena.memory.link_rows import RELATED
from athena.memory.lookup import Ref, locate, locate_any
from athena.memory.prepare import prepare, with_vectors
from athena.memory.rows import Kept
from athena.memory.store import Store
from athena.memory.values import SERIAL, Change, Draft, Filter, Memory, Stored, preview, stored
from athena.storage import calls, files, passages, runs, scopes, workspaces
from athena.storage.database import Transaction

PURGED = "purged"
ANEW = "this was made anew since; undo again takes back the change before it"


async def update(store: Store, ref: Ref, changes: dict[str, Any], call: Call, redacted: tuple[str, ...] = ()) -> Stored:
    """Set what is given of content, tags, memory_type, metadata and importance; the old state stays in history."""
    now = store.clock()
    before = await store.database.read(lambda tx: locate(tx, call.scope, ref))
    prepared = prepare(_changed(before.memory, changes), before.memory.created)
    if prepared.draft.content != before.memory.content:
        prepared = (await with_vectors(store.encoder, [prepared], set()))[0]

    async def work(tx: Transaction) -> Stored:
        async def revise(number: int) -> int:
            kept = await locate(tx, call.scope, before.memory.id)
            one = prepared
            if kept.snapshot() != before.snapshot():  # changed meanwhile: apply the same changes to what it is now
                one = prepare(_changed(kept.memory, changes), kept.memory.created)
            others = await memory_rows.find(tx, [kept.scope], "m.digest = :digest", digest=one.digest)
            _make_way(kept, others)
            await history.add(tx, kept.scope, kept.memory.id, number, now, "updated", kept.snapshot())
            await write_rows.rewrite(store, tx, kept, one, now)
            return kept.memory.id

        changed = int(await calls.once(tx, call, revise))
        visible = await scopes.visible(tx, call.scope)
        return stored((await memory_rows.fetch(tx, visible, [changed]))[changed], "updated", redacted)

    memory = await store.database.write(work)
    await settle(store)
    return memory


def _changed(memory: Memory, changes: dict[str, Any]) -> Draft:
    """Return what a memory would be with these changes; metadata is merged, a null in it removes a key."""
    metadata = memory.metadata | (changes.get("metadata") or {})
    return Draft(
        changes.get("content", memory.content),
        changes.get("tags", memory.tags),
        changes.get("memory_type", memory.memory_type),
        {key: value for key, value in metadata.items() if value is not None},
        changes.get("importance", memory.importance),
    )


def _make_way(kept: Kept, others: list[Kept]) -> None:
    """Let `kept` have a text, unless another memory has it."""
    for other in others:
        if other.memory.id != kept.memory.id and other.deleted is None:
            raise Conflict(
                f"another memory says exactly this already: {other.memory.hash} {preview(other.memory.content, 60)!r}",
                hint=f"use {other.memory.hash} instead, or forget one of the two",
            )


async def forget(store: Store, refs: Sequence[Ref], kind: Kind | None, call: Call) -> int:
    """Forget what exists and return how many there were; undo brings them back."""

    async def chosen(tx: Transaction) -> list[Kept]:
        found: dict[int, Kept] = {}
        for ref in refs:
            try:
                kept = await locate_any(tx, call.scope, ref, kind)
            except NotFound:
                continue
            _refuse_entity(kept, "delete_entities deletes it with what was observed of it")
            found[kept.memory.id] = kept
        return list(found.values())

    return await forget_chosen(store, chosen, call)


def _refuse_entity(kept: Kept, hint: str) -> None:
    """Refuse to part an entity from what was observed of it."""
    if kept.memory.metadata.get(SERIAL) == ENTITY:
        raise InvalidInput(f"{kept.memory.id} is the entity {preview(kept.memory.content, 60)!r}", hint=hint)


async def forget_matching(store: Store, only: Filter, expect: int | None, call: Call) -> int:
    """Forget all of the project that pass a filter, if they are exactly as many as the caller expects."""

    async def chosen(tx: Transaction) -> list[Kept]:
        numbers = await memory_rows.own_ids(tx, only)
        if expect != len(numbers):
            raise Conflict(
                f"{len(numbers):,} memories would be forgotten" + ("" if expect is None else f", not {expect:,}"),
                hint=f"if that is right, repeat with expect={len(numbers)}",
            )
        visible = await scopes.visible(tx, call.scope)
        return [kept for n in numbers for kept in await memory_rows.find(tx, visible, "m.id = :id", id=n)]

    return await forget_chosen(store, chosen, call)


async def forget_chosen(store: Store, chosen: Callable[[Transaction], Awaitable[list[Kept]]], call: Call) -> int:
    """Forget what a read in the same transaction chooses."""
    now = store.clock()

    async def work(tx: Transaction) -> int:
        async def hide(number: int) -> int:
            kept = await chosen(tx)
            for one in kept:
                await history.add(tx, one.scope, one.memory.id, number, now, "forgotten", one.snapshot())
                await write_rows.hide(store, tx, one, now)
            return len(kept)

        return int(await calls.once(tx, call, hide))

    return await store.database.write(work)


async def restore(store: Store, ref: Ref, kind: Kind | None, call: Call) -> bool:
    """Bring what was forgotten back; False if it was there all along."""
    now = store.clock()

    async def work(tx: Transaction) -> bool:
        async def show(number: int) -> bool:
            kept = await locate_any(tx, call.scope, ref, kind, deleted=True)
            if kept.deleted is None:
                return False
            _refuse_entity(kept, "undo brings back what delete_entities deleted")
            if await _alone(tx, kept):
                raise Conflict("the entity of this observation was deleted", hint="make the entity first")
            await history.add(tx, kept.scope, kept.memory.id, number, now, "restored", kept.snapshot())
            await _set(store, tx, kept, kept.snapshot() | {"deleted": None}, now)
            return True

        return bool(await calls.once(tx, call, show))

    return await store.database.write(work)


async def undo(store: Store, call: Call) -> list[Change]:
    """Take back what the newest call changed in this project, and return the steps taken back."""
    now = store.clock()

    async def work(tx: Transaction) -> list[Change]:
        texts: dict[int, str] = {}  # not part of what is kept with the call's key: a purge could not reach them there

        async def take_back(number: int) -> list[list[Any]]:
            steps = await history.last_call(tx, call.scope.project)
            if not steps:
                raise NotFound("there is nothing to undo in this project")
            return [await _take_back(store, tx, step, number, now, texts) for step in steps]

        undone = await calls.once(tx, call, take_back)
        changes = []
        for action, scope, memory in undone:
            found = (await memory_rows.fetch(tx, [scope], [memory], forgotten=True)).get(memory)
            before = {"hash": found.hash if found else "", "content": texts.get(memory, found.content if found else "")}
            changes.append(Change(now, action, "undo", before))
        return changes

    changes = await store.database.write(work)
    await settle(store)
    return changes


async def _take_back(
    store: Store, tx: Transaction, step: Step, call: int, now: float, texts: dict[int, str]
) -> list[Any]:
    """Undo one step of a memory or a relation; relations have negative numbers in what is returned."""
    if step.action in (relating.LINKED, relating.UNLINKED):
        number = -int((step.before or {})["relation"])
        done, texts[number] = await relating.take_back(tx, step, now)
        await history.mark_undone(tx, step)
        return [f"undid: {step.action}" if done else ANEW, step.scope, number]
    if step.action == relating.ALIASED:
        await relating.take_back_aliases(tx, step)
        return [f"undid: {step.action}", step.scope, step.memory]
    return [await _take_back_memory(store, tx, step, call, now, texts), step.scope, step.memory]


async def _take_back_memory(
    store: Store, tx: Transaction, step: Step, call: int, now: float, texts: dict[int, str]
) -> str:
    """Undo one step. What it undoes stays in the history, so that nothing is ever lost by it."""
    if step.action == PURGED:
        await history.mark_undone(tx, step)
        return "a purge cannot be undone; undo again takes back the change before it"
    found = await memory_rows.find(tx, [step.scope], "m.id = :id", id=step.memory)
    if not found:
        await history.mark_undone(tx, step)
        return "this memory was removed for good; undo again takes back the change before it"
    kept = found[0]
    texts[step.memory] = kept.memory.content
    if await history.changed_since(tx, step):
        raise Conflict(
            f"memory {kept.memory.hash} was changed since, from another project",
            hint="update it, or undo that change where it was made",
        )
    if step.before is not None and step.action != RELATED and await _superseded(tx, kept, step.before):
        await history.mark_undone(tx, step)
        return ANEW
    if step.action == RELATED:
        await link_rows.unlink(tx, step.scope, step.memory, **(step.before or {}))
    elif step.before is not None:
        await _set(store, tx, kept, step.before, now)
    elif kept.deleted is None:
        await write_rows.hide(store, tx, kept, now)
    await history.mark_undone(tx, step)
    if step.action != RELATED:
        await history.add(tx, step.scope, step.memory, call, now, "undone", kept.snapshot(), undone=True)
    return f"undid: {step.action}"


async def _superseded(tx: Transaction, kept: Kept, state: dict[str, Any]) -> bool:
    """Tell whether another row has the place of one that is to come back."""
    if state["deleted"] is not None or kept.deleted is None:
        return False
    others = await memory_rows.find(tx, [kept.scope], "m.digest = :digest", digest=state["digest"])
    return any(o.deleted is None and o.memory.id != kept.memory.id for o in others) or await _alone(tx, kept)


async def _alone(tx: Transaction, kept: Kept) -> bool:
    """Tell whether something is an observation of an entity that is not there."""
    if kept.memory.memory_type != OBSERVATION or await scopes.kind(tx, kept.scope) != "entity":
        return False
    return not await rows.numbered(tx, [kept.scope], [int(kept.memory.metadata["session_id"])])


async def _set(store: Store, tx: Transaction, kept: Kept, state: dict[str, Any], now: float) -> None:
    """Put a memory into the state of a snapshot."""
    if state["deleted"] is not None:
        if kept.deleted is None:
            await write_rows.hide(store, tx, kept, now)
        return
    draft = Draft(state["content"], tuple(state["tags"]), state["memory_type"], state["metadata"], state["importance"])
    others = await memory_rows.find(tx, [kept.scope], "m.digest = :digest", digest=state["digest"])
    _make_way(kept, others)
    one = prepare(draft, kept.memory.created)._replace(happened=state["happened"])
    await write_rows.rewrite(store, tx, kept, one, now)


async def _chosen(tx: Transaction, refs: Sequence[Ref] | None, scope: Scope) -> list[int]:
    """Return which memories a purge would remove: those named, else all forgotten ones of the project."""
    if refs is None:
        return await memory_rows.forgotten(tx, await scopes.every(tx, scope))
    found: dict[int, None] = {}
    for ref in refs:
        kept = await locate_any(tx, scope, ref, None, deleted=True)
        found[kept.memory.id] = None
        if kept.memory.metadata.get(SERIAL) == ENTITY:
            found |= dict.fromkeys(await rows.observed(tx, kept.scope, kept.memory.id))
    return list(found)


async def count_purge(store: Store, refs: Sequence[Ref] | None, scope: Scope) -> int:
    return len(await store.database.read(lambda tx: _chosen(tx, refs, scope)))


async def purge(store: Store, refs: Sequence[Ref] | None, expect: int | None, call: Call) -> int:
    """Remove memories for good, from every table, index and file: those named, else all forgotten ones."""

    async def work(tx: Transaction) -> int:
        async def remove(number: int) -> int:
            chosen = await _chosen(tx, refs, call.scope)
            if expect != len(chosen):
                raise Conflict(
                    f"{len(chosen):,} memories would be removed for good",
                    hint=f"to do so, repeat with expect={len(chosen)}",
                )
            numbers = await scopes.every_visible(tx, call.scope)
            for memory in chosen:
                for kept in await memory_rows.find(tx, numbers, "m.id = :id", id=memory):
                    await _remove(store, tx, kept)
            if refs is None:
                await relation_rows.purge(tx, await scopes.every(tx, call.scope))
            await store.database.vectors.drop_retired(tx)
            await run_rows.forget_progress(tx)
            if chosen:
                await _forget_copies(tx, call.scope)
                scope = await scopes.ensure(tx, call.scope)
                await history.add(tx, scope, 0, number, store.clock(), PURGED, None)
            return len(chosen)

        return int(await calls.once(tx, call, remove))

    removed = await store.database.write(work)
    if not await store.database.compact():
        raise Unavailable(
            f"{removed:,} memories are removed, but another process still reads the store's files as they were",
            hint="close it and purge again: until then the files may hold their text",
        )
    return removed


async def _forget_copies(tx: Transaction, scope: Scope) -> None:
    """Let go of what programs may have kept of a memory without being told to: long values, variables, answers."""
    await files.forget_handles(tx, scope)
    await workspaces.forget(tx, scope)
    await runs.forget_words(tx, scope)


async def _remove(store: Store, tx: Transaction, kept: Kept) -> None:
    if kept.deleted is None:
        await store.database.words.drop(tx, await passages.of_memory(tx, kept.scope, kept.memory.id))
    await store.database.vectors.retire(tx, kept.scope, kept.memory.id)
    for scope, number in await link_rows.quoting(tx, kept.memory.id):  # patterns, lessons and forgotten twins
        for other in await memory_rows.find(tx, [scope], "m.id = :id", id=number):
            await _remove(store, tx, other)
    await history.forget(tx, kept.scope, kept.memory.id)
    await relation_rows.purge(tx, [kept.scope], kept.digest)
    await relating.forget_aliases(tx, kept)
    await memory_rows.remove(tx, kept.scope, kept.memory.id)


async def relate(store: Store, ref: Ref, other: Ref, relation: str, call: Call) -> None:
    """Note that two memories belong together."""
    if relation in link_rows.OURS:
        raise InvalidInput(f"{relation!r} is a relation of Athena's own", hint="call it something else")
    now = store.clock()

    async def work(tx: Transaction) -> None:
        async def link(number: int) -> None:
            one, two = await locate(tx, call.scope, ref), await locate(tx, call.scope, other)
            if one.memory.id == two.memory.id:
                raise InvalidInput("a memory cannot be related to itself")
            for kept in (one, two):  # so that neither is purged meanwhile
                await memory_rows.hold(tx, kept)
            if await link_rows.link(tx, one.scope, one.memory.id, two.memory.id, relation, now):
                before = {"other": two.memory.id, "relation": relation}
                await history.add(tx, one.scope, one.memory.id, number, now, RELATED, before)

        await calls.once(tx, call, link)

    await store.database.write(work)
