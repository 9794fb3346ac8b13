"""Hints in the results of programs: they name operations and say how to fetch answers."""

from collections.abc import Generator
from typing import Any

import pytest

from athena.app.compose import App, open_database_at
from athena.core.threads import run_sync
from athena.core.types import to_json
from athena.errors import Denied, InvalidInput
from athena.programs.hints import add_hint
from athena.programs.sandbox import Namespace
from athena.programs.sandbox.values import create_failure
from conftest import MODEL
from linear_time import is_time_linear
from person_tools import decide_run

KEY = bytes(range(32))
pytestmark = pytest.mark.sqlite_only("one app for all of them")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Generator[App]:
    """Return one app for all of these tests, which do not depend on its content."""
    file = tmp_path_factory.mktemp("told") / "athena.db"
    made = App(open_database_at(str(file), ""), MODEL, key=lambda: KEY)
    yield made
    made.close()


def call(app: App, name: str, /, **arguments: Any) -> Any:
    if name == "approve_run":
        return decide_run(app, **arguments)
    return run_sync(app.catalog.get_operation(name)(app.create_context("p", "python", None), **arguments))


def run(app: App, code: str, **more: Any) -> Any:
    return call(app, "execute_code", code=code, **more)


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("open('x')", "workspace.write"),
        ("import pathlib\npathlib.Path('x').read_text()", "workspace.read"),
        ("import urllib.request\nurllib.request.urlopen('http://x')", "no network"),
        ("import socket\nsocket.socket()", "no network"),
        ("import threading\nthreading.Thread(target=print).start()", "parallel(["),
        ("import subprocess\nsubprocess.run(['ls'])", "no processes"),
        ("memry.recall(query='x')", "did you mean memory.recall?"),
        ("api.store('x')", "did you mean memory.remember?"),
        ("x = search('x')", "did you mean memory.recall?"),
        ("memory.save(content='x')", "did you mean memory.remember?"),
        ("memory.remove(1)", "did you mean memory.forget?"),
        ("tasks.add('x')", "did you mean tasks.create_task?"),
        ("row = {'content': 1}\nrow.content", 'rows are dictionaries: row["content"]'),
        ("help(memory.recall)", "tools.describe("),
        ("const hits = await memory.recall({query: 'x'});\nconsole.log(hits.length);", "programs are Python"),
        ("let n = 0", "programs are Python"),
        ("function f(a) {\n  return a\n}", "programs are Python"),
        ("[1, 2].map(x => x + 1)", "programs are Python"),
        ("console.log('x')", "programs are Python"),
        ("from skills import week_summary\nweek_summary()", "skills.week_summary(...)"),
        ("import skills\nskills.find()", "skills is there without an import"),
        ("from athena import memory\nmemory.recall(query='x')", "memory is there without an import"),
        ("from athena.api import recall", "operations are names"),
    ],
)
def test_newcomers_mistakes_get_hints(app: App, code: str, hint: str) -> None:
    assert hint in str(run(app, code).error.hint)


def test_python_mistake_is_not_called_javascript(app: App) -> None:
    for code in ("if True\n    x = 1", "x = {'a': 1", "for n in [1]:\nprint(n)", "a = 5 5", "# var x = 1\nx ="):
        error = run(app, code).error
        assert error.type == "SyntaxError"
        assert "JavaScript" not in str(error.hint), code


@pytest.mark.parametrize(
    ("start", "unit"), [("", "\n"), ("import", " "), ("", "\n\t"), ("import x ", "from "), (")", "\n")]
)
def test_search_for_javascript_takes_linear_time(start: str, unit: str) -> None:
    names = Namespace(())
    error = create_failure("SyntaxError", "invalid syntax")
    assert is_time_linear(lambda code: add_hint(error, names, code), start, unit, 2_000)


def test_monty_gap_names_engine(app: App) -> None:
    for code in ("def f():\n    yield 1", "import heapq"):
        assert '"auto"' in run(app, code, engine="monty").error.hint


def test_truncated_output_hint_names_files(app: App) -> None:
    done = run(app, "print('x' * 30_000)\n[0] * 300_000")
    assert "10,001 more characters were printed" in done.output
    assert "workspace.write" in done.output
    assert "of which the first 99,999 are kept" in done.result
    from athena.cli.programs import print_result

    assert print_result(to_json(done), "w") == 0


# --- approvals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refuse", [False, True])
def test_agent_fetches_result_of_paused_run(app: App, refuse: bool) -> None:
    waits = run(app, "print('before')\nn = memory.purge(expect=0)\n['gone', n]")
    assert call(app, "get_run", run_id=waits.run_id).answer is None
    call(app, "approve_run", run_id=waits.run_id, refuse=refuse, reason="not today")
    past = call(app, "get_run", run_id=waits.run_id)
    assert past.answer.output == "before\n"
    if refuse:
        assert (past.error, past.answer.error.line) == ("ToolError", 2)
        assert "not today" in past.answer.error.message
    else:
        assert past.answer.result == ["gone", 0]
    assert call(app, "list_runs", limit=1)[0].answer is None


def test_example_needing_approval_has_hint(app: App) -> None:
    code = 'def clear_all() -> int:\n    """Clear."""\n    return memory.purge(expect=0)'
    with pytest.raises(InvalidInput) as refused:
        call(app, "save_skill", name="clear_all", code=code)
    assert "dry_run=True" in str(refused.value.hint)


def test_hint_shows_signature_once(app: App) -> None:
    hint = run(app, "k = 0\nmemory.recall(query='x', k=k)").error.hint
    assert hint.startswith("memory.recall(")
    assert "parameters:" not in hint


def test_agents_approval_is_refused_with_hint(app: App) -> None:
    with pytest.raises(Denied) as refused:
        run_sync(app.catalog.get_operation("approve_run")(app.create_context("p", "http", None), run_id="x"))
    assert refused.value.hint == "a person runs: athena approve ID"
