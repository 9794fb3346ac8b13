"""The passages of a project in memory, for searches.

Signs packed into bits are scanned first, the best are scored again with the bytes. Every write leaves a growing
stamp on the passages it touches, so a shelf reads only what changed since it last looked, whoever changed it.
"""

import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.storage.arrays import multiply_on_one_thread
from athena.storage.passages import PASSAGE_IDS_PER_SCOPE

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from athena.storage.database import Floats, Ids


class PassageChanges(NamedTuple):
    """Passages as columns, in the order of their ids."""

    passages: "Ids"
    memories: "Ids"
    words: "Ids"
    live: "Ids"
    stamps: "Ids"
    models: "Ids"  # -1 where there is none
    sessions: "Ids"
    voices: "Ids"  # 1 where an assistant, a tool or the system speaks, 2 where somebody speaks of themselves
    codes: list[bytes | None]


class _PassageArrays:
    """Arrays with spare capacity, filled from the front by one shelf after another."""

    def __init__(self, capacity: int, dimensions: int) -> None:
        import numpy as np

        self.used = 0
        self.guard = threading.Lock()
        self.passages: Ids = np.zeros(capacity, np.int64)
        self.memories: Ids = np.zeros(capacity, np.int64)
        self.words: Floats = np.zeros(capacity, np.float32)
        self.sessions: Ids = np.zeros(capacity, np.int64)
        self.voices: Ids = np.zeros(capacity, np.int64)
        self.codes: NDArray[numpy.int8] = np.zeros((capacity, dimensions), np.int8)
        # One row for each 64 signs: a scan then runs down long rows, which is four times faster.
        self.signs: NDArray[numpy.uint64] = np.zeros(((dimensions + 63) // 64, capacity), np.uint64)

    def with_capacity(self, rows: int, more: int) -> "_PassageArrays":
        """Return room for `more` rows behind the first `rows`: this one if those are its last and they fit."""
        with self.guard:
            if self.used == rows and rows + more <= len(self.passages):
                self.used += more
                return self
        grown = _PassageArrays(rows + more + (rows // 2 if rows else 0), self.codes.shape[1])
        grown.used = rows + more
        for name in ("passages", "memories", "words", "sessions", "voices", "codes"):
            getattr(grown, name)[:rows] = getattr(self, name)[:rows]
        grown.signs[:, :rows] = self.signs[:, :rows]
        return grown

    def copy(self) -> "_PassageArrays":
        return self.with_capacity(self.used, len(self.passages) + 1 - self.used)


def pack_signs(vectors: "NDArray[Any]") -> "NDArray[numpy.uint64]":
    """Return which numbers are positive as bits, 64 of one vector in each row."""
    import numpy as np

    bits = np.packbits(vectors > 0, axis=1)
    whole = np.zeros((len(bits), -(-bits.shape[1] // 8) * 8), np.uint8)
    whole[:, : bits.shape[1]] = bits
    packed: NDArray[numpy.uint64] = whole.view(np.uint64).T
    return packed


class VectorCache:
    """The passages of one scope in memory, in the order of their ids.

    A shelf never changes; `updated` returns its successor. Both may share the large arrays: new passages go
    to spare room behind the rows that the older one can see.
    """

    def __init__(self, scope: int, dimensions: int, purges: int = 0) -> None:
        import numpy as np

        self.purges = purges  # rows are only ever taken away by a purge, and then all are read again
        self.first, self.last = scope * PASSAGE_IDS_PER_SCOPE, scope * PASSAGE_IDS_PER_SCOPE + PASSAGE_IDS_PER_SCOPE - 1
        self.stamp = 0
        self.rows = 0
        self.live: NDArray[numpy.bool_] = np.zeros(0, bool)
        self.ready: NDArray[numpy.bool_] = np.zeros(0, bool)  # live, with a vector of the model in use
        self._arrays = _PassageArrays(0, dimensions)
        self._refresh_views()

    def _refresh_views(self) -> None:
        import numpy as np

        room, rows = self._arrays, self.rows
        self.passages, self.memories, self.words = room.passages[:rows], room.memories[:rows], room.words[:rows]
        self.codes, self.signs = room.codes[:rows], room.signs[:, :rows]
        self.sessions, self.voices = room.sessions[:rows], room.voices[:rows]
        self.live_rows = int(self.live.sum())
        self.live_words = float(self.words[self.live].sum())
        # The passages of a memory stand one after another: a group.
        self.starts = np.flatnonzero(np.diff(self.memories, prepend=-1))
        self.owners = self.memories[self.starts]
        self.sizes = np.diff(self.starts, append=rows)
        self.live_memories = int(self.max_per_group(self.live).sum())
        self.ready_rows = np.flatnonzero(self.ready)

    @cached_property
    def neighbours(self) -> "tuple[Ids, Ids] | None":
        """Return for each row the one before and the one after it in its session, -1 where there is none."""
        import numpy as np

        shown = np.flatnonzero(self.live)
        order = shown[np.argsort(self.sessions[shown], kind="stable")]
        same = self.sessions[order[1:]] == self.sessions[order[:-1]]
        if not same.any():
            return None
        before, after = np.full(self.rows, -1), np.full(self.rows, -1)
        before[order[1:][same]] = order[:-1][same]
        after[order[:-1][same]] = order[1:][same]
        return before, after

    @cached_property
    def _group_by_memory(self) -> "Ids":
        import numpy as np

        table = np.full(int(self.owners.max(initial=0)) + 1, -1)
        table[self.owners] = np.arange(len(self.owners))  # of a memory that was rewritten, the later group counts
        return table

    def find_groups(self, memories: "Ids") -> "Ids":
        """Return the group of each memory, -1 where it is not on this shelf."""
        import numpy as np

        table = self._group_by_memory
        found = table[np.minimum(memories, len(table) - 1)]
        return np.where((memories < len(table)) & (found >= 0), found, -1)

    def list_group_rows(self, groups: "Ids") -> "tuple[Ids, Ids]":
        """Return the rows of groups, and for each row the position of its group among them."""
        import numpy as np

        sizes = self.sizes[groups]
        ends = np.cumsum(sizes)
        rows = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(self.starts[groups] - (ends - sizes), sizes)
        return rows, np.repeat(np.arange(len(groups)), sizes)

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

    def apply_changes(self, changed: PassageChanges, model: int | None) -> "VectorCache":
        """Return a shelf with passages added or changed."""
        import numpy as np

        dimensions = self.codes.shape[1]
        ids, live, blank = changed.passages, changed.live.astype(bool), bytes(dimensions)
        fits = changed.models == (-2 if model is None else model)
        fits &= np.array([code is not None and len(code) == dimensions for code in changed.codes], bool)
        kept = [code if fit and code else blank for code, fit in zip(changed.codes, fits.tolist(), strict=True)]
        codes = np.frombuffer(b"".join(kept), np.int8).reshape(len(kept), dimensions)
        known = int(np.searchsorted(ids, self.passages[-1], "right")) if self.rows else 0
        new = VectorCache.__new__(VectorCache)
        new.purges, new.first, new.last = self.purges, self.first, self.last
        new.stamp = max(self.stamp, int(changed.stamps.max()))
        new._arrays, new.rows = self._arrays.with_capacity(self.rows, len(ids) - known), self.rows + len(ids) - known
        added, room = slice(self.rows, new.rows), new._arrays
        room.passages[added], room.codes[added] = ids[known:], codes[known:]
        room.memories[added], room.words[added] = changed.memories[known:], changed.words[known:]
        room.sessions[added], room.voices[added] = changed.sessions[known:], changed.voices[known:]
        room.signs[:, added] = pack_signs(codes[known:])
        new.live = np.concatenate([self.live, live[known:]])
        new.ready = np.concatenate([self.ready, (live & fits)[known:]])
        if known:
            rows = np.searchsorted(self.passages, ids[:known])
            new.live[rows] = live[:known]
            new.ready[rows] = (live & fits)[:known]
            if (room.codes[rows] != codes[:known]).any():  # embedded anew: readers of the old room keep theirs
                new._arrays = room = room.copy()
                room.codes[rows] = codes[:known]
                room.signs[:, rows] = pack_signs(codes[:known])
        new._refresh_views()
        return new

    def compute_cosines(self, rows: "Ids", vector: "Floats") -> "Floats":
        import numpy as np

        codes = self.codes[rows].astype(np.float32)
        lengths = np.sqrt(np.einsum("ij,ij->i", codes, codes))
        made: Floats = multiply_on_one_thread(codes, vector) / np.maximum(lengths, 1e-6)
        return made

    def max_per_group(self, values: "NDArray[Any]") -> "NDArray[Any]":
        """Reduce values of rows to the largest of each group."""
        import numpy as np

        return values if len(self.starts) == self.rows else np.maximum.reduceat(values, self.starts)

    def best_cosines(self, groups: "Ids", usable: "NDArray[numpy.bool_]", vector: "Floats") -> "Floats":
        """Return the largest cosine in each group among usable rows; -1 where there is none."""
        import numpy as np

        rows, within = self.list_group_rows(groups)
        kept = usable[rows]
        best = np.full(len(groups), -1, np.float32)
        np.maximum.at(best, within[kept], self.compute_cosines(rows[kept], vector))
        return best

    def find_nearest_groups(self, usable: "NDArray[numpy.bool_]", vector: "Floats", wanted: int) -> "Ids":
        """Return the groups whose signs agree best with the vector's; all that are usable if they are few."""
        import numpy as np

        if len(self.starts) <= wanted:
            return np.flatnonzero(self.max_per_group(usable))
        agree = np.full(self.rows, self.codes.shape[1] + 1, np.int16)  # more than can differ, so that all are over 0
        for ours, theirs in zip(self.signs, pack_signs(vector[None])[:, 0], strict=True):
            agree -= np.bitwise_count(ours ^ theirs)
        agree[~usable] = 0
        best = self.max_per_group(agree)
        chosen = np.argpartition(-best, wanted)[:wanted]
        return chosen[best[chosen] > 0]
