"""Calling operations by name, from synchronous or asynchronous code, wherever the store is open.

An app is opened in this process at the first call and shared by all its threads. After a fork the child opens
its own: what it inherited belongs to the parent and is left alone.
"""

import atexit
import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.core.home.paths import current_project
from athena.core.threads import SharedLock

if TYPE_CHECKING:
    from athena.app.compose import App


class OperationResult(NamedTuple):
    """What an operation returned, as plain JSON values; `total` where it is part of a longer list."""

    data: Any
    total: int | None = None


class AppConnection:
    """A way to the operations of one store. `app` is asked for at each call, so that it can be opened late."""

    def __init__(self, app: Callable[[], "App"], project: str | None, surface: str) -> None:
        self._app = app
        self.project = project
        self.surface = surface

    async def call(self, name: str, arguments: Mapping[str, Any], project: str | None = None) -> OperationResult:
        if _has_exited and threading.current_thread() is threading.main_thread():
            return await self._call_operation(name, arguments, project)  # from another handler at exit, after ours
        with _gate:
            return await self._call_operation(name, arguments, project)

    async def _call_operation(self, name: str, arguments: Mapping[str, Any], project: str | None) -> OperationResult:
        from athena.core.catalog import invoke  # with the app, at the first call
        from athena.core.types import to_json

        app = self._app()
        whose = project if project is not None else self.project
        context = app.create_context(current_project() if whose is None else whose, self.surface)
        result = await invoke(app.catalog, name, arguments, context)
        return OperationResult(to_json(result), getattr(result, "total", None))


_STORE_VARIABLES = ("ATHENA_HOME", "ATHENA_DB_PATH", "ATHENA_DATABASE_URL", "XDG_DATA_HOME", "HOME")
_TUNING_VARIABLES = (
    "ATHENA_EMBEDDING_URL",
    "ATHENA_EMBEDDING_MODEL",
    "ATHENA_EMBEDDING_KEY",
    "ATHENA_LLM_URL",
    "ATHENA_LLM_MODEL",
    "ATHENA_LLM_KEY",
    "ATHENA_RANKING_ROLE",
    "ATHENA_RANKING_RECENCY",
)
_apps_lock = threading.Lock()
_gate = SharedLock()
_has_exited = False
_apps: dict[tuple[str | None, ...], "App"] = {}
_inherited_apps: list["App"] = []  # kept, since letting go of them would close files that the parent uses


_test_apps: list["App"] = []  # an app that tests use; the last one counts


@contextmanager
def use_app(app: "App") -> Generator[None]:
    """Let this process's calls go to `app` for as long as the block runs."""
    _test_apps.append(app)
    try:
        yield
    finally:
        _test_apps.remove(app)


def shared_app() -> "App":
    """Return this process's app for the settings in force now, opening it at the first call."""
    if _test_apps:
        return _test_apps[-1]
    key = tuple(os.environ.get(name) for name in _STORE_VARIABLES + _TUNING_VARIABLES)
    if (app := _apps.get(key)) is not None:
        return app
    with _apps_lock:
        if key not in _apps:
            from athena.app import compose as composition  # everything heavy hangs below this
            from athena.app import settings

            _apps[key] = composition.open_app(settings.load_settings())
        return _apps[key]


def close() -> None:
    """Close what this process has open; the next call opens it again."""
    with _apps_lock:
        apps = list(_apps.values())
        _apps.clear()
    for app in apps:
        app.close()


def _reset_after_fork() -> None:
    """In a forked child: what was open belongs to the parent, whose threads may have held any lock."""
    global _gate, _apps_lock
    _gate, _apps_lock = SharedLock(), threading.Lock()
    _inherited_apps.extend(_apps.values())
    _apps.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


def _close_at_exit() -> None:
    """At the end of the program: let calls on other threads finish, start no more, and close.

    A thread that is inside native code while the interpreter ends aborts the whole process.
    """
    global _has_exited
    _gate.acquire_exclusive(timeout=10)
    close()
    _has_exited = True


atexit.register(_close_at_exit)
