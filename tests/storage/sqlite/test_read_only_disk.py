"""A store on a read-only disk can be read, and says of every write why it fails."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL
from wait_tools import LONG

MOUNT = 'mount --bind "$ATHENA_HOME" "$ATHENA_HOME" && mount -o remount,bind,ro "$ATHENA_HOME" && exec "$@"'
SCRIPT = """
from athena import api
from athena.errors import AthenaError
for attempt in (
    lambda: api.search("harbour lamp", min_score=0).memories[0].preview,
    lambda: api.call("list_memories")[0]["content"],
    lambda: api.call("stats")["memories"],
    lambda: api.store("new"),
    lambda: api.delete_batch([1]),
    lambda: api.health().status,
):
    try:
        print("done", attempt())
    except AthenaError as error:
        print(error.code, error, "|", error.hint)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    app = App(Sqlite(tmp_path / "athena.db"), MODEL)
    context = app.create_context("p", "python")
    run_sync(app.catalog.get_operation("remember")(context, content="The lamp of the harbour is lit at dusk"))
    app.close()
    return tmp_path


def run_on_read_only_disk(home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    unshare = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    command = [*unshare, "sh", "-c", MOUNT, "sh", sys.executable, *argv]
    environment = {**os.environ, "ATHENA_HOME": str(home), "ATHENA_PROJECT": "p"}
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no right to mount")
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG)


def run_script(home: Path) -> list[str]:
    done = run_on_read_only_disk(home, "-c", SCRIPT)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_store_on_read_only_disk_is_read(home: Path) -> None:
    before = (home / "athena.db").read_bytes()
    search, newest, memories, stored, forgotten, health = run_script(home)
    assert search == newest == "done The lamp of the harbour is lit at dusk"
    assert memories == "done 1"
    for line in (stored, forgotten):
        assert line.startswith(f"unavailable {home / 'athena.db'} is read-only here | check the disk")
    assert health == "done error"
    assert (home / "athena.db").read_bytes() == before


def test_log_that_cannot_be_applied_is_named(home: Path) -> None:
    raw = apsw.Connection(str(home / "athena.db"))
    raw.execute("INSERT INTO counters VALUES ('later', 1)").fetchall()
    shutil.copy(home / "athena.db-wal", home / "copy")  # as a killed process leaves it
    raw.close()
    shutil.move(home / "copy", home / "athena.db-wal")
    lines = run_script(home)
    assert len(lines) == 6
    assert all("its log" in line and "copy both to a folder" in line for line in lines[:5]), lines


def test_older_format_on_read_only_disk_is_named(home: Path) -> None:
    raw = apsw.Connection(str(home / "athena.db"))
    raw.pragma("user_version", 2)
    raw.close()
    lines = run_script(home)
    assert "of an older format" in lines[0]


def test_doctor_lists_its_checks_on_a_read_only_disk(home: Path) -> None:
    done = run_on_read_only_disk(home, "-m", "athena", "doctor")
    assert (done.returncode, done.stderr) == (1, "")
    assert f"FAIL home       {home} cannot be written" in done.stdout
    assert "ok   athena " in done.stdout


@pytest.mark.parametrize("command", [("daemon", "start"), ("ui", "--no-browser")])
def test_daemon_names_the_home_that_cannot_be_written(home: Path, command: tuple[str, ...]) -> None:
    done = run_on_read_only_disk(home, "-m", "athena", *command)
    assert done.returncode != 0
    assert f"the data folder {home} cannot be written" in done.stderr
    assert "daemon.log" not in done.stderr
