"""The composition root: open the store that the settings name, and create contexts for calls."""

import os
import re
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from athena.app.settings import Settings, describe_settings, load_settings, read_config_stamp
from athena.core import clock
from athena.core.approval import Approval, Approver, digest_subject
from athena.core.catalog import invoke
from athena.core.home.paths import ensure_sandbox_key
from athena.core.threads import run_sync
from athena.core.types import to_json
from athena.core.values import BackupFile, Scope
from athena.embedding.embedder import Embedder
from athena.embedding.encoder import Encoder
from athena.embedding.minilm import MiniLM
from athena.errors import InvalidInput, Misconfigured
from athena.gateway.gateway import Gateway
from athena.memory.edit_hooks import LateEditHooks
from athena.memory.ranking import Weights
from athena.memory.store import Store
from athena.operations import CATALOG
from athena.operations.context import Context
from athena.storage.call_log import CallLog
from athena.storage.database import CopyRole, Database
from athena.storage.privacy_guard import PrivacyGuard, PrivacyMode
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.store import Sqlite
from athena.storage.vault import Vault
from athena.storage.vault_keys import KeyFolder

if TYPE_CHECKING:
    from athena.discovery.finder import ToolFinder
    from athena.embedding.remote import Chat
    from athena.memory.edit_hooks import EditHooks
    from athena.programs.runner import ProgramRunner

SHARED_STORE_VARIABLES = ("ATHENA_DB_PATH", "ATHENA_DATABASE_URL", "ATHENA_PRIVACY")
# what the environment of a client opens for itself; a daemon has that of the client that started it
OPENING_SETTINGS = ("embedding_url", "embedding_model", "sandbox_bare", "documents_roots")
PRIVACY_SETTINGS = ("privacy", "personal_names", "personal_patterns", "vault_key_folder")
TOOL_VECTORS_FILE = "tool-vectors.npy"  # a cache in the data folder


class PrivacyRules(NamedTuple):
    """The settings of privacy. Without a folder for its key, a vault lasts as long as the process."""

    mode: PrivacyMode = "off"
    names: tuple[str, ...] = ()
    patterns: Mapping[str, str] = {}
    key_folder: str | None = None
    database_folder: str | None = None
    is_current: Callable[[], bool] = lambda: True


