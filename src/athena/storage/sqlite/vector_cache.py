"""The vector cache: the passages of one project in memory, for searches on SQLite.

A search first compares the signs of the vectors, packed into bits, and scores the best again with all bytes. Every
write leaves a growing stamp on the passages it changes, so a cache reads only what changed since it was built, no
matter which process changed it.
"""

import copy
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.storage.arrays import are_members, find_changes, multiply_on_one_thread, select_best, sort_unique
from athena.storage.database import Transaction
from athena.storage.filters import bind_list, split_batches
from athena.storage.passages import PASSAGE_IDS_PER_SCOPE

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from athena.storage.database import Floats, Ids

MAX_RESCORED_PASSAGES = 8_192  # that are scored with all bytes, if each memory then has MIN_RESCORED_EACH or more
MIN_RESCORED_EACH = 8
# Temporary arrays of so many rows stay below 1 MB: from there on each is fresh memory in a server (`limit_heaps`).
COSINE_BATCH_ROWS = 256
SIGN_BATCH_ROWS = 32_768


class PassageChanges(NamedTuple):
    """Passages as columns, in the order of their ids."""

    passages: "Ids"
    memories: "Ids"
    word_counts: "Ids"
    live: "Ids"
    stamps: "Ids"
    models: "Ids"  # -1 where there is none
    sessions: "Ids"
    voices: "Ids"  # the flags of the column `voice` (see migrations)
    codes: list[bytes | None]


