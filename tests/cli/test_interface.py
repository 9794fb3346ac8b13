"""What people meet at the command line: help, formats, errors that lead on, kinds of hits, stops and completion."""

import csv
import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest
from test_commands import Terminal, commands

from athena import api
from athena.app.compose import App
from athena.cli import formats, ingest, progress
from athena.cli.commands import SECTIONS, SUBCOMMANDS, athena
from athena.cli.streams import SafeStream, style_text

GRAPH_LINES = """
{"type":"entity","name":"Ann","entityType":"person","observations":["likes green tea","works on billing"]}
{"type":"entity","name":"Acme","entityType":"company","observations":["ships on Fridays"]}
{"type":"relation","from":"Ann","to":"Acme","relationType":"works at"}
"""


@pytest.fixture
def run(isolated: App, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    path = tmp_path / "memory.jsonl"
    path.write_text(GRAPH_LINES.strip() + "\n")
    return path


# --- help -------------------------------------------------------------------------------------------------------------


def test_help_groups_commands_and_cuts_no_line(run: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = run("--help").out
    assert [line[:-1] for line in said.splitlines() if line in {f"{title}:" for title in SECTIONS}] == list(SECTIONS)
    for name, command in SUBCOMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.summary)}$", said, re.MULTILINE), name
    assert "..." not in said.replace("[ARGS]...", "")
    assert max(map(len, said.splitlines())) <= 80


GROUPS = [path for path, command in commands() if isinstance(command, click.Group)]


@pytest.mark.parametrize("path", GROUPS, ids=" ".join)
def test_help_of_groups_is_not_cut(run: Terminal, path: tuple[str, ...]) -> None:
    assert "..." not in run(*path, "--help").out.partition("Commands:")[2]


def test_no_command_shows_help(run: Terminal) -> None:
    assert run().out == run("--help").out
    assert run().code == 0


# --- commands made from operations ------------------------------------------------------------------------------------


def test_tasks_are_planned_listed_and_done(run: Terminal) -> None:
    assert run("task").err == "no tasks\n"
    added = run("task", "add", "Call Ann", "--due", "2036-05-05", "--tags", "people", "--priority", "high")
    assert re.fullmatch(r"task \d+ \(open, due 2036-05-05 23:59\): Call Ann\n", added.out)
    task_id = added.out.split()[1]
    heading, row = run("task").out.splitlines()
    assert heading.split() == ["id", "state", "priority", "due", "title", "tags"]
    assert re.fullmatch(rf"{task_id} +open +high +2036-05-05 23:59 +Call Ann +people", row)
    assert run("task", "edit", task_id, "--state", "in_progress").out.startswith(f"task {task_id} (in progress")
    assert run("task", "done", task_id, "--outcome", "she knows", "--json").json["state"] == "done"
    assert run("task", "rm", task_id).out == "forgotten; to take that back: athena undo\n"
    gone = run("task", "forget", "99999")
    assert (gone.code, gone.err.splitlines()[0]) == (3, "error: there is no such task")


def test_events_and_sessions_are_recorded_and_shown(run: Terminal) -> None:
    run("event", "add", "action", "ran the tests", "--outcome", "failure", "--session", "s1")
    assert "ran the tests" in run("event").out
    assert run("event", "search", "tests", "--json").json[0]["outcome"] == "failure"
    assert "action (failure): ran the tests" in run("event", "timeline").out
    assert run("session").out.splitlines()[1].startswith("s1 ")
    assert run("session", "show", "s1").out.startswith("s1: 1 event, ")
    missing = run("session", "show", "nope")
    assert (missing.code, "athena session" in missing.err) == (3, True)


def test_graph_is_built_and_walked(run: Terminal) -> None:
    assert run("graph").err == "the graph is empty\n"
    run("graph", "add", "Ann", "person", "--observation", "likes tea", "--observation", "sings")
    run("graph", "add", "Acme", "company")
    assert run("graph", "relate", "Ann", "works at", "Acme", "--since", "2020-01-01").out.startswith(
        "new: Ann works at Acme (since 2020-01-01"
    )
    assert run("graph", "relate", "Ann", "works at", "Acme", "--since", "2020-01-01").err == "known already\n"
    assert run("graph", "observe", "Ann", "has a cat", "sings").out == "new: Ann: has a cat\n"
    shown = run("graph", "show", "Ann").out
    assert "likes tea, sings, has a cat" in shown
    assert "Ann works at Acme" in shown
    assert run("graph", "path", "Acme", "Ann").out.startswith("Ann works at Acme")
    assert "Acme" in run("graph", "neighbors", "Ann").out
    assert run("graph", "search", "who sings", "--json").json[0]["name"] == "Ann"
    run("graph", "unrelate", "Ann", "works at", "Acme")
    run("graph", "forget", "Acme")
    assert [item["name"] for item in run("graph", "--json").json["entities"]] == ["Ann"]
    unknown = run("graph", "path", "Ann", "Bob")
    assert (unknown.code, "athena graph search finds entities" in unknown.err) == (3, True)


