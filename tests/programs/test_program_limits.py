"""Programs that are cancelled, nested, repeated, flooding or hostile: regressions."""

import asyncio
import textwrap
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from athena.app.compose import App
from athena.core.threads import run_sync, start_in_thread
from athena.errors import Conflict, Denied, InvalidInput, LimitExceeded
from athena.programs import host_calls, run_record
from athena.programs import workspace as workspace_files
from athena.storage import runs
from conftest import MODEL, Engine
from person_tools import decide_run
from wait_tools import pausing_code, wait_until

KEY = bytes(range(32))
SLOW = "def slow(s: float = 0.0) -> int:\n    import time\n    time.sleep(s)\n    return 1"
WRITES = """
def writes(n: int = 1) -> int:
    import time
    for i in range(n):
        workspace.write(path="c.txt", content=str(i))
        time.sleep(0.1)
    return n
"""


def open_app(engine: Engine, file: Path, key: bytes = KEY) -> App:
    return App(engine.open(file), MODEL, key=lambda: key)


@pytest.fixture
def app(tmp_path: Path, engine: Engine) -> Generator[App]:
    made = open_app(engine, tmp_path / "athena.db")
    yield made
    made.close()


def call(app: App, name: str, /, surface: str = "python", key: str | None = None, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context("p", surface, key), **arguments))


def run(app: App, code: str, key: str | None = None, **more: Any) -> Any:
    return call(app, "execute_code", key=key, code=textwrap.dedent(code), **more)


def save(app: App, name: str, code: str, example: str = "") -> None:
    call(app, "save_skill", name=name, code=code.strip(), description="For a test.", example=example or f"{name}()")


def approve(app: App, run_id: str, **more: Any) -> Any:
    return decide_run(app, run_id, **more)


# --- nested programs --------------------------------------------------------------------------------------------------


def test_skill_flood_does_not_block_programs(app: App) -> None:
    save(app, "slow", SLOW)
    flood = "parallel([skills.slow(s=0.3) for _ in range(16)])"
    jobs = [start_in_thread(run, app, flood, workspace=f"w{i}", timeout_s=60) for i in range(2)]
    time.sleep(0.5)
    assert run(app, "1 + 1", workspace="other").result == 2
    assert not any(one.wait(0) for one in jobs), "it had to wait for them"
    for one in jobs:
        one.wait()
        assert one.result().result == [1] * 16, one.result().error


def test_nested_skills_do_not_deadlock(app: App) -> None:
    code = "def par(n: int = 1) -> int:\n    return len(parallel([memory.recall(query=str(i)) for i in range(n)]))"
    save(app, "par", code)
    nested = "sum(parallel([skills.par(n=3) for _ in range(16)]))"
    jobs = [start_in_thread(run, app, nested, workspace=f"v{i}", timeout_s=60) for i in range(3)]
    for one in jobs:
        one.wait()
        assert one.result().result == 48, one.result().error


@pytest.mark.parametrize("code", ["skills.writes(n=500)", "skills.run(name='writes', arguments={'n': 500})"])
def test_cancelled_run_stops_skill_writes(app: App, code: str) -> None:
    save(app, "writes", WRITES)

    async def work() -> tuple[str, str, str]:
        async def ask(name: str, **arguments: Any) -> Any:
            return await app.catalog.get_operation(name)(app.create_context("p", "python"), **arguments)

        task = asyncio.create_task(ask("execute_code", code=code))
        while not await ask("list_files") or int(await ask("read_file", path="c.txt")) < 2:
            assert not task.done(), task.result()
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        first = await ask("read_file", path="c.txt")
        await asyncio.sleep(0.5)
        while (status := (await ask("list_runs", limit=1))[0].status) == "running":  # noqa: ASYNC110  # it is on disk
            await asyncio.sleep(0.05)
        return first, await ask("read_file", path="c.txt"), status

    first, later, status = asyncio.run(work())
    assert 0 < int(first) < 250
    assert first == later
    assert status in ("failed", "unknown")


def test_skill_calls_count_for_program(app: App) -> None:
    save(app, "many", "def many(n: int = 1) -> int:\n    for i in range(n):\n        tools.search('x')\n    return n")
    object.__setattr__(app.programs.sandbox.limits, "calls", 30)
    done = run(app, "skills.many(n=12)\nskills.many(n=12)\nskills.many(n=12)")
    assert "limit calls" in done.error.message


def test_skill_compute_time_is_shared(app: App) -> None:
    save(app, "busy", "def busy(n: int = 1) -> int:\n    t = 0\n    for i in range(n):\n        t += i\n    return t")
    object.__setattr__(app.programs.sandbox.limits, "cpu_s", 0.2)
    done = run(app, "for i in range(50):\n    skills.busy(n=300_000)")
    assert "limit cpu_s" in done.error.message


