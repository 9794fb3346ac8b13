"""Adapters of the bundled model: low-rank changes of its layers and a small head, trained for one task.

`scripts/train_adapters.py` writes them. The model's weights stay as they are; an adapter is an input of its graph.
"""

from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from athena.embedding.minilm import ModelFiles
from athena.errors import Unavailable


class Adapter(NamedTuple):
    """What a task adds to the bundled model."""

    layers: dict[str, Any]  # inputs of the graph
    head: dict[str, Any]


@cache
def load_adapter(file: Path) -> Adapter:
    """Read an adapter that matches its checksum; values that were rounded to eight bits get their scale back."""
    import numpy as np  # slow to load; only learning and tool search need it

    with np.load(BytesIO(ModelFiles(file.parent).read_file(file.name)), allow_pickle=False) as arrays:
        values = {name: arrays[name].astype(np.float32) for name in arrays.files}
    for name in [name for name in values if f"{name}:scale" in values]:
        values[name] *= values.pop(f"{name}:scale")
    return Adapter(
        # the model would copy a transposed matrix at every call
        {name: np.ascontiguousarray(value) for name, value in values.items() if name[0].isdigit()},
        {name: value for name, value in values.items() if not name[0].isdigit()},
    )


def read_digest(file: Path) -> str:
    """Return the checksum of an adapter; empty if it cannot be loaded, which its first use will tell."""
    try:
        return ModelFiles(file.parent).get_digest(file.name)
    except Unavailable:
        return ""
