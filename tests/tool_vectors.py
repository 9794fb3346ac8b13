"""The vectors of all operations, as an earlier start has left them in a data folder.

A server with a new data folder computes them in its first seconds: half of the CPU time of a short test.
"""

import hashlib
import os
import shutil
from functools import cache
from pathlib import Path

from athena import embedding, operations
from athena.app.compose import TOOL_VECTORS_FILE
from wait_tools import wait_until

CACHE_FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "athena-tests"


def name_cache_file(*packages: Path) -> Path:
    """Return the file of vectors that the model and these packages give."""
    CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
    folder = Path(embedding.__file__).parent
    modules = [file for package in (folder, *packages) for file in sorted(package.glob("*.py"))]
    sources = [*modules, folder / "minilm" / "SHA256SUMS"]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    return CACHE_FOLDER / f"tool-vectors-{digest}.npy"


@cache
def _build_file() -> Path:
    from athena.discovery.entry import list_catalog_entries
    from athena.discovery.finder import ToolFinder
    from athena.embedding.encoder import Encoder
    from athena.operations import CATALOG
    from conftest import MODEL  # which loads this module

    file = name_cache_file(Path(operations.__file__).parent)
    if not file.exists():
        finder = ToolFinder(Encoder(MODEL), str(file))
        finder.warm_up(list_catalog_entries(CATALOG))
        wait_until(file.exists)
        finder.stop()
    return file


def give_tool_vectors(home: Path) -> None:
    """Put the vectors into a new data folder; `make test-full` lets each server compute its own."""
    if os.environ.get("ATHENA_TEST_FULL") != "1" and not (home / TOOL_VECTORS_FILE).exists():
        home.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(_build_file(), home / TOOL_VECTORS_FILE)
