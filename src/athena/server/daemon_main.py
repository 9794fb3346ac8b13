"""The daemon at work: the server of `athena serve`, with nobody at its terminal."""

import contextlib
import os
import resource
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from athena.app import settings as configuration
from athena.core import version
from athena.core.home import daemon, lock, logs
from athena.errors import AthenaError, Conflict
from athena.hooks import launcher

if TYPE_CHECKING:
    from athena.server.serve import AthenaServer

IDLE_CHECK_INTERVAL_S = 1.0  # seconds between two looks at whether anybody needs us
RELOADABLE_PREFIXES = ("hooks_", "daemon_")  # settings that a daemon follows while it runs


def main() -> None:
    """Be the daemon of a home, or leave at once if somebody serves it."""
    home = sys.argv[1]
    os.closerange(3, 256)  # files of whoever started us
    if os.getpid() != os.getsid(0):
        os.setsid()
    try:
        held = lock.ServerLock(home)
    except Conflict:
        sys.exit(daemon.ALREADY_SERVED_EXIT_CODE)
    if os.fork():
        os._exit(0)  # whoever started us has no child to look after
    os.chdir(home)
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what we know belongs in no dump
    log = sys.stderr = logs.StderrLog(home, daemon.DAEMON_LOG_FILE)
    failed = os.path.join(os.path.dirname(log.path), daemon.FAILED_MARKER_FILE)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(failed)
    try:
        _run_server(home, held)
    except BaseException as error:
        with open(failed, "wb"):
            pass
        if isinstance(error, AthenaError):
            sys.exit(f"{error} ({error.hint})" if error.hint else str(error))
        raise


def _run_server(home: str, held: lock.ServerLock) -> None:
    from athena.app.compose import is_same_store, open_app  # from here on everything is needed, and there is time
    from athena.core.home.paths import DEFAULT_PROJECT
    from athena.server.serve import AthenaServer

    settings = configuration.load_settings()
    app = open_app(settings)
    launcher.install_launchers(home, settings.hooks_python_path, settings.hooks_timeout_ms)
    try:
        server = AthenaServer(
            app,
            home,
            DEFAULT_PROJECT,
            "127.0.0.1",
            0,
            auth=True,
            hosts=(),
            consolidating=settings.consolidate,
            held=held,
            serves=partial(is_same_store, settings),
        )
    except BaseException:
        app.close()
        raise
    watch = IdleCheck(server, settings)
    signal.signal(signal.SIGHUP, watch.request_stop)
    server.background_tasks.append(watch.run)
    server.run()


class IdleCheck:
    """Looks from time to time at whether the daemon is needed, and still the right one."""

    def __init__(self, server: "AthenaServer", settings: configuration.Settings) -> None:
        self._server, self._settings = server, settings
        self._config_stamp = configuration.read_config_stamp(settings.home)
        self._stop_requested = False

    def request_stop(self, *_: Any) -> None:
        """Leave as soon as nobody is being answered: a newer one waits."""
        self._stop_requested = True

    async def run(self) -> None:
        import asyncio  # it runs already

        while not self._should_stop():  # noqa: ASYNC110  # some of it is on disk, and wakes nobody
            await asyncio.sleep(IDLE_CHECK_INTERVAL_S)
        os.kill(os.getpid(), signal.SIGTERM)  # the one way to stop: what was begun is answered

    def _should_stop(self) -> bool:
        if not self._server.is_reachable():
            return True  # the home was removed, or taken from under us
        if (stamp := configuration.read_config_stamp(self._settings.home)) != self._config_stamp:
            self._config_stamp = stamp
            self._reload_settings()
        if self._server.is_busy:
            return False
        unused = time.monotonic() - self._server.last_active_at
        return self._stop_requested or _is_replaced() or 0 < self._settings.daemon_idle_minutes * 60 < unused

    def _reload_settings(self) -> None:
        """Follow settings that have changed; those that a server is built with are for the next one."""
        try:
            now = configuration.load_settings()
        except (AthenaError, OSError) as error:
            print(f"the settings are not followed: {error}", file=sys.stderr)
            return
        before, self._settings = self._settings, now
        try:
            launcher.install_launchers(now.home, now.hooks_python_path, now.hooks_timeout_ms)
        except OSError as error:
            print(f"the launchers are not written: {error}", file=sys.stderr)
        changed = {name for name, value in now._asdict().items() if getattr(before, name) != value}
        self._stop_requested |= any(not name.startswith(RELOADABLE_PREFIXES) for name in changed)


def _is_replaced() -> bool:
    """Tell whether another version, or none, is installed where we were loaded from."""
    try:
        with open(str(version.__file__), encoding="utf-8") as file:
            return f'"{version.__version__}"' not in file.read()
    except OSError:
        return True
