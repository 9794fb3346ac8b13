"""What the tests share: real stores in memory or in a file, and the bundled model."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from athena import connect, testing
from athena.app import App
from athena.embedding.minilm import MiniLM
from athena.storage.sqlite.store import Sqlite

FULL = os.environ.get("ATHENA_TEST_FULL") == "1"
_model = MiniLM()


def rounds(quick: int, full: int) -> int:
    """Return how often a long test repeats: a part of it in `make test`, all of it in `make test-full`."""
    return full if FULL else quick


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Keep every test away from the store of whoever runs it."""
    for name in [name for name in os.environ if name.startswith("ATHENA_") and name != "ATHENA_TEST_FULL"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ATHENA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ATHENA_PROJECT", "test")
    yield
    connect.close()


@pytest.fixture
def isolated() -> Generator[App]:
    """An empty store in memory, behind `athena.api`."""
    with testing.isolated(_model) as app:
        yield app


@pytest.fixture
def app(tmp_path: Path) -> Generator[App]:
    """An empty store in a file."""
    made = App(Sqlite(tmp_path / "athena.db"), _model)
    yield made
    made.close()
