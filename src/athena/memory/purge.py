"""Remove memories for good: find exactly which rows a purge takes along, and remove them from every table and file."""

from collections.abc import Sequence
from typing import NamedTuple

from athena.core.hashing import hash_text
from athena.core.values import Call, Scope
from athena.errors import Conflict, Unavailable
from athena.memory import history_rows, link_rows, rows
from athena.memory.edit import PURGED, count_memories
from athena.memory.edit_hooks import Purge
from athena.memory.lookup import Ref, locate_any, refuse_shared
from athena.memory.rows import MemoryRow, RowKey
from athena.memory.store import Store
from athena.memory.values import Purgeable
from athena.storage import calls, counts, passages, scopes
from athena.storage.database import Transaction
from athena.storage.filters import split_batches


class _PurgedRows(NamedTuple):
    """The rows that a purge removes: those that the caller means, and those that repeat their texts."""

    meant: list[RowKey]
    quoting: list[RowKey]

    @property
    def keys(self) -> list[RowKey]:
        return [*self.meant, *self.quoting]

    @property
    def digest(self) -> str:
        """The digest of exactly these rows with exactly these texts."""
        return hash_text("\n".join(sorted(f"{key.id} {key.digest}" for key in self.keys)))


async def count_purgeable(store: Store, refs: Sequence[Ref] | None, scope: Scope) -> int:
    return len((await store.database.read(lambda tx: _find_purged_rows(store, tx, refs, scope))).keys)


async def list_purgeable(store: Store, refs: Sequence[Ref] | None, scope: Scope, limit: int) -> Purgeable:
    """Return what a purge would remove: how much, the first of it, and a digest that names exactly this."""

    async def read_purgeable(tx: Transaction) -> Purgeable:
        purged = await _find_purged_rows(store, tx, refs, scope)
        shown = purged.keys[:limit]
        scope_ids, ids = [key.scope for key in shown], [key.id for key in shown]
        memories = await rows.fetch_memories(tx, scope_ids, ids, include_deleted=True)
        return Purgeable(len(purged.keys), purged.digest, tuple(memories[key.id] for key in shown))

    return await store.database.read(read_purgeable)


async def _find_purged_rows(store: Store, tx: Transaction, refs: Sequence[Ref] | None, scope: Scope) -> _PurgedRows:
    """Return the rows that are named, else all forgotten ones of the project, and all that repeat the text of one.

    Those are rules, patterns, lessons and merged duplicates, in whichever project.
    """
    if refs is None:
        ids = await rows.list_forgotten_ids(tx, await scopes.fetch_project_ids(tx, scope))
    else:
        named: dict[int, None] = {}
        for ref in refs:
            row = await locate_any(tx, scope, ref, None, include_deleted=True)
            named[row.memory.id] = None
            for hooks in store.edit_hooks:
                named |= dict.fromkeys(await hooks.list_dependent_ids(tx, row))
        ids = list(named)
    visible = await scopes.fetch_all_visible_ids(tx, scope)
    meant = {key.id: key for key in await rows.list_row_keys(tx, visible, ids)}
    quoting: dict[int, RowKey] = {}
    new = list(meant)
    while new:
        found = [key for batch in split_batches(new) for key in await link_rows.list_quoting_rows(tx, batch)]
        added = {key.id: key for key in found if key.id not in meant and key.id not in quoting}
        quoting |= added
        new = list(added)
    return _PurgedRows([meant[each] for each in ids if each in meant], list(quoting.values()))


async def purge(store: Store, refs: Sequence[Ref] | None, expect: int | None, digest: str | None, call: Call) -> int:
    """Remove memories for good, from every table, index and file: those named, else all forgotten ones.

    They must be exactly those of `digest`, which `list_purgeable` returns, and as many as `expect` says; one is needed.
    """

    async def write_purge(tx: Transaction) -> int:
        async def purge_rows(call_id: int) -> int:
            purged = await _find_purged_rows(store, tx, refs, call.scope)
            keys = purged.keys
            if digest is not None and digest != purged.digest:
                message = "what would be removed for good is not what was shown any more"
                raise Conflict(message, hint="look at it again, and decide then")
            if (expect is not None or digest is None) and expect != len(keys):
                message = f"{count_memories(keys)} would be removed for good"
                raise Conflict(message, hint=f"to do so, repeat with expect={len(keys)}")
            for number, key in enumerate(keys):
                for row in await rows.find_rows_by_id(tx, [key.scope], key.id):
                    await _purge_row(store, tx, refuse_shared(row, call) if number < len(purged.meant) else row)
            for hooks in store.edit_hooks:
                ids = [key.id for key in keys]
                await hooks.purge_project(tx, Purge(call.scope, ids, all_forgotten=refs is None))
            await counts.forget_empty(tx)
            await store.database.vectors.delete_retired(tx)
            await store.database.fulltext.erase_removed(tx)
            if keys:
                scope = await scopes.ensure_scope(tx, call.scope)
                await history_rows.insert_change(tx, scope, 0, call_id, store.clock(), PURGED, None)
            return len(keys)

        return int(await calls.run_once(tx, call, purge_rows))

    count = await store.database.write(write_purge)
    if not await store.database.compact():
        raise Unavailable(
            f"{count:,} memories are removed, but another process still reads the store's files as they were",
            hint="close it and purge again: until then the files may hold their text",
        )
    return count


async def _purge_row(store: Store, tx: Transaction, row: MemoryRow) -> None:
    """Remove a memory for good, and the history of each row of which only the history repeats its text."""
    if row.deleted is None:
        indexed = await passages.list_memory_passages(tx, row.scope, row.memory.id)
        await store.database.fulltext.remove_passages(tx, indexed)
    await store.database.vectors.retire_passages(tx, row.scope, row.memory.id)
    for key in await link_rows.list_rows_that_quoted(tx, row.memory.id):
        await history_rows.delete_changes(tx, key.scope, key.id)
    await history_rows.delete_changes(tx, row.scope, row.memory.id)
    for hooks in store.edit_hooks:
        await hooks.purge_row(tx, row)
    await rows.delete_memory(tx, row.scope, row.memory.id)
