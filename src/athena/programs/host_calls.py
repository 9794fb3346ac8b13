"""The calls of one run: each goes through the catalog like anybody's, under the run's name."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from athena.core.catalog import AnyOperation
from athena.core.invoke import invoke
from athena.core.operation import Caller, Effect
from athena.core.scope import Scope
from athena.core.threads import drive
from athena.core.types import plain
from athena.errors import ApprovalNeeded, InvalidInput, LimitExceeded
from athena.programs.host import Host
from athena.programs.namespace import SKILLS, operations_of, path
from athena.programs.sandbox import Names, NeedsApproval, Program, Run, Sandbox, closed
from athena.programs.skill_values import GIVEN, Skill
from athena.storage import runs
from athena.storage.database import Transaction

OUTSIDE = (Effect.DESTROY, Effect.EXECUTE)
MOST_WAITING = 100  # programs of a project that wait for a person


class Calling:
    """What the sandbox calls for a program. `begin` is told before the first call that may change something."""

    def __init__(
        self,
        host: Host,
        sandbox: Sandbox,
        names: Names,
        skills: Mapping[str, Skill],
        caller: Caller,
        begin: Callable[[], None],
        *,
        used: Callable[[str], None],
        inner: bool = False,
        approved: tuple[str, dict[str, Any]] | None = None,
    ) -> None:
        self._host, self._sandbox, self._names, self._skills, self._caller = host, sandbox, names, skills, caller
        self._begin, self._used, self._inner = begin, used, inner
        self._approved = approved  # the call that waited: once, and no other
        self._operations = operations_of(host.catalog)
        self._guard = threading.Lock()
        self._begun = False
        self._more = 0  # calls that skills have made

    def __call__(self, name: str, arguments: dict[str, Any]) -> Any:
        operation = self._operations.get(name)
        if operation is None:
            return self._run_skill(name.removeprefix(f"{SKILLS}."), arguments)
        tries = not operation.foreign and arguments.get("dry_run") is True  # of ours, that changes nothing
        if operation.approval and not tries:
            self._ask(operation, arguments)
        if operation.effect is not Effect.READ:
            if closed():
                raise LimitExceeded("the run has ended", hint="nothing more is done for it")
            self._note()
        if operation.foreign or operation.effect in OUTSIDE:  # it may tell others of what was written
            drive(self._host.database.sync())
        return plain(drive(invoke(self._host.catalog, operation.name, arguments, self._caller)))

    @property
    def begun(self) -> bool:
        """Tell whether anything was called that may have changed something."""
        return self._begun

    def counted(self, run: Run) -> Run:
        """Return a run with the calls of its skills among its own."""
        return replace(run, calls=run.calls + self._more) if self._more else run

    def _ask(self, operation: AnyOperation, arguments: dict[str, Any]) -> None:
        """Stop until a person agrees; a call that would fail anyway need not wait for that."""
        with self._guard:
            approved, self._approved = self._approved, None
        operation.check(arguments)
        if approved is not None and (self._operations.get(approved[0]), approved[1]) == (operation, arguments):
            return
        message = f"{operation.name} needs a person's approval"
        if self._inner:
            raise ApprovalNeeded(f"{message}, and a skill inside of a program cannot wait", hint="call it outside")
        waiting = drive(self._host.database.read(partial(_count_waiting, self._host.scope)))
        if waiting >= MOST_WAITING:
            message = f"{message}, and {waiting} programs of this project wait for one already"
            raise LimitExceeded(message, hint="a person decides: athena approve")
        raise NeedsApproval(message, hint="athena approve RUN_ID", request={"operation": path(operation)})

    def _note(self) -> None:
        with self._guard:
            if not self._begun:
                self._begin()
                self._begun = True

    def _run_skill(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run a skill as a program of its own, inside of this one: its variables are not this one's."""
        skill = self._skills[name]
        inner = Calling(
            self._host, self._sandbox, self._names, self._skills, self._caller, self._note, used=self._used, inner=True
        )
        run = inner.counted(self._sandbox.run(Program(skill.program, self._names, inputs={GIVEN: arguments}), inner))
        self._used(name)
        with self._guard:
            self._more += run.calls
        if run.error is not None:
            where = "" if run.error["line"] is None else f" (line {run.error['line']} of the skill)"
            message = f"skills.{name}: {run.error['type']}: {run.error['message']}{where}"
            raise InvalidInput(message, hint=run.error["hint"])
        if run.truncated:
            message = f"skills.{name} returned more than a program is given"
            raise LimitExceeded(message, hint="let it return less, or write it to a file of the workspace")
        return run.value


async def _count_waiting(scope: Scope, tx: Transaction) -> int:
    return await runs.count(tx, scope, "needs_approval")
