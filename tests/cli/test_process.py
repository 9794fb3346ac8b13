"""The `athena` command as a process: exit codes, pipes, standard input, terminals and editors."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

import athena
from athena import api

pytestmark = pytest.mark.usefixtures("engine")

ATHENA = [sys.executable, "-m", "athena"]


def run(*words: str, given: str | bytes = "", **environment: str) -> subprocess.CompletedProcess[str]:
    raw = given.encode() if isinstance(given, str) else given
    done = subprocess.run([*ATHENA, *words], input=raw, capture_output=True, timeout=60, env=os.environ | environment)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def run_on_terminal(*words: str, typed: str = "") -> tuple[int, str]:
    """Run a command on a pseudo-terminal and return its exit code and its output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*ATHENA, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"}
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    shown, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], 1)[0]:
            continue
        try:
            piece = os.read(ours, 65_536)
        except OSError:  # Linux raises EIO when the other side is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    return process.wait(timeout=60), shown.decode()


def test_next_command_finds_stored_memory() -> None:
    kept = run("remember", "Deploys run on Fridays", "--tags", "deploy")
    assert (kept.returncode, kept.stderr) == (0, "")
    result = run("recall", "when do we deploy")
    assert result.returncode == 0
    assert result.stdout.startswith(kept.stdout.split()[0])
    assert "\x1b" not in kept.stdout + result.stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--version"], 0),
        (["recall", ""], 2),
        (["no-such-command"], 2),
        (["show", "deadbeef"], 3),
        (["call", "purge"], 4),
    ],
    ids=str,
)
def test_exit_code_reaches_shell(words: list[str], code: int) -> None:
    done = run(*words)
    assert done.returncode == code
    assert (done.stderr == "") == (code == 0)
    assert (done.stdout == "") == (code != 0)
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.sqlite_only("files")
def test_broken_store_has_exit_code(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("Dear diary")
    for words in (["remember", "x"], ["list"]):
        done = run(*words, ATHENA_DB_PATH=str(tmp_path / "text.db"))
        assert done.returncode == 8
        assert "hint:" in done.stderr
        assert "text.db" in done.stderr


@pytest.mark.sqlite_only("files")
def test_doctor_exit_code_reports_problem(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("Dear diary")
    done = run("doctor", ATHENA_DB_PATH=str(tmp_path / "text.db"))
    assert done.returncode == 1
    assert "FAIL" in done.stdout
    rows = json.loads(run("doctor", "--json", ATHENA_DB_PATH=str(tmp_path / "text.db")).stdout)
    assert [row["check"] for row in rows if not row["ok"]] == ["store"]


def test_text_is_read_from_stdin() -> None:
    text = "many\nlines – with ünïcode 🎉"
    done = run("remember", "-", "--json", given=text)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["content"] == text
    assert api.search("lines").total == 1


def test_arguments_are_read_from_stdin() -> None:
    done = run("call", "remember", "--json", "-", given='{"content": "from a pipe"}')
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["content"] == "from a pipe"


def test_empty_stdin_is_error() -> None:
    done = run("remember", "-")
    assert (done.returncode, done.stdout) == (2, "")
    assert "content must not be empty" in done.stderr


@pytest.mark.parametrize("encoding", ["utf-8:strict", "utf-8:surrogateescape"])
def test_invalid_utf8_is_escaped_or_refused(encoding: str) -> None:
    done = run("remember", "-", given=b"caf\xe9 \xff", PYTHONIOENCODING=encoding)
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr


def test_closed_pipe_is_no_error() -> None:
    api.store_batch([f"item {i} " + "padding " * 10 for i in range(300)])
    reading, writing = os.pipe()
    os.close(reading)
    for words in (["list", "-k", "300"], ["tools"], ["--help"]):
        done = subprocess.run([*ATHENA, *words], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.stderr == ""
        assert done.returncode in (0, 1)
    os.close(writing)


def test_first_of_many_lines_prints() -> None:
    api.store_batch([f"item {i} " + "x" * 2_000 for i in range(100)])
    command = f"{sys.executable} -m athena list -k 100 --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_debug_prints_traceback_and_timings() -> None:
    plain, debugged = run("show", "deadbeef"), run("show", "deadbeef", DEBUG="1")
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debugged.stderr
    assert (debugged.returncode, debugged.stdout) == (3, "")
    assert "error: there is no memory" in debugged.stderr
    timed = run("list", "--json", DEBUG="1")
    assert json.loads(timed.stdout) == []
    assert re.search(r"\d ms", timed.stderr)


def test_color_only_on_terminal() -> None:
    short = api.store("text with \x1b[5m blinking \x9b31m \r hidden", tags="t")
    code, shown = run_on_terminal("recall", "text")
    assert code == 0
    assert f"\x1b[33m{short}\x1b[0m" in shown
    assert "\x1b[5m" not in shown
    assert "\x9b" not in shown
    assert r"\x1b[5m blinking \x9b31m hidden" in shown
    assert "\x1b" not in run("recall", "text").stdout


def test_purge_asks_on_terminal() -> None:
    api.delete(api.store("gone"))
    api.close()
    assert run_on_terminal("purge", typed="n\n")[0] == 130
    assert api.restore(1)
    api.delete(1)
    api.close()
    code, shown = run_on_terminal("purge", typed="y\n")
    assert code == 0
    assert "Remove 1" in shown


def test_purge_without_answer_removes_nothing() -> None:
    api.delete(api.store("gone"))
    done = run("purge")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert api.restore(1)


def test_edit_opens_editor(tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nprintf 'changed in the editor\\n' > \"$1\"\n")
    editor.chmod(0o755)
    short = api.store("before", "a")
    done = run("edit", short, EDITOR=str(editor), VISUAL=str(editor))
    assert done.returncode == 0, done.stderr
    assert api.get(short).content == "changed in the editor"
    assert list(api.get(short).tags) == ["a"]
    unchanged = run("edit", short, EDITOR="true", VISUAL="true")
    assert (unchanged.returncode, unchanged.stdout, unchanged.stderr) == (0, "", "not changed\n")


def test_failed_editor_changes_nothing() -> None:
    short = api.store("before")
    done = run("edit", short, EDITOR="false", VISUAL="false")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert api.get(short).content == "before"


def test_project_is_that_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATHENA_PROJECT")
    monkeypatch.setenv("PYTHONPATH", str(Path(athena.__file__).parents[1]))
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repo")
    assert run("remember", "in the repository").returncode == 0
    monkeypatch.chdir(tmp_path)
    assert run("list").stdout == ""
    assert run("list", "--project", str(tmp_path / "repo")).stdout.endswith("in the repository\n")


def test_invalid_setting_is_named() -> None:
    done = run("list", ATHENA_DATABASE_URL="mysql://localhost/x")
    assert done.returncode == 8
    assert "ATHENA_DATABASE_URL" in done.stderr


def test_help_loads_few_modules() -> None:
    script = """
import sys
from athena.cli.commands import athena
athena(["--help"], prog_name="athena", standalone_mode=False)
print(" ".join(sys.modules), file=sys.stderr)"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "  recall " in done.stdout
    assert not {"numpy", "apsw", "asyncio", "athena.app.compose", "athena.operations"} & set(done.stderr.split())


def test_ingest_reports_skipped_files(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "deploy.md").write_text("# Deploying\n\nRun the blue script on Fridays.")
    (tmp_path / "notes" / "image.png").write_bytes(b"\x89PNG\0\0")
    done = run("ingest", str(tmp_path / "notes"), "--tags", "docs")
    assert done.returncode == 0
    assert "1 document" in done.stdout
    assert "image.png" in done.stderr
    assert run("ingest", str(tmp_path / "missing")).returncode == 3


def test_several_files_print_one_json_document(tmp_path: Path) -> None:
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(f"Something in {name}")
    done = run("ingest", str(tmp_path / "one.txt"), str(tmp_path / "two.txt"), "--json")
    assert done.returncode == 0
    json.loads(done.stdout)
