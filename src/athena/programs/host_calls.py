"""The calls that a program makes: check approval, store the start of the run, then invoke the operation or skill."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

from athena.core.catalog import AnyOperation, invoke
from athena.core.operation import Effect
from athena.core.threads import run_sync
from athena.core.types import to_json
from athena.errors import ApprovalNeeded, Conflict, InvalidInput, LimitExceeded
from athena.programs.namespace import SKILLS_CATEGORY, create_skill_function, list_operations
from athena.programs.sandbox import Namespace, NeedsApproval, Program, Run, Sandbox, is_run_closed
from athena.programs.skill_source import parse_skill
from athena.programs.values import ARGUMENTS_VARIABLE, KeptSkill, ProgramCaller, Skill
from athena.storage import runs
from athena.storage.privacy import ALL_MARKS

EXTERNAL_EFFECTS = (Effect.DESTROY, Effect.EXECUTE)
MAX_PAUSED_RUNS = 100  # of a project


class ApprovedCall(NamedTuple):
    """The call that a person approved, and what it gets besides its arguments: exactly what the person was shown."""

    path: str
    arguments: dict[str, Any]
    exactly: dict[str, Any]


class HostCalls:
    """The function that the sandbox calls for a program. `on_first_write` runs before the first call that may write."""

    def __init__(
        self,
        caller: ProgramCaller,
        sandbox: Sandbox,
        names: Namespace,
        skills: dict[str, Skill],
        on_first_write: Callable[[], None],
        on_skill_used: Callable[[str], None],
        *,
        identify_passphrase: Callable[[], str],
        is_nested: bool = False,
        approved_call: ApprovedCall | None = None,
    ) -> None:
        self._caller, self._sandbox, self._names, self._skills = caller, sandbox, names, skills
        self._on_first_write, self._on_skill_used, self._is_nested = on_first_write, on_skill_used, is_nested
        self._approved_call = approved_call  # the approval is good for one call
        self._identify_passphrase = identify_passphrase
        self._operations = list_operations(caller.catalog)
        self._lock = threading.Lock()
        self._has_begun = False
        self._skill_calls = 0  # calls made by skills

    def __call__(self, name: str, arguments: dict[str, Any]) -> Any:
        operation = self._operations.get(name)
        if operation is None:
            return self._run_skill(name.removeprefix(f"{SKILLS_CATEGORY}."), arguments)
        # our own operations write nothing with dry_run=True; a server may ignore it
        is_dry_run = not operation.is_foreign and arguments.get("dry_run") is True
        refused_marks = self._list_refused_marks(operation)
        if refused_marks or (operation.approval and not is_dry_run):
            arguments = arguments | self._require_approval(operation, arguments, refused_marks)
        if operation.effect is not Effect.READ:
            if is_run_closed():
                raise LimitExceeded("the run has ended", hint="nothing more is done for it")
            self._record_first_write()
        if operation.is_foreign or operation.effect in EXTERNAL_EFFECTS:
            # the call may publish the program's earlier writes, so they must be durable first
            run_sync(self._caller.store.database.sync())
        if operation.private_mark:
            self._caller.private_reads.add([operation.private_mark])
        work = invoke(self._caller.catalog, operation.name, arguments, self._caller)
        with self._sandbox.wait_outside() if operation.is_foreign else nullcontext():
            result = run_sync(work, is_stopped=is_run_closed)  # the operation ends with its program
        if isinstance(result, KeptSkill) and self._names.growing and operation.effect is not Effect.READ:
            self._add_skill(result)
        return to_json(result)

    def _add_skill(self, saved: KeptSkill) -> None:
        """Let the program call the skill that it saved just now."""
        skill = parse_skill(saved.name, saved.code, saved.description, saved.example)
        self._skills[skill.name] = skill
        self._names.add_function(create_skill_function(skill))

    def _list_refused_marks(self, operation: AnyOperation) -> list[str]:
        """Return the private sources that this run has read and that the server of a tool may not get."""
        if not operation.is_foreign or ALL_MARKS in operation.accepted_marks:
            return []
        return sorted(self._caller.private_reads.marks - operation.accepted_marks - {operation.private_mark})

    @property
    def has_begun(self) -> bool:
        """Return whether the program made a call that may have written something."""
        return self._has_begun

    def add_skill_calls(self, run: Run) -> Run:
        """Return the run with the calls of its skills added to its own."""
        return replace(run, calls=run.calls + self._skill_calls) if self._skill_calls else run

    def _require_approval(
        self, operation: AnyOperation, arguments: dict[str, Any], refused_marks: list[str]
    ) -> dict[str, Any]:
        """Pause the program unless a person approved this call; return what holds it to exactly what they saw."""
        with self._lock:
            approved, self._approved_call = self._approved_call, None
        if not (operation.is_foreign and self._caller.hides_values):  # tokens may not fit where their values do
            operation.check_arguments(arguments)  # a call that would fail anyway must not wait for a person
        if approved is not None and (self._operations.get(approved.path), approved.arguments) == (operation, arguments):
            return approved.exactly
        self._check_expected_count(operation, arguments)
        is_search = self._caller.private_reads.searched.issuperset(refused_marks)
        verb = "a search of this run also went through" if is_search else "this run has read"
        reason = f"{verb} {' and '.join(refused_marks)}, which {operation.category} does not accept"
        reason = reason if refused_marks else ""
        message = f"{operation.name} needs a person's approval{reason and f': {reason}'}"
        if self._is_nested:
            raise ApprovalNeeded(f"{message}, and a skill inside of a program cannot wait", hint="call it outside")
        scope = self._caller.scope
        paused = run_sync(self._caller.store.database.read(lambda tx: runs.count_runs(tx, scope, "needs_approval")))
        if paused >= MAX_PAUSED_RUNS:
            message = f"{message}, and {paused} programs of this project wait for one already"
            raise LimitExceeded(message, hint="a person decides: athena approve")
        request = {"operation": operation.path, "reason": reason, "passphrase": self._identify_passphrase()}
        if refused_marks:
            accepted = " ".join(f"--accept {mark}" for mark in refused_marks)
            request["way_out"] = f"athena servers privacy {operation.category} {accepted}"
        raise NeedsApproval(message, hint="athena approve RUN_ID", request=request)

    def _check_expected_count(self, operation: AnyOperation, arguments: dict[str, Any]) -> None:
        """Raise Conflict where the call would fail since `expect` is another count than there is."""
        if operation.is_foreign or not {"expect", "dry_run"} <= {parameter.name for parameter in operation.parameters}:
            return
        count = run_sync(invoke(self._caller.catalog, operation.name, arguments | {"dry_run": True}, self._caller))
        if arguments.get("expect") != count:
            given = arguments.get("expect", "not given")
            raise Conflict(
                f"{operation.name}: {count} are meant, and expect is {given}", hint=f"repeat with expect={count}"
            )

    def _record_first_write(self) -> None:
        with self._lock:
            if not self._has_begun:
                self._on_first_write()
                self._has_begun = True

    def _run_skill(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run a skill as a nested program with variables of its own."""
        skill = self._skills[name]
        nested_calls = HostCalls(
            self._caller,
            self._sandbox,
            self._names,
            self._skills,
            self._record_first_write,
            self._on_skill_used,
            identify_passphrase=self._identify_passphrase,
            is_nested=True,
        )
        source = run_sync(self._caller.reveal_program(skill.program))
        program = Program(source, self._names, inputs={ARGUMENTS_VARIABLE: arguments})
        run = nested_calls.add_skill_calls(self._sandbox.run(program, nested_calls))
        self._on_skill_used(name)
        with self._lock:
            self._skill_calls += run.calls
        if run.error is not None:
            line = "" if run.error["line"] is None else f" (line {run.error['line']} of the skill)"
            message = f"skills.{name}: {run.error['type']}: {run.error['message']}{line}"
            raise InvalidInput(message, hint=run.error["hint"])
        if run.truncated:
            message = f"skills.{name} returned more than a program is given"
            raise LimitExceeded(message, hint="let it return less, or write it to a file of the workspace")
        return run.value