def test_tags_and_statistics(run: Terminal) -> None:
    short = api.store("Deploys run on Fridays", tags="deploy")
    assert run("tag", "add", "ops", short).out == "1 memory changed\n"
    assert run("tag", "--json").json == [{"tag": "deploy", "count": 1}, {"tag": "ops", "count": 1}]
    assert short in run("tag", "show", "ops").out
    refused = run("tag", "forget", "ops")
    assert (refused.code, refused.err) == (
        4,
        "error: 1 memory would be forgotten\nhint:  if that is right, repeat with --expect 1\n",
    )
    assert re.search(r"^memories +1$", run("stats").out, re.MULTILINE)
    assert run("stats", "--json").json["memories"] == 1
    assert "deploy" in run("stats", "topics").out
    assert run("stats", "use").code == 0
    assert run("document").err == "no documents; athena ingest keeps some\n"
    assert run("pattern").err == "no patterns; athena consolidate looks for some\n"


# --- formats ----------------------------------------------------------------------------------------------------------


def test_results_are_json_csv_or_tables(run: Terminal) -> None:
    text = 'Deploys, "big" ones,\nrun on Fridays'
    api.store(text, tags=["deploy", "ops"])
    [row] = list(csv.DictReader(io.StringIO(run("recall", "deploy", "--csv").out)))
    assert (row["content"], json.loads(row["tags"]), row["kind"]) == (text, ["deploy", "ops"], "memory")
    heading, line = run("list", "--table").out.splitlines()
    assert heading.split() == ["hash", "created", "tags", "content"]
    assert line.endswith('Deploys, "big" ones, run on Fridays')
    assert "field" in run("stats", "--table").out.splitlines()[0]
    two = run("list", "--csv", "--json")
    assert (two.code, "two formats" in two.err) == (2, True)
    assert run("list", "--json").json[0]["content"] == text  # the format of the call before is forgotten


def test_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(formats, "get_terminal_size", lambda: os.terminal_size((40, 24)))
    lines = formats.format_table([["1", "a" * 100, "東京" * 30], ["2", "b", "c"]], ["id", "text", "place"])
    assert len(lines) == 3
    assert [formats.measure_width(line) <= 40 for line in lines[1:]] == [True, True]
    assert "…" in lines[1]


class _Screen(io.BytesIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"NO_COLOR": ""}, True)],
)
def test_colours_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], coloured: bool) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    screen = _Screen()
    stream = SafeStream(io.TextIOWrapper(screen, "utf-8"))
    monkeypatch.setattr(sys, "stdout", stream)
    stream.write(style_text("error:", "red") + " \x1b[2J\n")
    stream.flush()
    shown = screen.getvalue().decode()
    stream.detach()
    assert ("\x1b[31m" in shown) == coloured
    assert shown.replace("\x1b[31m", "").replace("\x1b[0m", "") == "error: \\x1b[2J\n"


def test_long_lists_go_to_the_pager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    screen, paged = _Screen(), tmp_path / "paged"
    stream = SafeStream(io.TextIOWrapper(screen, "utf-8"))
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("PAGER", f"tee {paged}")
    formats.print_lines(["short"])
    assert screen.getvalue() == b"short\n"
    formats.print_lines([style_text("a\x07b", "red"), *map(str, range(100))])
    assert paged.read_text() == "".join(["\x1b[31ma\\x07b\x1b[0m\n", *(f"{i}\n" for i in range(100))])
    for pager in ("cat", "", str(tmp_path / "no-such-pager")):
        monkeypatch.setenv("PAGER", pager)
        formats.print_lines(map(str, range(100)))
    assert screen.getvalue().count(b"99\n") == 3
    stream.detach()


# --- one ranking ------------------------------------------------------------------------------------------------------


def test_recall_finds_an_imported_graph(run: Terminal, graph_file: Path) -> None:
    assert run("import", str(graph_file)).out == "new: 2 entities, 3 observations, 1 relation\n"
    found = run("recall", "green tea").out.splitlines()[0]
    assert found.endswith("(entity) Ann (person): likes green tea; works on billing")
    shown = run("show", found.split()[0]).out
    assert "likes green tea, works on billing" in shown
    assert "Ann works at Acme" in shown