def test_skill_in_program_cannot_pause(app: App) -> None:
    code = """
    def clear_all(n: int = 0) -> int:
        memory.remember(content="began")
        return memory.purge(expect=0) if n else 0
    """
    save(app, "clear_all", textwrap.dedent(code))
    before = call(app, "health").count
    for text in ("skills.clear_all(n=1)", "skills.run(name='clear_all', arguments={'n': 1})"):
        done = run(app, text)
        told = str(done.error or done.result)
        assert done.status != "needs_approval"
        assert "approval" in told
    assert call(app, "health").count == before
    assert not call(app, "list_runs", status="needs_approval")


def test_skill_trial_leaves_no_open_run(app: App) -> None:
    save(app, "writes", WRITES)
    assert not call(app, "list_runs", status="running")


# --- approval ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("surface", ["http", "python", "program", "mcp"])
def test_program_runner_cannot_approve(app: App, surface: str) -> None:
    waits = run(app, "memory.purge(expect=0)")
    with pytest.raises(Denied):
        call(app, "approve_run", surface, run_id=waits.run_id)
    assert not any("approve_run" in line for line in call(app, "search_tools", surface, query="approve a run", k=20))
    assert approve(app, waits.run_id).result == 0


def test_failed_approval_can_be_repeated(app: App, engine: Engine, tmp_path: Path) -> None:
    waits = run(app, "memory.purge(expect=0)")
    other = open_app(engine, tmp_path / "athena.db", key=bytes(32))
    with pytest.raises(InvalidInput):
        approve(other, waits.run_id)
    other.close()
    assert call(app, "get_run", run_id=waits.run_id).status == "needs_approval"
    assert approve(app, waits.run_id).result == 0


def test_approval_without_room_can_be_repeated(app: App) -> None:
    waits = run(app, "memory.purge(expect=0)")
    limits = app.programs.sandbox.limits
    object.__setattr__(limits, "waiting", -limits.runs)
    with pytest.raises(LimitExceeded):
        approve(app, waits.run_id)
    object.__setattr__(limits, "waiting", 200)
    assert call(app, "get_run", run_id=waits.run_id).status == "needs_approval"
    assert approve(app, waits.run_id).result == 0


def test_approved_run_answers_its_key(app: App) -> None:
    code = "memory.purge(expect=0)\n7"
    waits = run(app, code, key="k")
    assert run(app, code, key="k").status == "needs_approval"
    approved = approve(app, waits.run_id)
    again = run(app, code, key="k")
    assert (again.status, again.result) == (approved.status, approved.result) == ("done", 7)


def test_count_needs_no_approval(app: App) -> None:
    assert run(app, "memory.purge(dry_run=True)").result == 0
    assert run(app, "memory.purge(dry_run=True)", engine="python").result == 0


@pytest.mark.parametrize("expect", ["", ", expect=2"])
def test_call_with_another_count_waits_for_nobody(app: App, expect: str) -> None:
    memory = call(app, "remember", content="a note")
    done = run(app, f"memory.purge([{memory.id}]{expect})")
    assert (done.status, done.error.hint) == ("failed", "repeat with expect=1")
    assert run(app, f"memory.purge([{memory.id}], expect=1)").status == "needs_approval"


def test_paused_programs_are_limited(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_calls, "MAX_PAUSED_RUNS", 2)  # smaller, to be quick
    done = [run(app, "memory.purge(expect=0)", workspace=f"w{i}") for i in range(3)]
    assert [one.status for one in done] == ["needs_approval", "needs_approval", "failed"]
    assert "wait for one already" in done[2].error.message


def test_long_paused_run_is_not_lost() -> None:
    row = runs.RunRow("x", "w", "running", "elsewhere:1", started=0.0, claimed=9_990.0)
    assert not run_record.is_lost(row, 10_000.0)
    assert run_record.is_lost(row._replace(claimed=None), 10_000.0)


# --- quotas and queues ------------------------------------------------------------------------------------------------


def test_project_workspaces_share_quota(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_files, "MAX_PROJECT_BYTES", 3_000_000)  # smaller, to be quick
    monkeypatch.setattr(workspace_files, "MAX_PROJECT_WORKSPACES", 3)
    flood = "for i in range(8):\n    workspace.write(path='a.txt', content='x' * 900_000, workspace=f'w{i}')"
    done = run(app, flood)
    assert (done.status, done.calls) == ("failed", 4)
    assert "bytes" in done.error.message
    with pytest.raises(LimitExceeded, match="workspaces with files"):
        call(app, "write_file", path="a.txt", content="x", workspace="another")


