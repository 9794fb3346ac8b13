"""The context of an operation: the caller, the project and the services."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from athena.core import redaction, tokens
from athena.core.approval import Approval
from athena.core.catalog import AnyOperation, Catalog
from athena.core.hashing import hash_text
from athena.core.operation import PEOPLE, CallerKind, Effect, Reach
from athena.core.redaction.personal import find_personal
from athena.core.threads import run_in_thread
from athena.core.types import to_json
from athena.core.values import HOOK_SURFACE, MCP_SURFACE, Author, BackupFile, Call, CallProgress, Scope, SettingValue
from athena.documents.access import FileAccess, find_project_roots
from athena.errors import AthenaError, Denied
from athena.gateway.gateway import Gateway
from athena.memory.history_rows import CallOrigin
from athena.memory.store import Store
from athena.operations.value_guard import SPEAKING_PROGRAMS, CallValues
from athena.programs.workspace import clean_name, put_text
from athena.storage import usage
from athena.storage.call_log import CallLog
from athena.storage.database import Database
from athena.storage.privacy import FILES_MARK, PrivateReads, WatchedDatabase
from athena.storage.privacy_guard import PrivacyGuard
from athena.storage.workspaces import is_connection_name

if TYPE_CHECKING:
    from athena.discovery.finder import ToolFinder
    from athena.programs.runner import ProgramRunner
    from athena.programs.values import Skill

PROGRAM_SURFACES = {"python", "http", "program"}  # a program reads their results, not a model
PROGRAM_SURFACE = "program"
PAGE_SURFACE = "page"  # a person looks around: that counts neither as a use nor as a call
CALLERS_BY_SURFACE = {
    "cli": CallerKind.PERSON,
    PAGE_SURFACE: CallerKind.PERSON,
    "python": CallerKind.API,
    "http": CallerKind.API,
    "evaluation": CallerKind.API,
    "program": CallerKind.PROGRAM,
    "mcp": CallerKind.MODEL,
    HOOK_SURFACE: CallerKind.HOOK,
}
# Whose words a call stores, unless an operation that reaches people's voice says otherwise.
AUTHORS: dict[CallerKind, Author] = {
    CallerKind.PERSON: "person",
    CallerKind.API: "agent",
    CallerKind.PROGRAM: "agent",
    CallerKind.MODEL: "agent",
    CallerKind.HOOK: "tool",
}


def list_own_surfaces(surface: str) -> list[str]:
    """Return the surfaces whose changes count as a caller's own: those of the same kind of caller, and programs."""
    if surface == PAGE_SURFACE:  # a person takes back there what they did there
        return [PAGE_SURFACE]
    kind = CALLERS_BY_SURFACE[surface]
    if kind is CallerKind.PROGRAM:  # mostly a model has written it
        kind = CallerKind.MODEL
    return [name for name, other in CALLERS_BY_SURFACE.items() if other is kind or name == PROGRAM_SURFACE]


def create_no_backup() -> BackupFile:
    raise RuntimeError("this app has no folder of backups")


