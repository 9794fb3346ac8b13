"""The runner of programs: one at a time in each workspace, each stored, none run twice for the same key."""

import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from athena.core.approval import Approver, format_refusal
from athena.core.hashing import create_serial
from athena.core.threads import ThreadFuture, run_in_thread
from athena.errors import AthenaError, Conflict, Denied, InvalidInput, LimitExceeded, NotFound
from athena.memory import purge
from athena.programs import review, run_record, skill_source, skills
from athena.programs.host_calls import ApprovedCall
from athena.programs.program_run import ProgramRun
from athena.programs.sandbox import Failure, Limits, Program, Sandbox
from athena.programs.values import (
    ARGUMENTS_VARIABLE,
    EngineName,
    Fault,
    KeptSkill,
    Past,
    ProgramCaller,
    Removal,
    Result,
    RunReview,
    Skill,
    WatchedProgram,
)
from athena.programs.watch import RunWatch
from athena.programs.workspace import DEFAULT_WORKSPACE
from athena.storage import calls, runs

PURGE_PATH = "memory.purge"
MAX_QUEUED_RUNS = 100  # in one workspace
APPROVAL_TURN_TIMEOUT_S = 60.0  # for an approved run, or an example of a skill, to get its turn
MIN_TIMEOUT_S = 0.05  # of a program, however long it waited for its turn
MAX_RECENT_RUNS = 200  # remembered in memory until they are stored
SKILL_ERRORS_SHOWN = 5
APPROVAL_HINT = "nobody approves an example: call it with dry_run=True, or with arguments that do not need it"


