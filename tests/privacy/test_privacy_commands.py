"""`athena vault`, `athena privacy` and the settings, as processes: what a person types and a model's client sees."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from canary_tools import read_all_files
from daemon_tools import Home

EMAIL = "ada.lovelace@example.com"


def run_athena(tmp_path: Path, *argv: str, given: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    env = Home(tmp_path / "home").environ(ATHENA_VAULT_KEY_FOLDER=str(tmp_path / "keys"), **environ)
    argv = (sys.executable, "-m", "athena", *argv)
    return subprocess.run(
        argv, env=env, input=given, capture_output=True, text=True, timeout=100, start_new_session=True
    )


def call_mcp(tmp_path: Path, tool: str, arguments: dict[str, Any], **environ: str) -> str:
    """Call a tool as a client over standard input and output, and return all that it is sent."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}},
    ]
    env = Home(tmp_path / "home").environ(ATHENA_VAULT_KEY_FOLDER=str(tmp_path / "keys"), **environ)
    with subprocess.Popen(
        [sys.executable, "-m", "athena", "mcp"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for message in messages:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            process.stdin.flush()
        seen = ""
        for line in process.stdout:
            seen += line
            if json.loads(line).get("id") == 2:
                break
        process.stdin.close()
        process.wait(60)
    return seen


@pytest.mark.parametrize("mode", ["boundary", "strict"])
def test_client_and_person_see_what_they_may(tmp_path: Path, mode: str) -> None:
    stored = call_mcp(tmp_path, "remember", {"content": f"Ada is at {EMAIL}"}, ATHENA_PRIVACY=mode)
    assert '"isError":true' not in stored
    found = call_mcp(tmp_path, "recall", {"query": EMAIL}, ATHENA_PRIVACY=mode)
    assert "Ada is at [EMAIL_1]" in found
    assert EMAIL not in found
    person = run_athena(tmp_path, "recall", EMAIL, ATHENA_PRIVACY=mode)
    assert f"Ada is at {EMAIL}" in person.stdout, person.stderr
    program = run_athena(tmp_path, "run", "-", given=f"print('{EMAIL}')", ATHENA_PRIVACY=mode)
    assert program.stdout == "[EMAIL_1]\n"
    data = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert EMAIL.encode() not in data
    report = run_athena(tmp_path, "privacy", "report", ATHENA_PRIVACY=mode)
    assert report.stdout.splitlines()[:2] == [f"mode: {mode}", "tokens: 1 EMAIL"]


def test_report_says_how_to_turn_privacy_on(tmp_path: Path) -> None:
    mode, way = run_athena(tmp_path, "privacy").stdout.splitlines()[:2]
    assert mode == "mode: off"
    file = tmp_path / "home" / "config.toml"
    assert f'privacy = "boundary" (or "strict") in {file}, above the first [section]' in way


def test_hook_tells_tokens(tmp_path: Path) -> None:
    environ = {"ATHENA_PRIVACY": "strict", "ATHENA_PROJECT": "p"}
    run_athena(tmp_path, "remember", f"Write to {EMAIL} before each release", "--tags", "important", **environ)
    payload = json.dumps({"session_id": "s", "cwd": str(tmp_path), "hook_event_name": "SessionStart"})
    answer = run_athena(tmp_path, "hook", "session-start", given=payload, **environ)
    assert "[EMAIL_1] before each release" in answer.stdout, answer.stderr
    assert EMAIL not in answer.stdout
    prompt = json.dumps({"session_id": "s2", "cwd": str(tmp_path), "prompt": f"what do I write to {EMAIL}?"})
    reminder = run_athena(tmp_path, "hook", "user-prompt-submit", given=prompt, **environ)
    assert EMAIL not in reminder.stdout


def test_vault_commands(tmp_path: Path) -> None:
    assert "nothing is in the vault" in run_athena(tmp_path, "vault").stdout
    put = run_athena(tmp_path, "vault", "put", "crm_key", given="hunter2-Secret\n")
    assert put.stdout == "kept as [VAULT:crm_key], for nobody yet: athena vault allow\n"
    missing = run_athena(tmp_path, "vault", "allow", "crm_key", "crm")
    assert (missing.returncode, "there is no server 'crm'" in missing.stderr) == (3, True)
    (tmp_path / "home" / "servers.json").write_text(json.dumps({"mcpServers": {"crm": {"command": "true"}}}))
    for words in (("allow", "crm_key", "crm"), ("show", "crm_key"), ("put", "other", "--for", "crm")):
        refused = run_athena(tmp_path, "vault", *words, given="x")
        assert refused.returncode == 5, words  # a person has to agree, at a terminal
        assert "hunter2" not in refused.stdout + refused.stderr
    listed = json.loads(run_athena(tmp_path, "vault", "--json").stdout)
    assert [(entry["token"], entry["allowed"]) for entry in listed] == [("[VAULT:crm_key]", [])]
    rotated = run_athena(tmp_path, "vault", "rotate")
    assert rotated.stdout.startswith("1 value encrypted with a new key")
    assert run_athena(tmp_path, "vault", "forget", "crm_key").stdout == "forgotten: [VAULT:crm_key]\n"
    assert run_athena(tmp_path, "vault", "forget", "crm_key").returncode == 3
    found = run_athena(tmp_path, "privacy", "find", f"{EMAIL} and 4111 1111 1111 1111")
    assert [line.split(maxsplit=1) for line in found.stdout.splitlines()] == [
        ["EMAIL", EMAIL],
        ["CARD", "4111 1111 1111 1111"],
    ]


def test_exports_and_imports_hold_tokens(tmp_path: Path) -> None:
    environ = {"ATHENA_PRIVACY": "boundary"}
    run_athena(tmp_path, "remember", f"Ada is at {EMAIL}", **environ)
    for name in ("out.jsonl", "notes"):
        done = run_athena(tmp_path, "export", str(tmp_path / name), **environ)
        assert done.returncode == 0, done.stderr
    for data in ((tmp_path / "out.jsonl").read_bytes(), read_all_files(tmp_path / "notes")):
        assert EMAIL.encode() not in data
        assert b"[EMAIL_1]" in data
    (tmp_path / "new.md").write_text("Bob is at bob@example.org")
    assert run_athena(tmp_path, "import", str(tmp_path / "new.md"), **environ).returncode == 0
    assert b"bob@example.org" not in read_all_files(tmp_path / "home")
    assert "Bob is at bob@example.org" in run_athena(tmp_path, "list", **environ).stdout
