"""One run: what it began with, and what is kept of it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from athena.core.scope import Scope
from athena.core.threads import drive, pause
from athena.errors import AthenaError, Conflict
from athena.memory import rows
from athena.programs.host import Host
from athena.programs.skill_values import Skill
from athena.programs.values import EngineName, Result
from athena.storage import calls, runs, scopes
from athena.storage.database import Transaction
from athena.storage.workspaces import Workspace

if TYPE_CHECKING:  # the sandbox is loaded with the first program
    from athena.programs.host_calls import Calling
    from athena.programs.runner import Programs
    from athena.programs.sandbox import Run
    from athena.programs.sandbox.run import Running

ENDING = 10.0  # seconds that the calls of a cancelled run may take to end


class Job:
    def __init__(self, programs: "Programs", host: Host, number: str, workspace: str, kept: Workspace) -> None:
        self.programs, self.host, self.number, self.workspace, self.kept = programs, host, number, workspace, kept
        self.began = host.clock()
        self.state: bytes | None = None
        self.skills: dict[str, Skill] = {}
        self.variables = True
        self.on_disk = False
        self.keyed = host.call.key is not None
        self.about = host.call.about
        self.claimed: float | None = None

    @classmethod
    async def made(
        cls,
        programs: "Programs",
        host: Host,
        number: str,
        workspace: str,
        *,
        needs_skills: bool,
        variables: bool = True,
        row: runs.Row | None = None,
    ) -> "Job":
        from athena.programs import run_record  # brings the sandbox

        kept = Workspace("", None, "{}", 0.0)
        if variables:
            kept = await host.database.read(lambda tx: run_record.opened(tx, host.scope, workspace))
        job = cls(programs, host, number, workspace, kept)
        job.variables = variables
        job.state = run_record.usable_state(programs.key, kept)
        if needs_skills or job.state:
            job.skills = {one.name: one for one in await host.skills()}
        if row is not None:
            job.began, job.on_disk, job.about, job.claimed = row.started, True, row.fingerprint, host.clock()
            job.keyed = row.answer is not None  # that of the call that waits, whoever approves it
        return job

    # --- in the sandbox -----------------------------------------------------------------------------------------------

    async def run(
        self, code: str, timeout_s: float | None, engine: EngineName, inputs: Mapping[str, Any] | None = None
    ) -> "Run":
        from athena.programs.sandbox import Program

        calling = self._calling()
        program = Program(code, self.names(), engine, self.state, timeout_s, self.kept.owner, inputs or {})
        return self._helped(await self._result(self.programs.sandbox.start(program, calling), calling), code)

    def _helped(self, run: "Run", code: str = "") -> "Run":
        from athena.programs.hints import helped

        return run if run.error is None else replace(run, error=helped(run.error, self.names(), code))

    async def _result(self, running: "Running", calling: "Calling") -> "Run":
        try:
            return calling.counted(await running.outcome)
        except BaseException as error:
            running.cancel()
            await self._let_go(running, note=calling.begun or not isinstance(error, AthenaError))
            raise

    async def _let_go(self, running: "Running", *, note: bool) -> None:
        """Wait until a run that nobody waits for any more has ended, and have that written down."""
        from athena.programs.sandbox import Run

        for _ in range(int(ENDING / 0.02)):
            if running.done and not running.calls.under_way:
                break
            await pause(0.02)
        if not (note and self.on_disk) or self.host.outer is not None:
            return
        try:
            run = running.outcome.result()
        except Exception as error:  # noqa: BLE001  # the caller is told
            run = Run("unknown", error={"type": type(error).__name__, "message": "", "line": None, "hint": None})
        self.host.database.later(partial(self._note, run))

    def check_paused(self, row: runs.Row) -> None:
        """Refuse a paused run that cannot be gone on with, before anybody has decided on it."""
        assert row.snapshot is not None
        assert row.waits_for is not None
        self.programs.sandbox.check_paused(row.snapshot, json.loads(row.waits_for)["owner"])

    async def resume(self, row: runs.Row, *, approved: bool, reason: str) -> "Run":
        assert row.snapshot is not None
        assert row.waits_for is not None
        kept = json.loads(row.waits_for)
        if kept["variables"] != self.kept.updated:  # other programs have run since: their variables stay
            self.variables = False
        self.kept = self.kept._replace(owner=kept["owner"])
        calling = self._calling((kept["operation"], kept["arguments"]) if approved else None)
        running: Running | None = None
        try:
            running = self.programs.sandbox.go_on(
                row.snapshot, calling, self.names(), approved=approved, refusal=reason, owner=kept["owner"]
            )
            return self._helped(await self._result(running, calling))
        except AthenaError:
            if running is None or not calling.begun:  # nothing has gone on: it waits as before
                await self.host.database.write(lambda tx: runs.put(tx, self.host.scope, row))
            raise

    def names(self) -> Any:
        from athena.programs.namespace import names_of

        return names_of(self.host.catalog, self.skills)

    def _calling(self, approved: tuple[str, dict[str, Any]] | None = None) -> "Calling":
        from athena.programs.host_calls import Calling

        caller = self.host.inside(self.number, self.workspace)
        return Calling(
            self.host,
            self.programs.sandbox,
            self.names(),
            self.skills,
            caller,
            self._begin,
            used=self.used,
            inner=self.host.outer is not None,
            approved=approved,
        )

    def _begin(self) -> None:
        """Write down that this run is under way, before anything happens that must not happen twice."""
        if self.on_disk or self.host.outer is not None:
            return

        drive(self.host.database.write(partial(self._add, self._row("running"))))
        self.on_disk = True

    async def _add(self, row: runs.Row, tx: Transaction) -> None:
        """Write this run down for the first time; what another one of its name says stays as it is."""
        if not await runs.add(tx, self.host.scope, row):
            hint = "the same key was used twice at once; ask for it again"
            raise Conflict(f"run {self.number} is under way already", hint=hint, retry=True)

    def used(self, name: str) -> None:
        """Count a use of a skill, without being waited for."""
        self.host.database.later(partial(_count_use, self.host.scope, name))

    # --- on disk ------------------------------------------------------------------------------------------------------

    def _row(self, status: str, **more: Any) -> runs.Row:
        from athena.programs.run_record import here

        return runs.Row(
            self.number,
            self.workspace,
            status,
            here(),
            self.began,
            fingerprint=self.about,
            claimed=self.claimed,
            **more,
        )

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

    async def keep_trial(self, run: "Run") -> None:
        """Write down that a program that was only tried out is over, if it is known to have begun."""
        if self.on_disk:
            status = "failed" if run.pause is not None else run.status
            row = self._ended(replace(run, status=status, pause=None), None, None)
            await self.host.database.write(lambda tx: runs.put(tx, self.host.scope, row))

    async def keep(self, run: "Run") -> Result:
        """Write down how the run ended, with the variables it left, and return what the caller is told."""
        from athena.programs.run_record import left, result

        if self.host.outer is not None:
            return result(run, self.number, None)
        after = left(self.programs.key, self.kept, run.state, self.host.clock()) if self.variables else None
        light = not (self.on_disk or after or run.truncated or run.pause or self.keyed)
        if light:
            await self.host.database.sync()  # what reads write, as a briefing does
            self.programs.noted(self.host.scope.project, self._ended(run, None, None))
            self.host.database.later(partial(self._note, run))
            return result(run, self.number, None)
        return await self.host.database.write(partial(self._keep, run, after))

    async def _note(self, run: "Run", tx: Transaction) -> None:
        await self._keep(run, None, tx)

    async def _keep(self, run: "Run", after: Workspace | None, tx: Transaction) -> Result:
        from athena.programs import run_record

        host, put = self.host, self.programs.put_handle
        handle = None
        if run.truncated:
            handle = await put(tx, host.scope, self.workspace, self.number, run.value, host.clock())
        if after is not None:
            kept = await run_record.keep_variables(
                tx, host.scope, self.workspace, self.programs.key, self.kept, after, host.clock
            )
            run = replace(run, lost=(*run.lost, *kept))
        made = run_record.result(run, self.number, handle)
        waited = self.claimed is not None  # then nobody else has the answer that the agent asks for later
        answer = run_record.as_json(made) if self.keyed or waited else None
        row = self._ended(run, self._waits_for(run), answer)
        await (runs.put(tx, host.scope, row) if self.on_disk else self._add(row, tx))
        await calls.record(tx, host.call, "done", run.elapsed_ms)
        return made


async def _count_use(scope: Scope, name: str, tx: Transaction) -> None:
    for number in await scopes.visible(tx, scope.of("skill")):
        if found := await rows.of_session(tx, [number], name, "skill"):
            await rows.count_again(tx, found[0])
            return
