"""What both engines do with arrays.

`numpy.unique` and its kin load numpy's masked arrays, 10 ms of a first search; hence our own.
"""

from typing import TYPE_CHECKING, Any

from athena.storage.database import TokenSets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from athena.storage.database import Floats, Ids

TOKEN_SIGN_BYTES = 16  # bytes of signs for one token


def sort_unique(values: "Ids") -> "Ids":
    """Return the values in order, each once."""
    import numpy as np

    ordered = np.sort(values)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]


def merge_unique(one: "Ids", other: "Ids") -> "Ids":
    import numpy as np

    return sort_unique(np.concatenate([one, other]))


MAX_UNTHREADED_PRODUCTS = 1 << 18  # multiplications that OpenBLAS does on the thread that asks


def multiply_on_one_thread(rows: "NDArray[Any]", columns: "NDArray[Any]") -> "NDArray[Any]":
    """Multiply as `@` does, on this thread alone.

    OpenBLAS would share it out, saving little, and its other threads would then burn the CPU for longer than a whole
    search takes: 20 ms of each, on 2 cores.
    """
    import numpy as np

    if columns.ndim == 1:
        summed: NDArray[Any] = np.einsum("ij,j->i", rows, columns)
        return summed
    some = max(1, MAX_UNTHREADED_PRODUCTS // max(1, columns.size))
    made = np.empty((len(rows), columns.shape[1]), rows.dtype)
    for at in range(0, len(rows), some):
        np.matmul(rows[at : at + some], columns, out=made[at : at + some])
    return made


def quantize_vectors(vectors: "Floats") -> list[bytes]:
    """Return each vector as signed bytes; only directions count, so the scale is dropped."""
    import numpy as np

    vectors = np.where(np.abs(vectors).max(axis=1, keepdims=True) > 0, vectors, 1.0)  # any direction rather than none
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
    return [row.tobytes() for row in np.round(vectors * (127 / largest)).astype(np.int8)]


def build_token_sets(found: dict[int, bytes], around: "NDArray[Any]", owners: "Ids") -> TokenSets:
    """Put the signs of passages together; `around` names them by id, five to a row, -1 for none."""
    import numpy as np

    numbers = np.array(sorted(found), np.int64)
    index = np.searchsorted(numbers, around)
    index[index == len(numbers)] = 0
    known = (numbers[index] == around) if len(numbers) else np.zeros(around.shape, bool)
    blobs = [found[number] for number in numbers.tolist()]
    starts = np.cumsum([0, *(len(blob) // TOKEN_SIGN_BYTES for blob in blobs)])[:-1]
    signs = np.frombuffer(b"".join(blobs), np.uint8).reshape(-1, TOKEN_SIGN_BYTES)
    return TokenSets(signs, starts, np.where(known, index, -1), owners)


def find_nearest_pairs(owners: "Ids", codes: "NDArray[Any]", threshold: float) -> list[tuple[int, int, float]]:
    """Return each memory with the one most like it, if at least this much, from codes in the same order."""
    import numpy as np

    pairs: list[tuple[int, int, float]] = []
    codes = codes.astype(np.float32)
    codes /= np.maximum(np.linalg.norm(codes, axis=1, keepdims=True), 1e-6)
    for at in range(0, len(owners), 512):
        close = codes[at : at + 512] @ codes.T
        close[owners[at : at + 512, None] == owners[None]] = -1
        best = close.argmax(axis=1)  # each with the one most like it: enough to join all that belong together
        likeness = close[np.arange(len(best)), best]
        chosen = np.flatnonzero(likeness >= threshold).tolist()
        pairs += [(int(owners[at + i]), int(owners[best[i]]), float(likeness[i])) for i in chosen]
    return pairs
