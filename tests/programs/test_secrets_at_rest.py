"""Secrets at rest: what programs and calls write is searched for in the rows of the store."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import InvalidInput
from athena.programs import program_run
from athena.storage.database import Transaction
from conftest import MODEL, Engine

TOKEN = "ghp_" + "a1B2c3D4e5F6" * 3
HIDDEN = "[SECRET:github-token]"


@pytest.fixture
def app(tmp_path: Path, engine: Engine) -> Generator[App]:
    app = App(engine.open(tmp_path / "athena.db"), MODEL, key=lambda: bytes(range(32)))
    yield app
    app.close()


def call(app: App, name: str, /, key: str | None = None, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context("p", "python", key), **arguments))


def read_rows(app: App, columns: str, table: str) -> list[Any]:
    async def fetch(tx: Transaction) -> list[Any]:
        return list(await tx.fetch(f"SELECT {columns} FROM {table}"))

    return run_sync(app.store.database.read(fetch))


def test_workspace_file_loses_secrets(app: App) -> None:
    call(app, "write_file", path="notes.txt", content=f"line\n{TOKEN}\n")
    call(app, "write_file", path="login.json", content={"user": "bob", "password": "hunter2-Secret99", "rows": [1, 2]})
    assert call(app, "read_file", path="notes.txt") == f"line\n{HIDDEN}\n"
    assert call(app, "read_file", path="login.json") == {"user": "bob", "password": "[SECRET:password]", "rows": [1, 2]}
    assert TOKEN not in repr(read_rows(app, "content", "files"))


def test_name_of_an_exception_loses_secrets(app: App) -> None:
    done = call(app, "execute_code", code=f"class {TOKEN}(Exception): pass\nraise {TOKEN}('x')", engine="python")
    assert done.status == "failed"
    assert TOKEN not in repr(read_rows(app, "error, answer", "runs"))


def test_json_text_stays_json(app: App) -> None:
    call(app, "write_file", path="log.json", content=json.dumps({"out": f"first\n{TOKEN}\nlast"}))
    assert call(app, "read_file", path="log.json") == {"out": f"first\n{HIDDEN}\nlast"}


def test_path_with_secret_is_refused(app: App) -> None:
    with pytest.raises(InvalidInput, match="must hold no secret"):
        call(app, "write_file", path=f"out/{TOKEN}.txt", content="x")
    assert read_rows(app, "path", "files") == []


def test_answer_of_run_is_stored_without_secrets(app: App) -> None:
    code = f"print('using {TOKEN}')\n{{'token': '{TOKEN}', 'count': 3}}"
    first = call(app, "execute_code", key="one", code=code)
    assert first.result == {"token": TOKEN, "count": 3}  # the caller gets what its program returned
    answers = read_rows(app, "answer", "runs")
    assert len(answers) == 1
    assert TOKEN not in repr(answers)
    again = call(app, "execute_code", key="one", code=code)
    assert again.result == {"token": HIDDEN, "count": 3}


def test_long_result_is_stored_without_secrets(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_run, "MAX_DUMP_S", 60.0)  # a busy machine takes longer
    result = call(app, "execute_code", code=f"['{TOKEN}'] + ['filler'] * 20_000")
    assert result.handle is not None
    assert TOKEN not in repr(read_rows(app, "content", "files"))
    assert HIDDEN in repr(read_rows(app, "content", "files"))


def test_idempotency_key_with_secret_is_stored_as_hash(app: App) -> None:
    for _ in range(2):
        call(app, "write_file", key=f"retry-{TOKEN}", path="a.txt", content="x")
    keys = read_rows(app, "key", "receipts")
    assert len(keys) == 1
    assert keys[0][0].startswith("sha256:")


def test_plain_idempotency_key_is_stored_as_it_is(app: App) -> None:
    call(app, "write_file", key="retry-1", path="a.txt", content="x")
    assert [row[0] for row in read_rows(app, "key", "receipts")] == ["retry-1"]