def test_recall_marks_kinds(run: Terminal) -> None:
    api.store("Tea is served at four")
    api.call("record_event", event_type="action", content="bought green tea")
    api.call("create_entity", name="Ann", entity_type="person", observations=["likes green tea"])
    api.call("create_task", title="buy green tea")
    hits = run("recall", "green tea", "--json").json
    assert {hit["kind"] for hit in hits} == {"memory", "event", "entity"}
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    assert "(event) [" not in run("recall", "green tea").out
    assert "(event) bought green tea" in run("recall", "green tea").out
    assert {hit["kind"] for hit in run("recall", "green tea", "--kind", "task", "--json").json} == {"task"}
    assert run("recall", "green tea", "--kind", "memory").out.count("\n") == 1


def test_hit_of_a_document_has_file_and_page(run: Terminal, tmp_path: Path) -> None:
    (tmp_path / "guide.md").write_text("# Install\n\nRun the installer on macOS.\n")
    run("ingest", str(tmp_path / "guide.md"))
    assert re.search(r"guide\.md\S*,? .*Install.*: .*installer on macOS", run("recall", "how to install on macOS").out)
    assert str(tmp_path / "guide.md") in run("document").out
    assert re.search(r"guide\.md\S*,? .*Install.*: .*installer on macOS", run("list").out)
    assert "place" not in run("list", "--json").json[0]


# --- counts in users' words -------------------------------------------------------------------------------------------


@pytest.mark.sqlite_only("a store of its own")
def test_entities_do_not_count_as_memories(
    tmp_path: Path, graph_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATHENA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ATHENA_PROJECT", "harbour")
    run = Terminal(capsys)
    run("import", str(graph_file))
    run("remember", "Deploys run on Fridays")
    records = "1 memory, 2 entities, 3 observations"
    doctor = {row["check"]: row["detail"] for row in json.loads(run("doctor", "--json").out)}
    assert doctor["integrity"] == f"all tables consistent: {records} of all projects, including forgotten"
    exported = tmp_path / "x.jsonl"
    assert run("export", str(exported)).out == f"wrote the whole store to {exported}: {records}, 1 relation\n"
    assert run("backup", str(tmp_path / "b.db")).out == f"backed up {records} to {tmp_path / 'b.db'}, checked\n"
    assert run("migrate", "--to", str(tmp_path / "m.db")).out.startswith(f"copied {records}, 1 relation from ")
    monkeypatch.setenv("ATHENA_HOME", str(tmp_path / "other"))
    assert run("import", str(exported), "--dry-run").out == f"would take in the whole store: {records}, 1 relation\n"
    assert run("import", str(exported)).out == f"took in the whole store: {records}, 1 relation\n"


# --- mistyped paths and names -----------------------------------------------------------------------------------------


@pytest.mark.sqlite_only("a store of its own")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("import", "memroy.jsonl"), 3),
        (("ingest", "nope"), 3),
        (("run", "nope.py"), 3),
        (("skills", "save", "nope.py"), 3),
        (("restore", "nope.db", "--yes"), 3),
        (("export", "nope/x.jsonl"), 3),
        (("export", "nope/notes/"), 3),
        (("backup", "nope/x.db"), 3),
        (("migrate", "--from", "nope.db", "--to", "x.db"), 3),
        (("servers", "import", "nope.json"), 3),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistyped_path_is_an_error_and_creates_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ATHENA_HOME", str(tmp_path / "home"))
    result = Terminal(capsys)(*words)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("error: ")
    assert list(folder.iterdir()) == []


