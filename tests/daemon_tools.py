"""A data folder with its own daemon, and session hooks that use it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from athena.core.home import daemon, lock
from athena.errors import Conflict
from athena.hooks import launcher
from tool_vectors import give_tool_vectors
from wait_tools import LONG, wait_until

LONG_TIMEOUT = {"ATHENA_HOOKS_TIMEOUT_MS": "60000"}  # the longest timeout, so that a slow machine does not matter
INHERITED = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR", "HOME")
_held_locks: list[lock.ServerLock] = []  # locks on homes that keep later daemons from starting


class HookResult(NamedTuple):
    """Result of a hook process."""

    code: int
    out: bytes
    seconds: float

    @property
    def context(self) -> str:
        """Return the text that the client would add to the prompt."""
        return str(json.loads(self.out)["hookSpecificOutput"]["additionalContext"]) if self.out else ""


class Home:
    """A data folder; its processes are stopped at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, exist_ok=True)
        give_tool_vectors(path)

    def environ(self, **more: str) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        return inherited | LONG_TIMEOUT | {"ATHENA_HOME": str(self.path)} | more

    def athena(self, *argv: str, stdin: bytes = b"", project: str = "harbour") -> str:
        """Run a command and assert that it succeeds."""
        command = [sys.executable, "-m", "athena", *argv]
        done = subprocess.run(
            command, input=stdin, env=self.environ(ATHENA_PROJECT=project), capture_output=True, timeout=100
        )
        assert done.returncode == 0, done
        return done.stdout.decode()

    def install(self, python: str | None = None, timeout_ms: int = 5_000) -> None:
        launcher.install_launchers(str(self.path), python, timeout_ms)

    def hook(self, event: str, stdin: bytes = b"{}", **more: str) -> HookResult:
        """Run a hook to its end, as a client does."""
        began = time.monotonic()
        command = [str(self.path / "bin" / "athena-hook"), event]
        done = subprocess.run(command, input=stdin, env=self.environ(**more), capture_output=True, timeout=100)
        assert done.stderr == b"", done
        return HookResult(done.returncode, done.stdout, time.monotonic() - began)

    def settings(self, text: str) -> None:
        (self.path / "config.toml").write_text(text)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the hook log."""
        log = self.path / "logs" / "hooks.log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def links(self) -> list[str]:
        return [line["link"] for line in self.lines]

    @property
    def server_info(self) -> dict[str, Any] | None:
        return lock.find_server(str(self.path))

    @property
    def pid(self) -> int:
        info = self.server_info
        assert info is not None
        return int(info["pid"])

    def start_count(self) -> int:
        """Return the number of daemon starts."""
        log = self.path / "logs" / daemon.DAEMON_LOG_FILE
        return log.read_text().count('"event": "serving"') if log.exists() else 0

    def start(self) -> int:
        """Start the daemon, or find it, and return its process id."""
        return int(daemon.start_daemon(str(self.path), LONG)["pid"])

    def wait_until(self, *, served: bool) -> None:
        wait_until(lambda: (self.server_info is not None) == served)

    def stop(self) -> None:
        """Stop the daemon and hold its lock, so that no other can start."""
        wait_until(self._take_lock)

    def _take_lock(self) -> bool:
        try:
            _held_locks.append(lock.ServerLock(str(self.path)))
        except Conflict:
            with contextlib.suppress(OSError, ValueError, KeyError):
                os.kill(json.loads((self.path / lock.LOCK_FILE).read_text())["pid"], signal.SIGKILL)
            return False
        return True


def assert_gone(pid: int) -> None:
    """Wait until a process has ended."""
    wait_until(lambda: not _is_alive(pid))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
