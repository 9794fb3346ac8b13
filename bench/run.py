"""Settings of one benchmark run: how thorough it is, and where its stores are."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import athena
from athena import api
from athena.app import connect
from bench.machine import ROOT
from bench.stores import Stores

if TYPE_CHECKING:
    from athena.app.compose import App

PROJECT = "bench"


class Run:
    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self.sizes = (100, 300, 1_000, 3_000) if quick else (1_000, 3_000, 10_000, 30_000, 100_000)
        self.ordinary = 1_000 if quick else 10_000
        self.large = self.sizes[-1]
        self.stores = Stores(folder, self.ordinary)

    def environment(self, home: Path) -> dict[str, str]:
        """Return the environment of a process that uses this store and ignores the user's."""
        sources = [str(Path(athena.__file__).parent.parent), str(ROOT)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ATHENA_", "PYTHON"))}
        return kept | {
            "ATHENA_HOME": str(home),
            "ATHENA_PROJECT": PROJECT,
            "HOME": str(self.folder),
            "PYTHONPATH": os.pathsep.join(sources),
        }

    @contextmanager
    def open_store(self, home: Path) -> Generator["App"]:
        """Make `athena.api` use this store in this process."""
        os.environ["ATHENA_HOME"] = str(home)
        try:
            yield connect.shared_app()
        finally:
            api.close()
