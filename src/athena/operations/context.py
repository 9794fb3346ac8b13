"""The context of an operation: the caller, the project and the services."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from athena.core import redaction, tokens
from athena.core.catalog import Catalog
from athena.core.hashing import hash_text
from athena.core.operation import Effect
from athena.core.types import to_json
from athena.core.values import HOOK_SURFACE, Call, Scope
from athena.discovery.finder import ToolFinder
from athena.errors import AthenaError
from athena.gateway.gateway import Gateway
from athena.memory.sessions.values import Briefing
from athena.memory.store import Store
from athena.storage import usage
from athena.storage.call_log import CallLog
from athena.storage.database import Database

if TYPE_CHECKING:
    from athena.programs.runner import ProgramRunner

PROGRAM_SURFACES = {"python", "http", "program"}  # a program reads their results, not a model


@dataclass(frozen=True)
class Context:
    store: Store
    call_log: CallLog
    catalog: Catalog
    scope: Scope
    surface: str
    get_programs: Callable[[], "ProgramRunner"]  # imports the sandbox at the first call
    finder: ToolFinder
    gateway: Gateway
    allowed: frozenset[Effect] = frozenset(Effect) - {Effect.APPROVE}
    idempotency_key: str | None = None
    current_call: Call | None = None
    run_id: str | None = None  # of the program that makes the call
    workspace: str | None = None  # of that program
    is_run_closed: Callable[[], bool] = bool  # whether that run has ended; False outside of programs

    def __post_init__(self) -> None:
        # the key is stored, and must match again; of one that holds a secret a hash is used throughout
        if self.idempotency_key is not None and redaction.redact(self.idempotency_key).kinds:
            object.__setattr__(self, "idempotency_key", f"sha256:{hash_text(self.idempotency_key)}")

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
        """Return the named workspace, else that of the calling program."""
        return self.workspace if name is None else name

    @property
    def database(self) -> Database:
        return self.store.database

    def for_program(self, run_id: str, workspace: str, is_run_closed: Callable[[], bool]) -> "Context":
        """Return the context of the calls that a program makes."""
        return replace(
            self,
            store=self.store._replace(database=self.database.deferred_sync),  # the end of the run syncs once
            surface="program",
            allowed=self.allowed - {Effect.APPROVE},
            idempotency_key=None,
            current_call=None,
            run_id=run_id,
            workspace=workspace,
            is_run_closed=is_run_closed,
        )

    @asynccontextmanager
    async def record_call(
        self, operation: str, effect: Effect, arguments: Mapping[str, Any]
    ) -> AsyncGenerator["Context"]:
        """Record a call: a write does so in its own transaction; reads and failures go to the call log."""
        began = self.store.clock()
        arguments_digest = (
            "" if self.idempotency_key is None else hash_text(json.dumps(to_json(arguments), sort_keys=True))
        )
        call = Call(operation, self.surface, self.scope, began, self.idempotency_key, arguments_digest, self.run_id)
        outcome = "done"
        try:
            yield replace(self, current_call=call)
        except AthenaError as error:
            outcome = error.code
            raise
        finally:
            if effect is Effect.READ or outcome != "done":
                elapsed = (self.store.clock() - began) * 1000
                self.call_log.log_call(call, outcome, elapsed)

    def record_usage(self, operation: str, arguments: Mapping[str, Any], result: Any) -> None:
        """Record in the background how many tokens the arguments and the result have."""
        if self.surface == HOOK_SURFACE:  # of what hooks do, a model reads only the text of a briefing
            if not isinstance(result, Briefing) or not result.text:
                return
            spent = usage.TokenUsage(0, result.direct, result.tokens)
        else:
            sent, returned = tokens.estimate_json_tokens(arguments), tokens.estimate_json_tokens(result)
            spent = usage.TokenUsage(sent, returned, 0 if self.surface in PROGRAM_SURFACES else sent + returned)
        self.call_log.log_usage(self.scope.project, self.store.clock(), operation, self.surface, spent)
