"""Calling operations by name, from synchronous or asynchronous code, wherever the store is open.

An app is opened in this process at the first call and shared by all its threads. After a fork the child opens
its own: what it inherited belongs to the parent and is left alone.
"""

import atexit
import os
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.core.home.paths import current_project
from athena.core.threads import Turnstile

if TYPE_CHECKING:
    from athena.api.memory import MemoryApi
    from athena.app.compose import App


class Answer(NamedTuple):
    """What an operation returned, as plain JSON values; `total` where it is part of a longer list."""

    data: Any
    total: int | None = None


class Connection:
    """A way to the operations of one store. `app` is asked for at each call, so that it can be opened late."""

    def __init__(self, app: Callable[[], "App"], project: str | None, surface: str) -> None:
        self._app = app
        self.project = project
        self.surface = surface

    async def call(self, name: str, arguments: Mapping[str, Any], project: str | None = None) -> Answer:
        if _left and threading.current_thread() is threading.main_thread():
            return await self._call(name, arguments, project)  # from another handler at exit, after ours
        with _gate:
            return await self._call(name, arguments, project)

    async def _call(self, name: str, arguments: Mapping[str, Any], project: str | None) -> Answer:
        from athena.core.invoke import invoke  # with the app, at the first call
        from athena.core.types import plain

        app = self._app()
        whose = project if project is not None else self.project
        context = app.context(current_project() if whose is None else whose, self.surface)
        result = await invoke(app.catalog, name, arguments, context)
        return Answer(plain(result), getattr(result, "total", None))


_ENVIRONMENT = ("ATHENA_HOME", "ATHENA_DB_PATH", "ATHENA_DATABASE_URL", "XDG_DATA_HOME", "HOME")
_FINER = (
    "ATHENA_EMBEDDING_URL",
    "ATHENA_EMBEDDING_MODEL",
    "ATHENA_EMBEDDING_KEY",
    "ATHENA_LLM_URL",
    "ATHENA_LLM_MODEL",
    "ATHENA_LLM_KEY",
    "ATHENA_RANKING_ROLE",
    "ATHENA_RANKING_RECENCY",
)
_guard = threading.Lock()
_gate = Turnstile()
_left = False
_apps: dict[tuple[str | None, ...], "App"] = {}
_inherited: list["App"] = []  # kept, since letting go of them would close files that the parent uses


_instead: list["App"] = []  # an app that tests use; the last one counts


@contextmanager
def using(app: "App") -> Generator[None]:
    """Let this process's calls go to `app` for as long as the block runs."""
    _instead.append(app)
    try:
        yield
    finally:
        _instead.remove(app)


def shared_app() -> "App":
    """Return this process's app for the settings in force now, opening it at the first call."""
    if _instead:
        return _instead[-1]
    key = tuple(os.environ.get(name) for name in _ENVIRONMENT + _FINER)
    if (app := _apps.get(key)) is not None:
        return app
    with _guard:
        if key not in _apps:
            from athena.app import compose as composition  # everything heavy hangs below this
            from athena.app import settings

            _apps[key] = composition.start(settings.load())
        return _apps[key]


def close() -> None:
    """Close what this process has open; the next call opens it again."""
    with _guard:
        apps = list(_apps.values())
        _apps.clear()
    for app in apps:
        app.close()


def _start_anew() -> None:
    """In a forked child: what was open belongs to the parent, whose threads may have held any lock."""
    global _gate, _guard
    _gate, _guard = Turnstile(), threading.Lock()
    _inherited.extend(_apps.values())
    _apps.clear()


os.register_at_fork(after_in_child=_start_anew)


def _leave() -> None:
    """At the end of the program: let calls on other threads finish, start no more, and close.

    A thread that is inside native code while the interpreter ends aborts the whole process.
    """
    global _left
    _gate.shut(timeout=10)
    close()
    _left = True


atexit.register(_leave)


@asynccontextmanager
async def open(  # noqa: A001  # read as `athena.open`
    project: str | None = None,
) -> AsyncGenerator["MemoryApi"]:
    """Open the store for asynchronous code: `async with athena.open() as memory: await memory.search(...)`."""
    from athena.api.memory import MemoryApi
    from athena.core.threads import aside

    app = await aside(shared_app)
    yield MemoryApi(Connection(lambda: app, project, "python"))
