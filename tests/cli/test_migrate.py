"""`athena migrate`: its output, and what it must not print."""

import contextlib
import hashlib
import itertools
import json
import os
import pty
import re
from collections.abc import Callable
from pathlib import Path

import postgres
import pytest

from athena import api
from athena.app import connect
from athena.cli import progress
from athena.cli.commands import athena

pytestmark = pytest.mark.sqlite_only("each test names its engines")
PASSWORD = "hunter2"
_numbers = itertools.count()


@pytest.fixture
def url(server: postgres.Server) -> str:
    """Return the URL of an empty database; the server accepts any password."""
    made = server.create(f"migrate{next(_numbers)}")
    return made.replace("postgres@", f"postgres:{PASSWORD}@")


@pytest.fixture
def store() -> Path:
    """Return the path of the store in use, with three memories."""
    api.store_batch([{"content": "Deploys run on Fridays", "tags": ["ops"]}, "Ann drinks tea", "The parrot is green"])
    connect.close()
    return Path(os.environ["ATHENA_HOME"]) / "athena.db"


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def give(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = athena(args=["migrate", *words], prog_name="athena", standalone_mode=False)
        captured = capsys.readouterr()
        assert PASSWORD not in captured.out + captured.err
        return code, captured.out, captured.err

    return give


def test_migrate_copies_to_postgres_and_back(
    run: Run, store: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hashlib.sha256(store.read_bytes()).digest()
    code, out, err = run("--to", url)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert out.startswith(f"copied 3 memories from {store} to postgresql:///migrate")
    assert re.search(r"to use it: export ATHENA_DATABASE_URL='.*', with your user and password\n", out)
    assert PASSWORD not in out
    assert hashlib.sha256(store.read_bytes()).digest() == before
    monkeypatch.setenv("ATHENA_DATABASE_URL", url)
    assert api.search("when do we deploy").memories[0].preview == "Deploys run on Fridays"
    connect.close()
    back = tmp_path / "new folder" / "back.db"
    assert "there is no folder" in run("--to", f"sqlite://{back}")[2]
    back.parent.mkdir()
    code, out, err = run("--to", f"sqlite://{back}")
    assert (code, err) == (0, "")
    assert out.endswith(f"to use it: export ATHENA_DB_PATH='{back}'; unset ATHENA_DATABASE_URL\n")
    assert back.stat().st_mode & 0o777 == 0o600
    monkeypatch.delenv("ATHENA_DATABASE_URL")
    monkeypatch.setenv("ATHENA_DB_PATH", str(back))
    assert api.search("when do we deploy").memories[0].preview == "Deploys run on Fridays"


def test_migrate_prints_json(run: Run, store: Path, tmp_path: Path) -> None:
    code, out, err = run("--to", str(tmp_path / "b.db"), "--from", str(store), "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert (data["from"], data["to"]) == (str(store), str(tmp_path / "b.db"))
    assert data["rows"]["memories"] == 3
    assert data["use"].startswith("export ATHENA_DB_PATH=")


@pytest.mark.usefixtures("store")
def test_migrate_shows_progress_on_terminal(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_DRAW_S", 0)  # else only work over a second shows something
    monkeypatch.setattr(progress, "DRAW_INTERVAL_S", 0.0001)
    ours, theirs = pty.openpty()
    with open(theirs, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(progress, "progress_stream", lambda: stream)
        assert run("--to", str(tmp_path / "b.db"))[0] == 0
        os.set_blocking(ours, False)
        shown = b""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(ours, 65_536):
                shown += part
    os.close(ours)
    assert re.search(rb"\rCopying \S+  \[#*-*\] +\d+%  \d+ of \d+", shown)
    assert re.search(rb"\r +\r$", shown)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("mysql://me:{password}@localhost/x", 2, "a store is named by a URL or by the path of a file"),
        ("postgresql:/me:{password}@localhost/x", 2, "a store is named by a URL or by the path of a file"),
        ("host=localhost password={password}", 2, "a store is named by a URL or by the path of a file"),
        (":memory:", 2, "a store is named by a URL or by the path of a file"),
        ("", 2, "a store is named by a URL or by the path of a file"),
        ("postgresql://me:{password}@localhost:1/x", 7, "postgresql://localhost:1/x does not answer"),
        ("postgresql://me:x/{password}@localhost:1/x", 8, "--to cannot be read"),
        ("postgresql://me:%zz{password}@localhost/x", 8, "--to cannot be read"),
        ("{folder}", 8, "cannot be opened"),
        ("{folder}/other.db", 8, "is not an Athena database"),
    ],
)
def test_invalid_target_error_is_one_line(run: Run, tmp_path: Path, target: str, code: int, said: str) -> None:
    (tmp_path / "other.db").write_text("something else " * 100)
    got, out, err = run("--to", target.format(password=PASSWORD, folder=tmp_path))
    assert (got, out) == (code, "")
    error, hint = err.splitlines()
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint:  ")
    assert "ATHENA_" not in err, "it was not a setting that is wrong"


def test_failed_copy_is_reported(run: Run, store: Path, url: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    assert run("--from", str(missing), "--to", url)[::2] == (
        3,
        f"error: there is no store at {missing}\nhint:  copy from one that is there\n",
    )
    assert not missing.exists()
    assert run("--to", f"{store.parent}/./athena.db")[2].startswith("error: source and target are the same store\n")
    assert run("--to", url)[0] == 0
    code, _, err = run("--to", url)
    assert (code, err.splitlines()[1]) == (4, "hint:  name an empty database or a new file")
    assert re.match(r"error: postgresql:///migrate\d+\?host=\S+ is not empty\n", err)


def test_target_with_a_file_alone_stays(run: Run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATHENA_DB_PATH", target := str(tmp_path / "target.db"))
    api.call("write_file", path="report.txt", content="my only copy")
    connect.close()
    monkeypatch.delenv("ATHENA_DB_PATH")
    code, _, err = run("--to", target)
    assert (code, err) == (4, f"error: {target} is not empty\nhint:  name an empty database or a new file\n")
    monkeypatch.setenv("ATHENA_DB_PATH", target)
    assert api.call("read_file", path="report.txt") == "my only copy"
    connect.close()
