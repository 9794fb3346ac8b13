"""Call operations by name, from synchronous or asynchronous code: by the running server of the data folder, else here.

Where no server can answer, this process opens the store itself at the first call, for all its threads. After a fork the
child opens its own: the database connections that it inherited belong to the parent and are left alone.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import namedtuple
from contextlib import contextmanager, nullcontext, suppress

from athena.app.engine import AnswerLost, Engine, EngineUnusable, encode_call
from athena.core.home.paths import current_project, home_folder
from athena.core.threads import SharedLock, run_in_thread, sleep
from athena.errors import AthenaError, Conflict

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from typing import Any, NamedTuple

    from athena.app.compose import App
    from athena.app.settings import Settings
    from athena.core.approval import Approval
    from athena.embedding.minilm import MiniLM

    SettingsKey = tuple[str | None, ...]  # the values of all those variables

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
    "ATHENA_SANDBOX_BARE",
    "ATHENA_DOCUMENTS_ROOTS",
    "ATHENA_PRIVACY",
    "ATHENA_PERSONAL_NAMES",
    "ATHENA_PERSONAL_PATTERNS",
    "ATHENA_VAULT_KEY_FOLDER",
    "XDG_CONFIG_HOME",
    "TZ",  # "yesterday" depends on it
)
MODEL_CALLS = {"recall", "remember"}  # that run the model: it is loaded while the store is opened
EXIT_TIMEOUT_S = 10.0
SETTLE_TIMEOUT_S = 30.0  # how long to wait for a program that a lost server may still run
SETTLE_INTERVAL_S = 0.2

_apps: dict[SettingsKey, App] = {}
_apps_lock = threading.Lock()
_inherited_apps: list[App] = []  # never freed: that would close files that the parent uses
_test_apps: list[App] = []  # set by tests; the last one counts
_engines: dict[SettingsKey, Engine] = {}
_early_models: list[MiniLM] = []  # which a thread loads for the first app, until that is opened
_model_threads: list[threading.Thread] = []
_started_homes: set[str] = set()  # where this process has tried to start a daemon
_call_lock = SharedLock()  # held by calls, and exclusively by the exit of the process
_has_exited = False

if TYPE_CHECKING:

    class OperationResult(NamedTuple):
        """The result of an operation as plain JSON values; `total` is set where it is one page of a longer list."""

        data: Any
        total: int | None = None
        weaker: int = 0  # hits that a search left out, since they answer too improbably
        is_model_off: bool = False  # the model does not work: searches use words alone
else:
    OperationResult = namedtuple("OperationResult", "data total weaker is_model_off", defaults=(None, 0, False))


class AppConnection:
    """Calls the operations of one store; `get_app` runs at each call, so that the app can be opened late."""

    def __init__(self, get_app: Callable[[], App], project: str | None, surface: str) -> None:
        self._get_app = get_app
        self.project = project
        self.surface = surface

    async def call(
        self, name: str, arguments: Mapping[str, Any], project: str | None = None, approval: Approval | None = None
    ) -> OperationResult:
        # an atexit handler that runs after ours may still call, when no other thread is left
        is_last_thread = _has_exited and threading.current_thread() is threading.main_thread()
        with nullcontext() if is_last_thread else _call_lock:
            if project is None:
                project = current_project() if self.project is None else self.project
            return await self._make_call(name, arguments, project, approval)

    async def _make_call(
        self, name: str, arguments: Mapping[str, Any], project: str, approval: Approval | None, key: str | None = None
    ) -> OperationResult:
        app = self._get_app()
        result = await app.call_operation(name, arguments, project, self.surface, approval, key)
        return OperationResult(*result, app.store.encoder.last_error is not None)


class HomeConnection(AppConnection):
    """Calls the operations by the running server of the data folder; in this process where that cannot answer."""

    def __init__(
        self,
        project: str | None,
        surface: str,
        get_app: Callable[[], App] | None = None,
        get_engine: Callable[[], Engine | None] | None = None,
    ) -> None:
        super().__init__(get_app or shared_app, project, surface)
        self._get_engine = get_engine or find_engine

    async def _make_call(
        self, name: str, arguments: Mapping[str, Any], project: str, approval: Approval | None, key: str | None = None
    ) -> OperationResult:
        # what a person approves stays in the process that has asked the person
        if approval is not None or (engine := self._get_engine()) is None:
            _load_model_early(name)
            return await super()._make_call(name, arguments, project, approval)
        call_key = f"client-{os.urandom(12).hex()}"
        request = encode_call(name, arguments, project, self.surface, call_key)
        is_absent = False
        if request is not None:
            try:
                answer = await engine.call(request)
                return OperationResult(*map(answer.__getitem__, OperationResult._fields))
            except EngineUnusable as error:
                is_absent = error.is_absent
            except AnswerLost:
                return await self._settle_call(name, arguments, project, call_key)
        _load_model_early(name)
        result = await super()._make_call(name, arguments, project, None)
        if is_absent:
            _start_daemon_once()
        return result

    async def _settle_call(self, name: str, arguments: Mapping[str, Any], project: str, key: str) -> OperationResult:
        """Find out what became of a call whose server ended: by its key it happens once, there or here."""
        waited_s = 0.0
        while True:
            try:
                return await super()._make_call(name, arguments, project, None, key)
            except Conflict as error:  # a program that still runs, in a server that hangs
                if not error.retry or waited_s > SETTLE_TIMEOUT_S:
                    raise
            await sleep(SETTLE_INTERVAL_S)
            waited_s += SETTLE_INTERVAL_S


async def open_connection(project: str | None, surface: str) -> HomeConnection:
    """Return a connection that stays with the settings of now; raise an error if they do not work."""
    if (engine := find_engine()) is not None:
        try:
            await run_in_thread(engine.connect)
            return HomeConnection(project, surface, None, lambda: engine)
        except EngineUnusable:
            pass
    app = await run_in_thread(shared_app)
    return HomeConnection(project, surface, lambda: app, lambda: engine)


@contextmanager
def use_app(app: App) -> Generator[None]:
    """Let this process's calls go to `app` for as long as the block runs."""
    _test_apps.append(app)
    try:
        yield
    finally:
        _test_apps.remove(app)


