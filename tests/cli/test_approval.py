"""Approvals: only what a person types at the controlling terminal counts, with the passphrase if one is set."""

import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import termios
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gateway_tools import PROGRAM

from athena.app import connect
from athena.app.compose import App
from athena.app.settings import load_settings
from athena.cli.approval import Terminal
from athena.cli.commands import athena
from athena.core import approval
from athena.core.approval import PASSPHRASE_FILE, TRIES_FILE, Approval, Approver, WrongPassphrase
from athena.core.threads import run_sync, start_in_thread
from athena.errors import ApprovalNeeded, Conflict, Denied, InvalidInput, LimitExceeded, Misconfigured
from athena.storage import runs
from person_tools import Person, decide_run, run_on_terminal, run_without_terminal

SECRET = "correct horse battery"
OTHER_SECRET = "wrong donkey charger"
ON_BOTH = pytest.mark.parametrize("head", ["", "import statistics\n"], ids=["monty", "python"])
NO_STORE = pytest.mark.sqlite_only("no store has a part in it")
ONE_FILE = pytest.mark.sqlite_only("the command opens the file of the data folder")


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a try cost little time."""
    monkeypatch.setattr(approval, "SCRYPT_COST", {"n": 16, "r": 8, "p": 1})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    return made


def call(app: App, name: str, /, surface: str = "python", leave: Approval | None = None, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context("p", surface, approval=leave), **arguments))


def review(app: App, run_id: str) -> Any:
    return run_sync(app.programs.review_run(app.create_context("p", "cli"), run_id))


def call_here(name: str, **arguments: Any) -> Any:
    return run_sync(connect.AppConnection(connect.shared_app, None, "cli").call(name, arguments)).data


def pause(code: str = "memory.purge(expect=0)") -> str:
    """Run a program in the data folder until it waits, and return its id."""
    result = call_here("execute_code", code=code)
    assert result["status"] == "needs_approval", result
    return str(result["run_id"])


def get_status(run_id: str) -> str:
    return str(call_here("get_run", run_id=run_id)["status"])


# --- at the terminal --------------------------------------------------------------------------------------------------


@ONE_FILE
def test_nothing_but_terminal_approves_run() -> None:
    run_id = pause()
    arguments = json.dumps({"run_id": run_id})
    for words in (
        ("approve", run_id),
        ("approve", run_id, "--refuse", "--json"),
        ("call", "approve_run", "--json", arguments),
    ):
        done = run_without_terminal(*words, given="y\n" * 100, ATHENA_UNATTENDED="1")
        assert (done.code, done.out) == (5, ""), (words, done)
        assert f"athena approve {run_id}" in done.err or "athena approve ID" in done.err
    assert get_status(run_id) == "needs_approval"
    # what was typed before the question is no answer
    done = run_on_terminal("approve", run_id, typed="y\ny\n", answers=["n"])
    assert done.code == 130
    assert f"the program still waits; to refuse it: athena approve {run_id} --refuse" in done.err
    assert get_status(run_id) == "needs_approval"
    done = run_on_terminal("approve", run_id, answers=["y"])
    assert (done.code, done.out) == (0, "0\n"), done
    assert get_status(run_id) == "done"


@ONE_FILE
def test_person_sees_what_a_purge_would_remove() -> None:
    call_here("remember", content="Our bank is the one at the harbour")
    gone = call_here("remember", content="The old price list\nof \x1b[2Jspring")
    call_here("forget", memory_id=gone["id"])
    shown = run_on_terminal("approve", pause("memory.purge(expect=1)"), answers=["n"]).shown
    assert "it removes 1 for good:" in shown
    assert f"  {gone['hash']}  The old price list of" in shown
    assert "harbour" not in shown
    assert "\x1b" not in shown
    shown = run_on_terminal("approve", pause("memory.purge(memory_ids=[1], expect=1)"), answers=["n"]).shown
    assert "Our bank is the one at the harbour" in shown


HIDING = """\
note = "\u202egnp.exe\x1b[2J\u200b\U000e0041"
# harmless\rmemory.remember(content="after a carriage return")
n = memory.purge(expect=0);GAPmemory.remember(content="far to the right")
if n == 0:
    memory.remember(content=f"purged {n}")
