"""Broken files, folders and disks: a clear error, and no data is lost."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Generator
from pathlib import Path

import apsw
import pytest

from athena import api
from athena.app import connect
from athena.core.threads import run_sync
from athena.errors import Misconfigured, Unavailable
from athena.storage import migrations

NOBODY = 65_534


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path where the store would be."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home" / "athena.db"


def verify_passes() -> bool:
    return bool(run_sync(connect.AppConnection(connect.shared_app, None, "python").call("verify", {})).data["ok"])


def write_foreign_database(file: Path, version: int) -> None:
    database = sqlite3.connect(file)
    database.execute("CREATE TABLE invoices (number INTEGER, amount REAL)")
    database.execute("INSERT INTO invoices VALUES (1, 9.5)")
    database.execute(f"PRAGMA user_version = {version}")
    database.commit()
    database.close()


def write_newer_store(file: Path) -> None:
    api.store("kept by a newer version")
    api.close()
    database = apsw.Connection(str(file))
    database.set_busy_timeout(60_000)  # on a busy machine the writer may still be closing
    database.pragma("user_version", len(migrations.STEPS) + 1)
    database.pragma("wal_checkpoint", "truncate")
    database.close()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda file: file.write_text("Dear diary"), "not an Athena database"),
        (lambda file: file.write_bytes(os.urandom(100_000)), "not an Athena database"),
        (lambda file: file.write_text("{}\n" * 10_000), "not an Athena database"),
        (lambda file: write_foreign_database(file, 0), "another program"),
        (lambda file: write_foreign_database(file, len(migrations.STEPS)), "another program"),
        (lambda file: write_foreign_database(file, -1), "another program"),
        (write_newer_store, "newer"),
        (lambda file: write_foreign_database(file, 2_000), "athena.db"),
    ],
    ids=["a word", "noise", "text", "another program", "same version", "below nought", "newer", "far version"],
)
def test_foreign_file_is_refused_unchanged(file: Path, make: Callable[[Path], object], said: str) -> None:
    make(file)
    before = file.read_bytes()
    for attempt in (lambda: api.store("something"), lambda: api.search("something"), api.health):
        with pytest.raises(Misconfigured, match=said) as caught:
            attempt()
        assert caught.value.hint
        assert str(file) in str(caught.value)
    api.close()
    assert file.read_bytes() == before


def test_folder_as_database_file_is_refused(file: Path) -> None:
    file.mkdir()
    with pytest.raises(Misconfigured, match=file.name):
        api.store("something")


def test_home_that_is_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a folder")
    with pytest.raises(Misconfigured, match="home"):
        api.store("something")


@pytest.mark.parametrize(
    ("configuration", "said"),
    [("colour = 'red'", "colour"), ("db_path = 5", "db_path"), ("db_path = ", "TOML"), ("\udcff", "config.toml")],
)
def test_invalid_config_is_refused(file: Path, configuration: str, said: str) -> None:
    (file.parent / "config.toml").write_text(configuration, errors="surrogateescape")
    with pytest.raises(Misconfigured, match=said):
        api.store("something")
    assert not file.exists()


def test_empty_file_becomes_store(file: Path) -> None:
    file.touch()
    assert api.get(api.store("something")).content == "something"


def test_refused_store_opens_after_repair(file: Path) -> None:
    file.write_text("Dear diary")
    with pytest.raises(Misconfigured):
        api.store("something")
    file.unlink()
    assert api.store("something")
    assert api.health().count == 1


def test_verify_reports_damaged_file(file: Path) -> None:
    api.store_batch([f"item {i} " + "padding " * 50 for i in range(200)])
    api.close()
    size = file.stat().st_size
    with file.open("r+b") as raw:
        raw.seek(size // 2)
        raw.write(os.urandom(size // 4))
    try:
        assert not verify_passes()
    except (Unavailable, Misconfigured) as error:
        assert error.hint  # noqa: PT017  # an error is one of two right answers


@pytest.fixture
def shared_home(monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """Return a home that other users can reach, unlike pytest's own folders."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    monkeypatch.setenv("ATHENA_HOME", str(folder / "home"))
    (folder / "home").mkdir()
    yield folder / "home"
    api.close()
    (folder / "home").chmod(0o755)
    shutil.rmtree(folder)


def run_as_nobody(script: str) -> list[str]:
    """Run a script as a user other than root; modules are imported first, since only root may be able to read them."""
    drop = f"""
        import os
        from athena import api, testing
        from athena.errors import AthenaError
        with testing.isolated():
            api.store("something")
            api.search("something")
        if os.getuid() == 0:
            os.setgid({NOBODY})
            os.setuid({NOBODY})
    """
    command = [sys.executable, "-c", textwrap.dedent(drop) + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("is_empty", [True, False])
def test_unwritable_folder_raises_clear_error(shared_home: Path, is_empty: bool) -> None:
    if not is_empty:
        api.store("kept")
        api.close()
        (shared_home / "athena.db").chmod(0o644)
    shared_home.chmod(0o555)
    lines = run_as_nobody(
        """
        for attempt in (lambda: api.store("new"), lambda: api.search("kept"), api.health):
            try:
                print("done", attempt())
            except AthenaError as error:
                print(error.code, error, "|", error.hint)
        """
    )
    assert len(lines) == 3
    for line in lines:
        assert line.startswith(("misconfigured", "unavailable")), line
        assert str(shared_home) in line
        assert not line.endswith("None")
    shared_home.chmod(0o755)
    assert [m.preview for m in api.search("kept").memories] == ([] if is_empty else ["kept"])
    assert verify_passes()


def test_store_of_other_user_raises_error(shared_home: Path) -> None:
    api.store("private")
    api.close()
    if os.getuid() != 0:
        (shared_home / "athena.db").chmod(0)
    lines = run_as_nobody(
        """
        try:
            print("done", api.search("private"))
        except AthenaError as error:
            print(error.code, error, "|", error.hint)
        """
    )
    (shared_home / "athena.db").chmod(0o600)
    assert len(lines) == 1
    assert lines[0].startswith("misconfigured no right to use")
    assert str(shared_home) in lines[0]


def test_full_disk_error_loses_nothing() -> None:
    script = """
        import resource, signal
        from athena import api
        from athena.errors import Unavailable
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
        try:
            for i in range(100):
                print(api.store(f"number {i} " + "x" * 100_000), flush=True)
        except Unavailable as error:
            assert error.hint and error.retry, error.to_json()
            print("full:", error)
        found = api.search("number", limit=1_000)
        print(len(found.memories), flush=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(api.store("when there is room again"))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    *stored, said, count, last = done.stdout.splitlines()
    assert said.startswith("full: ")
    assert len(stored) >= 3
    assert int(count) == len(stored)
    assert {m.hash for m in api.search_iter("number")} == {*stored, last}
    assert verify_passes()


def test_full_file_system_error_loses_nothing(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "athena-test", str(small)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        os.environ["ATHENA_DB_PATH"] = str(small / "athena.db")
        stored: list[str] = []
        with pytest.raises(Unavailable, match="full") as caught:
            stored.extend(api.store(f"number {i} " + "x" * 50_000) for i in range(100))
        assert caught.value.hint
        assert stored
        assert {m.hash for m in api.search("number", limit=100).memories} == set(stored)
        api.close()
        assert {m.hash for m in api.search("number", limit=100).memories} == set(stored)
        assert verify_passes()
    finally:
        api.close()
        del os.environ["ATHENA_DB_PATH"]
        subprocess.run(["umount", str(small)], check=True, timeout=60)
