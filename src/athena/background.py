"""The daemon at work: the server of `athena serve`, with nobody at its terminal."""

import os
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from athena import daemon, launcher, lock, logs, version
from athena.errors import AthenaError, Conflict

if TYPE_CHECKING:
    from athena.server import Server

LOOK = 1.0  # seconds between two looks at whether anybody needs us


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
    sys.stderr = logs.Log(home, daemon.LOG)
    try:
        _serve(home, held)
    except AthenaError as error:
        sys.exit(f"{error} ({error.hint})" if error.hint else str(error))


def _serve(home: str, held: lock.Held) -> None:
    from athena import settings as configuration  # from here on everything is needed, and there is time
    from athena.app import is_same_store, start
    from athena.home import DEFAULT_PROJECT
    from athena.server import Server

    settings = configuration.load()
    app = start(settings)
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
    launcher.install(home, settings.hooks_python_path, settings.hooks_timeout_ms)
    watch = Watch(server, settings.daemon_idle_minutes * 60)
    signal.signal(signal.SIGHUP, watch.ask)
    server.beside.append(watch.run)
    server.run()


class Watch:
    """Looks from time to time at whether the daemon is needed, and still the right one."""

    def __init__(self, server: "Server", idle: float) -> None:
        self._server, self._idle = server, idle
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
        if self._server.busy:
            return False
        idle = time.monotonic() - self._server.last
        return self._asked or _replaced() or bool(self._idle and idle > self._idle)


def _replaced() -> bool:
    """Tell whether another version, or none, is installed where we were loaded from."""
    try:
        with open(str(version.__file__), encoding="utf-8") as file:
            return f'"{version.__version__}"' not in file.read()
    except OSError:
        return True