@pytest.mark.sqlite_only("a store of its own")
def test_store_in_a_missing_folder_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATHENA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ATHENA_DB_PATH", str(tmp_path / "nope" / "athena.db"))
    result = Terminal(capsys)("recall", "x")
    assert (result.code, f"{tmp_path / 'nope'}" in result.err, "ATHENA_DB_PATH" in result.err) == (8, True, True)
    assert not (tmp_path / "nope").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("init", "claude"), "there is no client 'claude'; did you mean claude-code?"),
        (("init", "vs-code"), "did you mean vscode?"),
        (("init", "emacs"), "the clients are claude-code, codex,"),
        (("rcall", "x"), "Did you mean 'athena recall'?"),
        (("list_tags",), "Did you mean 'athena call list_tags'?"),
        (("task", "lst"), "Did you mean 'athena task list'?"),
        (("task", "fly"), "The commands are: list, add, due, done, edit, forget."),
        (("recall", "x", "--limt", "3"), "no such option '--limt'."),
        (("recall",), "missing argument 'QUERY'."),
        (("redo",), "'athena show ID --history'"),
        (("version",), "Did you mean 'athena --version'?"),
        (("start",), "Did you mean 'athena daemon start'?"),
        (("status",), "Did you mean 'athena daemon status'?"),
        (("config",), "config.toml in the data folder; 'athena doctor' prints its path"),
        (("export", "--all"), "no such option '--all'."),
        (("recall", "node", "version", "build"), "in quotes: athena recall 'node version build'"),
        (("list", "--tags", "infra", "decision"), "Tags go between commas: --tags infra,decision"),
        (("servers", "add", "refmem", "npx", "-y", "x"), "Put -- before the command"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistyped_name_leads_to_the_right_one(run: Terminal, words: tuple[str, ...], said: str) -> None:
    result = run(*words)
    assert (result.code, result.out) == (2, "")
    first, hint = result.err.splitlines()
    assert first.startswith("error: ")
    assert said in first
    assert re.fullmatch(r"hint:  athena.* --help", hint)


def test_help_of_a_command_by_its_name(run: Terminal) -> None:
    assert run("help", "task", "add") == run("task", "add", "--help")
    assert run("help") == run("--help")


@pytest.mark.parametrize("option", ["--tags", "--tag", "-t"])
def test_tags_have_short_names(run: Terminal, option: str) -> None:
    run("remember", "red", option, "colour")
    run("remember", "round")
    assert [memory["content"] for memory in run("list", option, "colour", "--json").json] == ["red"]


def test_options_are_alike_without_their_dashes(run: Terminal) -> None:
    assert "--table" not in run("export", "--all").err
    assert "Did you mean '--table'?" in run("list", "--tabel").err


def test_hint_of_a_missing_task_names_the_command(run: Terminal) -> None:
    assert "hint:  athena task shows" in run("task", "done", "9999").err


# --- long work --------------------------------------------------------------------------------------------------------


def test_interrupt_says_what_was_done(run: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of an ingestion."""
    (tmp_path / "a.md").write_text("A fact.")

    def interrupt(seconds: float) -> bool:
        raise KeyboardInterrupt

    class Waiting:
        wait = staticmethod(interrupt)

    monkeypatch.setattr(ingest, "start_in_thread", lambda work: Waiting)
    result = run("ingest", str(tmp_path / "a.md"))
    assert result.code == 130
    assert result.err.strip() == (
        f"stopped: {tmp_path / 'a.md'}: nothing was kept yet; run it again to go on, what is kept stays"
    )


def test_explained_stop_keeps_the_innermost_words() -> None:
    with (
        pytest.raises(KeyboardInterrupt) as stopped,
        progress.explain_stop(lambda: "outer"),
        progress.explain_stop(lambda: "3 records"),
    ):
        raise KeyboardInterrupt
    assert stopped.value.args == ("3 records",)


def test_slow_work_shows_lines_where_no_cursor_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, is_written = io.StringIO(), threading.Event()
    monkeypatch.setattr(stream, "flush", is_written.set)
    monkeypatch.setattr(progress, "LINE_INTERVAL_S", 0.001)
    monkeypatch.setattr(progress, "progress_stream", lambda: stream)
    with progress.show_progress("Copying") as shown:
        shown.update(3, 6)
        is_written.clear()
        assert is_written.wait(30)
    assert "Copying  [##########----------]  50%  3 of 6\n" in stream.getvalue()
    assert "\r" not in stream.getvalue()


# --- completion -------------------------------------------------------------------------------------------------------


def complete(line: str) -> list[str]:
    """Return what the shell offers for the last word of a line."""
    from click.shell_completion import ShellComplete

    *words, last = line.split(" ")
    found = ShellComplete(athena, {}, "athena", "_ATHENA_COMPLETE").get_completions(words[1:], last)
    return [item.value for item in found]


def test_shells_complete_commands_options_and_values(isolated: App) -> None:
    api.store("Deploys run on Fridays", tags=["deploy", "ops"])
    assert complete("athena re") == ["remember", "recall", "restore", "reembed"]
    assert "--min-score" in complete("athena recall x --m")
    assert complete("athena task d") == ["due", "done"]
    assert complete("athena init c") == ["claude-code", "codex", "cursor"]
    assert complete("athena call recall_e") == ["recall_events"]
    assert complete("athena list --tags dep") == ["deploy"]
    assert complete("athena list --tags deploy,o") == ["deploy,ops"]
    [project] = {item["name"] for item in api.call("list_projects")}
    assert complete(f"athena list --project {project[:3]}") == [project]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed(run: Terminal, shell: str) -> None:
    said = run("completion", shell).out
    assert f"_ATHENA_COMPLETE={shell}_complete" in said


@pytest.mark.sqlite_only("a process of its own")
def test_bash_runs_the_completion(tmp_path: Path) -> None:
    environ = os.environ | {"ATHENA_HOME": str(tmp_path), "COMP_WORDS": "athena rec", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "athena"],
        env=environ | {"_ATHENA_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["plain,recall"])