def test_project_variables_are_limited(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_record, "MAX_WORKSPACES", 2)  # smaller, to be quick
    done = [run(app, "x = 1", workspace=f"w{i}") for i in range(3)]
    assert ["full" in one.output for one in done] == [False, False, True]
    assert run(app, "x = 2\nx", workspace="w1").output == ""
    monkeypatch.setattr(run_record, "MAX_VARIABLES_BYTES", 100)
    assert "full" in run(app, "x = 3", workspace="w1").output
    assert run(app, "x", workspace="w1").result == 2


def test_programs_write_no_handles(app: App) -> None:
    with pytest.raises(InvalidInput, match="handles/"):
        call(app, "write_file", path="./handles/x.json", content="x")


def test_busy_workspace_times_out(app: App) -> None:
    job = start_in_thread(run, app, f"{pausing_code()}7")
    wait_until(lambda: call(app, "list_files", workspace="signals"))
    with pytest.raises(LimitExceeded, match="nothing was run"):
        run(app, "1 + 1", timeout_s=0.5)  # while the first still runs
    call(app, "write_file", path="go", content="x", workspace="signals")
    job.wait()
    assert job.result().result == 7


def test_two_processes_keep_both_variables(app: App, engine: Engine, tmp_path: Path) -> None:
    run(app, "base = 1")
    other = open_app(engine, tmp_path / "athena.db")
    code = """
    import time
    {name} = [1]
    both = '{name}'
    workspace.write(path=both, content='x', workspace='signals')
    while len(workspace.list(workspace='signals')) < 2:
        time.sleep(0.02)
    """
    said: list[Any] = []
    threads = [
        threading.Thread(target=lambda one=one, name=name: said.append(run(one, code.format(name=name))))
        for one, name in ((app, "left"), (other, "right"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert [one.success for one in said] == [True, True]
    assert run(app, "[base, left, right]").result == [1, [1], [1]]
    assert run(app, "[base, left, right]", engine="python").result == [1, [1], [1]]
    assert any("both" in one.output for one in said)  # one of the two values is lost, and the output says so


def test_missing_answer_does_not_lose_run(app: App) -> None:
    run(app, "1", key="k")

    async def forget(tx: Any) -> None:
        await runs.clear_run_contents(tx, app.create_context("p", "python").scope)

    run_sync(app.store.database.write(forget))
    again = run(app, "1", key="k")
    assert (again.status, again.error.type) == ("done", "Gone")
    with pytest.raises(Conflict):
        run(app, "2", key="k")


# --- regressions ------------------------------------------------------------------------------------------------------


def test_paused_run_keeps_its_key(app: App) -> None:
    """A person who approves a call must get that call."""
    ids = [call(app, "remember", content=f"note {i}").id for i in range(3)]
    call(app, "forget_batch", memory_ids=ids)
    purge = f"memory.purge(memory_ids={ids[1:]}, expect=2)"
    wait = "import time\nwhile not workspace.list(prefix='go', workspace='signals'):\n    time.sleep(0.02)\n"
    later = start_in_thread(lambda: run(app, wait + purge, key="k", workspace="w2"))
    time.sleep(0.3)
    first = run(app, purge, key="k", workspace="w1")
    call(app, "write_file", path="go", content="x", workspace="signals")
    later.wait()
    with pytest.raises(Conflict):
        later.result()
    assert (first.status, first.waiting.arguments) == ("needs_approval", {"memory_ids": ids[1:], "expect": 2})
    assert call(app, "get_run", run_id=first.run_id).waiting == first.waiting


def test_oversized_skill_value_is_reported(app: App) -> None:
    save(app, "many", "def many(n: int = 1) -> list:\n    return list(range(n))")
    assert run(app, "len(skills.many(n=1_000))").result == 1_000
    error = run(app, "len(skills.many(n=150_000))").error
    assert "returned more than a program is given" in error.message


def test_skill_accepts_long_text(app: App) -> None:
    save(app, "long", "def long(text: str = '') -> int:\n    return len(text)")
    assert call(app, "run_skill", name="long", arguments={"text": "a'\"\n" * 30_000}).result == 120_000
    assert run(app, "skills.long(text='x' * 100_000)").result == 100_000


def test_lone_surrogate_does_not_lose_run(app: App) -> None:
    code = "import json\nmemory.remember(content='a')\nprint(json.loads('\"\\\\ud83d\"'))\n1"
    done = run(app, code, key="half", engine="python")
    assert (done.status, done.result) == ("done", 1)
    assert run(app, code, key="half", engine="python") == done