def shared_app() -> App:
    """Return this process's app for the settings in force now, opening it at the first call."""
    if _test_apps:
        return _test_apps[-1]
    key = _read_key()
    if (app := _apps.get(key)) is not None:
        return app
    with _apps_lock:
        if key not in _apps:
            from athena.app.compose import open_app  # imports everything heavy

            _apps[key] = open_app(model=_early_models.pop() if _early_models else None)
        return _apps[key]


def _load_model_early(operation: str) -> None:
    """Load the model on another thread, while this one imports the rest and opens the store."""
    if operation not in MODEL_CALLS or _apps or _test_apps:
        return
    with _apps_lock, suppress(AthenaError):  # the app is opened next, and raises it
        if not _apps and not _early_models and _load_settings().embedding_url is None:
            from athena.embedding.minilm import MiniLM  # loaded with the app

            model = MiniLM()
            _early_models.append(model)
            thread = threading.Thread(target=_load_quietly, args=(model,), daemon=True)
            _model_threads[:] = [*filter(threading.Thread.is_alive, _model_threads), thread]
            thread.start()


def _load_settings() -> Settings:
    from athena.app.settings import load_settings  # loaded with the app

    return load_settings()


def _load_quietly(model: MiniLM) -> None:
    with suppress(AthenaError):  # the first use tries again, and raises it
        model.load()


def find_engine() -> Engine | None:
    """Return the place where a server of the data folder may answer; None where this process must answer itself."""
    if _test_apps or os.environ.get("ATHENA_DB_PATH") == ":memory:":
        return None
    key = _read_key()
    if (engine := _engines.get(key)) is None:
        with _apps_lock:
            engine = _engines.setdefault(key, Engine(home_folder(), read_caller_environ()))
    return engine


def list_setting_variables() -> tuple[str, ...]:
    """Return the variables that select a store or change how it answers."""
    return _STORE_VARIABLES + _TUNING_VARIABLES


def read_caller_environ() -> dict[str, str]:
    """Return the variables that select a store and its settings, the path of the store as a whole one."""
    variables = {name: value for name in list_setting_variables() if (value := os.environ.get(name)) is not None}
    if path := variables.get("ATHENA_DB_PATH"):
        variables["ATHENA_DB_PATH"] = os.path.abspath(os.path.expanduser(path))  # the server runs in another folder
    return variables


def _read_key() -> SettingsKey:
    return tuple(map(os.environ.get, list_setting_variables()))


def _start_daemon_once() -> None:
    """Start a daemon for the next calls, where `daemon.auto` is set; this process does not wait for it."""
    if (home := home_folder()) in _started_homes:
        return
    _started_homes.add(home)
    from athena.core.home import daemon  # only where no daemon runs

    # variables of this process alone are no settings for the server of all
    has_own_settings = any(os.environ.get(name) for name in ("ATHENA_DB_PATH", "ATHENA_DATABASE_URL"))
    has_own_settings |= any(os.environ.get(name) for name in _TUNING_VARIABLES if name.startswith("ATHENA_"))
    if has_own_settings or not _load_settings().daemon_auto or not daemon.may_start(home):
        return
    try:
        child = daemon.spawn_daemon(home)
    except OSError:
        return
    threading.Thread(target=_wait_for_child, args=(child,), daemon=True).start()


def _wait_for_child(child: int) -> None:
    with suppress(ChildProcessError):  # the program waits for all its children itself
        os.waitpid(child, 0)


def close() -> None:
    """Close what this process has open; the next call opens it again."""
    with _apps_lock:
        engines, apps = list(_engines.values()), list(_apps.values())
        _engines.clear()
        _apps.clear()
    for engine in engines:
        engine.close()
    for app in apps:
        app.close()


def _reset_after_fork() -> None:
    """In a forked child: leave the parent's apps alone, and replace locks that its threads may have held."""
    global _call_lock, _apps_lock
    _call_lock, _apps_lock = SharedLock(), threading.Lock()
    _early_models.clear()
    _model_threads.clear()
    _inherited_apps.extend(_apps.values())
    _apps.clear()
    for engine in _engines.values():
        engine.drop_connections()
    _engines.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


def _close_at_exit() -> None:
    """Let calls on other threads finish, start no more, and close the apps.

    A thread that is inside native code while the interpreter ends aborts the whole process.
    """
    global _has_exited
    _call_lock.acquire_exclusive(EXIT_TIMEOUT_S)
    for thread in _model_threads:
        thread.join(EXIT_TIMEOUT_S)
    close()
    _has_exited = True


atexit.register(_close_at_exit)
