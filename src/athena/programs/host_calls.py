"""The calls of one run: each goes through the catalog like anybody's, under the run's name."""

import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from athena.core.catalog import AnyOperation, Catalog, invoke
from athena.core.clock import Clock
from athena.core.operation import Caller, Effect
from athena.core.threads import run_sync
from athena.core.types import to_json
from athena.core.values import Call, Scope
from athena.errors import ApprovalNeeded, InvalidInput, LimitExceeded
from athena.programs.namespace import SKILLS_CATEGORY, get_path, list_operations
from athena.programs.sandbox import Namespace, NeedsApproval, Program, Run, Sandbox, is_run_closed
from athena.programs.values import ARGUMENTS_VARIABLE, Skill
from athena.storage import runs
from athena.storage.database import Database, Transaction


class RunContext(NamedTuple):
    database: Database
    clock: Clock
    catalog: Catalog
    call: Call
    parent_run_id: str | None  # the run that this one is a part of
    create_caller: Callable[[str, str], Caller]  # a run and its workspace to who calls from there
    list_skills: Callable[[], Awaitable[list[Skill]]]

    @property
    def scope(self) -> Scope:
        return self.call.scope


EXTERNAL_EFFECTS = (Effect.DESTROY, Effect.EXECUTE)
MAX_PAUSED_RUNS = 100  # programs of a project that wait for a person


class HostCalls:
    """What the sandbox calls for a program. `begin` is told before the first call that may change something."""

    def __init__(
        self,
        host: RunContext,
        sandbox: Sandbox,
        names: Namespace,
        skills: Mapping[str, Skill],
        caller: Caller,
        begin: Callable[[], None],
        *,
        used: Callable[[str], None],
        inner: bool = False,
        approved: tuple[str, dict[str, Any]] | None = None,
    ) -> None:
        self._host, self._sandbox, self._names, self._skills, self._caller = host, sandbox, names, skills, caller
        self._on_first_write, self._on_skill_used, self._is_nested = begin, used, inner
        self._approved_call = approved  # the call that waited: once, and no other
        self._operations = list_operations(host.catalog)
        self._lock = threading.Lock()
        self._has_begun = False
        self._skill_calls = 0  # calls that skills have made

    def __call__(self, name: str, arguments: dict[str, Any]) -> Any:
        operation = self._operations.get(name)
        if operation is None:
            return self._run_skill(name.removeprefix(f"{SKILLS_CATEGORY}."), arguments)
        tries = not operation.is_foreign and arguments.get("dry_run") is True  # of ours, that changes nothing
        if operation.approval and not tries:
            self._require_approval(operation, arguments)
        if operation.effect is not Effect.READ:
            if is_run_closed():
                raise LimitExceeded("the run has ended", hint="nothing more is done for it")
            self._record_first_write()
        if operation.is_foreign or operation.effect in EXTERNAL_EFFECTS:  # it may tell others of what was written
            run_sync(self._host.database.sync())
        return to_json(run_sync(invoke(self._host.catalog, operation.name, arguments, self._caller)))

    @property
    def has_begun(self) -> bool:
        """Tell whether anything was called that may have changed something."""
        return self._has_begun

    def add_skill_calls(self, run: Run) -> Run:
        """Return a run with the calls of its skills among its own."""
        return replace(run, calls=run.calls + self._skill_calls) if self._skill_calls else run

    def _require_approval(self, operation: AnyOperation, arguments: dict[str, Any]) -> None:
        """Stop until a person agrees; a call that would fail anyway need not wait for that."""
        with self._lock:
            approved, self._approved_call = self._approved_call, None
        operation.check_arguments(arguments)
        if approved is not None and (self._operations.get(approved[0]), approved[1]) == (operation, arguments):
            return
        message = f"{operation.name} needs a person's approval"
        if self._is_nested:
            raise ApprovalNeeded(f"{message}, and a skill inside of a program cannot wait", hint="call it outside")
        waiting = run_sync(self._host.database.read(partial(_count_waiting, self._host.scope)))
        if waiting >= MAX_PAUSED_RUNS:
            message = f"{message}, and {waiting} programs of this project wait for one already"
            raise LimitExceeded(message, hint="a person decides: athena approve")
        raise NeedsApproval(message, hint="athena approve RUN_ID", request={"operation": get_path(operation)})

    def _record_first_write(self) -> None:
        with self._lock:
            if not self._has_begun:
                self._on_first_write()
                self._has_begun = True

    def _run_skill(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run a skill as a program of its own, inside of this one: its variables are not this one's."""
        skill = self._skills[name]
        inner = HostCalls(
            self._host,
            self._sandbox,
            self._names,
            self._skills,
            self._caller,
            self._record_first_write,
            used=self._on_skill_used,
            inner=True,
        )
        run = inner.add_skill_calls(
            self._sandbox.run(Program(skill.program, self._names, inputs={ARGUMENTS_VARIABLE: arguments}), inner)
        )
        self._on_skill_used(name)
        with self._lock:
            self._skill_calls += run.calls
        if run.error is not None:
            where = "" if run.error["line"] is None else f" (line {run.error['line']} of the skill)"
            message = f"skills.{name}: {run.error['type']}: {run.error['message']}{where}"
            raise InvalidInput(message, hint=run.error["hint"])
        if run.truncated:
            message = f"skills.{name} returned more than a program is given"
            raise LimitExceeded(message, hint="let it return less, or write it to a file of the workspace")
        return run.value


async def _count_waiting(scope: Scope, tx: Transaction) -> int:
    return await runs.count_runs(tx, scope, "needs_approval")