@dataclass(frozen=True)
class Context:
    store: Store
    call_log: CallLog
    catalog: Catalog
    scope: Scope
    surface: str
    get_programs: Callable[[], "ProgramRunner"]  # imports the sandbox at the first call
    get_finder: "Callable[[], ToolFinder]"
    gateway: Gateway
    describe_settings: Callable[[], list[SettingValue]] = list
    list_backups: Callable[[], list[BackupFile]] = list
    create_backup: Callable[[], BackupFile] = create_no_backup
    document_roots: tuple[str, ...] = ()  # folders below which programs and models may ingest files
    list_own_paths: Callable[[], tuple[str, ...]] = tuple  # Athena's files and folders outside of the data folder
    approval: Approval | None = None  # a person's leave for this call
    idempotency_key: str | None = None
    current_call: Call | None = None
    values: CallValues | None = None  # of that call
    checked_arguments: Mapping[str, Any] = field(default_factory=dict)  # of that call, with tokens as they were given
    reach: frozenset[Reach] = frozenset()  # of the operation in progress
    run_id: str | None = None  # of the program that makes the call
    workspace: str | None = None  # of that program
    is_run_closed: Callable[[], bool] = bool  # whether that run has ended; False outside of programs
    private_reads: PrivateReads = field(default_factory=PrivateReads)  # what that run has read
    pinned_skills: Mapping[str, "Skill"] | None = None  # that a person saw before that run went on
    progress: CallProgress = field(default_factory=CallProgress)
    guard: PrivacyGuard | None = None  # None: there is no vault

    @property
    def caller(self) -> CallerKind:
        return CALLERS_BY_SURFACE[self.surface]

    @property
    def is_browsing(self) -> bool:
        """Whether a person looks around at the page, where every letter of a question is a search."""
        return self.surface == PAGE_SURFACE

    @property
    def tells_session(self) -> bool:
        """Whether what a briefing returns reaches the session that is named: a program could name any."""
        return not self.is_browsing and self.caller not in SPEAKING_PROGRAMS

    def require_reach(self, reach: Reach) -> None:
        """Raise an error unless the operation in progress declares this reach."""
        if reach not in self.reach:
            raise RuntimeError(f"{self.call.operation} must declare reach={reach}")

    def may_take_back(self, origin: CallOrigin) -> bool:
        """Return whether the caller may undo a call: one that it could make itself, and that was made by no person."""
        if self.caller in PEOPLE:
            return True
        try:
            callers = self.catalog.get_operation(origin.operation).callers
        except AthenaError:  # an operation of an earlier version
            return False
        made_by = CALLERS_BY_SURFACE.get(origin.surface)
        return self.caller in callers and made_by in (CallerKind.API, CallerKind.PROGRAM, CallerKind.MODEL)

    def create_file_access(self) -> FileAccess:
        """Return the files that the caller may ingest."""
        roots = (*find_project_roots(self.scope.project), *self.document_roots)
        return FileAccess(
            self.gateway.home,
            is_confined=self.caller not in PEOPLE,
            roots=roots,
            own_paths=self.list_own_paths(),
            said_path="" if self.values is None else self.values.said_path,
        )

    def __post_init__(self) -> None:
        # the key is stored, and must match again; of one that holds a secret a hash is used throughout
        key = self.idempotency_key
        if key is not None and (redaction.redact(key).kinds or (self.hides_values and find_personal(key))):
            object.__setattr__(self, "idempotency_key", f"sha256:{hash_text(key)}")

    @property
    def call(self) -> Call:
        """The call in progress, which a write records in its own transaction."""
        if self.current_call is None:
            raise RuntimeError("no operation is running")
        return self.current_call

    @property
    def programs(self) -> "ProgramRunner":
        return self.get_programs()

    def resolve_workspace(self, name: str | None) -> str | None:
        """Return the named workspace, else that of the calling program; no model or program uses another connection's.

        They learn its name from the list of runs.
        """
        if name is None:
            return self.workspace
        if self.caller not in PEOPLE and is_connection_name(clean_name(name)) and clean_name(name) != self.workspace:
            raise Denied(f"{name!r:.60} is the workspace of another connection", hint="name one of your own")
        return name

    @property
    def database(self) -> Database:
        return self.store.database

    async def store_attachment(self, path: str, data: str, private: str) -> str:
        """Store binary data, as base64, in the caller's workspace, with a private mark; return why not, if so."""
        name, now = clean_name(self.workspace), self.store.clock()
        if self.values is not None and await run_in_thread(self.values.secrets.is_in_file, data):
            return "it holds a secret"
        data = await self.hide_values(data)
        is_stored = await self.database.write(lambda tx: put_text(tx, self.scope, name, path, data, now, private))
        return "" if is_stored else "the workspace has no room for it"

    def pin_skills(self, skills: Mapping[str, "Skill"]) -> "Context":
        """Return the context of a run that may use only these skills."""
        return replace(self, pinned_skills=skills)

    def for_program(
        self, run_id: str, workspace: str, is_run_closed: Callable[[], bool], private_reads: PrivateReads
    ) -> "Context":
        """Return the context of the calls that a program makes."""
        synced_later = self.database.deferred_sync  # the end of the run syncs once
        database = cast("Database", WatchedDatabase(synced_later, private_reads))
        return replace(
            self,
            store=self.store._replace(database=database),
            guard=None if self.guard is None else self.guard.for_run(database),
            surface=PROGRAM_SURFACE,
            private_reads=private_reads,
            approval=None,
            idempotency_key=None,
            current_call=None,
            values=None,
            checked_arguments={},
            run_id=run_id,
            workspace=workspace,
            is_run_closed=is_run_closed,
            progress=CallProgress(),
        )

    # --- privacy ------------------------------------------------------------------------------------------------------

    @property
    def hides_values(self) -> bool:
        """Return whether texts in the store hold tokens in place of personal values."""
        return self.guard is not None and self.guard.is_on

    @property
    def required_guard(self) -> PrivacyGuard:
        if self.guard is None:
            raise RuntimeError("this app has no vault")
        return self.guard

    def guard_values(self, operation: AnyOperation, arguments: dict[str, Any]) -> CallValues:
        """Turn arguments into the values that the operation works with, and its result and errors into the caller's."""
        return CallValues(self, self.required_guard, operation, arguments)

    async def hide_values(self, value: Any, *, by_program: bool = False, is_shown: bool = False) -> Any:
        """Return a value as it may be stored, or shown to a model; `by_program`: a program has computed it."""
        if not self.hides_values:
            return value
        hidden = await self.required_guard.hide(self.scope, value, by_program=by_program)
        if is_shown:
            await self.required_guard.vault.make_durable()
        return hidden

    async def hide_answer(self, value: Any) -> Any:
        """Return a server's answer as it may be stored."""
        if self.values is not None:
            value = await self.required_guard.hide_known(value, self.values.secrets)
        return await self.hide_values(value)

    def hide_words(self, words: str) -> str:
        """Return what a server says without the values that it got; they cannot be found any more once it is cut."""
        return words if self.values is None else self.values.hide_words(words)

    async def hide_in_document(self, value: Any) -> Any:
        """Return a text of a file with tokens for personal values; secrets stay, for the caller looks for them."""
        if not self.hides_values:
            return value
        return await self.required_guard.hide(self.scope, value, secrets=False, private=FILES_MARK)

    async def reveal_stored(self, value: Any) -> Any:
        """Return a stored value with the values behind its tokens, such as a path that leads to a file."""
        return (await self.required_guard.reveal(self.scope, value))[0]

    async def reveal_values(self, value: Any) -> Any:
        """Return a stored value as the caller may see it: programs of the mode `strict` see tokens."""
        if self.guard is None or self.guard.mode != "boundary":
            return value
        return (await self.guard.reveal(self.scope, value))[0]

    async def reveal_program(self, source: str) -> str:
        """Return a program with the values that it may see."""
        if self.guard is None or self.guard.mode != "boundary":
            return source
        return await self.guard.reveal_source(self.scope, source)

    def begin_call(self, operation: AnyOperation, arguments: Mapping[str, Any], guarded: CallValues) -> "Context":
        """Return the context in which an operation runs: it has the record of the call, which a write stores."""
        key, caller, digest = self.idempotency_key, self.caller, ""
        if key is not None:  # of what the caller wrote: what becomes of it depends on what the vault knows by now
            written = json.dumps(to_json(guarded.given), sort_keys=True)
            digest = self.required_guard.vault.keys.sign(written)
        call = Call(
            operation.name,
            self.surface,
            self.scope,
            self.store.clock(),
            key,
            digest,
            AUTHORS[caller],
            self.run_id,
            None,
            caller in SPEAKING_PROGRAMS,
        )
        context = object.__new__(Context)  # `replace` takes four times as long
        context.__dict__.update(
            self.__dict__, current_call=call, values=guarded, reach=operation.reach, checked_arguments=arguments
        )
        return context

    def end_call(self, operation: AnyOperation, outcome: str) -> None:
        """Log a call that only read, or failed; a write is recorded in its own transaction."""
        is_read = operation.effect is Effect.READ
        if (is_read or outcome != "done") and not (is_read and self.is_browsing):
            self.call_log.log_call(self.call, outcome, (self.store.clock() - self.call.started) * 1000)

    def record_usage(self, operation: str, arguments: Mapping[str, Any], result: Any) -> None:
        """Record in the background how many tokens the arguments and the result have."""
        if self.is_browsing:
            return
        if self.surface == HOOK_SURFACE:  # of what hooks do, a model reads only the text of a briefing
            from athena.memory.sessions.values import Briefing  # loaded already, where a hook gets one

            if not isinstance(result, Briefing) or not result.text:
                return
            spent = usage.TokenUsage(0, result.direct, result.tokens)
        else:
            sent, returned = tokens.estimate_json_tokens(arguments), tokens.estimate_json_tokens(result)
            is_hidden = self.surface in PROGRAM_SURFACES or self.surface == MCP_SURFACE  # its text is counted later
            spent = usage.TokenUsage(sent, returned, 0 if is_hidden else sent + returned)
        self._log_usage(operation, spent)

    def record_answer(self, operation: str, arguments: Mapping[str, Any], text: str) -> None:
        """Record in the background the tokens that a model wrote and read, where it gets a text and not the result."""
        shown = tokens.estimate_json_tokens(arguments) + tokens.count_tokens(text)
        self._log_usage(operation, usage.TokenUsage(0, 0, shown), calls=0)

    def _log_usage(self, operation: str, spent: usage.TokenUsage, calls: int = 1) -> None:
        surface = usage.PRIVATE_SURFACE if self.private_reads.marks else self.surface
        self.call_log.log_usage(self.scope.project, self.store.clock(), operation, surface, spent, calls)
