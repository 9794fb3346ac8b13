"""One run: what it began with, and what is kept of it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from athena.core.threads import run_sync, sleep
from athena.core.values import Scope
from athena.errors import AthenaError, Conflict
from athena.memory import rows
from athena.programs.host_calls import RunContext
from athena.programs.values import EngineName, Result, Skill
from athena.storage import calls, runs, scopes
from athena.storage.database import Transaction
from athena.storage.workspaces import WorkspaceRow

if TYPE_CHECKING:  # the sandbox is loaded with the first program
    from athena.programs.host_calls import HostCalls
    from athena.programs.runner import ProgramRunner
    from athena.programs.sandbox import Run
    from athena.programs.sandbox.run import ActiveRun

CANCEL_TIMEOUT_S = 10.0  # seconds that the calls of a cancelled run may take to end


class ProgramRun:
    def __init__(
        self, programs: "ProgramRunner", host: RunContext, number: str, workspace: str, kept: WorkspaceRow
    ) -> None:
        self.runner, self.host, self.run_id, self.workspace, self.workspace_row = (
            programs,
            host,
            number,
            workspace,
            kept,
        )
        self.started_at = host.clock()
        self.state: bytes | None = None
        self.skills: dict[str, Skill] = {}
        self.keeps_variables = True
        self.is_stored = False
        self.has_key = host.call.key is not None
        self.fingerprint = host.call.arguments_digest
        self.claimed_at: float | None = None

    @classmethod
    async def create(
        cls,
        programs: "ProgramRunner",
        host: RunContext,
        number: str,
        workspace: str,
        *,
        needs_skills: bool,
        variables: bool = True,
        row: runs.RunRow | None = None,
    ) -> "ProgramRun":
        from athena.programs import run_record  # brings the sandbox

        host.catalog.refresh()
        kept = WorkspaceRow("", None, "{}", 0.0)
        if variables:
            kept = await host.database.read(lambda tx: run_record.load_workspace(tx, host.scope, workspace))
        job = cls(programs, host, number, workspace, kept)
        job.keeps_variables = variables
        job.state = run_record.load_state(programs.key, kept)
        if needs_skills or job.state:
            job.skills = {one.name: one for one in await host.list_skills()}
        if row is not None:
            job.started_at, job.is_stored, job.fingerprint, job.claimed_at = (
                row.started,
                True,
                row.fingerprint,
                host.clock(),
            )
            job.has_key = row.answer is not None  # that of the call that waits, whoever approves it
        return job

    # --- in the sandbox -----------------------------------------------------------------------------------------------

    async def execute(
        self, code: str, timeout_s: float | None, engine: EngineName, inputs: Mapping[str, Any] | None = None
    ) -> "Run":
        from athena.programs.sandbox import Program

        calling = self._create_host_calls()
        program = Program(
            code, self.create_names(), engine, self.state, timeout_s, self.workspace_row.owner, inputs or {}
        )
        return self._add_hint(await self._wait_for_run(self.runner.sandbox.start(program, calling), calling), code)

    def _add_hint(self, run: "Run", code: str = "") -> "Run":
        from athena.programs.hints import add_hint

        return run if run.error is None else replace(run, error=add_hint(run.error, self.create_names(), code))

    async def _wait_for_run(self, running: "ActiveRun", calling: "HostCalls") -> "Run":
        try:
            return calling.add_skill_calls(await running.outcome)
        except BaseException as error:
            running.cancel()
            await self._wait_for_end(running, note=calling.has_begun or not isinstance(error, AthenaError))
            raise

    async def _wait_for_end(self, running: "ActiveRun", *, note: bool) -> None:
        """Wait until a run that nobody waits for any more has ended, and have that written down."""
        from athena.programs.sandbox import Run

        for _ in range(int(CANCEL_TIMEOUT_S / 0.02)):
            if running.is_done and not running.calls.has_running_calls:
                break
            await sleep(0.02)
        if not (note and self.is_stored) or self.host.parent_run_id is not None:
            return
        try:
            run = running.outcome.result()
        except Exception as error:  # noqa: BLE001  # the caller is told
            run = Run("unknown", error={"type": type(error).__name__, "message": "", "line": None, "hint": None})
        self.host.database.defer_write(partial(self._store_in_background, run))

    def check_paused(self, row: runs.RunRow) -> None:
        """Refuse a paused run that cannot be gone on with, before anybody has decided on it."""
        assert row.snapshot is not None
        assert row.waits_for is not None
        self.runner.sandbox.check_paused(row.snapshot, json.loads(row.waits_for)["owner"])

    async def resume(self, row: runs.RunRow, *, approved: bool, reason: str) -> "Run":
        assert row.snapshot is not None
        assert row.waits_for is not None
        kept = json.loads(row.waits_for)
        if kept["variables"] != self.workspace_row.updated:  # other programs have run since: their variables stay
            self.keeps_variables = False
        self.workspace_row = self.workspace_row._replace(owner=kept["owner"])
        calling = self._create_host_calls((kept["operation"], kept["arguments"]) if approved else None)
        running: ActiveRun | None = None
        try:
            running = self.runner.sandbox.start_resumed(
                row.snapshot, calling, self.create_names(), approved=approved, refusal=reason, owner=kept["owner"]
            )
            return self._add_hint(await self._wait_for_run(running, calling))
        except AthenaError:
            if running is None or not calling.has_begun:  # nothing has gone on: it waits as before
                await self.host.database.write(lambda tx: runs.upsert_run(tx, self.host.scope, row))
            raise

    def create_names(self) -> Any:
        from athena.programs.namespace import build_names

        return build_names(self.host.catalog, self.skills)

    def _create_host_calls(self, approved: tuple[str, dict[str, Any]] | None = None) -> "HostCalls":
        from athena.programs.host_calls import HostCalls

        caller = self.host.create_caller(self.run_id, self.workspace)
        return HostCalls(
            self.host,
            self.runner.sandbox,
            self.create_names(),
            self.skills,
            caller,
            self._store_start,
            used=self.count_skill_use,
            inner=self.host.parent_run_id is not None,
            approved=approved,
        )

    def _store_start(self) -> None:
        """Write down that this run is under way, before anything happens that must not happen twice."""
        if self.is_stored or self.host.parent_run_id is not None:
            return

        run_sync(self.host.database.write(partial(self._insert_row, self._create_row("running"))))
        self.is_stored = True

    async def _insert_row(self, row: runs.RunRow, tx: Transaction) -> None:
        """Write this run down for the first time; what another one of its name says stays as it is."""
        if not await runs.insert_run(tx, self.host.scope, row):
            hint = "the same key was used twice at once; ask for it again"
            raise Conflict(f"run {self.run_id} is under way already", hint=hint, retry=True)

    def count_skill_use(self, name: str) -> None:
        """Count a use of a skill, without being waited for."""
        self.host.database.defer_write(partial(_increment_skill_uses, self.host.scope, name))

    # --- on disk ------------------------------------------------------------------------------------------------------

    def _create_row(self, status: str, **more: Any) -> runs.RunRow:
        from athena.programs.run_record import get_process_name

        return runs.RunRow(
            self.run_id,
            self.workspace,
            status,
            get_process_name(),
            self.started_at,
            fingerprint=self.fingerprint,
            claimed=self.claimed_at,
            **more,
        )

    def _dump_pause(self, run: "Run") -> str | None:
        """Write what a paused run waits for, and what going on with it needs to know."""
        if run.pause is None:
            return None
        asked = {"operation": run.pause.path, "arguments": dict(run.pause.arguments)}
        variables = self.workspace_row.updated if self.keeps_variables else None
        return json.dumps(asked | {"owner": self.workspace_row.owner, "variables": variables})

    def _create_final_row(self, run: "Run", waits_for: str | None, answer: str | None) -> runs.RunRow:
        return self._create_row(
            run.status,
            elapsed_ms=run.elapsed_ms,
            calls=run.calls,
            engine=run.engine,
            error=run.error and run.error["type"],
            waits_for=waits_for,
            snapshot=run.pause and run.pause.snapshot,
            answer=answer,
        )

    async def store_trial(self, run: "Run") -> None:
        """Write down that a program that was only tried out is over, if it is known to have begun."""
        if self.is_stored:
            status = "failed" if run.pause is not None else run.status
            row = self._create_final_row(replace(run, status=status, pause=None), None, None)
            await self.host.database.write(lambda tx: runs.upsert_run(tx, self.host.scope, row))

    async def store_result(self, run: "Run") -> Result:
        """Write down how the run ended, with the variables it left, and return what the caller is told."""
        from athena.programs.run_record import find_changed_workspace, to_result

        if self.host.parent_run_id is not None:
            return to_result(run, self.run_id, None)
        after = (
            find_changed_workspace(self.runner.key, self.workspace_row, run.state, self.host.clock())
            if self.keeps_variables
            else None
        )
        light = not (self.is_stored or after or run.truncated or run.pause or self.has_key)
        if light:
            await self.host.database.sync()  # what reads write, as a briefing does
            self.runner.remember_run(self.host.scope.project, self._create_final_row(run, None, None))
            self.host.database.defer_write(partial(self._store_in_background, run))
            return to_result(run, self.run_id, None)
        return await self.host.database.write(partial(self._write_result, run, after))

    async def _store_in_background(self, run: "Run", tx: Transaction) -> None:
        await self._write_result(run, None, tx)

    async def _write_result(self, run: "Run", after: WorkspaceRow | None, tx: Transaction) -> Result:
        from athena.programs import run_record

        host, put = self.host, self.runner.put_handle
        handle = None
        if run.truncated:
            handle = await put(tx, host.scope, self.workspace, self.run_id, run.value, host.clock())
        if after is not None:
            kept = await run_record.write_variables(
                tx, host.scope, self.workspace, self.runner.key, self.workspace_row, after, host.clock
            )
            run = replace(run, lost=(*run.lost, *kept))
        made = run_record.to_result(run, self.run_id, handle)
        waited = self.claimed_at is not None  # then nobody else has the answer that the agent asks for later
        answer = run_record.dump_result(made) if self.has_key or waited else None
        row = self._create_final_row(run, self._dump_pause(run), answer)
        await (runs.upsert_run(tx, host.scope, row) if self.is_stored else self._insert_row(row, tx))
        await calls.record_call(tx, host.call, "done", run.elapsed_ms)
        return made


async def _increment_skill_uses(scope: Scope, name: str, tx: Transaction) -> None:
    for number in await scopes.fetch_visible_ids(tx, scope.with_kind("skill")):
        if found := await rows.list_session_memories(tx, [number], name, "skill"):
            await rows.increment_occurrences(tx, found[0])
            return
