"""Call operations by name, from synchronous or asynchronous code, on an app that this process opens once.

The app is opened at the first call and shared by all threads. After a fork the child opens its own: the database
connections that it inherited belong to the parent and are left alone.
"""

import atexit
import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.core.home.paths import current_project
from athena.core.threads import SharedLock

if TYPE_CHECKING:
    from athena.app.compose import App
    from athena.core.approval import Approval

# the settings that select a store or change how it answers: another value means another app
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
    "ATHENA_PRIVACY",
    "ATHENA_PERSONAL_NAMES",
    "ATHENA_PERSONAL_PATTERNS",
    "ATHENA_VAULT_KEY_FOLDER",
    "XDG_CONFIG_HOME",
)
EXIT_TIMEOUT_S = 10.0

_apps: dict[tuple[str | None, ...], "App"] = {}
_apps_lock = threading.Lock()
_inherited_apps: list["App"] = []  # never freed: that would close files that the parent uses
_test_apps: list["App"] = []  # set by tests; the last one counts
_call_lock = SharedLock()  # held by calls, and exclusively by the exit of the process
_has_exited = False


class OperationResult(NamedTuple):
    """The result of an operation as plain JSON values; `total` is set where it is one page of a longer list."""

    data: Any
    total: int | None = None
    weaker: int = 0  # hits that a search left out, since they answer too improbably


class AppConnection:
    """Calls the operations of one store; `get_app` runs at each call, so that the app can be opened late."""

    def __init__(self, get_app: Callable[[], "App"], project: str | None, surface: str) -> None:
        self._get_app = get_app
        self.project = project
        self.surface = surface

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        project: str | None = None,
        approval: "Approval | None" = None,
    ) -> OperationResult:
        # an atexit handler that runs after ours may still call, when no other thread is left
        is_last_thread = _has_exited and threading.current_thread() is threading.main_thread()
        with nullcontext() if is_last_thread else _call_lock:
            app = self._get_app()
            if project is None:
                project = current_project() if self.project is None else self.project
            return OperationResult(*await app.call_operation(name, arguments, project, self.surface, approval))


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
            from athena.app.compose import open_app  # imports everything heavy

            _apps[key] = open_app()
        return _apps[key]


def close() -> None:
    """Close what this process has open; the next call opens it again."""
    with _apps_lock:
        apps = list(_apps.values())
        _apps.clear()
    for app in apps:
        app.close()


def _reset_after_fork() -> None:
    """In a forked child: leave the parent's apps alone, and replace locks that its threads may have held."""
    global _call_lock, _apps_lock
    _call_lock, _apps_lock = SharedLock(), threading.Lock()
    _inherited_apps.extend(_apps.values())
    _apps.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


def _close_at_exit() -> None:
    """Let calls on other threads finish, start no more, and close the apps.

    A thread that is inside native code while the interpreter ends aborts the whole process.
    """
    global _has_exited
    _call_lock.acquire_exclusive(EXIT_TIMEOUT_S)
    close()
    _has_exited = True


atexit.register(_close_at_exit)
