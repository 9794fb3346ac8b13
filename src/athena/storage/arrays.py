"""Array functions that both engines share.

`numpy.unique`, `isin` and similar load numpy's masked arrays, 10 ms or more of a first search; hence the own versions
here. The linter refuses numpy's.
"""

from typing import TYPE_CHECKING, Any

from athena.storage.database import TokenSets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from athena.storage.database import Floats, Ids

TOKEN_SIGN_BYTES = 16  # of one token
MAX_UNTHREADED_PRODUCTS = 1 << 18  # multiplications that OpenBLAS does on the calling thread
PAIR_BATCH_ROWS = 512
MAX_TOKEN_PASSAGES = 512  # that are compared token by token for one question, of one scope
MAX_COMPARED_EACH = 32  # first passages of a memory, when duplicates are searched pair by pair


def sort_unique(values: "Ids") -> "Ids":
    """Return the distinct values in ascending order."""
    ordered = values.copy()
    ordered.sort()
    unique: Ids = ordered[find_changes(ordered)]
    return unique


def find_changes(values: "NDArray[Any]") -> "NDArray[Any]":
    """Return for each value whether it differs from the one before it; the first one does. Faster than `diff`."""
    import numpy as np  # slow to load

    changes = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=changes[1:])
    return changes


def merge_unique(left: "Ids", right: "Ids") -> "Ids":
    import numpy as np  # slow to load

    return sort_unique(np.concatenate([left, right]))


def are_members(values: "Ids", members: "Ids") -> "NDArray[Any]":
    """Return for each value whether it is among the members."""
    import numpy as np  # slow to load

    if not len(members):
        return np.zeros(len(values), bool)
    ordered = np.sort(members)
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    is_member: NDArray[Any] = ordered[places] == values
    return is_member


def multiply_on_one_thread(rows: "NDArray[Any]", columns: "NDArray[Any]") -> "NDArray[Any]":
    """Multiply as `@` does, on this thread alone; bytes stand for eight columns, 0 or 1, each.

    OpenBLAS would use all its threads, which saves little, and those then spin for longer than a whole search takes:
    20 ms of each core, on 2 cores.
    """
    import numpy as np  # slow to load

    if columns.ndim == 1:
        sums: NDArray[Any] = np.einsum("ij,j->i", rows, columns)
        return sums
    batch = max(1, MAX_UNTHREADED_PRODUCTS // max(1, columns.size))
    product = np.empty((len(rows), columns.shape[1]), columns.dtype)
    for at in range(0, len(rows), batch):
        part = rows[at : at + batch]
        part = np.unpackbits(part, axis=1).astype(columns.dtype) if rows.dtype == np.uint8 else part
        np.matmul(part, columns, out=product[at : at + batch])
    return product


def select_best(owners: "Ids", scores: "NDArray[Any]", limit: int) -> "Ids":
    """Return about `limit` positions: the highest scores of each owner, all of an owner that has few."""
    import numpy as np  # slow to load

    if len(owners) <= limit:
        return np.arange(len(owners))
    order = np.lexsort((-scores, owners))
    starts = np.flatnonzero(np.diff(owners[order], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    return np.sort(order[np.arange(len(order)) - np.repeat(starts, sizes) < _find_largest_share(sizes, limit)])


def _find_largest_share(sizes: "Ids", limit: int) -> int:
    """Return how many each owner may have, at least one, so that all together have at most `limit`."""
    import numpy as np  # slow to load

    low, high = 1, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(sizes, middle).sum() <= limit else (low, middle - 1)
    return low


def quantize_vectors(vectors: "Floats") -> list[bytes]:
    """Return each vector as signed bytes; only directions count, so the scale is dropped."""
    import numpy as np  # slow to load

    vectors = np.where(np.abs(vectors).max(axis=1, keepdims=True) > 0, vectors, 1.0)  # a zero vector has no direction
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
    return [row.tobytes() for row in np.round(vectors * (127 / largest)).astype(np.int8)]


def split_speaker_flags(voices: "Ids") -> "tuple[Floats, Floats]":
    """Split the flags of the column `voice` into `by_assistant` and `about_speaker`, 0 or 1 each."""
    return (voices & 1).astype("float32"), (voices >> 1 & 1).astype("float32")


def build_token_sets(signs: dict[int, bytes], neighbours: "NDArray[Any]", owners: "Ids") -> TokenSets:
    """Join the token signs of passages; `neighbours` has passage ids, five to a row, -1 for none."""
    import numpy as np  # slow to load

    ids = np.array(sorted(signs), np.int64)
    index = np.searchsorted(ids, neighbours)
    index[index == len(ids)] = 0
    known = (ids[index] == neighbours) if len(ids) else np.zeros(neighbours.shape, bool)
    blobs = [signs[passage] for passage in ids.tolist()]
    starts = np.cumsum([0, *(len(blob) // TOKEN_SIGN_BYTES for blob in blobs)])[:-1]
    joined = np.frombuffer(b"".join(blobs), np.uint8).reshape(-1, TOKEN_SIGN_BYTES)
    return TokenSets(joined, starts, np.where(known, index, -1), owners)


def find_nearest_pairs(owners: "Ids", codes: "NDArray[Any]", threshold: float) -> list[tuple[int, int, float]]:
    """Return each memory with its most similar one, if their cosine reaches the threshold.

    One partner for each is enough: pairs chain into groups.
    """
    import numpy as np  # slow to load

    pairs: list[tuple[int, int, float]] = []
    codes = codes.astype(np.float32)
    codes /= np.maximum(np.linalg.norm(codes, axis=1, keepdims=True), 1e-6)
    for at in range(0, len(owners), PAIR_BATCH_ROWS):
        cosines = codes[at : at + PAIR_BATCH_ROWS] @ codes.T
        cosines[owners[at : at + PAIR_BATCH_ROWS, None] == owners[None]] = -1
        best = cosines.argmax(axis=1)
        similarity = cosines[np.arange(len(best)), best]
        chosen = np.flatnonzero(similarity >= threshold).tolist()
        pairs += [(int(owners[at + i]), int(owners[best[i]]), float(similarity[i])) for i in chosen]
    return pairs
