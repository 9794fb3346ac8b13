"""The reference graph server, to compare with."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import node_packages
from reference_server import Reference

from conftest import skip_or_fail


@contextmanager
def open_reference(folder: Path) -> Generator[Reference]:
    """Run the reference server with a file in a folder; skip the test where it cannot be installed."""
    try:
        command = node_packages.command()
    except node_packages.Unobtainable as error:
        skip_or_fail(f"no reference server to compare with: {error}")
    server = Reference(command, folder / "memory.jsonl")
    try:
        yield server
    finally:
        server.close()