class ProgramRunner:
    """The sandbox of an app, and the queue of each workspace. `create_key` is called with the first program."""

    def __init__(
        self,
        create_key: Callable[[], bytes],
        approver: Approver,
        *,
        allow_bare: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self._approver = approver
        self._create_key, self._allow_bare, self._limits = create_key, allow_bare, limits
        self._sandbox: Sandbox | None = None
        self._lock = threading.Lock()
        self._queues: dict[tuple[str, str], list[ThreadFuture[None]]] = {}
        self.watch = RunWatch()
        self._recent_rows: deque[tuple[str, runs.RunRow]] = deque(maxlen=MAX_RECENT_RUNS)

    @cached_property
    def key(self) -> bytes:
        """The key that seals variables and paused runs."""
        return self._create_key()

    @property
    def sandbox(self) -> Sandbox:
        with self._lock:
            if self._sandbox is None:
                self._sandbox = Sandbox(self._limits, key=self.key, allow_bare=self._allow_bare)
            return self._sandbox

    def identify_passphrase(self) -> str:
        """Return the identity of the passphrase that an approval needs now, which each pause is sealed with."""
        return self._approver.identify_passphrase()

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()

    # --- running ------------------------------------------------------------------------------------------------------

    async def execute(
        self, context: ProgramCaller, code: str, timeout_s: float, workspace: str, engine: EngineName
    ) -> Result:
        """Run a program and return its result; with a key seen before, return the stored result."""
        run_id = create_serial(context.call.key)
        asked_at = time.monotonic()
        async with self._wait_for_turn(context.scope.project, workspace, timeout_s):
            timeout_left_s = max(MIN_TIMEOUT_S, timeout_s - (time.monotonic() - asked_at))
            # after the wait: the same call may have held the turn until now
            if (earlier := await self._find_earlier_result(context, run_id)) is not None:
                return earlier
            program_run = await ProgramRun.create(self, context, run_id, workspace, needs_skills="skills" in code)
            program_run.watched_source = code
            run = await program_run.execute(code, timeout_left_s, engine)
            return await program_run.store_result(run)

    async def run_skill(
        self, context: ProgramCaller, skill: Skill, arguments: dict[str, Any], workspace: str
    ) -> Result:
        """Run a skill; called by a program, it is a part of that program's run."""
        if context.pinned_skills is not None and context.pinned_skills.get(skill.name, skill).code != skill.code:
            hint = "run the program again: a person decides on the new one"
            raise Denied(f"the skill {skill.name} was changed after the approval", hint=hint)
        if context.pinned_skills is not None and skill.name not in context.pinned_skills:
            raise Denied(f"the skill {skill.name} was saved after the approval", hint="run it in another program")
        run_id = context.run_id or create_serial(context.call.key)
        if context.run_id is None and (earlier := await self._find_earlier_result(context, run_id)) is not None:
            return earlier
        program_run = await ProgramRun.create(self, context, run_id, workspace, needs_skills=True, variables=False)
        program_run.watched_source = skill.program
        run = await program_run.execute(skill.program, None, "auto", {ARGUMENTS_VARIABLE: arguments})
        program_run.count_skill_use(skill.name)
        return await program_run.store_result(run)

    async def review_run(self, context: ProgramCaller, run_id: str) -> RunReview:
        """Return what a person must see before deciding on a paused run."""
        row = await self._fetch_paused(context, run_id)
        return await self._create_review(context, row, await skills.load_skills(context.store, context.scope))

    async def decide_run(self, context: ProgramCaller, run_id: str, *, approved: bool, reason: str) -> Result:
        """Go on with a paused run: make the call that waits, or raise its refusal in the program.

        The caller's approval must be a person's, for the run as it is now: its call, its program and its skills.
        """
        row = await self._fetch_paused(context, run_id)
        async with self._wait_for_turn(context.scope.project, row.workspace, APPROVAL_TURN_TIMEOUT_S):
            row = await self._fetch_paused(context, run_id)  # somebody else may have decided meanwhile
            program_run = await ProgramRun.create(self, context, run_id, row.workspace, needs_skills=True, row=row)
            seen = await self._create_review(context, row, program_run.skills)
            if approved:
                self._approver.require_passphrase(seen.passphrase, run_id)
            self._approver.redeem(context.approval, seen.subject if approved else format_refusal(seen.subject))
            if approved:  # a refusal also ends a run that this version cannot resume
                await run_in_thread(program_run.check_paused, row)
            process, now = run_record.get_process_name(), context.store.clock()
            if not await context.store.database.write(lambda tx: runs.claim_run(tx, context.scope, row, process, now)):
                raise Conflict(f"run {run_id} was decided on by somebody else just now", hint="nothing was done")
            program_run.watched_source = "\n".join(seen.lines)
            exactly = {"digest": seen.removal.digest} if seen.removal else {}
            approved_call = ApprovedCall(seen.operation, seen.arguments, exactly) if approved else None
            run = await program_run.resume(row, approved_call, reason)
            return await program_run.store_result(run)

    async def _fetch_paused(self, context: ProgramCaller, run_id: str) -> runs.RunRow:
        row = await context.store.database.read(lambda tx: runs.fetch_run(tx, context.scope, run_id))
        if row is None:
            raise _create_not_found(run_id)
        if row.error == runs.PURGED:
            raise Conflict(f"run {run_id} waited, but was ended by a purge", hint="run the program again")
        if row.status != "needs_approval" or row.snapshot is None:
            raise Conflict(f"run {run_id} does not wait for anybody: it is {row.status}", hint="nothing was done")
        return row

    async def _create_review(self, context: ProgramCaller, row: runs.RunRow, skills: Mapping[str, Skill]) -> RunReview:
        owner = run_record.get_pause_owner(row)
        seen = review.review_run(context.scope.project, row, owner, self.key, context.catalog, skills)
        if seen.operation == PURGE_PATH:
            seen = review.add_removal(seen, await _find_removal(context, seen))
        if not seen.unforeseen:
            return seen
        read_files = partial(review.read_files, context.scope, row.workspace)  # which it may run as code
        return review.add_files(seen, *await context.store.database.read(read_files))

    async def _find_earlier_result(self, context: ProgramCaller, run_id: str) -> Result | None:
        """Return the result of an earlier call with the same key; refuse if it still runs or was another program."""
        if context.call.key is None:
            return None
        row = await context.store.database.read(lambda tx: runs.fetch_run(tx, context.scope, run_id))
        if row is None:
            return None
        if calls.is_other_call(row.fingerprint, context.call.arguments_digest):
            raise Conflict("this idempotency key was used for another program", hint="use a new key for each call")
        if row.status == "running" and not run_record.is_lost(row, context.store.clock()):
            raise Conflict(f"run {run_id} is still under way", hint="ask for it again in a moment", retry=True)
        return run_record.parse_answer(row) or run_record.create_gone_result(row)

    # --- saving skills ------------------------------------------------------------------------------------------------

    async def save_skill(
        self, context: ProgramCaller, name: str, code: str, description: str | None, example: str | None
    ) -> KeptSkill:
        """Save a function as a skill if its types fit and its example runs; with a key seen before, nothing runs."""
        skill = skill_source.parse_skill(name, code, description, example or "")
        if await context.store.database.read(lambda tx: calls.fetch_receipt(tx, context.call)) is None:
            skill = await self._check_skill(context, skill)
        return await skills.write_skill(context.store, skill, context.call)

    async def _check_skill(self, context: ProgramCaller, skill: Skill) -> Skill:
        """Return a skill with an example that has run, or raise InvalidInput."""
        name = skill.name
        skills.refuse_taken(context.catalog, name)
        if not skill.example:
            if skill.parameters["required"]:
                hint = f"e.g. example={name + '(...)'!r} with real arguments"
                raise InvalidInput("a skill needs an example", hint=hint)
            skill = skill_source.parse_skill(name, skill.code, skill.description, f"{name}()")
        if errors := await self._find_errors(context, skill.code):
            lines = "; ".join(f"line {error['line']}: {error['message']}" for error in errors[:SKILL_ERRORS_SHOWN])
            hint = errors[0]["hint"] or "describe_tool says what an operation takes"
            raise InvalidInput(f"{name} cannot be saved: {lines}", hint=hint)
        result = await self._try_out(context, skill_source.build_example_program(skill))
        if not result.success:
            fault = result.error or Fault("Unknown", "")
            line = f" (line {fault.line})" if fault.line else ""
            message = f"the example of {name} does not run: {fault.type}: {fault.message}{line}"
            raise InvalidInput(message, hint=APPROVAL_HINT if fault.type == "ApprovalNeeded" else fault.hint)
        return skill

    async def _find_errors(self, context: ProgramCaller, code: str) -> list[Failure]:
        """Check a program, types included, without running it."""
        sandbox, names = self.sandbox, (await self._create_trial(context, create_serial())).create_names()
        return await run_in_thread(
            lambda: sandbox.check_program(Program(code, names)) or sandbox.check_types(code, names)
        )

    async def _try_out(self, context: ProgramCaller, code: str) -> Result:
        """Run a program once, also where its call is repeated; only the effects of its calls stay."""
        run_id = create_serial(context.call.key)
        async with self._wait_for_turn(context.scope.project, f"trial {run_id}", APPROVAL_TURN_TIMEOUT_S):
            if (earlier := await self._find_earlier_result(context, run_id)) is not None:
                return earlier
            trial = await self._create_trial(context, run_id)
            run = await trial.execute(code, None, "auto")
            if not trial.is_stored and (earlier := await self._find_earlier_result(context, run_id)) is not None:
                return earlier  # another process was faster, and ours could write nothing
            return await trial.store_trial(run)

    async def _create_trial(self, context: ProgramCaller, run_id: str) -> ProgramRun:
        return await ProgramRun.create(self, context, run_id, DEFAULT_WORKSPACE, needs_skills=True, variables=False)

    # --- stored runs --------------------------------------------------------------------------------------------------

    async def list_runs(self, context: ProgramCaller, limit: int, status: str | None) -> list[Past]:
        """List the latest runs, those included that are not stored yet."""
        database, now = context.store.database, context.store.clock()
        stored_status = "running" if status == "unknown" else status  # a lost run is stored as running
        unwritten = [row for row in self._list_unwritten(context) if status in (None, row.status)]
        stored = await database.read(lambda tx: runs.list_runs(tx, context.scope, limit, stored_status))
        by_id = {row.id: row for row in [*unwritten, *stored]}
        latest = sorted(by_id.values(), key=lambda row: -row.started)[:limit]
        past = [run_record.to_past(row, now) for row in latest]
        if status != "unknown":
            return past
        ended = await database.read(lambda tx: runs.list_runs(tx, context.scope, limit, "unknown"))
        lost = [run for run in past if run.status == "unknown"]
        return lost + [run_record.to_past(row, now) for row in ended]

    async def get_run(self, context: ProgramCaller, run_id: str) -> Past:
        unwritten = next((row for row in self._list_unwritten(context) if row.id == run_id), None)
        row = await context.store.database.read(lambda tx: runs.fetch_run(tx, context.scope, run_id)) or unwritten
        if row is None:
            raise _create_not_found(run_id)
        return replace(run_record.to_past(row, context.store.clock()), answer=run_record.parse_answer(row))

    async def watch_runs(self, context: ProgramCaller, run_id: str | None) -> list[WatchedProgram]:
        """Return the programs of this process: one whole, or of the latest ones the first lines."""
        if run_id is None:
            return self.watch.list_programs(context.scope.project)
        row = await context.store.database.read(lambda tx: runs.fetch_run(tx, context.scope, run_id))
        if row is not None and row.error == runs.PURGED:
            self.watch.forget(context.scope.project, run_id)
        program = await self.watch.read(context, run_id)
        return [] if program is None else [program]

    def remember_run(self, project: str, row: runs.RunRow) -> None:
        """Remember a run that is stored in the background, so that lists show it at once."""
        with self._lock:
            self._recent_rows.append((project, row))

    def _list_unwritten(self, context: ProgramCaller) -> list[runs.RunRow]:
        """Return the runs that may not be stored yet; to be read before the store, where they go in this order."""
        running = self.watch.list_running(context.scope.project)
        with self._lock:
            ended = [row for project, row in self._recent_rows if project == context.scope.project]
        rows = {row.id: row for row in [*running, *ended]}.values()
        context.private_reads.add(mark for row in rows for mark in row.private.split())
        return list(rows)

    # --- turns --------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _wait_for_turn(self, project: str, workspace: str, timeout_s: float) -> AsyncGenerator[None]:
        """Wait until no other program of this process uses the workspace, in the order of arrival."""
        turn: ThreadFuture[None] = ThreadFuture()
        queue_key = (project, workspace)
        with self._lock:
            queue = self._queues.setdefault(queue_key, [])
            if len(queue) > MAX_QUEUED_RUNS:
                raise LimitExceeded(
                    f"{MAX_QUEUED_RUNS} programs wait for the workspace {workspace!r}",
                    hint="use another workspace, or try again in a moment",
                    retry=True,
                )
            queue.append(turn)
            if queue[0] is turn:
                turn.set_result(None)
        try:
            if not await turn.wait_async(timeout_s):
                raise LimitExceeded(
                    f"other programs used the workspace {workspace!r} for {timeout_s:g} s; nothing was run",
                    hint="use another workspace, or try again in a moment",
                    retry=True,
                )
            yield
        finally:
            self._end_turn(queue_key, turn)

    def _end_turn(self, queue_key: tuple[str, str], turn: ThreadFuture[None]) -> None:
        with self._lock:
            queue = self._queues[queue_key]
            had_turn = queue[0] is turn
            queue.remove(turn)
            if not queue:
                del self._queues[queue_key]
            elif had_turn:
                queue[0].set_result(None)


async def _find_removal(context: ProgramCaller, seen: RunReview) -> Removal:
    """Return what a purge that waits would remove now."""
    refs = context.catalog.get_operation(seen.operation).check_arguments(seen.arguments).get("memory_ids")
    try:
        return Removal(refs, (await purge.list_purgeable(context.store, refs, context.scope, 0)).digest)
    except AthenaError:
        return Removal(refs, "")


def _create_not_found(run_id: str) -> NotFound:
    return NotFound(f"there is no run {run_id!r:.60} in this project", hint="list_runs says which there are")
