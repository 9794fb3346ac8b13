"""Finding passages by their meaning.

On SQLite each passage keeps its vector as 384 signed bytes beside its text. A process that searches holds the
vectors of a project in memory, as a `Shelf`: signs packed into bits are scanned first, the best are scored
again with the bytes. Every write leaves a growing stamp on the passages it touches, so a shelf reads only what
changed since it last looked, whoever changed it.
"""

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.model.memory import Filter
from athena.storage import memories, scopes
from athena.storage.arrays import union
from athena.storage.database import Matches, Near

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from athena.storage.database import Floats, Ids

SPAN = 1 << 32  # passage ids of one scope: a range of their own, so that an index can be cut by scope
SAMPLE = 512  # passages from which the spread of all cosines is estimated
RESCORED = 3  # memories scored exactly for each one wanted, and at least this many:
LEAST_RESCORED = 600
COMPARED = 20_000  # passages that are compared pair by pair when duplicates are looked for


def encode(vectors: "Floats") -> list[bytes]:
    """Return each vector as signed bytes; only directions count, so the scale is dropped."""
    import numpy as np

    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
    return [row.tobytes() for row in np.round(vectors * (127 / largest)).astype(np.int8)]


class Changed(NamedTuple):
    """Passages as columns, in the order of their ids."""

    passages: "Ids"
    memories: "Ids"
    words: "Ids"
    live: "Ids"
    stamps: "Ids"
    models: "Ids"  # -1 where there is none
    codes: list[bytes | None]


