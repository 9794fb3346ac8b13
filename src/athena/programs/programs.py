"""Running programs: in turn within a workspace, each recorded, none repeated."""

import json
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from athena.errors import Conflict, LimitExceeded, NotFound
from athena.ids import serial
from athena.model.run import EngineName, Past, Result
from athena.model.scope import Scope
from athena.model.skill import Skill
from athena.programs.host import Host
from athena.storage import calls, memories, runs, scopes, workspaces
from athena.storage.database import Transaction
from athena.storage.workspaces import Workspace
from athena.threads import Outcome, aside

if TYPE_CHECKING:  # the sandbox is loaded with the first program
    from athena.programs.calling import Calling
    from athena.sandbox import Limits, Run, Sandbox
    from athena.sandbox.running import Running

MOST_WAITING = 200  # programs for one workspace
RECENT = 200  # runs that are known before they are written down
Handle = Callable[[Transaction, Scope, str, str, Any, float], Awaitable[str | None]]  # keeps a value under a run


class Programs:
    """The sandbox of an app, and who waits for which workspace. `key` is asked for with the first program."""

    def __init__(
        self,
        key: Callable[[], bytes],
        put_handle: Handle,
        *,
        allow_bare: bool = False,
        limits: "Limits | None" = None,
    ) -> None:
        self._make_key, self._put_handle, self._allow_bare, self._limits = key, put_handle, allow_bare, limits
        self._sandbox: Sandbox | None = None
        self._guard = threading.Lock()
        self._queues: dict[tuple[str, str], list[Outcome[None]]] = {}
        self._last: deque[tuple[str, runs.Row]] = deque(maxlen=RECENT)

    @cached_property
    def key(self) -> bytes:
        """What seals variables and paused runs."""
        return self._make_key()

    @property
    def sandbox(self) -> "Sandbox":
        with self._guard:
            if self._sandbox is None:
                from athena.sandbox import Sandbox

                self._sandbox = Sandbox(self._limits, key=self.key, allow_bare=self._allow_bare)
            return self._sandbox

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()

    # --- running ------------------------------------------------------------------------------------------------------

    async def execute(self, host: Host, code: str, timeout_s: float, workspace: str, engine: EngineName) -> Result:
        """Run a program and say what came of it; asked again with the same key, say what came of it then."""
        number = serial(host.call.key)
        async with self._turn(host.scope.project, workspace):
            # Here and not before: the same call may have had the turn until now.
            if (earlier := await self._earlier(host, number)) is not None:
                return earlier
            job = await _Job.made(self, host, number, workspace, needs_skills="skills" in code)
            run = await job.run(code, timeout_s, engine)
            return await job.keep(run)

    async def run_skill(self, host: Host, skill: Skill, arguments: dict[str, Any], workspace: str) -> Result:
        """Run a skill from outside, or from a program as a part of that program's run."""
        number = host.outer or serial(host.call.key)
        if host.outer is None and (earlier := await self._earlier(host, number)) is not None:
            return earlier
        job = await _Job.made(self, host, number, workspace, needs_skills=True, variables=False)
        run = await job.run(skill.called_with(arguments), None, "auto")
        job.used(skill.name)
        return await job.keep(run)

    async def try_out(self, host: Host, code: str) -> "Run":
        """Check a program, run it once and keep nothing of it but what its calls did."""
        job = await _Job.made(self, host, serial(), "default", needs_skills=True, variables=False)
        return await job.run(code, None, "auto")

    async def decide(self, host: Host, number: str, *, approved: bool, reason: str) -> Result:
        """Go on with a run that waits for a person: make the call, or tell the program that it is refused."""
        row = await host.database.read(lambda tx: runs.find(tx, host.scope, number))
        if row is None:
            raise NotFound(f"there is no run {number!r:.60} in this project", hint="list_runs says which there are")
        if row.status != "needs_approval" or row.snapshot is None:
            raise Conflict(f"run {number} does not wait for anybody: it is {row.status}", hint="nothing was done")
        from athena.programs import keeping  # brings the sandbox

        if not await host.database.write(lambda tx: runs.claim(tx, host.scope, number, keeping.here())):
            raise Conflict(f"run {number} was decided on by somebody else just now", hint="nothing was done")
        async with self._turn(host.scope.project, row.workspace):
            job = await _Job.made(self, host, number, row.workspace, needs_skills=True, row=row)
            run = await job.resume(row, approved=approved, reason=reason)
            return await job.keep(run)

    async def _earlier(self, host: Host, number: str) -> Result | None:
        """Return what a call with the same key was told, or say that it is not to be repeated."""
        if host.call.key is None:
            return None
        row = await host.database.read(lambda tx: runs.find(tx, host.scope, number))
        if row is None:
            return None
        from athena.programs import keeping  # brings the sandbox

        if row.fingerprint != host.call.about:
            raise Conflict("this idempotency key was used for another program", hint="use a new key for each call")
        if row.status == "running" and not keeping.is_lost(row, host.clock()):
            raise Conflict(f"run {number} is still under way", hint="ask for it again in a moment", retry=True)
        return keeping.answered(row) or keeping.lost_result(row)

    # --- looking ------------------------------------------------------------------------------------------------------

    async def past(self, host: Host, limit: int, status: str | None) -> list[Past]:
        """List the latest runs."""
        from athena.programs import keeping  # brings the sandbox

        stored = "running" if status == "unknown" else status
        rows = await host.database.read(lambda tx: runs.newest(tx, host.scope, limit, stored))
        unwritten = [row for row in self._unwritten(host.scope.project) if status in (None, row.status)]
        known = {row.id: row for row in [*unwritten, *rows]}
        rows = sorted(known.values(), key=lambda row: -row.started)[:limit]
        found = [keeping.past(row, host.clock()) for row in rows]
        if status != "unknown":
            return found
        ended = await host.database.read(lambda tx: runs.newest(tx, host.scope, limit, "unknown"))
        return [one for one in found if one.status == "unknown"] + [keeping.past(row, 0.0) for row in ended]

    async def one_past(self, host: Host, number: str) -> Past:
        from athena.programs import keeping  # brings the sandbox

        row = await host.database.read(lambda tx: runs.find(tx, host.scope, number))
        row = row or next((one for one in self._unwritten(host.scope.project) if one.id == number), None)
        if row is None:
            raise NotFound(f"there is no run {number!r:.60} in this project", hint="list_runs says which there are")
        return keeping.past(row, host.clock())

    def noted(self, project: str, row: runs.Row) -> None:
        """Remember a run that nobody waits for to be written down."""
        with self._guard:
            self._last.append((project, row))

    def _unwritten(self, project: str) -> list[runs.Row]:
        with self._guard:
            return [row for of, row in self._last if of == project]

    @asynccontextmanager
    async def _turn(self, project: str, workspace: str) -> AsyncGenerator[None]:
        """Wait until no other program of this process uses a workspace, in order."""
        mine: Outcome[None] = Outcome()
        place = (project, workspace)
        with self._guard:
            queue = self._queues.setdefault(place, [])
            if len(queue) > MOST_WAITING:
                raise LimitExceeded(
                    f"{MOST_WAITING} programs wait for the workspace {workspace!r}",
                    hint="use another workspace, or try again in a moment",
                    retry=True,
                )
            queue.append(mine)
            if queue[0] is mine:
                mine.deliver(None)
        try:
            await mine
            yield
        finally:
            self._leave(place, mine)

    def _leave(self, place: tuple[str, str], mine: Outcome[None]) -> None:
        with self._guard:
            queue = self._queues[place]
            had_turn = queue[0] is mine
            queue.remove(mine)
            if not queue:
                del self._queues[place]
            elif had_turn:
                queue[0].deliver(None)


