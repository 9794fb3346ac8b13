"""What an operation is given: who calls, for which project, and the services."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from athena.core import tokens
from athena.core.call import HOOK, Call
from athena.core.catalog import Catalog
from athena.core.hashing import digest
from athena.core.operation import Effect
from athena.core.scope import Scope
from athena.core.types import plain
from athena.discovery.finder import Finder
from athena.errors import AthenaError
from athena.gateway.gateway import Gateway
from athena.memory.sessions.briefing_values import Briefing
from athena.memory.store import Store
from athena.programs import skills
from athena.programs.host import Host
from athena.programs.runner import Programs
from athena.programs.shipped_skills import shipped
from athena.programs.skill_values import Skill
from athena.storage import usage
from athena.storage.call_log import Ledger

PROGRAMS = {"python", "http", "program"}  # surfaces whose results a program gets, and a model does not read


@dataclass(frozen=True)
class Context:
    store: Store
    ledger: Ledger
    catalog: Catalog
    scope: Scope
    surface: str
    programs: Programs
    finder: Finder
    gateway: Gateway
    allowed: frozenset[Effect] = frozenset(Effect) - {Effect.APPROVE}
    key: str | None = None
    current: Call | None = None
    run: str | None = None  # the program's run that calls
    workspace: str | None = None  # and its workspace

    @property
    def call(self) -> Call:
        """The call in progress, which a write records in its own transaction."""
        if self.current is None:
            raise RuntimeError("no operation is running")
        return self.current

    def in_workspace(self, name: str | None) -> str | None:
        """Return which workspace is meant: the one that is named, else the calling program's own."""
        return self.workspace if name is None else name

    @property
    def host(self) -> Host:
        """What a program that this call runs is given."""
        return Host(
            self.store.database, self.store.clock, self.catalog, self.call, self.run, self._inside, self._skills
        )

    def _inside(self, run: str, workspace: str) -> "Context":
        store = self.store._replace(database=self.store.database.relaxed)  # the run's own end waits for the disk
        allowed = self.allowed - {Effect.APPROVE}
        return replace(
            self, store=store, surface="program", allowed=allowed, key=None, current=None, run=run, workspace=workspace
        )

    async def _skills(self) -> list[Skill]:
        return [*shipped().values(), *await skills.every(self.store, self.scope)]

    @asynccontextmanager
    async def record(self, operation: str, effect: Effect, arguments: Mapping[str, Any]) -> AsyncGenerator["Context"]:
        """Note a call: a write does so in its transaction; reads and failures follow without being waited for."""
        began = self.store.clock()
        about = "" if self.key is None else digest(json.dumps(plain(arguments), sort_keys=True))
        call = Call(operation, self.surface, self.scope, began, self.key, about, self.run)
        outcome = "done"
        try:
            yield replace(self, current=call)
        except AthenaError as error:
            outcome = error.code
            raise
        finally:
            if effect is Effect.READ or outcome != "done":
                elapsed = (self.store.clock() - began) * 1000
                self.ledger.note(call, outcome, elapsed)

    def spend(self, operation: str, arguments: Mapping[str, Any], result: Any) -> None:
        """Note how many tokens went in and out, without being waited for."""
        if self.surface == HOOK:  # a model reads the text of a briefing, and nothing else of what hooks do
            if not isinstance(result, Briefing) or not result.text:
                return
            spent = usage.Spent(0, result.direct, result.tokens)
        else:
            given, returned = tokens.measure(arguments), tokens.measure(result)
            spent = usage.Spent(given, returned, 0 if self.surface in PROGRAMS else given + returned)
        self.ledger.spend(self.scope.project, self.store.clock(), operation, self.surface, spent)