class _PassageArrays:
    """Arrays with spare capacity, which one cache after another fills from the front."""

    def __init__(self, capacity: int, dimensions: int) -> None:
        import numpy as np  # slow to load

        self.used = 0
        self.guard = threading.Lock()
        self.passages: Ids = np.zeros(capacity, np.int64)
        self.memories: Ids = np.zeros(capacity, np.int64)
        self.word_counts: Floats = np.zeros(capacity, np.float32)
        self.stamps: Ids = np.zeros(capacity, np.int64)  # of the vectors
        self.changes: Ids = np.zeros(capacity, np.int64)  # the stamps of the last change of each row
        self.sessions: Ids = np.zeros(capacity, np.int64)
        self.voices: NDArray[numpy.uint8] = np.zeros(capacity, np.uint8)
        # The vectors that were read, one after the other, and where that of each row is; -1: not read yet.
        self._codes: NDArray[numpy.int8] = np.zeros((0, dimensions), np.int8)
        self._lengths: Floats = np.zeros(0, np.float32)  # of the vectors in `_codes`
        self._code_count = 0
        self.slots: NDArray[numpy.int32] = np.full(capacity, -1, np.int32)
        # One row for each 64 signs: a scan then runs down long rows, which is four times faster.
        self.signs: NDArray[numpy.uint64] = np.zeros(((dimensions + 63) // 64, capacity), np.uint64)

    def with_capacity(self, rows: int, more: int) -> "_PassageArrays":
        """Return arrays with space for `more` rows after the first `rows`: these, if no later row is used."""
        with self.guard:
            if self.used == rows and rows + more <= len(self.passages):
                self.used += more
                return self
            grown = _PassageArrays(rows + more + (rows // 2 if rows else 0), self._codes.shape[1])
            grown.used = rows + more
            for name in ("passages", "memories", "word_counts", "stamps", "changes", "sessions", "voices"):
                getattr(grown, name)[:rows] = getattr(self, name)[:rows]
            read = (self.slots[:rows] >= 0).nonzero()[0]
            grown._codes, grown._lengths = self.take_codes(read), self.take_lengths(read)
            grown.slots[read], grown._code_count = range(len(read)), len(read)
            grown.signs[:, :rows] = self.signs[:, :rows]
            return grown

    def replace_codes(self, rows: "Ids", codes: "NDArray[numpy.int8]", stamps: "Ids") -> None:
        """Write other vectors of the same texts, except where a newer one is already here."""
        with self.guard:
            newer = stamps > self.stamps[rows]
            rows, codes = rows[newer], codes[newer]
            self.write_codes(rows, codes)
            self.signs[:, rows], self.stamps[rows] = pack_signs(codes), stamps[newer]

    def fill_codes(self, rows: "Ids", codes: "NDArray[numpy.int8]") -> None:
        """Write vectors that were read late, except where a newer one is already here."""
        with self.guard:
            missing = self.slots[rows] < 0
            self.write_codes(rows[missing], codes[missing])

    def write_codes(self, rows: "Ids", codes: "NDArray[numpy.int8]") -> None:
        """Write the vectors of distinct rows; callers hold the guard, or nobody else knows these arrays yet."""
        import numpy as np  # slow to load

        slots = self.slots[rows]
        is_new = slots < 0
        slots[is_new] = self._code_count + np.arange(int(is_new.sum()))
        self._code_count += int(is_new.sum())
        if self._code_count > len(self._codes):
            grown = np.empty((max(self._code_count, len(self._codes) * 3 // 2), codes.shape[1]), np.int8)
            grown[: len(self._codes)] = self._codes
            self._lengths = np.concatenate([self._lengths, np.empty(len(grown) - len(self._codes), np.float32)])
            self._codes = grown
        self._codes[slots] = codes
        floats = codes.astype(np.float32)
        self._lengths[slots] = np.sqrt(np.einsum("ij,ij->i", floats, floats))
        self.slots[rows] = slots  # last: who reads it finds the vector

    def take_codes(self, rows: "Ids") -> "NDArray[numpy.int8]":
        """Return the vectors of rows, which were all read."""
        slots = self.slots[rows]
        return self._codes.take(slots, axis=0)

    def take_lengths(self, rows: "Ids") -> "Floats":
        """Return the lengths of the vectors of rows, which were all read."""
        slots = self.slots[rows]
        return self._lengths[slots]

    def mark_changed(self, rows: "Ids", stamps: "Ids") -> None:
        with self.guard:
            self.changes[rows] = self.changes[rows].clip(stamps)


def pack_signs(vectors: "NDArray[Any]") -> "NDArray[numpy.uint64]":
    """Return the signs as bits (1 for positive), 64 of one vector in each row."""
    import numpy as np  # slow to load

    bits = np.packbits(vectors > 0, axis=1)
    padded = np.zeros((len(bits), -(-bits.shape[1] // 8) * 8), np.uint8)
    padded[:, : bits.shape[1]] = bits
    packed: NDArray[numpy.uint64] = padded.view(np.uint64).T
    return packed


class VectorCache:
    """The passages of one scope in memory, in the order of their ids.

    `apply_changes` returns the successor of a cache. Both may share the large arrays: new passages go into spare rows
    after those that the older cache sees. Only a vector that replaces another one of the same text appears in both:
    a copy of all for each batch of new vectors would slow every search down.
    """

    def __init__(self, scope: int, dimensions: int, purges: int = 0) -> None:
        import numpy as np  # slow to load

        self.scope = scope
        self.purges = purges  # only a purge deletes rows, and after it the cache is built anew
        self.first, self.last = scope * PASSAGE_IDS_PER_SCOPE, scope * PASSAGE_IDS_PER_SCOPE + PASSAGE_IDS_PER_SCOPE - 1
        self.dimensions = dimensions
        self.stamp = 0
        self.rows = 0
        self.live: NDArray[numpy.bool_] = np.zeros(0, bool)
        self.ready: NDArray[numpy.bool_] = np.zeros(0, bool)  # live, with a vector that can be compared
        self._arrays = _PassageArrays(0, dimensions)
        self.refresh_views()

    @classmethod
    def with_rows(cls, scope: int, dimensions: int, purges: int, stamp: int, rows: int) -> "VectorCache":
        """Create a cache with space for rows, which `fill_rows` fills; searches read the vectors later."""
        import numpy as np  # slow to load

        cache = cls(scope, dimensions, purges)
        cache.stamp, cache.rows = stamp, rows
        cache._arrays = arrays = _PassageArrays(rows, dimensions)
        arrays.used = rows
        arrays.stamps[:] = arrays.changes[:] = stamp
        cache.live, cache.ready = np.empty(rows, bool), np.empty(rows, bool)
        return cache

    def fill_rows(self, start: int, columns: "Mapping[str, NDArray[Any]]") -> None:
        """Fill rows of a new cache, in the order of their ids; after the last, `refresh_views` is due."""
        end = start + len(columns["passages"])
        for name in ("passages", "memories", "word_counts", "sessions", "voices"):
            getattr(self._arrays, name)[start:end] = columns[name]
        self._arrays.signs[:, start:end] = columns["signs"]
        self.live[start:end], self.ready[start:end] = columns["live"], columns["ready"]

    def take_codes(self, rows: "Ids") -> "NDArray[numpy.int8]":
        return self._arrays.take_codes(rows)

    @property
    def changes(self) -> "Ids":
        return self._arrays.changes[: self.rows]

    def refresh_views(self) -> None:
        """Compute what depends on the rows."""
        import numpy as np  # slow to load

        for name in ("neighbours", "_group_by_memory"):
            self.__dict__.pop(name, None)
        arrays, rows = self._arrays, self.rows
        self.passages, self.memories, self.word_counts = (
            arrays.passages[:rows],
            arrays.memories[:rows],
            arrays.word_counts[:rows],
        )
        self.signs = arrays.signs[:, :rows]
        self.sessions, self.voices = arrays.sessions[:rows], arrays.voices[:rows]
        self.live_rows = int(self.live.sum())
        self.live_words = float(self.word_counts[self.live].sum())
        # The passages of a memory are adjacent rows: a group.
        self.starts = np.flatnonzero(find_changes(self.memories))
        self.owners = self.memories[self.starts]
        self.sizes = np.diff(self.starts, append=rows)
        self.live_memories = int(self.max_per_group(self.live).sum())
        self.ready_rows = np.flatnonzero(self.ready)

    @cached_property
    def neighbours(self) -> "tuple[Ids, Ids] | None":
        """Return for each row the one before and the one after it in its session, -1 where there is none."""
        import numpy as np  # slow to load

        live_rows = np.flatnonzero(self.live)
        order = live_rows[np.argsort(self.sessions[live_rows], kind="stable")]
        same = self.sessions[order[1:]] == self.sessions[order[:-1]]
        if not same.any():
            return None
        before, after = np.full(self.rows, -1), np.full(self.rows, -1)
        before[order[1:][same]] = order[:-1][same]
        after[order[:-1][same]] = order[1:][same]
        return before, after

    @cached_property
    def _group_by_memory(self) -> "Ids":
        import numpy as np  # slow to load

        table = np.full(int(self.owners.max(initial=0)) + 1, -1)
        table[self.owners] = np.arange(len(self.owners))  # a rewritten memory has two groups, and the later one counts
        return table

    def find_groups(self, memories: "Ids") -> "Ids":
        """Return the group of each memory, -1 where it is not in this cache."""
        import numpy as np  # slow to load

        table = self._group_by_memory
        groups = table[np.minimum(memories, len(table) - 1)]
        return np.where((memories < len(table)) & (groups >= 0), groups, -1)

    def list_group_rows(self, groups: "Ids") -> "tuple[Ids, Ids]":
        """Return the rows of groups, and for each row the position of its group in `groups`."""
        import numpy as np  # slow to load

        if len(self.starts) == self.rows:  # each memory has one passage
            return groups, np.arange(len(groups))
        sizes = self.sizes[groups]
        ends = np.cumsum(sizes)
        rows = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(self.starts[groups] - (ends - sizes), sizes)
        return rows, np.repeat(np.arange(len(groups)), sizes)

    def find_rows(self, offsets: "Ids") -> "Ids":
        """Return the rows of passage ids, given as offsets from `first`; ids that are not here have none."""
        if not len(offsets) or not self.rows:
            return offsets[:0]
        ids = offsets + self.first
        if self.rows == self.passages[-1] - self.passages[0] + 1:  # no id is left out
            rows: Ids = ids - self.passages[0]
            return rows if rows[0] >= 0 and rows[-1] < self.rows else rows[(rows >= 0) & (rows < self.rows)]
        rows = self.passages.searchsorted(ids)
        rows[rows == self.rows] = 0
        known_rows: Ids = rows[self.passages[rows] == ids]
        return known_rows

    def apply_changes(self, changes: PassageChanges, models: Sequence[int]) -> "VectorCache":
        """Return a cache with passages added or changed, whose vectors of these models can be compared."""
        import numpy as np  # slow to load

        dimensions = self.dimensions
        ids, live, blank = changes.passages, changes.live.astype(bool), bytes(dimensions)
        fits = are_members(changes.models, np.array(models, np.int64))
        fits &= np.array([code is not None and len(code) == dimensions for code in changes.codes], bool)
        blobs = [code if fit and code else blank for code, fit in zip(changes.codes, fits.tolist(), strict=True)]
        codes = np.frombuffer(b"".join(blobs), np.int8).reshape(len(blobs), dimensions)
        known = int(np.searchsorted(ids, self.passages[-1], "right")) if self.rows else 0  # the first ones are not new
        new = copy.copy(self)
        new.stamp = max(self.stamp, int(changes.stamps.max()))
        if known < len(ids):
            new._append_rows(changes, known, codes[known:])
        rows, ready = np.searchsorted(self.passages, ids[:known]), live & fits
        new._arrays.mark_changed(rows, changes.stamps[:known])
        compared = np.flatnonzero(ready[:known])
        if len(compared):
            new._arrays.replace_codes(rows[compared], codes[compared], changes.stamps[compared])
        if known == len(ids) and (self.live[rows] == live).all():  # what depends on `live` alone stays as it is
            if (self.ready[rows] != ready).any():
                new.ready = self.ready.copy()
                new.ready[rows] = ready
                new.ready_rows = np.flatnonzero(new.ready)
            return new
        new.live = np.concatenate([self.live, live[known:]])
        new.ready = np.concatenate([self.ready, ready[known:]])
        new.live[rows], new.ready[rows] = live[:known], ready[:known]
        new.refresh_views()
        return new

    def _append_rows(self, changes: PassageChanges, known: int, codes: "NDArray[numpy.int8]") -> None:
        """Fill rows after the present ones with the changes after the first `known`."""
        import numpy as np  # slow to load

        self._arrays = arrays = self._arrays.with_capacity(self.rows, len(codes))
        added = slice(self.rows, self.rows + len(codes))
        arrays.passages[added], arrays.memories[added] = changes.passages[known:], changes.memories[known:]
        arrays.word_counts[added], arrays.stamps[added] = changes.word_counts[known:], changes.stamps[known:]
        arrays.sessions[added], arrays.voices[added] = changes.sessions[known:], changes.voices[known:]
        arrays.signs[:, added], arrays.changes[added] = pack_signs(codes), changes.stamps[known:]
        with arrays.guard:
            arrays.write_codes(np.arange(added.start, added.stop), codes)
        self.rows += len(codes)

    async def load_codes(self, tx: Transaction, rows: "Ids") -> "NDArray[numpy.int8]":
        """Return the vectors of rows; those that no search has needed yet are read now."""
        await self._read_missing_codes(tx, rows)
        return self.take_codes(rows)

    async def _read_missing_codes(self, tx: Transaction, rows: "Ids") -> None:
        import numpy as np  # slow to load

        missing = rows[self._arrays.slots[rows] < 0]
        if len(missing):
            missing = sort_unique(missing)
            codes: dict[int, bytes | None] = {}
            size = self.dimensions
            for batch in split_batches(self.passages[missing].tolist()):
                names, bound = bind_list("id", batch)
                codes.update(await tx.fetch(f"SELECT id, code FROM passages WHERE id IN ({names})", **bound))
            blobs = [codes.get(passage) or b"" for passage in self.passages[missing].tolist()]
            data = b"".join(blob if len(blob) == size else bytes(size) for blob in blobs)
            self._arrays.fill_codes(missing, np.frombuffer(data, np.int8).reshape(len(missing), size))

    async def compute_cosines(self, tx: Transaction, rows: "Ids", vector: "Floats") -> "Floats":
        import numpy as np  # slow to load

        await self._read_missing_codes(tx, rows)
        products: Floats = np.empty(len(rows), np.float32)
        for at in range(0, len(rows), COSINE_BATCH_ROWS):
            batch = slice(at, at + COSINE_BATCH_ROWS)
            products[batch] = multiply_on_one_thread(self.take_codes(rows[batch]).astype(np.float32), vector)
        products /= np.maximum(self._arrays.take_lengths(rows), 1e-6)
        return products

    def max_per_group(self, values: "NDArray[Any]") -> "NDArray[Any]":
        """Reduce values of rows to the largest of each group."""
        import numpy as np  # slow to load

        return values if len(self.starts) == self.rows else np.maximum.reduceat(values, self.starts)

    async def best_cosines(
        self, tx: Transaction, groups: "Ids", usable: "NDArray[numpy.bool_]", vector: "Floats"
    ) -> "Floats":
        """Return the largest cosine of each group among usable rows; -1 where there is none."""
        import numpy as np  # slow to load

        rows, positions = self.list_group_rows(groups)
        if not (is_usable := usable[rows]).all():
            rows, positions = rows[is_usable], positions[is_usable]
        limit = max(MAX_RESCORED_PASSAGES, MIN_RESCORED_EACH * len(groups))
        if len(rows) > limit:
            nearest = select_best(positions, self.count_equal_signs(vector, rows), limit)
            rows, positions = rows[nearest], positions[nearest]
        best = np.full(len(groups), -1, np.float32)
        cosines = await self.compute_cosines(tx, rows, vector)
        if len(self.starts) == self.rows:
            best[positions] = np.maximum(cosines, -1)
        else:
            np.maximum.at(best, positions, cosines)
        return best

    def count_equal_signs(self, vector: "Floats", rows: "Ids | slice") -> "NDArray[numpy.int16]":
        """Return how many signs of each row are those of the vector, plus one, so that it is never 0."""
        import numpy as np  # slow to load

        signs = self.signs[:, rows]
        agreement = np.full(signs.shape[1], self.dimensions + 1, np.int16)
        for at in range(0, len(agreement), SIGN_BATCH_ROWS):
            batch = slice(at, at + SIGN_BATCH_ROWS)
            for row_signs, vector_signs in zip(signs, pack_signs(vector[None])[:, 0], strict=True):
                agreement[batch] -= np.bitwise_count(row_signs[batch] ^ vector_signs)
        return agreement

    def find_nearest_groups(self, usable: "NDArray[numpy.bool_]", vector: "Floats", count: int) -> "Ids":
        """Return the groups whose signs agree best with the vector's, of equals the newest; all usable of few."""
        import numpy as np  # slow to load

        if len(self.starts) <= count:
            return np.flatnonzero(self.max_per_group(usable))
        agreement = self.count_equal_signs(vector, slice(None))
        agreement *= usable
        best = self.max_per_group(agreement)
        least = max(1, int(np.partition(best, -count)[-count]))
        groups = np.flatnonzero(best >= least)
        equal_places = np.flatnonzero(best[groups] == least)
        return np.delete(groups, equal_places[: len(groups) - count]) if len(groups) > count else groups
