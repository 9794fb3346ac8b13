"""CLI commands run in process: their output, streams and exit codes."""

import io
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from athena import api
from athena.app.compose import App
from athena.cli.commands import SUBCOMMANDS, athena
from athena.core.threads import run_sync
from athena.core.version import __version__
from athena.embedding.minilm import MiniLM
from athena.hooks import client
from athena.storage.database import Transaction


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


class Terminal:
    """Run commands and return their output; it is no terminal, so the output has no color."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *words: str) -> CommandResult:
        self._capture.readouterr()
        code = athena(args=list(words), prog_name="athena", standalone_mode=False)
        return CommandResult(code, *self._capture.readouterr())


@pytest.fixture
def run(isolated: App, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


def commands(
    group: click.Group = athena, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands and groups of commands."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


PATHS = [path for path, _ in commands()]
BARE = {
    ("call",),
    ("completion",),
    ("hook",),
    ("mcp",),
    ("serve",),
    ("shell",),
    ("token",),
}  # these always print JSON, or no result
PRINTING = [path for path, c in commands() if not isinstance(c, click.Group) and path not in BARE]


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_subcommand_table_matches_help(name: str) -> None:
    command = athena.get_command(click.Context(athena), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(1_000) == SUBCOMMANDS[name].summary


@pytest.mark.parametrize("path", [(), *PATHS], ids=" ".join)
def test_help_of_every_command_has_example(run: Terminal, path: tuple[str, ...]) -> None:
    result = run(*path, "--help")
    assert (result.code, result.err) == (0, "")
    usage, _, rest = result.out.partition("\n\n")
    assert usage.startswith(" ".join(["Usage: athena", *path]))
    assert re.search(" ".join(["athena", *path]) + r" ?\S*", rest), result.out


@pytest.mark.parametrize("path", PRINTING, ids=" ".join)
def test_every_result_command_prints_json(path: tuple[str, ...]) -> None:
    options = {option for p in dict(commands())[path].params for option in p.opts}
    assert "--json" in options


def test_version_is_printed(run: Terminal) -> None:
    assert run("--version") == (0, f"athena {__version__}\n", "")


@pytest.mark.both_ways
def test_remember_stores_text(run: Terminal) -> None:
    result = run("remember", "Deploys run on Fridays", "--tags", "deploy, ops", "--type", "decision")
    short = result.out.split()[0]
    assert result == (0, f"{short} kept\n", "")
    memory = api.get(short)
    assert (memory.content, list(memory.tags), memory.memory_type) == (
        "Deploys run on Fridays",
        ["deploy", "ops"],
        "decision",
    )
    assert run("remember", "Deploys run on Fridays").out == f"{short} known already\n"
    api.delete(short)
    assert run("remember", "Deploys run on Fridays").out == f"{short} kept again\n"


def test_remember_reports_redaction(run: Terminal) -> None:
    secret = "AK" + "IA" + "Q7WERT5YUIOP2345"
    said = run("remember", f"the key is {secret}")
    assert said.code == 0
    assert "aws-key" in said.err
    assert secret not in said.out + said.err
    result = run("remember", f"another key is {secret}", "--json").json
    assert result["redacted"] == ["aws-key"]
    assert result["content"] == "another key is [SECRET:aws-key]"


def test_remember_global_is_seen_everywhere(run: Terminal) -> None:
    run("remember", "Ann prefers tea", "--everywhere")
    run("remember", "only in a", "--project", "a")
    assert run("list", "--project", "b").out.count("\n") == 1
    assert run("list", "--project", "a").out.count("\n") == 2


@pytest.mark.both_ways
def test_recall_prints_best_memory_first(run: Terminal) -> None:
    api.store_batch([{"content": "Deploys run on\nFridays", "tags": ["deploy"]}, "The cat sleeps", "Ann likes tea"])
    said = run("recall", "when do we deploy", "-k", "2", "--min-score", "0")
    assert (said.code, said.err) == (0, "")
    first, second = said.out.splitlines()
    assert re.fullmatch(r"[0-9a-f]{8} \d\.\d\d \d{4}-\d\d-\d\d \[deploy\] Deploys run on Fridays", first)
    assert re.fullmatch(r"[0-9a-f]{8} \d\.\d\d \d{4}-\d\d-\d\d \S.*", second)
    result = run("recall", "when do we deploy", "--json").json
    assert result[0]["content"] == "Deploys run on\nFridays"
    assert {"id", "hash", "content", "tags", "score", "created"} <= result[0].keys()


def test_recall_leaves_out_improbable_hits_beside_probable_ones(run: Terminal) -> None:
    api.store_batch(["Deploys run on Fridays", "The cat sleeps", "Ann likes tea"])
    said = run("recall", "on which day do deploys run")
    assert said.out.count("\n") == 1
    assert said.err == "2 weaker hits, --min-score 0 shows them\n"
    assert len(run("recall", "on which day do deploys run", "--json").json) == 3


def test_recall_accepts_filters_and_time(run: Terminal) -> None:
    api.store("old plan", tags="plan", metadata={"date": "2020-05-05"})
    api.store("new plan", tags="plan")
    assert [one["content"] for one in run("recall", "plan", "--since", "yesterday", "--json").json] == ["new plan"]
    assert [one["content"] for one in run("recall", "plan in may 2020", "--json").json] == ["old plan"]
    assert run("recall", "plan", "--tags", "other", "--json").json == []
    assert len(run("recall", "plan", "--until", "today", "--min-score", "0.2", "--json").json) == 2
    assert run("recall", "plan", "--until", "today", "--min-score", "1", "--json").json == []


def test_empty_result_message_goes_to_stderr(run: Terminal) -> None:
    for words in (["list"], ["recall", "anything"]):
        assert run(*words) == (0, "", "nothing found\n")
        assert run(*words, "--json") == (0, "[]\n", "")


def test_recall_says_how_to_see_improbable_hits(run: Terminal) -> None:
    api.store("Deploys run on Fridays at 15:00", tags="deploy")
    nothing = run("recall", "quantum chromodynamics")
    assert nothing == (0, "", "nothing found\n1 weaker hit, --min-score 0 shows it\n")
    assert "Deploys run on Fridays" in run("recall", "quantum chromodynamics", "--min-score", "0").out
    assert run("recall", "quantum chromodynamics", "--json") == (0, "[]\n", "")
    assert run("recall", "quantum chromodynamics", "--min-score", "1").err == nothing.err
    assert run("recall", "quantum chromodynamics", "--tags", "other").err == "nothing found\n"
    assert "Deploys run on Fridays" in run("recall", "when do we ship?").out


def test_list_pages_newest_first(run: Terminal) -> None:
    for i in range(5):
        api.store(f"item {i}", tags=f"t{i % 2}", memory_type="fact" if i < 2 else "note")
    assert [line.split()[-1] for line in run("list").out.splitlines()] == ["4", "3", "2", "1", "0"]
    assert [line.split()[-1] for line in run("list", "-k", "2", "--offset", "1").out.splitlines()] == ["3", "2"]
    assert [one["content"] for one in run("list", "--tags", "T1", "--json").json] == ["item 3", "item 1"]
    assert [one["content"] for one in run("list", "--type", "fact", "--json").json] == ["item 1", "item 0"]
    assert run("list", "--until", "last year").err == "nothing found\n"


def test_show_prints_whole_memory(run: Terminal) -> None:
    text = "first line\nsecond line " + "long " * 100 + "end"
    short = api.store(text, ["a", "b"], metadata={"source": "book"})
    result = run("show", short[:6])
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(short)
    assert result.out.endswith(text + "\n")
    assert "a, b" in result.out
    assert "book" in result.out
    assert run("show", str(api.get(short).id), "--json").json["content"] == text


def test_history_lists_changes(run: Terminal) -> None:
    short = api.update(api.store("first version"), content="second version")
    result = run("show", short, "--history")
    assert [line.split()[1] for line in result.out.splitlines()] == ["remembered", "updated"]
    assert "first version" in result.out
    steps = run("show", short, "--history", "--json").json
    assert [step["action"] for step in steps] == ["remembered", "updated"]
    assert steps[1]["before"]["content"] == "first version"


def test_edit_changes_given_fields(run: Terminal) -> None:
    short = api.store("before", "a")
    result = run("edit", short, "--content", "after")
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith("after\n")
    new = result.out.split()[0]
    assert run("edit", new, "--tags", "b,c", "--type", "fact", "--json").json["tags"] == ["b", "c"]
    assert (api.get(new).content, api.get(new).memory_type) == ("after", "fact")


@pytest.mark.both_ways
def test_forget_and_undo(run: Terminal) -> None:
    hashes = api.store_batch(["one", "two", "three"])
    result = run("forget", hashes[0], hashes[1])
    assert result.code == 0
    assert result.out.count("forgotten: ") == 2
    assert api.health().count == 1
    undone = run("undo")
    assert undone.code == 0
    assert undone.out.count("\n") == 2
    assert {line.split()[-2] for line in undone.out.splitlines()} == set(hashes[:2])
    assert api.health().count == 3
    assert run("forget", hashes[2], "--json").json == 1
    assert [step["before"]["content"] for step in run("undo", "--json").json] == ["three"]


def test_forget_unknown_memory_forgets_none(run: Terminal) -> None:
    short = api.store("one")
    result = run("forget", short, "deadbeef")
    assert (result.code, result.out) == (3, "")
    assert "deadbeef" in result.err
    assert api.health().count == 1


def test_undo_steps_back_one_change(run: Terminal) -> None:
    short = api.store("first")
    api.update(short, content="second")
    api.store("first")
    assert run("undo", "--anyone").code == 0
    assert {m.preview for m in api.search("any", min_score=0).memories} == {"second"}
    result = run("undo", "--anyone")
    assert (result.code, result.err) == (0, "")
    assert {m.preview for m in api.search("any", min_score=0).memories} == {"first"}
    assert run("undo", "--anyone").code == 0
    assert api.health().count == 0
    assert run("undo", "--anyone").code == 3


def test_undo_stays_within_project(run: Terminal) -> None:
    api.store("true everywhere", project="user")
    api.store("in another project", project="other")
    result = run("undo", "--project", "new")
    assert (result.code, result.out) == (3, "")
    assert api.search("true", project="other").total == 2


def test_call_of_a_check_that_finds_problems_fails(run: Terminal, isolated: App) -> None:
    assert run("call", "verify").code == 0

    async def damage(tx: Transaction) -> None:
        await tx.execute("UPDATE memories SET tags = 'no JSON'")

    api.store("a note")
    run_sync(isolated.store.database.write(damage))
    result = run("call", "verify")
    assert (result.code, json.loads(result.out)["ok"]) == (1, False)


def test_call_runs_any_operation(run: Terminal) -> None:
    stored = run("call", "remember", "--json", '{"content": "from a call", "tags": ["t"]}').json
    assert stored["content"] == "from a call"
    assert [one["hash"] for one in run("call", "recall", "--json", '{"query": "call", "k": 3}').json] == [
        stored["hash"]
    ]
    assert run("call", "memory.list_tags").json == [{"tag": "t", "count": 1}]
    assert run("call", "forget", "--json", json.dumps({"memory_id": stored["id"]})).json is True
    assert run("call", "stats", "--project", "another").json["memories"] == 0


@pytest.mark.parametrize("text", ["{", "", "nonsense", "[1]", '"text"', "5", "null", '{"query": }'])
def test_invalid_json_error_is_clear(run: Terminal, text: str) -> None:
    result = run("call", "recall", "--json", text)
    assert (result.code, result.out) == (2, "")
    assert "--json" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "query"),
        ({"query": ""}, "query"),
        ({"query": 5}, "query"),
        ({"query": "x", "k": "many"}, "k"),
        ({"query": "x", "colour": 1}, "colour"),
        ({"query": "x", "ctx": 1}, "ctx"),
        ({"query": "x", "self": 1}, "self"),
    ],
    ids=str,
)
@pytest.mark.both_ways
def test_wrong_argument_error_names_argument(run: Terminal, given: dict[str, Any], name: str) -> None:
    result = run("call", "recall", "--json", json.dumps(given))
    assert (result.code, result.out) == (2, "")
    assert name in result.err.splitlines()[0]
    assert "hint:" in result.err


def test_extra_argument_error_hints_at_json_option(run: Terminal) -> None:
    result = run("call", "count_memories", "tag=x")
    assert (result.code, result.out) == (2, "")
    assert "tag=x" in result.err.splitlines()[0]
    assert "hint:" in result.err
    assert "athena call count_memories --json" in result.err


@pytest.mark.parametrize(("name", "near"), [("remembr", "remember"), ("recal", "recall"), ("delete_memory", "memory")])
@pytest.mark.both_ways
def test_unknown_operation_error_suggests_names(run: Terminal, name: str, near: str) -> None:
    result = run("call", name)
    assert (result.code, result.out) == (3, "")
    assert name in result.err
    assert re.search(rf"hint:.*{near}", result.err)


def test_tools_lists_searches_and_shows(run: Terminal) -> None:
    every = run("tools").out
    assert every == run("tools", "list").out
    assert {"remember", "recall", "health", "search_tools"} <= set(every.split())
    assert "health" not in run("tools", "list", "memory").out.split()
    assert "find_duplicates" in run("tools", "search", "memories that say the same, duplicates").out
    assert len(run("tools", "search", "memory", "-k", "2").out.splitlines()) == 2
    output = run("tools", "show", "recall").out
    assert "def recall(" in output
    assert ">>> " in output
    assert run("tools", "show", "nothing_like_it").code == 3
    result = run("tools", "list", "colours")
    assert (result.code, result.out) == (3, "")
    assert "memory" in result.err


def test_reembed_reports_nothing_to_do(run: Terminal) -> None:
    api.store("something")
    result = run("reembed")
    assert result.code == 0
    assert result.out == "nothing to do\n"


def test_doctor_and_reembed_show_progress(run: Terminal, isolated: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MiniLM, "compatible_models", ("earlier/1",))
    api.store_batch([f"note {i}" for i in range(5)])

    async def rename_model(tx: Transaction) -> None:
        await tx.execute("UPDATE models SET name = 'earlier/1'")

    run_sync(isolated.store.database.write(rename_model))
    api.store("a note of the new model")
    model = doctor_rows(run)["model"]
    assert (model["ok"], isolated.store.encoder.name in model["detail"]) == (True, True)
    assert "re-reading memories with the new model: 1 of 6 passages" in model["detail"]
    assert run("reembed").out == "5 passages done\n"
    assert "re-reading" not in doctor_rows(run)["model"]["detail"]
    assert run("reembed", "--json").json == {"done": 0, "remaining": 0}


def test_purge_removes_memory(run: Terminal) -> None:
    kept, gone, named = api.store_batch(["kept", "gone", "named"])
    assert run("purge", "--yes").out == "nothing to remove\n"
    api.delete(gone)
    assert run("purge", "--yes").out.startswith("1 ")
    assert run("show", gone).code == 3
    assert run("show", gone, "--history").code == 3
    assert run("purge", named, "--yes").out.startswith("1 ")
    assert run("undo").code in (0, 3)
    assert {m.hash for m in api.search("any", min_score=0).memories} <= {kept}


@pytest.mark.in_process
def test_purge_shows_what_it_removes(run: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = api.store("the old price list\nof spring")
    api.delete(gone)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    asked = run("purge")
    assert asked.code == 130
    assert f"it removes 1 for good:\n  {gone}  the old price list of spring\n" in asked.err
    assert run("purge", "--yes").out == "1 memory removed for good\n"


def test_purge_counts_own_project(run: Terminal) -> None:
    api.delete(api.store("everywhere", project="user"), project="user")
    assert run("purge", "--yes", "--project", "new") == (0, "nothing to remove\n", "")
    api.delete(api.store("mine"))
    assert run("purge", "--yes").out.startswith("1 ")
    assert run("call", "stats", "--project", "user").json["forgotten"] == 1


def test_purge_counts_memory_once(run: Terminal) -> None:
    short = api.store("named twice")
    assert run("purge", short, short[:6], "--yes").out.startswith("1 ")


def doctor_rows(run: Terminal) -> dict[str, Any]:
    return {row["check"]: row for row in json.loads(run("doctor", "--json").out)}


def test_doctor_explains_silent_hooks(run: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATHENA_HOME", str(tmp_path))
    client.log_hook(str(tmp_path), "stop", "nothing", time.monotonic(), "the moon is full")
    assert "the moon is full" in doctor_rows(run)["hooks"]["detail"]
    output = run("daemon", "status").out
    assert "the moon is full" in output
    assert str(tmp_path / "logs" / "hooks.log") in output
    config = tmp_path / "config.toml"
    config.write_text(f'[hooks.projects]\n"{tmp_path}/" = "*"\n"{tmp_path}/clientB" = "*"\n')
    rows = doctor_rows(run)
    assert rows["hooks"]["ok"] is False
    assert "clientB'" in rows["hooks"]["detail"]
    assert f"{tmp_path}'" not in rows["hooks"]["detail"]
    config.write_text("[hooks]\nbudget_tokens = 90000\n")
    rows = doctor_rows(run)
    assert rows["config"]["ok"] is False
    assert "50 to 9000" in rows["config"]["detail"]


def test_doctor_finds_no_problem(run: Terminal) -> None:
    result = run("doctor")
    assert (result.code, result.err) == (0, "")
    assert "FAIL" not in result.out
    assert {"store", "model", "integrity"} <= {line.split()[1] for line in result.out.splitlines()}
    rows = run("doctor", "--json").json
    assert rows
    assert all(row["ok"] for row in rows)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "deadbeef"], 3, "deadbeef"),
        (["show", "not a hash"], 2, "not a hash"),
        (["show", "999"], 3, "999"),
        (["remember", ""], 2, "content"),
        (["remember", " "], 2, "content"),
        (["recall", ""], 2, "query"),
        (["recall", "x", "-k", "0"], 2, "k is 0"),
        (["recall", "x", "-k", "many"], 2, "-k"),
        (["recall", "x", "--since", "gibberish"], 2, "since"),
        (["recall", "x", "--min-score", "2"], 2, "min_score"),
        (["list", "--offset", "-1"], 2, "offset"),
        (["list", "--offset", str(10**30)], 2, "offset"),
        (["list", "--project", " "], 2, "project"),
        (["list", "--project", "\udcff"], 2, "project"),
        (["edit", "deadbeef", "--content", "x"], 3, "deadbeef"),
        (["forget", "deadbeef"], 3, "deadbeef"),
        (["forget"], 2, "ID"),
        (["undo"], 3, "nothing to undo"),
        (["purge", "deadbeef", "--yes"], 3, "deadbeef"),
        (["call", "purge"], 4, "0 memories"),
        (["remember"], 2, "TEXT"),
        (["no-such-command"], 2, "no-such-command"),
        (["list", "--no-such-option"], 2, "--no-such-option"),
    ],
    ids=lambda value: ascii(" ".join(value)) if isinstance(value, list) else None,
)
def test_error_goes_to_stderr_with_code(run: Terminal, words: list[str], code: int, said: str) -> None:
    heard = run(*words)
    assert (heard.code, heard.out) == (code, "")
    assert said in heard.err
    assert "Traceback" not in heard.err
    assert heard.err.startswith(("error: ", "Usage: "))


@pytest.mark.parametrize(
    "words", [["list"], ["recall", "red"], ["show", "1"], ["show", "1", "--history"], ["undo", "--anyone"]]
)
def test_terminal_control_characters_are_escaped(run: Terminal, words: list[str]) -> None:
    nasty = "red \x1b[31m \x9b2J \x07 \r \u202e rtl \u200b hidden \x00"
    short = api.store(nasty, tags=["t\x1b[0m\u202e"], memory_type="k\x1b[1m", metadata={"key\x1b": "value\x9b\r"})
    api.update(short, content=nasty + "2")
    result = run("list", "--json")
    assert result.json[0]["content"] == nasty.replace("\0", "") + "2"
    assert "\x1b" not in result.out
    said = run(*words)
    assert said.code == 0
    assert r"\x1b[31m" in said.out
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e]", said.out)


def test_call_runs_events_and_tasks(run: Terminal) -> None:
    said = {"event_type": "action", "content": "deployed the shop", "outcome": "failure", "session_id": "s1"}
    result = run("call", "record_event", "--json", json.dumps(said)).json
    assert (result["content"], result["outcome"], result["redacted"]) == ("deployed the shop", "failure", [])
    events = run("call", "recall_events", "--json", json.dumps({"query": "what failed today"})).json
    assert [one["id"] for one in events] == [result["id"]]
    assert run("call", "list_sessions").json[0]["id"] == "s1"
    first = run("call", "create_task", "--json", json.dumps({"title": "dig", "due": "tomorrow"})).json
    run("call", "create_task", "--json", json.dumps({"title": "sow", "depends_on": [first["id"]]}))
    done = run("call", "complete_task", "--json", json.dumps({"task_id": first["hash"]})).json
    assert [one["title"] for one in done["unblocked"]] == ["sow"]
    assert run("undo").out.startswith("undid: updated")
    assert len(run("call", "list_tasks").json) == 2
    assert run("call", "due_tasks", "--json", json.dumps({"within": "some day"})).code == 2


def test_briefing_log_shows_reasons(run: Terminal) -> None:
    assert "no session" in run("hook", "log").err
    stored_hash = api.store("Deploys run on Fridays", tags=["important"])
    assert "Fridays" in api.call("briefing", session_id="one")["text"]
    assert "Fridays" in api.call("briefing", session_id="two")["text"]
    result = run("hook", "log")
    assert re.search(rf"one  {stored_hash}  Deploys run on Fridays  .*important.* tokens\)", result.out), result
    assert [one["session_id"] for one in run("hook", "log", "-n", "1", "--json").json] == ["two"]
    for name in ("one", "on"):
        assert [one["hash"] for one in run("hook", "log", "--session", name, "--json").json] == [stored_hash]
    run("forget", stored_hash)
    assert "one  forgotten  " in run("hook", "log").out
