"""Sets of ids as sorted arrays. `numpy.unique` and its kin load numpy's masked arrays, 10 ms of a first search."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from athena.storage.database import Ids


def distinct(values: "Ids") -> "Ids":
    """Return the values in order, each once."""
    import numpy as np

    ordered = np.sort(values)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]


def union(one: "Ids", other: "Ids") -> "Ids":
    import numpy as np

    return distinct(np.concatenate([one, other]))