class _Room:
    """Arrays with spare capacity, filled from the front by one shelf after another."""

    def __init__(self, capacity: int, dimensions: int) -> None:
        import numpy as np

        self.used = 0
        self.guard = threading.Lock()
        self.passages: Ids = np.zeros(capacity, np.int64)
        self.memories: Ids = np.zeros(capacity, np.int64)
        self.words: Floats = np.zeros(capacity, np.float32)
        self.codes: NDArray[numpy.int8] = np.zeros((capacity, dimensions), np.int8)
        # One row for each 64 signs: a scan then runs down long rows, which is four times faster.
        self.signs: NDArray[numpy.uint64] = np.zeros(((dimensions + 63) // 64, capacity), np.uint64)

    def holding(self, rows: int, more: int) -> "_Room":
        """Return room for `more` rows behind the first `rows`: this one if those are its last and they fit."""
        with self.guard:
            if self.used == rows and rows + more <= len(self.passages):
                self.used += more
                return self
        grown = _Room(rows + more + (rows // 2 if rows else 0), self.codes.shape[1])
        grown.used = rows + more
        for name in ("passages", "memories", "words", "codes"):
            getattr(grown, name)[:rows] = getattr(self, name)[:rows]
        grown.signs[:, :rows] = self.signs[:, :rows]
        return grown

    def copied(self) -> "_Room":
        return self.holding(self.used, len(self.passages) + 1 - self.used)


def pack_signs(vectors: "NDArray[Any]") -> "NDArray[numpy.uint64]":
    """Return which numbers are positive as bits, 64 of one vector in each row."""
    import numpy as np

    bits = np.packbits(vectors > 0, axis=1)
    whole = np.zeros((len(bits), -(-bits.shape[1] // 8) * 8), np.uint8)
    whole[:, : bits.shape[1]] = bits
    packed: NDArray[numpy.uint64] = whole.view(np.uint64).T
    return packed


class Shelf:
    """The passages of one scope in memory, in the order of their ids.

    A shelf never changes; `updated` returns its successor. Both may share the large arrays: new passages go
    to spare room behind the rows that the older one can see.
    """

    def __init__(self, scope: int, dimensions: int, purges: int = 0) -> None:
        import numpy as np

        self.purges = purges  # rows are only ever taken away by a purge, and then all are read again
        self.first, self.last = scope * SPAN, scope * SPAN + SPAN - 1
        self.stamp = 0
        self.rows = 0
        self.live: NDArray[numpy.bool_] = np.zeros(0, bool)
        self.ready: NDArray[numpy.bool_] = np.zeros(0, bool)  # live, with a vector of the model in use
        self._room = _Room(0, dimensions)
        self._see()

    def _see(self) -> None:
        import numpy as np

        room, rows = self._room, self.rows
        self.passages, self.memories, self.words = room.passages[:rows], room.memories[:rows], room.words[:rows]
        self.codes, self.signs = room.codes[:rows], room.signs[:, :rows]
        self.live_rows = int(self.live.sum())
        self.live_words = float(self.words[self.live].sum())
        # The passages of a memory stand one after another: a group.
        self.starts = np.flatnonzero(np.diff(self.memories, prepend=-1))
        self.owners = self.memories[self.starts]
        self.sizes = np.diff(self.starts, append=rows)
        self.live_memories = int(self.best_of_each(self.live).sum())
        self.ready_rows = np.flatnonzero(self.ready)

    def find(self, offsets: str | None) -> "Ids":
        """Turn ids as the index lists them (counted from `first`, between commas) into rows."""
        import numpy as np

        if not offsets or not self.rows:
            return np.zeros(0, np.int64)
        ids = np.fromstring(offsets, np.int64, sep=",") + self.first
        rows = np.searchsorted(self.passages, ids)
        rows[rows == self.rows] = 0
        kept: Ids = rows[self.passages[rows] == ids]
        return kept

    def updated(self, changed: Changed, model: int | None) -> "Shelf":
        """Return a shelf with passages added or changed."""
        import numpy as np

        dimensions = self.codes.shape[1]
        ids, live, blank = changed.passages, changed.live.astype(bool), bytes(dimensions)
        fits = changed.models == (-2 if model is None else model)
        fits &= np.array([code is not None and len(code) == dimensions for code in changed.codes], bool)
        kept = [code if fit and code else blank for code, fit in zip(changed.codes, fits.tolist(), strict=True)]
        codes = np.frombuffer(b"".join(kept), np.int8).reshape(len(kept), dimensions)
        known = int(np.searchsorted(ids, self.passages[-1], "right")) if self.rows else 0
        new = Shelf.__new__(Shelf)
        new.purges, new.first, new.last = self.purges, self.first, self.last
        new.stamp = max(self.stamp, int(changed.stamps.max()))
        new._room, new.rows = self._room.holding(self.rows, len(ids) - known), self.rows + len(ids) - known
        added, room = slice(self.rows, new.rows), new._room
        room.passages[added], room.codes[added] = ids[known:], codes[known:]
        room.memories[added], room.words[added] = changed.memories[known:], changed.words[known:]
        room.signs[:, added] = pack_signs(codes[known:])
        new.live = np.concatenate([self.live, live[known:]])
        new.ready = np.concatenate([self.ready, (live & fits)[known:]])
        if known:
            rows = np.searchsorted(self.passages, ids[:known])
            new.live[rows] = live[:known]
            new.ready[rows] = (live & fits)[:known]
            if (room.codes[rows] != codes[:known]).any():  # embedded anew: readers of the old room keep theirs
                new._room = room = room.copied()
                room.codes[rows] = codes[:known]
                room.signs[:, rows] = pack_signs(codes[:known])
        new._see()
        return new

    def cosines(self, rows: "Ids", vector: "Floats") -> "Floats":
        import numpy as np

        codes = self.codes[rows].astype(np.float32)
        lengths = np.sqrt(np.einsum("ij,ij->i", codes, codes))
        made: Floats = (codes @ vector) / np.maximum(lengths, 1e-6)
        return made

    def best_of_each(self, values: "NDArray[Any]") -> "NDArray[Any]":
        """Reduce values of rows to the largest of each group."""
        import numpy as np

        return values if len(self.starts) == self.rows else np.maximum.reduceat(values, self.starts)

    def closeness(self, groups: "Ids", usable: "NDArray[numpy.bool_]", vector: "Floats") -> "Floats":
        """Return the largest cosine in each group among usable rows; -1 where there is none."""
        import numpy as np

        sizes = self.sizes[groups]
        ends = np.cumsum(sizes)
        within = np.repeat(np.arange(len(groups)), sizes)
        rows = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(self.starts[groups] - (ends - sizes), sizes)
        kept = usable[rows]
        best = np.full(len(groups), -1, np.float32)
        np.maximum.at(best, within[kept], self.cosines(rows[kept], vector))
        return best

    def nearest(self, usable: "NDArray[numpy.bool_]", vector: "Floats", wanted: int) -> "Ids":
        """Return the groups whose signs agree best with the vector's; all that are usable if they are few."""
        import numpy as np

        if len(self.starts) <= wanted:
            return np.flatnonzero(self.best_of_each(usable))
        agree = np.full(self.rows, self.codes.shape[1] + 1, np.int16)  # more than can differ, so that all are over 0
        for ours, theirs in zip(self.signs, pack_signs(vector[None])[:, 0], strict=True):
            agree -= np.bitwise_count(ours ^ theirs)
        agree[~usable] = 0
        best = self.best_of_each(agree)
        chosen = np.argpartition(-best, wanted)[:wanted]
        return chosen[best[chosen] > 0]


class Selection(NamedTuple):
    """The shelves a question may look at, and on each the rows that pass its filter (None: all live ones)."""

    shelves: list[Shelf]
    allowed: list[Any]
    total: int


class SqliteVectors:
    schema = ()

    def __init__(self) -> None:
        self._shelves: dict[tuple[int, str, int], Shelf] = {}
        self._guard = threading.Lock()

    async def put(self, tx: Any, passages: Iterable[tuple[int, bytes]], model: str) -> None:
        number = await self.model(tx, model)
        stamp = await next_stamp(tx)
        for passage, code in passages:
            await tx.execute(
                "UPDATE passages SET model = :model, code = :code, stamp = :stamp WHERE id = :id",
                model=number,
                code=code,
                stamp=stamp,
                id=passage,
            )

    async def show(self, tx: Any, memory: int, live: bool) -> None:
        """Let searches see a memory's passages, or not."""
        stamp = await next_stamp(tx)
        await tx.execute(
            "UPDATE passages SET live = :live, stamp = :stamp WHERE memory = :memory",
            live=int(live),
            stamp=stamp,
            memory=memory,
        )

    async def pending(self, tx: Any, model: str, limit: int) -> list[int]:
        """Return passages that have no vector of this model."""
        rows = await tx.fetch(f"SELECT id FROM passages WHERE {PENDING} LIMIT :limit", name=model, limit=limit)
        return [row[0] for row in rows]

    async def any_missing(self, tx: Any) -> bool:
        """Tell whether any passage has no vector at all; cheap enough to ask after every write."""
        return await tx.fetch_one("SELECT 1 FROM passages WHERE live = 1 AND model IS NULL LIMIT 1") is not None

    async def count_pending(self, tx: Any, model: str) -> int:
        row = await tx.fetch_one(f"SELECT count(*) FROM passages WHERE {PENDING}", name=model)
        return int(row[0])

    async def select(self, tx: Any, only: Filter, model: str, dimensions: int) -> Selection:
        import numpy as np

        shelves = [await self._shelf(tx, i, model, dimensions) for i in await scopes.visible(tx, only.scope)]
        if only.is_open:
            total = sum(shelf.live_memories for shelf in shelves)
            return Selection(shelves, [None if s.live_rows == s.rows else s.live for s in shelves], total)
        chosen = np.fromstring(await memories.id_list(tx, only), np.int64, sep=",")
        last = max((int(s.memories.max(initial=0)) for s in shelves), default=0)
        passes = np.zeros(last + 1, bool)
        passes[chosen[chosen <= last]] = True
        return Selection(shelves, [passes[s.memories] & s.live for s in shelves], len(chosen))

    async def nearest(self, tx: Any, among: Selection, vector: "Floats", limit: int, also: Matches | None) -> Near:
        import numpy as np

        found: list[tuple[Any, Any]] = []
        sampled = []
        named = also.places if also else [np.zeros(0, np.int64)] * len(among.shelves)
        for shelf, allowed, places in zip(among.shelves, among.allowed, named, strict=True):
            every = shelf.ready_rows
            sampled.append(shelf.cosines(every[:: max(1, len(every) // SAMPLE)], vector))
            usable = shelf.ready if allowed is None else shelf.ready & allowed
            groups = union(shelf.nearest(usable, vector, max(limit * RESCORED, LEAST_RESCORED)), places)
            best = shelf.closeness(groups, usable, vector)
            kept = best > -1
            if kept.sum() > limit:
                kept &= (best >= np.partition(best, -limit)[-limit]) | np.isin(groups, places, kind="sort")
            found.append((shelf.owners[groups[kept]], best[kept]))
        spread = np.concatenate(sampled)
        mean, deviation = (float(spread.mean()), float(spread.std())) if len(spread) else (0.0, 1.0)
        numbers, cosines = (np.concatenate(part) for part in zip(*found, strict=True))
        return Near(numbers, cosines, mean, deviation or 1.0)

    async def alike(self, tx: Any, among: Selection, threshold: float) -> list[tuple[int, int, float]]:
        """Return pairs of memories with passages at least this close, among the newest of each scope."""
        import numpy as np

        pairs: dict[tuple[int, int], float] = {}
        for shelf in among.shelves:
            rows = np.flatnonzero(shelf.ready)[-COMPARED:]
            codes = shelf.codes[rows].astype(np.float32)
            codes /= np.maximum(np.linalg.norm(codes, axis=1, keepdims=True), 1e-6)
            for at in range(0, len(rows), 512):
                close = codes[at : at + 512] @ codes[at:].T
                for i, j in zip(*np.nonzero(np.triu(close, 1) >= threshold), strict=True):
                    one, other = sorted((int(shelf.memories[rows[at + i]]), int(shelf.memories[rows[at + j]])))
                    if one != other:
                        pairs[one, other] = max(float(close[i, j]), pairs.get((one, other), 0.0))
        return [(one, other, cosine) for (one, other), cosine in pairs.items()]

    async def _shelf(self, tx: Any, scope: int, model: str, dimensions: int) -> Shelf:
        """Return the scope's shelf as of this transaction, or later."""
        key = scope, model, dimensions
        purges, stamp = [row[0] for row in await tx.fetch("SELECT value FROM counters ORDER BY name")]
        shelf = self._shelves.get(key)
        if shelf is None or shelf.purges != purges:
            shelf = Shelf(scope, dimensions, purges)
        if shelf.stamp == stamp:
            return shelf
        changed = await _changed(tx, shelf, scope)
        if changed is not None:
            shelf = shelf.updated(changed, await self._known_model(tx, model))
        with self._guard:
            kept = self._shelves.get(key)
            if kept is None or (kept.purges, kept.stamp) < (shelf.purges, shelf.stamp):
                self._shelves[key] = shelf
        return shelf

    async def model(self, tx: Any, name: str) -> int:
        """Return a model's number, giving it one if it has none."""
        known = await self._known_model(tx, name)
        if known is None:
            await tx.execute("INSERT INTO models (name) VALUES (:name)", name=name)
            known = await self._known_model(tx, name)
        return int(known or 0)

    async def _known_model(self, tx: Any, name: str) -> int | None:
        row = await tx.fetch_one("SELECT id FROM models WHERE name = :name", name=name)
        return row[0] if row else None


async def _changed(tx: Any, shelf: Shelf, scope: int) -> Changed | None:
    """Read the passages that changed since a shelf was built, in columns: rows would cost five times as much."""
    import numpy as np

    where = "id BETWEEN :first AND :last" if not shelf.stamp else "scope = :scope AND stamp > :stamp"
    values = {"first": shelf.first, "last": shelf.last, "scope": scope, "stamp": shelf.stamp}
    names = ("id", "memory", "words", "live", "stamp", "coalesce(model, -1)")
    columns = ", ".join(f"group_concat({name})" for name in names)
    row = await tx.fetch_one(f"SELECT {columns} FROM (SELECT * FROM passages WHERE {where} ORDER BY id)", **values)
    if row[0] is None:
        return None
    codes = await tx.fetch(f"SELECT code FROM passages WHERE {where} ORDER BY id", **values)
    passages, numbers, words, live, stamps, models = (np.fromstring(text, np.int64, sep=",") for text in row)
    return Changed(passages, numbers, words, live, stamps, models, [code for (code,) in codes])


PENDING = "live = 1 AND (model IS NULL OR model NOT IN (SELECT id FROM models WHERE name = :name))"


async def next_stamp(tx: Any) -> int:
    # Not RETURNING: after it SQLite makes FTS5 flush, which costs fifteen times as much as asking.
    await tx.execute("UPDATE counters SET value = value + 1 WHERE name = 'stamp'")
    return int((await tx.fetch_one("SELECT value FROM counters WHERE name = 'stamp'"))[0])
