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
    from athena.server.serve import Server

LOOK = 1.0  # seconds between two looks at whether anybody needs us
FOLLOWED = ("hooks_", "daemon_")  # settings that a daemon follows while it runs


def main() -> None:
    """Be the daemon of a home, or leave at once if somebody serves it."""
    home = sys.argv[1]
    os.closerange(3, 256)  # files of whoever started us
    if os.getpid() != os.getsid(0):
        os.setsid()
    try:
        held = lock.Held(home)
    except Conflict:
        sys.exit(daemon.TAKEN)
    if os.fork():
        os._exit(0)  # whoever started us has no child to look after
    os.chdir(home)
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what we know belongs in no dump
    log = sys.stderr = logs.Log(home, daemon.LOG)
    failed = os.path.join(os.path.dirname(log.path), daemon.FAILED)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(failed)
    try:
        _serve(home, held)
    except BaseException as error:
        with open(failed, "wb"):
            pass
        if isinstance(error, AthenaError):
            sys.exit(f"{error} ({error.hint})" if error.hint else str(error))
        raise


def _serve(home: str, held: lock.Held) -> None:
    from athena.app.compose import is_same_store, start  # from here on everything is needed, and there is time
    from athena.core.home.paths import DEFAULT_PROJECT
    from athena.server.serve import Server

    settings = configuration.load()
    app = start(settings)
    launcher.install(home, settings.hooks_python_path, settings.hooks_timeout_ms)
    try:
        server = Server(
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
    watch = Watch(server, settings)
    signal.signal(signal.SIGHUP, watch.ask)
    server.beside.append(watch.run)
    server.run()


class Watch:
    """Looks from time to time at whether the daemon is needed, and still the right one."""

    def __init__(self, server: "Server", settings: configuration.Settings) -> None:
        self._server, self._settings = server, settings
        self._stamp = configuration.stamp(settings.home)
        self._asked = False

    def ask(self, *_: Any) -> None:
        """Leave as soon as nobody is being answered: a newer one waits."""
        self._asked = True

    async def run(self) -> None:
        import asyncio  # it runs already

        while not self._is_over():  # noqa: ASYNC110  # some of it is on disk, and wakes nobody
            await asyncio.sleep(LOOK)
        os.kill(os.getpid(), signal.SIGTERM)  # the one way to stop: what was begun is answered

    def _is_over(self) -> bool:
        if not self._server.is_reachable():
            return True  # the home was removed, or taken from under us
        if (stamp := configuration.stamp(self._settings.home)) != self._stamp:
            self._stamp = stamp
            self._read_again()
        if self._server.busy:
            return False
        unused = time.monotonic() - self._server.last
        return self._asked or _replaced() or 0 < self._settings.daemon_idle_minutes * 60 < unused

    def _read_again(self) -> None:
        """Follow settings that have changed; those that a server is built with are for the next one."""
        try:
            now = configuration.load()
        except (AthenaError, OSError) as error:
            print(f"the settings are not followed: {error}", file=sys.stderr)
            return
        before, self._settings = self._settings, now
        try:
            launcher.install(now.home, now.hooks_python_path, now.hooks_timeout_ms)
        except OSError as error:
            print(f"the launchers are not written: {error}", file=sys.stderr)
        changed = {name for name, value in now._asdict().items() if getattr(before, name) != value}
        self._asked |= any(not name.startswith(FOLLOWED) for name in changed)


def _replaced() -> bool:
    """Tell whether another version, or none, is installed where we were loaded from."""
    try:
        with open(str(version.__file__), encoding="utf-8") as file:
            return f'"{version.__version__}"' not in file.read()
    except OSError:
        return True
