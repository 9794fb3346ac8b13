"""The main function of the daemon: detach, take the lock, serve, and exit when idle or replaced."""

import contextlib
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from athena.app import settings as configuration
from athena.core import version
from athena.core.home import daemon, lock, logs
from athena.core.home.paths import DEFAULT_PROJECT
from athena.errors import AthenaError, Conflict
from athena.hooks import launcher

if TYPE_CHECKING:
    from athena.server.serve import AthenaServer

IDLE_CHECK_INTERVAL_S = 1.0
RELOADABLE_PREFIXES = ("hooks_", "daemon_")  # a change of any other setting ends the daemon


def main() -> None:
    """Run the daemon of a data folder, or exit at once if a server holds the lock."""
    home = sys.argv[1]
    _close_inherited_files()
    if os.getpid() != os.getsid(0):
        os.setsid()
    try:
        server_lock = lock.ServerLock(home)
    except Conflict:
        sys.exit(daemon.ALREADY_SERVED_EXIT_CODE)
    if os.fork():
        os._exit(0)  # so that the parent has no child to wait for
    os.chdir(home)
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold memories
    log = sys.stderr = logs.StderrLog(home, daemon.DAEMON_LOG_FILE)
    failed = os.path.join(os.path.dirname(log.path), daemon.FAILED_MARKER_FILE)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(failed)
    try:
        _run_server(home, server_lock)
    except BaseException as error:
        with open(failed, "wb"):
            pass
        if isinstance(error, AthenaError):
            sys.exit(f"{error} ({error.hint})" if error.hint else str(error))
        raise


def _close_inherited_files() -> None:
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the listing itself had one
                os.close(int(name))


def _run_server(home: str, server_lock: lock.ServerLock) -> None:
    from athena.server.serve import open_server  # slow: after the lock is taken and the parent has gone on

    settings = configuration.load_settings()
    for warning in configuration.list_unknown_variables():
        print(f"warning: {warning}", file=sys.stderr)
    launcher.install_launchers(home, settings.hooks_python_path, settings.hooks_timeout_ms)
    server = open_server(settings, home, DEFAULT_PROJECT, "127.0.0.1", 0, auth=True, lock=server_lock)
    idle_check = IdleCheck(server, settings)
    signal.signal(signal.SIGHUP, idle_check.request_stop)
    server.background_tasks.append(idle_check.run)
    server.run()


class IdleCheck:
    """Ends the daemon when it is idle, unreachable, or has been replaced; reloads settings."""

    def __init__(self, server: "AthenaServer", settings: configuration.Settings) -> None:
        self._server, self._settings = server, settings
        self._config_stamp = configuration.read_config_stamp(settings.home)
        self._stop_requested = False

    def request_stop(self, *_: Any) -> None:
        """Exit as soon as no call is in progress: a newer daemon waits."""
        self._stop_requested = True

    async def run(self) -> None:
        import asyncio  # loaded with the server

        while not self._should_stop():  # noqa: ASYNC110  # files cannot wake a task
            await asyncio.sleep(IDLE_CHECK_INTERVAL_S)
        os.kill(os.getpid(), signal.SIGTERM)  # the handler answers the calls in progress first

    def _should_stop(self) -> bool:
        if not self._server.is_reachable():
            return True  # the data folder was removed, or another server has taken it
        if (stamp := configuration.read_config_stamp(self._settings.home)) != self._config_stamp:
            self._config_stamp = stamp
            self._reload_settings()
        if self._server.is_busy:
            return False
        idle_s = time.monotonic() - self._server.last_active_at
        return self._stop_requested or _is_replaced() or 0 < self._settings.daemon_idle_minutes * 60 < idle_s

    def _reload_settings(self) -> None:
        """Apply changed settings; if one changed that the server was built with, request a stop."""
        try:
            new = configuration.load_settings()
        except (AthenaError, OSError) as error:
            print(f"the settings are not followed: {error}", file=sys.stderr)
            return
        before, self._settings = self._settings, new
        try:
            launcher.install_launchers(new.home, new.hooks_python_path, new.hooks_timeout_ms)
        except OSError as error:
            print(f"the launchers are not written: {error}", file=sys.stderr)
        changed = {name for name, value in new._asdict().items() if getattr(before, name) != value}
        self._stop_requested |= any(not name.startswith(RELOADABLE_PREFIXES) for name in changed)


def _is_replaced() -> bool:
    """Return whether the installed package has another version by now, or is gone."""
    try:
        with open(str(version.__file__), encoding="utf-8") as file:
            return f'"{version.__version__}"' not in file.read()
    except OSError:
        return True
