"""One run of a program: start it in the sandbox, wait for it, store its result and variables."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast

from athena.core.redaction import redact, redact_json
from athena.core.threads import run_in_thread, run_sync, sleep
from athena.core.values import Scope
from athena.errors import AthenaError, Conflict, LimitExceeded
from athena.memory import rows
from athena.programs import run_record, skills
from athena.programs.hints import add_hint
from athena.programs.host_calls import ApprovedCall, HostCalls
from athena.programs.namespace import SKILLS_CATEGORY, build_names
from athena.programs.sandbox import Namespace, Program, Run, Sandbox, is_run_closed
from athena.programs.sandbox.json_values import shorten_again
from athena.programs.sandbox.run import ActiveRun, drop_cut_word
from athena.programs.values import EngineName, ProgramCaller, Result, Skill
from athena.programs.watch import RunWatch
from athena.programs.workspace import dump_handle, put_handle
from athena.storage import calls, runs, scopes, workspaces
from athena.storage.database import Database, Transaction
from athena.storage.privacy import PrivateReads, WatchedDatabase
from athena.storage.workspaces import WorkspaceRow

MAX_DUMP_S = 2.0  # for the text of a long result; a program may choose one that takes long to search for secrets
CANCEL_TIMEOUT_S = 10.0  # for the calls of a cancelled run to end
CANCEL_POLL_INTERVAL_S = 0.02
DENIED = "denied"  # the code of a refusal, with which its message begins


class RunServices(Protocol):
    """The parts of a program runner that a run needs."""

    @property
    def key(self) -> bytes: ...

    @property
    def sandbox(self) -> Sandbox: ...

    def identify_passphrase(self) -> str: ...

    @property
    def watch(self) -> RunWatch: ...

    def remember_run(self, project: str, row: runs.RunRow) -> None: ...


class ProgramRun:
    def __init__(
        self, runner: RunServices, context: ProgramCaller, run_id: str, workspace: str, workspace_row: WorkspaceRow
    ) -> None:
        self.runner, self.context = runner, context
        self.run_id, self.workspace, self.workspace_row = run_id, workspace, workspace_row
        self.database, self.scope = context.store.database, context.scope
        self.started_at = context.store.clock()
        self.state: bytes | None = None
        self.skills: dict[str, Skill] = {}
        self.keeps_variables = True
        self.is_stored = False
        self.was_refused = False  # by a person, before it went on
        self.is_nested = context.run_id is not None  # then the outer run's row stands for both
        self.private_reads = context.private_reads if self.is_nested else PrivateReads(workspace_row.private)
        self.has_key = context.call.key is not None
        self.fingerprint = context.call.arguments_digest
        self.claimed_at: float | None = None
        self.handle_text: str | None = None  # of a result that is too long to show
        self.watched_source: str | None = None  # what a person sees of the program while it runs
        self.can_save_skills = True  # and call what it saved; False where its text shows that it does not
        self._names: Namespace | None = None

    @classmethod
    async def create(
        cls,
        runner: RunServices,
        context: ProgramCaller,
        run_id: str,
        workspace: str,
        *,
        needs_skills: bool,
        variables: bool = True,
        row: runs.RunRow | None = None,
    ) -> "ProgramRun":
        """Load the names and variables of a program; `row` is that of a paused run to resume."""
        context.catalog.refresh()
        workspace_row = await context.store.database.read(
            lambda tx: run_record.load_workspace(tx, context.scope, workspace)
        )
        if not variables:
            workspace_row = workspace_row._replace(state=None, variables="{}")
        run = cls(runner, context, run_id, workspace, workspace_row)
        run.keeps_variables = variables
        run.state = run_record.load_state(runner.key, workspace_row)
        if row is not None:
            run.private_reads.add(row.private.split())
        if context.pinned_skills is not None:
            run.skills = dict(context.pinned_skills)
        elif needs_skills or run.state:
            watched = cast(Database, WatchedDatabase(context.store.database, run.private_reads))
            run.skills = await skills.load_skills(context.store._replace(database=watched), context.scope)
        if row is not None:
            run.started_at, run.is_stored, run.fingerprint = row.started, True, row.fingerprint
            run.claimed_at = context.store.clock()
            run.has_key = row.answer is not None  # of the call that paused, not of the approval
        return run

    # --- in the sandbox -----------------------------------------------------------------------------------------------

    async def execute(
        self, code: str, timeout_s: float | None, engine: EngineName, inputs: Mapping[str, Any] | None = None
    ) -> Run:
        self.can_save_skills = "save" in code and self.context.pinned_skills is None
        host_calls = self._create_host_calls()
        code, given = await self.context.reveal_program(code), await self.context.reveal_values(dict(inputs or {}))
        program = Program(code, self.create_names(), engine, self.state, timeout_s, self.workspace_row.owner, given)
        active = self.runner.sandbox.start(program, host_calls)
        self._watch(active)
        return self._add_hint(await self._wait_for_run(active, host_calls), code)

    def check_paused(self, row: runs.RunRow) -> None:
        """Refuse a paused run that cannot go on, before the decision on it is stored."""
        assert row.snapshot is not None
        self.runner.sandbox.check_paused(row.snapshot, run_record.get_pause_owner(row))

    async def resume(self, row: runs.RunRow, approved_call: ApprovedCall | None, reason: str) -> Run:
        """Go on with a paused run: make the call that waits, or raise its refusal in the program."""
        assert row.snapshot is not None
        assert row.waits_for is not None
        pause = json.loads(row.waits_for)
        if pause["variables"] != self.workspace_row.updated:  # later programs changed the variables: keep theirs
            self.keeps_variables = False
        self.workspace_row = self.workspace_row._replace(owner=pause["owner"])
        self.context = self.context.pin_skills(dict(self.skills))
        self.can_save_skills = False  # a person approved the skills that the review showed
        host_calls, approved = self._create_host_calls(approved_call), approved_call is not None
        self.was_refused = not approved
        active: ActiveRun | None = None
        try:
            active = self.runner.sandbox.start_resumed(
                row.snapshot, host_calls, self.create_names(), approved=approved, refusal=reason, owner=pause["owner"]
            )
            self._watch(active)
            return self._add_hint(await self._wait_for_run(active, host_calls))
        except AthenaError:
            if active is None or not host_calls.has_begun:  # nothing was done, so the run stays paused
                await self.database.write(lambda tx: runs.upsert_run(tx, self.scope, row))
            raise

    def _watch(self, active: ActiveRun) -> None:
        if self.watched_source is not None and not self.is_nested:
            self.runner.watch.add(self.scope.project, self._create_row("running"), self.watched_source, active)

    def create_names(self) -> Namespace:
        """Return the names that the program can call, the same at each call."""
        if self._names is None:
            names = build_names(self.context.catalog, self.skills)
            self._names = names.copy_for_run(SKILLS_CATEGORY) if self.skills and self.can_save_skills else names
        return self._names

    def _create_host_calls(self, approved_call: ApprovedCall | None = None) -> HostCalls:
        return HostCalls(
            self.context.for_program(self.run_id, self.workspace, is_run_closed, self.private_reads),
            self.runner.sandbox,
            self.create_names(),
            self.skills,
            self._store_start,
            self.count_skill_use,
            identify_passphrase=self.runner.identify_passphrase,
            is_nested=self.is_nested,
            approved_call=approved_call,
        )

    def _add_hint(self, run: Run, code: str = "") -> Run:
        return run if run.error is None else replace(run, error=add_hint(run.error, self.create_names(), code))

    async def _wait_for_run(self, active: ActiveRun, host_calls: HostCalls) -> Run:
        try:
            return host_calls.add_skill_calls(await active.outcome)
        except BaseException as error:
            active.cancel()
            await self._wait_for_end(active, store=host_calls.has_begun or not isinstance(error, AthenaError))
            if not self.is_nested:  # else it is a part of the run that is watched
                self.runner.watch.end(self.scope.project, self.run_id)
            raise

    async def _wait_for_end(self, active: ActiveRun, *, store: bool) -> None:
        """Wait until a cancelled run has ended, and store its outcome."""
        for _ in range(int(CANCEL_TIMEOUT_S / CANCEL_POLL_INTERVAL_S)):
            if active.is_done and not active.calls.has_running_calls:
                break
            await sleep(CANCEL_POLL_INTERVAL_S)
        if not (store and self.is_stored) or self.is_nested:
            return
        try:
            run = active.outcome.result()
        except Exception as error:  # noqa: BLE001  # the caller gets it from `_wait_for_run`
            run = Run("unknown", error={"type": type(error).__name__, "message": "", "line": None, "hint": None})
        self.database.defer_write(partial(self._store_in_background, run))

    # --- on disk ------------------------------------------------------------------------------------------------------

    def _store_start(self) -> None:
        """Store that this run has begun, before its first call that must not happen twice."""
        if self.is_stored or self.is_nested:
            return
        run_sync(self.database.write(partial(self._insert_row, self._create_row("running"))))
        self.is_stored = True

    async def _insert_row(self, row: runs.RunRow, tx: Transaction) -> None:
        if not await runs.insert_run(tx, self.scope, row):
            hint = "the same key was used twice at once; ask for it again"
            raise Conflict(f"run {self.run_id} is under way already", hint=hint, retry=True)

    def count_skill_use(self, name: str) -> None:
        """Count one use of a skill, in the background; the uses of a run with marks would tell what it has read."""
        if self.private_reads.marks:
            return
        self.database.defer_write(partial(_increment_skill_uses, self.scope, name))

    async def store_trial(self, run: Run) -> Result:
        """Return whether a program ran that was only tried out; store it if its start was stored."""
        run = replace(run, output="", value=None, result=None, truncated=False, lost=())
        if self.is_stored:
            hidden = await self._hide_values(run)
            result = replace(run_record.to_result(hidden, self.run_id, None), waiting=None)
            status = "failed" if run.pause is not None else run.status
            answer = run_record.dump_result(result) if self.has_key else None
            row = self._create_final_row(replace(hidden, status=status, pause=None), None, answer)
            await self.database.write(lambda tx: runs.upsert_run(tx, self.scope, row))
        return run_record.to_result(run, self.run_id, None)

    async def store_result(self, run: Run) -> Result:
        """Store the end of the run and its variables, and return the result for the caller."""
        if self.is_nested:
            return run_record.to_result(run, self.run_id, None)
        try:
            result = await self._store_result(run)
        except BaseException:
            self.runner.watch.end(self.scope.project, self.run_id)
            raise
        self.runner.watch.set_result(self.scope.project, result)
        return result

    async def _store_result(self, run: Run) -> Result:
        run = await self._hide_values(run)
        after = None
        if self.keeps_variables:
            now = self.context.store.clock()
            after = run_record.find_changed_workspace(self.runner.key, self.workspace_row, run.state, now)
        if run.truncated:  # before the transaction, since it takes a while
            self.handle_text = await run_in_thread(_dump_in_time, run.value)
        if self.is_stored or after or run.truncated or run.pause or self.has_key or self.has_new_marks:
            return await self.database.write(partial(self._write_result, run, after))
        await self.database.sync()  # reads write too, e.g. a briefing
        self.runner.remember_run(self.scope.project, self._create_final_row(run, None, None))
        self.database.defer_write(partial(self._store_in_background, run))
        return run_record.to_result(run, self.run_id, None)

    async def _hide_values(self, run: Run) -> Run:
        """Return the run as a model may see it, and as it may be stored: with tokens in place of personal values."""
        if not self.context.hides_values:
            return run
        pause = run.pause
        if pause is not None:  # the sealed snapshot has the arguments as they are
            pause = replace(pause, arguments=await self.context.hide_values(dict(pause.arguments), by_program=True))
        output, error = await self.context.hide_values([drop_cut_word(run.output), run.error], by_program=True)
        value = await self.context.hide_values(run.value, by_program=True)
        result = (
            shorten_again(run.result, value)
            if run.truncated
            else await self.context.hide_values(run.result, by_program=True)
        )
        return replace(run, output=output, error=error, value=value, result=result, pause=pause)

    async def _store_in_background(self, run: Run, tx: Transaction) -> None:
        await self._write_result(run, None, tx)

    async def _write_result(self, run: Run, after: WorkspaceRow | None, tx: Transaction) -> Result:
        clock = self.context.store.clock
        handle = None
        if run.truncated and self.handle_text is not None:
            handle = await put_handle(
                tx, self.scope, self.workspace, self.run_id, self.handle_text, clock(), str(self.private_reads)
            )
        if after is not None:
            lost = await run_record.write_variables(
                tx, self.scope, self.workspace, self.runner.key, self.workspace_row, after, clock
            )
            run = replace(run, lost=(*run.lost, *lost))
        if self.private_reads.marks:  # also known ones: the row may have been deleted and written anew meanwhile
            owner = self.workspace_row.owner
            await workspaces.add_marks(tx, self.scope, self.workspace, owner, str(self.private_reads))
        result = run_record.to_result(run, self.run_id, handle)
        was_paused = self.claimed_at is not None  # then the agent asks for the answer later, with `get_run`
        answer = run_record.dump_result(result) if self.has_key or was_paused else None
        row = self._create_final_row(run, self._dump_pause(run), answer)
        await (runs.upsert_run(tx, self.scope, row) if self.is_stored else self._insert_row(row, tx))
        await calls.record_call(tx, self.context.call, "done", run.elapsed_ms)
        return result

    @property
    def has_new_marks(self) -> bool:
        """Return whether the run read a private source that its workspace is not marked with."""
        return str(self.private_reads) != self.workspace_row.private

    def _create_row(self, status: str, **fields: Any) -> runs.RunRow:
        return runs.RunRow(
            self.run_id,
            self.workspace,
            status,
            run_record.get_process_name(),
            self.started_at,
            fingerprint=self.fingerprint,
            claimed=self.claimed_at,
            private=str(self.private_reads),
            **fields,
        )

    def _create_final_row(self, run: Run, waits_for: str | None, answer: str | None) -> runs.RunRow:
        ended_by_refusal = self.was_refused and run.error is not None and run.error["message"].startswith(DENIED)
        return self._create_row(
            "refused" if ended_by_refusal and run.status == "failed" else run.status,
            elapsed_ms=run.elapsed_ms,
            calls=run.calls,
            engine=run.engine,
            error=run.error and redact(run.error["type"]).text,
            waits_for=waits_for,
            snapshot=run.pause and run.pause.snapshot,
            answer=answer,
        )

    def _dump_pause(self, run: Run) -> str | None:
        """Return, as JSON, the call that a paused run waits for and what `resume` needs."""
        if run.pause is None:
            return None
        reason = run.pause.request.get("reason", "")
        arguments, _ = redact_json(dict(run.pause.arguments))  # the sealed pause has them as they are
        waiting_call = {"operation": run.pause.path, "arguments": arguments, "reason": reason}
        variables = self.workspace_row.updated if self.keeps_variables else None
        return json.dumps(waiting_call | {"owner": self.workspace_row.owner, "variables": variables})


async def _increment_skill_uses(scope: Scope, name: str, tx: Transaction) -> None:
    for scope_id in await scopes.fetch_visible_ids(tx, scope.with_kind("skill")):
        if memory_ids := await rows.list_session_memories(tx, [scope_id], name, "skill"):
            await rows.increment_occurrences(tx, memory_ids[0])
            return


def _dump_in_time(value: Any) -> str | None:
    """Return the text of a handle; None if the search for secrets takes too long: the caller waits for the answer."""
    stop_at = time.monotonic() + MAX_DUMP_S

    async def dump() -> str | None:
        return dump_handle(value)

    try:
        return run_sync(dump(), is_stopped=lambda: time.monotonic() > stop_at)
    except LimitExceeded:
        return None
