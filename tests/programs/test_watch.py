"""What a person sees of a program that runs or ran lately."""

import threading
from typing import Any

from athena import api
from athena.app import connect
from athena.app.compose import App
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.programs.watch import MAX_WATCHED_RUNS
from conftest import Engine

PROGRAMS = 30


def watch(**arguments: Any) -> Any:
    app = connect.shared_app()
    return run_sync(invoke(app.catalog, "watch_runs", arguments, app.create_context("test", "cli")))


def test_person_sees_text_output_and_calls(engine: Engine) -> None:
    leak = "print('gh' + 'p_16C7e42F292c6912E7710c838347Ae178B4a')"
    code = f"# a comment\nfor tag in memory.list_tags():\n    print(tag)\n{leak}\n4"
    result = api.call("execute_code", code=code)
    [brief] = watch()
    assert (brief.run_id, brief.line, brief.source) == (result["run_id"], "for tag in memory.list_tags():", None)
    [program] = watch(run_id=result["run_id"])
    assert program.source is not None
    assert program.source.startswith("# a comment\nfor tag in memory.list_tags():")
    assert "[SECRET:" in program.output  # as it would be stored
    assert "16C7" not in program.output
    assert program.calls == {"memory.list_tags": 1}
    assert program.answer is not None
    assert program.answer.result == 4
    assert program.tokens_written > 10
    assert watch(run_id="0" * 16) == []


def test_purge_empties_what_is_watched(engine: Engine) -> None:
    memory = api.call("remember", content="the code of the safe is 4711")
    result = api.call("execute_code", code="print('4711')")
    assert watch(run_id=result["run_id"])
    app = connect.shared_app()
    purge = app.catalog.get_operation("purge")
    run_sync(purge(app.create_context("test", "cli"), memory_ids=[memory["id"]], expect=1))
    assert watch(run_id=result["run_id"]) == []


def test_only_latest_runs_are_watched(engine: Engine) -> None:
    for number in range(MAX_WATCHED_RUNS + 3):
        api.call("execute_code", code=f"{number}")
    assert [program.line for program in watch()][:2] == [str(MAX_WATCHED_RUNS + 2), str(MAX_WATCHED_RUNS + 1)]
    assert len(watch()) == MAX_WATCHED_RUNS


def test_run_is_found_while_it_ends(app: App) -> None:
    """Between the end of a program and its storing, a run is neither lost nor unknown."""

    def call(name: str, /, **arguments: Any) -> Any:
        return run_sync(invoke(app.catalog, name, arguments, app.create_context("test", "cli")))

    def run_programs() -> None:
        for number in range(PROGRAMS):
            call("execute_code", code=f"kept = {number}")

    runner = threading.Thread(target=run_programs)
    runner.start()
    seen: set[str] = set()
    while runner.is_alive():
        seen |= {run.run_id for run in call("list_runs", limit=1, status="running")}
        assert {call("get_run", run_id=run_id).status for run_id in seen} <= {"running", "done"}
    runner.join()
    assert seen
    assert call("list_runs", status="running") == []