print("end")
"""


@ONE_FILE
def test_whole_program_is_shown_with_hidden_characters() -> None:
    run_id = pause(HIDING.replace("GAP", " " * 300))
    done = run_on_terminal("approve", run_id, answers=["n"])
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202e\U000e0041]", done.shown)
    lines = done.shown.splitlines()
    assert "  memory.purge(expect=0)" in lines
    assert '     1 | note = "<U+202E>gnp.exe<U+001B>[2J<U+200B><U+E0041>"' in lines
    assert '     3 | memory.remember(content="after a carriage return")' in lines
    assert '>    4 | n = memory.purge(expect=0); <300 spaces> memory.remember(content="far to the right")' in lines
    assert '     6 |     memory.remember(content=f"purged {n}")' in lines
    assert '     7 | print("end")' in lines
    assert "> marks the call of memory.purge; the rest of line 4 and lines 5 to 7 follow it" in lines
    assert "calls before it: memory.remember (1)" in lines


@NO_STORE
@pytest.mark.parametrize(
    ("code", "rest"),
    [
        ("memory.purge(expect=0)", "> marks the call of memory.purge; no line follows it"),
        ("memory.purge(\n  expect=0\n)\n1", "> marks the call of memory.purge; lines 4 to 4 follow it"),
        ("for i in [0]:\n    memory.purge(expect=i)", "> marks the lines that name memory.purge; any line may follow"),
        ("if memory.purge(expect=0):\n    x = 1\nelse:\n    x = 2", "lines 2 to 4 follow it"),
        ("f = memory.purge\nf(expect=0)", "lines 2 to 2 follow it"),
        ("x = 0 and memory.purge()\nmemory.purge(expect=0)\n2", "> marks the lines that name memory.purge; any line"),
    ],
)
def test_rest_of_program_is_described(app: App, code: str, rest: str) -> None:
    from athena.cli.programs import format_review

    waits = call(app, "execute_code", code=code)
    assert waits.status == "needs_approval"
    *_, last = format_review(review(app, waits.run_id))
    assert rest in last


@ON_BOTH
def test_code_from_elsewhere_is_shown(app: App, head: str) -> None:
    """A program of one line may run what earlier programs and skills define."""
    from athena.cli.programs import format_review

    skill = 'def tidy(n: int) -> int:\n    """Tidy up."""\n    return n + len("in the skill")'
    call(app, "save_skill", name="tidy", code=skill, example="tidy(1)")
    earlier = (
        f"{head}def inner():\n    return skills.tidy(n=1)\ndef go():\n    inner()\n    memory.purge(expect=size)\n"
    )
    call(app, "execute_code", code=f"{earlier}size = 0\nunused = 'unused'")
    waits = call(app, "execute_code", code=f"{head}go()")
    assert waits.status == "needs_approval", waits.error
    text = "\n".join(format_review(review(app, waits.run_id)))
    for part in ("go, from an earlier program:", "memory.purge(expect=size)", "inner, from an earlier program:"):
        assert part in text
    assert "the skill tidy:" in text
    assert "in the skill" in text
    assert "  size = 0" in text
    assert "unused" not in text
    assert "no line of the program names memory.purge; any line may follow the call" in text


def test_arguments_of_skill_are_shown(app: App) -> None:
    from athena.cli.programs import format_review

    code = "def clear_all(n: int) -> int:\n    return memory.purge(expect=0) if n else n"
    call(app, "save_skill", name="clear_all", code=code, description="Clear.", example="clear_all(0)")
    waits = call(app, "run_skill", name="clear_all", arguments={"n": 17})
    assert '= {"n": 17}' in "\n".join(format_review(review(app, waits.run_id)))


@NO_STORE
def test_long_program_is_shown_by_screens(person: Person) -> None:
    descriptor = os.open(person.path, os.O_RDWR | os.O_NOCTTY)
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 40, 0, 0))
    os.close(descriptor)
    person.answer = ""
    with Terminal("approve X") as terminal:
        terminal.show([*map(str, range(20)), "x" * 100])
    shown = person.read()
    assert shown.count("-- Enter shows more, q stops --") == 2
    assert shown.index("\n8\n") < shown.index("--") < shown.index("\n9\n")


@NO_STORE
@pytest.mark.parametrize(
    "line", ["x" * 1_000, "漢" * 500, "e\u0301" * 500, "👩" * 300, "-" * 40, "-" * 39, "ＡＢ" * 200, "a漢" * 333]
)
def test_screen_is_a_screen(person: Person, line: str) -> None:
    """However wide its characters are, nothing scrolls away before the person has seen it."""
    rows, columns = 10, 40
    descriptor = os.open(person.path, os.O_RDWR | os.O_NOCTTY)
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    os.close(descriptor)
    person.answer = ""
    with Terminal("approve X") as terminal:
        terminal.show(["first", line, "after", line, "last"])
    screens = person.read().split("-- Enter shows more, q stops -- \n")
    assert len(screens) > 1 or len(line) < 50
    for screen in screens:
        widths = [
            sum(2 if unicodedata.east_asian_width(char) in "WF" else not unicodedata.combining(char) for char in part)
            for part in screen.strip("\n").split("\n")
        ]
        assert max(widths) < columns or len(line) < 50
        assert sum(max(1, -(-width // columns)) for width in widths) < rows
    pieces = "".join(part.removeprefix("   ... ") for screen in screens for part in screen.split("\n"))
    assert pieces.replace(" ", "") == f"first{line}after{line}last"


# --- what an approval is good for -------------------------------------------------------------------------------------


@pytest.mark.parametrize("surface", ["cli", "http", "python", "program", "mcp", "hook"])
def test_no_surface_approves_without_person(app: App, surface: str) -> None:
    waits = call(app, "execute_code", code="memory.purge(expect=0)")
    with pytest.raises(Denied):
        call(app, "approve_run", surface, run_id=waits.run_id)
    with pytest.raises(Denied):
        call(app, "approve_run", surface, run_id=waits.run_id, refuse=True)
    forged = Approval(review(app, waits.run_id).subject)  # not granted
    with pytest.raises(Denied):
        call(app, "approve_run", surface, forged, run_id=waits.run_id)
    assert call(app, "get_run", run_id=waits.run_id).status == "needs_approval"


def test_approval_is_good_for_one_decision_on_one_run(app: App) -> None:
    first, second = (call(app, "execute_code", code=f"memory.purge(expect=0)\n{n}").run_id for n in (1, 2))
    refusal = app.approver.grant_refusal(review(app, first).subject)
    with pytest.raises(Denied):
        call(app, "approve_run", "cli", refusal, run_id=first)
    [leave] = app.approver.grant([review(app, first).subject])
    with pytest.raises(Denied):
        call(app, "approve_run", "cli", leave, run_id=second)
    with pytest.raises(Denied):
        call(app, "approve_run", "cli", leave, run_id=first, refuse=True)
    assert call(app, "approve_run", "cli", leave, run_id=first).result == 1
    with pytest.raises(Denied):
        app.approver.redeem(leave, leave.subject)
    assert call(app, "get_run", run_id=second).status == "needs_approval"


@ON_BOTH
def test_approval_holds_for_what_was_seen(app: App, head: str) -> None:
    """While a person reads, the run may go on to its next call, or a skill may change."""
    skill = 'def tidy(n: int) -> int:\n    """Tidy up."""\n    return n + {}'
    call(app, "save_skill", name="tidy", code=skill.format(1), example="tidy(1)")
    code = f"{head}memory.purge(expect=0)\nmemory.purge(memory_ids=[], expect=0)\nskills.tidy(n=1)"
    run_id = call(app, "execute_code", code=code).run_id
    [late] = app.approver.grant([review(app, run_id).subject])
    assert decide_run(app, run_id).status == "needs_approval"  # at the second call
    with pytest.raises(Denied):
        call(app, "approve_run", "cli", late, run_id=run_id)
    [late] = app.approver.grant([review(app, run_id).subject])
    call(app, "save_skill", name="tidy", code=skill.format(2), example="tidy(1)")
    with pytest.raises(Denied):
        call(app, "approve_run", "cli", late, run_id=run_id)
    assert decide_run(app, run_id).result == 3


@ON_BOTH
def test_run_is_not_claimed_at_earlier_call(app: App, head: str) -> None:
    """Two people decide at once: the slower one must not make the first call again."""
    run_id = call(app, "execute_code", code=f"{head}memory.purge(expect=0)\nmemory.purge(expect=0)").run_id
    scope, database = app.create_context("p", "python").scope, app.store.database
    before = run_sync(database.read(lambda tx: runs.fetch_run(tx, scope, run_id)))
    assert before is not None
    assert decide_run(app, run_id).status == "needs_approval"
    assert not run_sync(database.write(lambda tx: runs.claim_run(tx, scope, before, "here:1", 1.0)))
    assert decide_run(app, run_id).status == "done"


def test_changed_pause_is_not_shown(app: App) -> None:
    """The call that a person sees is the sealed one, whatever the store's row says."""
    run_id = call(app, "execute_code", code="memory.purge(expect=0)").run_id

    async def edit(tx: Any, column: str) -> None:
        scope = app.create_context("p", "python").scope
        row = await runs.fetch_run(tx, scope, run_id)
        assert row is not None
        assert row.waits_for is not None
        assert row.snapshot is not None
        other = row.waits_for.replace("memory.purge", "memory.stats")
        changed = {"waits_for": other} if column == "waits_for" else {"snapshot": row.snapshot[:-1] + b"?"}
        await runs.upsert_run(tx, scope, row._replace(**changed))

    run_sync(app.store.database.write(lambda tx: edit(tx, "waits_for")))
    assert review(app, run_id).operation == "memory.purge"
    run_sync(app.store.database.write(lambda tx: edit(tx, "snapshot")))
    with pytest.raises(InvalidInput, match="was changed"):
        review(app, run_id)


