"""Running programs: in turn within a workspace, each recorded, none repeated."""

import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from athena.core.hashing import create_serial
from athena.core.threads import ThreadFuture, run_in_thread
from athena.core.values import Scope
from athena.errors import Conflict, LimitExceeded, NotFound
from athena.programs.host_calls import RunContext
from athena.programs.program_run import ProgramRun
from athena.programs.values import ARGUMENTS_VARIABLE, EngineName, Past, Result, Skill
from athena.storage import runs
from athena.storage.database import Transaction

if TYPE_CHECKING:  # the sandbox is loaded with the first program
    from athena.programs.sandbox import Failure, Limits, Run, Sandbox

MAX_QUEUED_RUNS = 100  # programs for one workspace
APPROVAL_TURN_TIMEOUT_S = 60.0  # seconds that a person's decision waits for its workspace
MIN_TIMEOUT_S = 0.05  # seconds that a program gets, however long it has waited
MAX_RECENT_RUNS = 200  # runs that are known before they are written down
PutHandle = Callable[[Transaction, Scope, str, str, Any, float], Awaitable[str | None]]  # keeps a value under a run


class ProgramRunner:
    """The sandbox of an app, and who waits for which workspace. `key` is asked for with the first program."""

    def __init__(
        self,
        key: Callable[[], bytes],
        put_handle: PutHandle,
        *,
        allow_bare: bool = False,
        limits: "Limits | None" = None,
    ) -> None:
        self._make_key, self.put_handle, self._allow_bare, self._limits = key, put_handle, allow_bare, limits
        self._sandbox: Sandbox | None = None
        self._lock = threading.Lock()
        self._queues: dict[tuple[str, str], list[ThreadFuture[None]]] = {}
        self._recent_rows: deque[tuple[str, runs.RunRow]] = deque(maxlen=MAX_RECENT_RUNS)

    @cached_property
    def key(self) -> bytes:
        """What seals variables and paused runs."""
        return self._make_key()

    @property
    def sandbox(self) -> "Sandbox":
        with self._lock:
            if self._sandbox is None:
                from athena.programs.sandbox import Sandbox

                self._sandbox = Sandbox(self._limits, key=self.key, allow_bare=self._allow_bare)
            return self._sandbox

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()

    # --- running ------------------------------------------------------------------------------------------------------

    async def execute(
        self, host: RunContext, code: str, timeout_s: float, workspace: str, engine: EngineName
    ) -> Result:
        """Run a program and say what came of it; asked again with the same key, say what came of it then."""
        number = create_serial(host.call.key)
        asked = time.monotonic()
        async with self._wait_for_turn(host.scope.project, workspace, timeout_s):
            left = max(MIN_TIMEOUT_S, timeout_s - (time.monotonic() - asked))
            # Here and not before: the same call may have had the turn until now.
            if (earlier := await self._find_earlier_result(host, number)) is not None:
                return earlier
            job = await ProgramRun.create(self, host, number, workspace, needs_skills="skills" in code)
            run = await job.execute(code, left, engine)
            return await job.store_result(run)

    async def run_skill(self, host: RunContext, skill: Skill, arguments: dict[str, Any], workspace: str) -> Result:
        """Run a skill from outside, or from a program as a part of that program's run."""
        number = host.parent_run_id or create_serial(host.call.key)
        if host.parent_run_id is None and (earlier := await self._find_earlier_result(host, number)) is not None:
            return earlier
        job = await ProgramRun.create(self, host, number, workspace, needs_skills=True, variables=False)
        run = await job.execute(skill.program, None, "auto", {ARGUMENTS_VARIABLE: arguments})
        job.count_skill_use(skill.name)
        return await job.store_result(run)

    async def find_errors(self, host: RunContext, code: str) -> "list[Failure]":
        """Say what is certainly wrong with a program, its types included; nothing of it is run."""
        from athena.programs.sandbox import Program

        names = (
            await ProgramRun.create(self, host, create_serial(), "default", needs_skills=True, variables=False)
        ).create_names()
        box = self.sandbox
        return await run_in_thread(lambda: box.check_program(Program(code, names)) or box.check_types(code, names))

    async def try_out(self, host: RunContext, code: str) -> "Run":
        """Check a program, run it once and keep nothing of it but what its calls did."""
        job = await ProgramRun.create(self, host, create_serial(), "default", needs_skills=True, variables=False)
        run = await job.execute(code, None, "auto")
        await job.store_trial(run)
        return run

    async def decide_run(self, host: RunContext, number: str, *, approved: bool, reason: str) -> Result:
        """Go on with a run that waits for a person: make the call, or tell the program that it is refused."""
        row = await host.database.read(lambda tx: runs.fetch_run(tx, host.scope, number))
        if row is None:
            raise NotFound(f"there is no run {number!r:.60} in this project", hint="list_runs says which there are")
        if row.error == "Purged":
            raise Conflict(f"run {number} waited, but was ended by a purge", hint="run the program again")
        if row.status != "needs_approval" or row.snapshot is None:
            raise Conflict(f"run {number} does not wait for anybody: it is {row.status}", hint="nothing was done")
        from athena.programs import run_record  # brings the sandbox

        async with self._wait_for_turn(host.scope.project, row.workspace, APPROVAL_TURN_TIMEOUT_S):
            job = await ProgramRun.create(self, host, number, row.workspace, needs_skills=True, row=row)
            await run_in_thread(job.check_paused, row)
            now = host.clock()
            if not await host.database.write(
                lambda tx: runs.claim_run(tx, host.scope, number, run_record.get_process_name(), now)
            ):
                raise Conflict(f"run {number} was decided on by somebody else just now", hint="nothing was done")
            run = await job.resume(row, approved=approved, reason=reason)
            return await job.store_result(run)

    async def _find_earlier_result(self, host: RunContext, number: str) -> Result | None:
        """Return what a call with the same key was told, or say that it is not to be repeated."""
        if host.call.key is None:
            return None
        row = await host.database.read(lambda tx: runs.fetch_run(tx, host.scope, number))
        if row is None:
            return None
        from athena.programs import run_record  # brings the sandbox

        if row.fingerprint != host.call.arguments_digest:
            raise Conflict("this idempotency key was used for another program", hint="use a new key for each call")
        if row.status == "running" and not run_record.is_lost(row, host.clock()):
            raise Conflict(f"run {number} is still under way", hint="ask for it again in a moment", retry=True)
        return run_record.parse_answer(row) or run_record.create_gone_result(row)

    # --- looking ------------------------------------------------------------------------------------------------------

    async def list_runs(self, host: RunContext, limit: int, status: str | None) -> list[Past]:
        """List the latest runs."""
        from athena.programs import run_record  # brings the sandbox

        stored = "running" if status == "unknown" else status
        rows = await host.database.read(lambda tx: runs.list_runs(tx, host.scope, limit, stored))
        unwritten = [row for row in self._list_unwritten(host.scope.project) if status in (None, row.status)]
        known = {row.id: row for row in [*unwritten, *rows]}
        rows = sorted(known.values(), key=lambda row: -row.started)[:limit]
        found = [run_record.to_past(row, host.clock()) for row in rows]
        if status != "unknown":
            return found
        ended = await host.database.read(lambda tx: runs.list_runs(tx, host.scope, limit, "unknown"))
        return [one for one in found if one.status == "unknown"] + [run_record.to_past(row, 0.0) for row in ended]

    async def get_run(self, host: RunContext, number: str) -> Past:
        from athena.programs import run_record  # brings the sandbox

        row = await host.database.read(lambda tx: runs.fetch_run(tx, host.scope, number))
        row = row or next((one for one in self._list_unwritten(host.scope.project) if one.id == number), None)
        if row is None:
            raise NotFound(f"there is no run {number!r:.60} in this project", hint="list_runs says which there are")
        return replace(run_record.to_past(row, host.clock()), answer=run_record.parse_answer(row))

    def remember_run(self, project: str, row: runs.RunRow) -> None:
        """Remember a run that nobody waits for to be written down."""
        with self._lock:
            self._recent_rows.append((project, row))

    def _list_unwritten(self, project: str) -> list[runs.RunRow]:
        with self._lock:
            return [row for of, row in self._recent_rows if of == project]

    @asynccontextmanager
    async def _wait_for_turn(self, project: str, workspace: str, patience_s: float) -> AsyncGenerator[None]:
        """Wait until no other program of this process uses a workspace, in order, but not for ever."""
        mine: ThreadFuture[None] = ThreadFuture()
        place = (project, workspace)
        with self._lock:
            queue = self._queues.setdefault(place, [])
            if len(queue) > MAX_QUEUED_RUNS:
                raise LimitExceeded(
                    f"{MAX_QUEUED_RUNS} programs wait for the workspace {workspace!r}",
                    hint="use another workspace, or try again in a moment",
                    retry=True,
                )
            queue.append(mine)
            if queue[0] is mine:
                mine.set_result(None)
        try:
            if not await mine.wait_async(patience_s):
                raise LimitExceeded(
                    f"other programs used the workspace {workspace!r} for {patience_s:g} s; nothing was run",
                    hint="use another workspace, or try again in a moment",
                    retry=True,
                )
            yield
        finally:
            self._end_turn(place, mine)

    def _end_turn(self, place: tuple[str, str], mine: ThreadFuture[None]) -> None:
        with self._lock:
            queue = self._queues[place]
            had_turn = queue[0] is mine
            queue.remove(mine)
            if not queue:
                del self._queues[place]
            elif had_turn:
                queue[0].set_result(None)
