"""Documents in memory: pieces that share a source."""

from collections.abc import Sequence
from dataclasses import dataclass

from athena.core.call import Call
from athena.core.hashing import digest
from athena.core.scope import Scope
from athena.errors import NotFound
from athena.memory import edit, history, write_rows
from athena.memory import rows as memory_rows
from athena.memory.index import settle
from athena.memory.prepare import prepare, with_vectors
from athena.memory.rows import Kept
from athena.memory.store import Store
from athena.memory.values import Draft
from athena.memory.write import At, keep_one
from athena.storage import calls, scopes
from athena.storage.database import Transaction

KIND = "document"
PIECE = "piece"  # in a piece's metadata: its place in the document


@dataclass(frozen=True, slots=True)
class Document:
    source: str
    pieces: int
    updated: float


async def begin(store: Store, call: Call) -> int:
    """Record the call, so that all its documents can be undone together."""
    return await store.database.write(lambda tx: calls.record(tx, call, "done"))


async def replace(store: Store, source: str, drafts: Sequence[Draft], call: Call, number: int) -> int:
    """Keep the pieces of a document and forget those it no longer has, in one step; return how many it has."""
    now = store.clock()
    prepared = [prepare(draft, now) for draft in drafts]
    digests = [one.digest for one in prepared]

    async def known(tx: Transaction) -> set[str]:
        return await memory_rows.known(tx, await scopes.own(tx, call.scope), digests)

    ready = await with_vectors(store.encoder, prepared, await store.database.read(known))
    own = call._replace(key=f"{call.key} {source}") if call.key else call

    async def work(tx: Transaction) -> int:
        async def keep(call_number: int) -> int:
            scope = await scopes.ensure(tx, call.scope)
            current = {(await keep_one(store, tx, At(scope, call_number, now), one))[0] for one in ready}
            for piece in await memory_rows.of_session(tx, [scope], source, KIND):
                if piece.memory.id not in current:
                    await history.add(tx, scope, piece.memory.id, call_number, now, "forgotten", piece.snapshot())
                    await write_rows.hide(store, tx, piece, now)
            return len(current)

        return int(await calls.once(tx, own, keep, about=digest("".join(digests)), number=number))

    count = await store.database.write(work)
    await settle(store)
    return count


async def listed(store: Store, scope: Scope) -> list[Document]:
    async def work(tx: Transaction) -> list[Document]:
        rows = await memory_rows.sources(tx, await scopes.visible(tx, scope), KIND)
        return [Document(source, count, updated) for source, count, updated in rows]

    return await store.database.read(work)


async def pieces(store: Store, source: str, scope: Scope) -> list[str]:
    """Return a document's pieces in order; the project's own copy before one that is known everywhere."""

    async def work(tx: Transaction) -> list[Kept]:
        for number in await scopes.visible(tx, scope):
            if found := await memory_rows.of_session(tx, [number], source, KIND):
                return found
        raise NotFound(f"there is no document {source!r:.200}", hint="list_documents shows which there are")

    found = await store.database.read(work)
    return [one.memory.content for one in sorted(found, key=lambda one: one.memory.metadata.get(PIECE, 0))]


async def forget(store: Store, source: str, call: Call) -> int:
    async def pieces(tx: Transaction) -> list[Kept]:
        found = await memory_rows.of_session(tx, await scopes.own(tx, call.scope), source, KIND)
        if not found:
            raise NotFound(f"there is no document {source!r:.200}", hint="list_documents shows which there are")
        return found

    return await edit.forget_chosen(store, pieces, call)