def run_command(*words: str) -> int:
    return athena(args=list(words), prog_name="athena", standalone_mode=False)


@ONE_FILE
def test_tool_that_needs_approval_asks_at_terminal(
    home: Path, person: Person, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("servers", "add", "careful", "--approval", "always", "--", sys.executable, "-I", "-S", PROGRAM, "fine")
    assert run_command(*words) == 0
    capsys.readouterr()
    person.read()
    assert run_command("call", "careful.echo", "--json", '{"text": "\u202ehello"}') == 0
    assert json.loads(capsys.readouterr().out) == "\u202ehello"
    assert '{"text": "<U+202E>hello"}' in person.read()
    person.answer = "n"
    assert run_command("call", "careful.echo", "--json", '{"text": "hello"}') == 130
    monkeypatch.setattr("athena.cli.approval.TERMINAL_PATH", str(home / "none"))
    assert run_command("call", "careful.echo", "--json", '{"text": "hello"}') == ApprovalNeeded.exit
    assert capsys.readouterr().out == ""


# --- the passphrase ---------------------------------------------------------------------------------------------------


@ONE_FILE
@pytest.mark.usefixtures("cheap")
def test_passphrase_stands_before_every_approval(
    home: Path, tmp_path: Path, person: Person, capfd: pytest.CaptureFixture[str]
) -> None:
    def run_with(*words: str, secrets: Sequence[str]) -> int:
        person.secrets = [*secrets]
        code = run_command(*words)
        assert person.secrets == [], words  # each was asked for
        return code

    app = connect.shared_app()
    assert run_with("passphrase", "set", secrets=[SECRET, OTHER_SECRET]) == 2
    assert not app.approver.has_passphrase()
    assert run_with("passphrase", "set", secrets=[SECRET, SECRET]) == 0
    run_id, refused = pause(), pause()
    assert app.approver.has_passphrase()
    assert (home / PASSPHRASE_FILE).stat().st_mode & 0o777 == 0o600
    assert run_with("approve", run_id, secrets=[OTHER_SECRET, "", OTHER_SECRET]) == 5
    add = ("servers", "add", "fine", "--approval", "always", "--", sys.executable, "-I", "-S", PROGRAM, "fine")
    assert run_with(*add, secrets=[SECRET]) == 0
    assert run_with("call", "fine.bad", secrets=[OTHER_SECRET, SECRET]) == 0
    theirs = {"mcpServers": {"a": {"command": sys.executable, "args": ["-I", "-S", PROGRAM, "fine"]}}}
    (tmp_path / "mcp.json").write_text(json.dumps(theirs))
    assert run_with("servers", "import", str(tmp_path / "mcp.json"), secrets=[SECRET]) == 0
    file = home / "servers.json"
    file.write_text(file.read_text().replace(f'"{PROGRAM}"', f'"{PROGRAM}", "noise"'))
    assert run_with("servers", "approve", "fine", secrets=[OTHER_SECRET] * 3) == 5
    assert get_status(run_id) == "needs_approval"
    assert run_with("approve", run_id, secrets=[OTHER_SECRET, SECRET]) == 0
    assert run_with("approve", refused, "--refuse", secrets=[]) == 1  # a no needs no passphrase
    assert run_with("passphrase", "remove", secrets=[OTHER_SECRET]) == 5
    assert run_with("passphrase", "set", secrets=[SECRET, OTHER_SECRET, OTHER_SECRET]) == 0
    assert run_with("passphrase", "remove", secrets=[OTHER_SECRET]) == 0
    assert not app.approver.has_passphrase()
    shown = person.read() + "".join(capfd.readouterr())
    assert "the passphrase is wrong" in shown
    connect.close()
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 3
    for secret in (SECRET, OTHER_SECRET):
        assert secret not in shown
        assert not any(secret.encode() in file.read_bytes() for file in files)


@ONE_FILE
def test_passphrase_is_read_from_controlling_terminal() -> None:
    assert run_without_terminal("passphrase", "set", given=f"{SECRET}\n" * 2).code == 5
    done = run_on_terminal("passphrase", "set", answers=[SECRET, SECRET])
    assert (done.code, done.shown) == (0, "New passphrase: \nAgain: \n"), done
    run_id = pause()
    done = run_on_terminal("approve", run_id, answers=["y", OTHER_SECRET, SECRET])
    assert (done.code, done.out) == (0, "0\n"), done
    assert "donkey" not in done.shown


@pytest.mark.usefixtures("cheap")
def test_python_needs_passphrase_too(home: Path, app: App) -> None:
    guarded = App(app.store.database, app.store.encoder.embedder, servers=str(home))
    guarded.approver.set_passphrase(SECRET)
    run_id = call(guarded, "execute_code", code="memory.purge(expect=0)").run_id
    subject = review(guarded, run_id).subject
    for given, error in ((None, Denied), ("", WrongPassphrase), (OTHER_SECRET, WrongPassphrase)):
        with pytest.raises(error) as caught:
            guarded.approver.grant([subject], given)
        assert OTHER_SECRET not in str(caught.value) + repr(caught.value) + str(caught.value.hint)
    with pytest.raises(Denied):
        run_sync(connect.AppConnection(lambda: guarded, "p", "cli").call("approve_run", {"run_id": run_id}))
    [leave] = Approver(None).grant([subject])  # of another folder, which has no passphrase
    with pytest.raises(Denied):
        call(guarded, "approve_run", "cli", leave, run_id=run_id)
    [leave] = guarded.approver.grant([subject], SECRET)
    assert call(guarded, "approve_run", "cli", leave, run_id=run_id).result == 0


@NO_STORE
@pytest.mark.usefixtures("cheap")
def test_wrong_passphrases_have_to_wait(home: Path) -> None:
    Approver(str(home)).set_passphrase(SECRET)

    def guess() -> str:
        try:
            Approver(str(home)).grant(["x"], OTHER_SECRET)  # each as a new process would
        except Denied:
            return "wrong"
        except LimitExceeded:
            return "wait"
        return "right"

    jobs = [start_in_thread(guess) for _ in range(12)]
    for job in jobs:
        job.wait()
    assert sorted(job.result() for job in jobs) == ["wait"] * 7 + ["wrong"] * 5
    with pytest.raises(LimitExceeded, match="5 wrong passphrases") as caught:
        Approver(str(home)).grant(["x"], SECRET)
    assert re.search(r"try again in \d+ s", str(caught.value.hint))
    with pytest.raises(LimitExceeded):
        Approver(str(home)).remove_passphrase(SECRET)
    with pytest.raises(LimitExceeded):
        Approver(str(home)).set_passphrase("another one", SECRET)
    tries = home / TRIES_FILE
    tries.write_text("not JSON")
    with pytest.raises(LimitExceeded):
        Approver(str(home)).grant(["x"], SECRET)
    tries.write_text(json.dumps({"count": 40, "last_at": 1.0}))
    assert guess() == "wrong"
    assert guess() == "wait"
    assert json.loads(tries.read_text())["count"] == 41
    tries.write_text(json.dumps({"count": 41, "last_at": 1.0}))
    assert len(Approver(str(home)).grant(["x"], SECRET)) == 1
    assert not tries.exists()


@NO_STORE
@pytest.mark.usefixtures("cheap")
def test_interrupted_try_counts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Approver(str(home)).set_passphrase(SECRET)

    def stop(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(approval, "_hash_passphrase", stop)
    with pytest.raises(KeyboardInterrupt):
        Approver(str(home)).grant(["x"], SECRET)
    assert json.loads((home / TRIES_FILE).read_text())["count"] == 1


@NO_STORE
def test_wait_is_bounded() -> None:
    waits = [approval._compute_wait_s(count, 1_000.0, 1_000.0) for count in (0, 4, 5, 6, 10, 10**9)]
    assert waits == [0, 0, 30, 60, 900, 900]
    assert approval._compute_wait_s(5, 99_999.0, 1_000.0) == 30  # the clock was set back


@NO_STORE
@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("damage", ["empty", "text", "weak", "readable", "link", "folder"])
def test_untrustworthy_hash_approves_nothing(home: Path, damage: str) -> None:
    approver, file = Approver(str(home)), home / PASSPHRASE_FILE
    approver.set_passphrase(SECRET)
    stored = json.loads(file.read_text())
    assert stored.keys() == {"scheme", "n", "r", "p", "salt", "hash"}
    if damage == "readable":
        file.chmod(0o644)
    elif damage == "link":
        file.rename(home / "elsewhere")
        file.symlink_to(home / "elsewhere")
    elif damage == "folder":
        file.unlink()
        file.mkdir(mode=0o700)
    else:
        weak = json.dumps(stored | {"salt": "", "hash": ""})
        file.write_text({"empty": "", "text": "passphrase", "weak": weak}[damage])
    with pytest.raises(Misconfigured):
        approver.has_passphrase()
    with pytest.raises(Misconfigured):
        approver.grant(["x"], SECRET)


@NO_STORE
@pytest.mark.usefixtures("cheap")
def test_passphrase_is_changed_with_old_one_only(home: Path) -> None:
    approver = Approver(str(home))
    with pytest.raises(Conflict):
        approver.remove_passphrase(None)
    for short in ("", "x" * 7, "x" * 1_001):
        with pytest.raises(InvalidInput):
            approver.set_passphrase(short)
    approver.set_passphrase("gru\u0308n ist die Farbe")
    first = (home / PASSPHRASE_FILE).read_text()
    with pytest.raises(Denied):
        approver.set_passphrase(SECRET)
    with pytest.raises(WrongPassphrase):
        approver.set_passphrase(SECRET, OTHER_SECRET)
    approver.set_passphrase("gr\u00fcn ist die Farbe", "gr\u00fcn ist die Farbe")  # composed as other keyboards do
    assert json.loads(first)["salt"] != json.loads((home / PASSPHRASE_FILE).read_text())["salt"]
    approver.remove_passphrase("gr\u00fcn ist die Farbe")
    assert not approver.has_passphrase()


@NO_STORE
def test_passphrase_is_no_setting(home: Path) -> None:
    with pytest.raises(Misconfigured, match="ATHENA_APPROVE_PASSPHRASE") as caught:
        load_settings({"ATHENA_HOME": str(home), "ATHENA_APPROVE_PASSPHRASE": SECRET})
    (home / "config.toml").write_text(f'[approve]\npassphrase = "{SECRET}"\n')
    with pytest.raises(Misconfigured, match="must not stand in a file") as other:
        load_settings({"ATHENA_HOME": str(home)})
    assert SECRET not in f"{caught.value} {caught.value.hint} {other.value} {other.value.hint}"


@ONE_FILE
def test_other_data_folder_cannot_approve(home: Path, tmp_path: Path) -> None:
    """A folder without a passphrase, but with the same store, lacks the key that seals what waits."""
    run_id = pause()
    assert run_on_terminal("passphrase", "set", answers=[SECRET, SECRET]).code == 0
    other = {"ATHENA_HOME": str(tmp_path / "other"), "ATHENA_DB_PATH": str(home / "athena.db")}
    done = run_on_terminal("approve", run_id, **other)
    assert (done.code, "belongs to another workspace or installation" in done.err) == (2, True)
    assert get_status(run_id) == "needs_approval"


@ONE_FILE
@ON_BOTH
@pytest.mark.usefixtures("cheap")
def test_folder_with_copied_key_cannot_approve(home: Path, tmp_path: Path, head: str) -> None:
    """Another folder has the store and the key, but not the passphrase that was set when the run paused."""
    connect.shared_app().approver.set_passphrase(SECRET)
    run_id = pause(f"{head}memory.purge(expect=0)")
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    shutil.copy2(home / "sandbox.key", other)
    elsewhere = {"ATHENA_HOME": str(other), "ATHENA_DB_PATH": str(home / "athena.db")}
    done = run_on_terminal("approve", run_id, **elsewhere)
    assert (done.code, "the passphrase for approvals is another one" in done.err) == (4, True), done
    Approver(str(other)).set_passphrase(OTHER_SECRET)
    done = run_on_terminal("approve", run_id, **elsewhere)
    assert (done.code, "run the program again" in done.err) == (4, True), done
    assert get_status(run_id) == "needs_approval"
    done = run_on_terminal("approve", run_id, answers=["y", SECRET])
    assert (done.code, done.out) == (0, "0\n"), done


@pytest.mark.usefixtures("cheap")
def test_run_that_waited_before_passphrase_must_run_again(home: Path, app: App) -> None:
    guarded = App(app.store.database, app.store.encoder.embedder, servers=str(home))
    run_id = call(guarded, "execute_code", code="memory.purge(expect=0)").run_id
    subject = review(guarded, run_id).subject
    [early] = guarded.approver.grant([subject])
    guarded.approver.set_passphrase(SECRET)
    for leave in (early, *guarded.approver.grant([subject], SECRET)):
        with pytest.raises(Conflict, match="the passphrase for approvals is another one") as caught:
            call(guarded, "approve_run", "cli", leave, run_id=run_id)
        assert "run the program again" in str(caught.value.hint)
    refusal = guarded.approver.grant_refusal(subject)
    assert call(guarded, "approve_run", "cli", refusal, run_id=run_id, refuse=True).status == "failed"
    run_id = call(guarded, "execute_code", code="memory.purge(expect=0)").run_id
    guarded.approver.set_passphrase(OTHER_SECRET, SECRET)
    [leave] = guarded.approver.grant([review(guarded, run_id).subject], OTHER_SECRET)
    with pytest.raises(Conflict):
        call(guarded, "approve_run", "cli", leave, run_id=run_id)


@ONE_FILE
@pytest.mark.usefixtures("cheap")
def test_tools_are_approved_with_passphrase_in_force(home: Path, tmp_path: Path, person: Person) -> None:
    """Approvals move along with a change of the passphrase; those of another folder do not count."""
    assert run_command("servers", "add", "fine", "--", sys.executable, "-I", "-S", PROGRAM, "fine") == 0
    for secrets in ([SECRET, SECRET], [SECRET, OTHER_SECRET, OTHER_SECRET]):
        person.secrets = [*secrets]
        assert run_command("passphrase", "set") == 0
        assert [server["status"] for server in call_here("list_servers")] in (["ready"], ["connected"])
        assert call_here("fine.echo", text="hello") == "hello"
    pins = (home / "pins" / "fine.json").read_text()
    connect.close()
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    for name in ("servers.json", "pins"):
        subprocess.run(["cp", "-a", str(home / name), str(other)], check=True)
    done = run_without_terminal("call", "fine.echo", "--json", '{"text": "x"}', ATHENA_HOME=str(other))
    assert "the passphrase for approvals is another one" in done.err, done
    done = run_on_terminal("servers", "approve", "fine", answers=["n"], ATHENA_HOME=str(other))
    assert "fine was never approved" in done.shown
    # and what was approved elsewhere does not count here
    stored = json.loads(pins)
    (home / "pins" / "fine.json").write_text(json.dumps(stored | {"passphrase": ""}))
    done = run_without_terminal("call", "fine.echo", "--json", '{"text": "x"}')
    assert "the passphrase for approvals is another one" in done.err, done
    (home / "pins" / "fine.json").write_text(pins)
    person.secrets = [OTHER_SECRET]
    assert run_command("passphrase", "remove") == 0
    assert call_here("fine.echo", text="hello") == "hello"