class App:
    """An open store with its services and operations."""

    def __init__(
        self,
        database: Database,
        embedder: Embedder,
        time: clock.Clock = clock.system_clock,
        weights: Weights = Weights(),  # noqa: B008  # a tuple, never changed
        chat: "Chat | None" = None,
        key: Callable[[], bytes] | None = None,
        bare: bool = False,
        vectors: str | None = None,
        servers: str | None = None,
        document_roots: tuple[str, ...] = (),
        privacy: PrivacyRules = PrivacyRules(),  # noqa: B008  # a tuple, never changed
        list_own_paths: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self.store = Store(database, Encoder(embedder), time, weights, chat, LateEditHooks(self._create_edit_hooks))
        self.call_log = CallLog(database)
        self._programs: ProgramRunner | None = None
        self._finder: ToolFinder | None = None
        self._late_lock = threading.Lock()  # held while a part is created that few calls need
        self._create_key, self._allow_bare = key or partial(os.urandom, 32), bare
        self._tool_vectors_file = vectors
        self.catalog = CATALOG.copy()  # connected servers add their operations
        self.document_roots, self.list_own_paths = document_roots, list_own_paths
        keys = KeyFolder(privacy.key_folder, privacy.database_folder)
        vault = Vault(database, time, keys, self._identify_server)
        self.guard = PrivacyGuard(vault, *privacy[:3], privacy.is_current)
        self.approver = Approver(servers)
        self.gateway = Gateway(servers, self.approver, CATALOG.category_names)
        if servers is not None:
            self.catalog.refresh_hook = lambda: self.gateway.refresh_catalog(self.catalog)

    def _create_edit_hooks(self) -> "tuple[EditHooks, ...]":
        from athena.app.edit_hooks import create_edit_hooks  # imports most features

        return create_edit_hooks(self._forget_runs)

    def _identify_server(self, name: str) -> str:
        """Return a digest of a server as it is configured now."""
        self.catalog.refresh()
        return digest_subject(self.gateway.get_server(name).config.fingerprint)

    @property
    def programs(self) -> "ProgramRunner":
        with self._late_lock:
            if self._programs is None:
                from athena.programs.runner import ProgramRunner  # imports the sandbox

                self._programs = ProgramRunner(self._create_program_key, self.approver, allow_bare=self._allow_bare)
            return self._programs

    @property
    def finder(self) -> "ToolFinder":
        with self._late_lock:
            if self._finder is None:
                from athena.discovery.finder import ToolFinder  # only to search for tools

                self._finder = ToolFinder(self.store.encoder, self._tool_vectors_file)
            return self._finder

    def _forget_runs(self, project: str) -> None:
        if self._programs is not None:
            self._programs.watch.forget_ended(project)

    def _create_program_key(self) -> bytes:
        """Return the key that seals variables and paused programs, and where privacy is on encrypts them, too."""
        key = self._create_key()
        return key + run_sync(self.guard.vault.derive_program_key()) if self.guard.is_on else key

    def create_context(
        self,
        project: str,
        surface: str,
        key: str | None = None,
        workspace: str | None = None,
        approval: Approval | None = None,
    ) -> Context:
        """Return the context of one call; without a person's approval, it may approve nothing."""
        return Context(
            self.store,
            self.call_log,
            self.catalog,
            Scope.from_name(project),
            surface,
            lambda: self.programs,
            lambda: self.finder,
            self.gateway,
            describe_settings=describe_settings,
            list_backups=list_backups,
            create_backup=partial(add_backup, self.store.database),
            document_roots=self.document_roots,
            list_own_paths=self.list_own_paths,
            idempotency_key=key,
            workspace=workspace,
            approval=approval,
            guard=self.guard,
        )

    async def call_operation(
        self,
        name: str,
        arguments: Mapping[str, Any],
        project: str,
        surface: str,
        approval: Approval | None = None,
        key: str | None = None,
    ) -> tuple[Any, int | None, int]:
        """Run an operation; return its result as JSON values, how long the whole list is, and what was left out."""
        context = self.create_context(project, surface, key, approval=approval)
        result = await invoke(self.catalog, name, arguments, context)
        return to_json(result), getattr(result, "total", None), getattr(result, "weaker", 0)

    def warm_up_finder(self) -> None:
        """Read the vectors of all operations and tools from the file of an earlier start, and build the others."""
        self.catalog.refresh()
        self.finder.warm_up_catalog(self.catalog)

    def close(self) -> None:
        self.gateway.close()
        if self._programs is not None:
            self._programs.close()
        self.store.database.close()  # first, so that background work fails at its next step and ends
        if self._finder is not None:
            self._finder.stop()
        self.store.encoder.stop()


def list_backups() -> list[BackupFile]:
    from athena.app import backups  # few ask for them

    return backups.list_files(load_settings())


def add_backup(database: Database) -> BackupFile:
    from athena.app import backups  # few ask for them

    return backups.add_file(database, load_settings())


class PrivacyCheck:
    """Tells whether config.toml still says of privacy what a process was started with; else values would get out."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._stamp, self._is_current = settings, read_config_stamp(settings.home), True

    def is_current(self) -> bool:
        if (stamp := read_config_stamp(self._settings.home)) != self._stamp:
            self._stamp = stamp
            try:
                new = load_settings(os.environ | {"ATHENA_HOME": self._settings.home})
            except Misconfigured:
                self._is_current = False
            else:
                self._is_current = all(getattr(new, name) == getattr(self._settings, name) for name in PRIVACY_SETTINGS)
        return self._is_current


def open_app(settings: Settings | None = None, model: MiniLM | None = None) -> App:
    """Open the store that the settings name; None means the settings in force. `model` is one to use, if it fits."""
    settings = settings or load_settings()
    weights = Weights(role=settings.ranking_role)
    if not settings.ranking_recency:
        weights = weights._replace(recency=0.0, strength=0.0)
    key = partial(ensure_sandbox_key, settings.home)
    return App(
        open_configured_database(settings),
        _create_embedder(settings, model),
        weights=weights,
        chat=_create_chat(settings),
        key=key,
        bare=settings.sandbox_bare,
        vectors=os.path.join(settings.home, TOOL_VECTORS_FILE),
        servers=settings.home,
        document_roots=settings.documents_roots,
        list_own_paths=partial(_list_own_paths, settings),
        privacy=PrivacyRules(
            settings.privacy,
            settings.personal_names,
            settings.personal_patterns,
            None if settings.db_path == ":memory:" and not settings.database_url else settings.vault_key_folder,
            None if settings.database_url or settings.db_path == ":memory:" else os.path.dirname(settings.db_path),
            PrivacyCheck(settings).is_current,
        ),
    )


def _list_own_paths(settings: Settings) -> tuple[str, ...]:
    """Return Athena's own files outside of the data folder: the vault's keys, the database, backups and their key."""
    paths = [settings.vault_key_folder]
    if settings.backup_key_file:
        paths.append(settings.backup_key_file)
    if not settings.database_url and settings.db_path != ":memory:":
        paths += [settings.db_path + suffix for suffix in ("", "-wal", "-shm")]
    if settings.backup_folder and os.path.isdir(settings.backup_folder):  # it may hold other files, too
        names = os.listdir(settings.backup_folder)
        paths += [os.path.join(settings.backup_folder, n) for n in names if re.match(r"athena-\d{8}-\d{6}\.db", n)]
    return tuple(paths)


def is_same_store(settings: Settings, environ: Mapping[str, str], *, is_daemon: bool = False) -> bool:
    """Return whether a caller with this environment and the same data folder would open the same database.

    A caller of a daemon must also have the same OPENING_SETTINGS; `athena serve` has those that a person gave it.
    """
    names = (*SHARED_STORE_VARIABLES, *(f"ATHENA_{name.upper()}" for name in OPENING_SETTINGS))
    relevant = {name: environ[name] for name in names if environ.get(name)}
    try:
        other = load_settings(relevant | {"ATHENA_HOME": settings.home})
    except Misconfigured:
        return False
    if environ.get("ATHENA_PRIVACY") and settings.privacy != other.privacy:  # it would see what its settings hide
        return False
    if is_daemon and get_opening_settings(settings) != get_opening_settings(other):
        return False
    if settings.database_url or other.database_url:
        return settings.database_url == other.database_url
    return settings.db_path == other.db_path


def get_opening_settings(settings: Settings) -> list[Any]:
    return [getattr(settings, name) for name in OPENING_SETTINGS]


def open_configured_database(settings: Settings, copying: CopyRole = "") -> Database:
    if settings.database_url is None:
        folder = os.path.dirname(os.path.abspath(settings.db_path))
        if folder != settings.home and settings.db_path != IN_MEMORY_PATH and not os.path.isdir(folder):
            hint = "correct ATHENA_DB_PATH (or db_path in config.toml), or make the folder first"
            raise Misconfigured(f"the store's folder does not exist: {folder}", hint=hint)
        return Sqlite(settings.db_path, copying=copying)
    return open_postgres(settings.database_url, copying)


def open_postgres(url: str, copying: CopyRole = "", partitions: int = 0) -> Database:
    """Open a store on a PostgreSQL server."""
    try:
        from athena.storage.postgres.store import Postgres  # the driver is slow to load, and most people use SQLite
    except ImportError:
        raise Misconfigured(
            "ATHENA_DATABASE_URL is set, but the driver for PostgreSQL is not installed",
            hint="pip install 'athena-memory[postgres]'",
        ) from None
    return Postgres(url, copying=copying, partitions=partitions)


def open_database_at(address: str | None, copying: CopyRole, partitions: int = 0) -> Database:
    """Open the store that a URL or the path of a file names; None is the store in use.

    `partitions` divides the large tables of a new one on PostgreSQL.
    """
    if address is None:
        return open_configured_database(load_settings(), copying)
    if address.startswith(("postgresql://", "postgres://")):
        return open_postgres(address, copying, partitions)
    if partitions:
        raise InvalidInput("a file has no partitions", hint="leave out --partitions, or name a PostgreSQL database")
    path = "/" + unquote(address).partition(":")[2].lstrip("/") if address.startswith("sqlite:///") else address
    # the error does not show the address: a mistyped URL may hold a password
    if not path.strip() or re.match(r"[\w+.-]*:|.*\b(host|dbname|password)\s*=", path):
        raise InvalidInput(
            "a store is named by a URL or by the path of a file",
            hint="postgresql://user:password@host:5432/database, sqlite:///path or path",
        )
    path = os.path.abspath(os.path.expanduser(path))
    if not os.path.isdir(os.path.dirname(path)):
        raise InvalidInput(
            f"there is no folder {os.path.dirname(path)}",
            hint="a server's URL begins with postgresql://; for a file, make its folder first",
        )
    return Sqlite(path, copying=copying)


def _create_embedder(settings: Settings, model: MiniLM | None) -> Embedder:
    if settings.embedding_url and settings.embedding_model:
        from athena.embedding.remote import RemoteEmbedder  # most people use the bundled model

        return RemoteEmbedder(settings.embedding_url, settings.embedding_model, settings.embedding_key)
    return model or MiniLM()


def _create_chat(settings: Settings) -> "Chat | None":
    if not (settings.llm_url and settings.llm_model):
        return None
    from athena.embedding.remote import Chat  # few people use a language model

    return Chat(settings.llm_url, settings.llm_model, settings.llm_key)