class _Job:
    """One run: what it began with, and what is kept of it."""

    def __init__(self, programs: Programs, host: Host, number: str, workspace: str, kept: Workspace) -> None:
        self.programs, self.host, self.number, self.workspace, self.kept = programs, host, number, workspace, kept
        self.began = host.clock()
        self.state: bytes | None = None
        self.skills: dict[str, Skill] = {}
        self.variables = True
        self.on_disk = False
        self.about = host.call.about

    @classmethod
    async def made(
        cls,
        programs: Programs,
        host: Host,
        number: str,
        workspace: str,
        *,
        needs_skills: bool,
        variables: bool = True,
        row: runs.Row | None = None,
    ) -> "_Job":
        from athena.programs import keeping  # brings the sandbox

        kept = Workspace("", None, "{}", 0.0)
        if variables:
            kept = await host.database.read(lambda tx: keeping.opened(tx, host.scope, workspace))
        job = cls(programs, host, number, workspace, kept)
        job.variables = variables
        job.state = keeping.usable_state(programs.key, kept)
        if needs_skills or job.state:
            job.skills = {one.name: one for one in await host.skills()}
        if row is not None:
            job.began, job.on_disk, job.about = row.started, True, row.fingerprint
        return job

    # --- in the sandbox -----------------------------------------------------------------------------------------------

    async def run(self, code: str, timeout_s: float | None, engine: EngineName) -> "Run":
        from athena.sandbox import Program

        calling = self._calling()
        program = Program(code, self._names(), engine, self.state, timeout_s, self.kept.owner)
        running: Running = self.programs.sandbox.start(program, calling)
        try:
            return calling.counted(await running.outcome)
        except BaseException:
            running.cancel()
            raise

    async def resume(self, row: runs.Row, *, approved: bool, reason: str) -> "Run":
        assert row.snapshot is not None
        assert row.waits_for is not None
        kept = json.loads(row.waits_for)
        if kept["variables"] != self.kept.updated:  # other programs have run since: their variables stay
            self.variables = False
        self.kept = self.kept._replace(owner=kept["owner"])
        calling = self._calling(approved)
        go_on = partial(self.programs.sandbox.resume, row.snapshot, calling, self._names())
        return calling.counted(await aside(go_on, approved=approved, refusal=reason, owner=kept["owner"]))

    def _names(self) -> Any:
        from athena.programs.names import names_of

        return names_of(self.host.catalog, self.skills)

    def _calling(self, approved: bool = False) -> "Calling":
        from athena.programs.calling import Calling

        caller = self.host.inside(self.number, self.workspace)
        return Calling(
            self.host,
            self.programs.sandbox,
            self._names(),
            self.skills,
            caller,
            self._begin,
            used=self.used,
            approved=approved,
        )

    def _begin(self) -> None:
        """Write down that this run is under way, before anything happens that must not happen twice."""
        from athena.threads import drive

        if self.on_disk or self.host.outer is not None:
            return

        async def work(tx: Transaction) -> None:
            if await runs.find(tx, self.host.scope, self.number) is not None:
                raise Conflict(f"run {self.number} is under way already", hint="the same key was used twice at once")
            await runs.put(tx, self.host.scope, self._row("running"))

        drive(self.host.database.write(work))
        self.on_disk = True

    def used(self, name: str) -> None:
        """Count a use of a skill, without being waited for."""
        self.host.database.later(partial(_count_use, self.host.scope, name))

    # --- on disk ------------------------------------------------------------------------------------------------------

    def _row(self, status: str, **more: Any) -> runs.Row:
        from athena.programs.keeping import here

        return runs.Row(self.number, self.workspace, status, here(), self.began, fingerprint=self.about, **more)

    def _waits_for(self, run: "Run") -> str | None:
        """Write what a paused run waits for, and what going on with it needs to know."""
        if run.pause is None:
            return None
        asked = {"operation": run.pause.path, "arguments": dict(run.pause.arguments)}
        variables = self.kept.updated if self.variables else None
        return json.dumps(asked | {"owner": self.kept.owner, "variables": variables})

    def _ended(self, run: "Run", waits_for: str | None, answer: str | None) -> runs.Row:
        return self._row(
            run.status,
            elapsed_ms=run.elapsed_ms,
            calls=run.calls,
            engine=run.engine,
            error=run.error and run.error["type"],
            waits_for=waits_for,
            snapshot=run.pause and run.pause.snapshot,
            answer=answer,
        )

    async def keep(self, run: "Run") -> Result:
        """Write down how the run ended, with the variables it left, and return what the caller is told."""
        from athena.programs.keeping import left, result

        if self.host.outer is not None:
            return result(run, self.number, None)
        after = left(self.programs.key, self.kept, run.state, self.host.clock()) if self.variables else None
        light = not (self.on_disk or after or run.truncated or run.pause or self.host.call.key)
        if light:
            self.programs.noted(self.host.scope.project, self._ended(run, None, None))
            self.host.database.later(partial(self._note, run))
            return result(run, self.number, None)
        return await self.host.database.write(partial(self._keep, run, after))

    async def _note(self, run: "Run", tx: Transaction) -> None:
        await self._keep(run, None, tx)

    async def _keep(self, run: "Run", after: Workspace | None, tx: Transaction) -> Result:
        from athena.programs import keeping

        host, put = self.host, self.programs._put_handle
        handle = None
        if run.truncated:
            handle = await put(tx, host.scope, self.workspace, self.number, run.value, host.clock())
        if after is not None:
            await workspaces.put(tx, host.scope, self.workspace, after)
        made = keeping.result(run, self.number, handle)
        answer = keeping.as_json(made) if host.call.key is not None else None
        await runs.put(tx, host.scope, self._ended(run, self._waits_for(run), answer))
        await calls.record(tx, host.call, "done", run.elapsed_ms)
        return made


async def _count_use(scope: Scope, name: str, tx: Transaction) -> None:
    for number in await scopes.visible(tx, scope.of("skill")):
        if found := await memories.of_session(tx, [number], name, "skill"):
            await memories.count_again(tx, found[0])
            return
