"""Session hooks: the fallbacks when something is missing, and safety against hostile input."""

import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from athena.app import settings
from athena.cli.daemon import count_fallbacks
from athena.core.home import daemon
from athena.core.home.paths import socket_path
from athena.errors import Misconfigured
from athena.hooks import client as hooks_client
from athena.hooks import fallback
from athena.hooks.events import EVENT_HANDLERS
from conftest import rounds
from daemon_tools import LONG_TIMEOUT, Home, HookResult, assert_gone
from wait_tools import LONG, wait_until

FACT = "Releases are signed with the key in the blue safe"
PROJECT = {"ATHENA_PROJECT": "harbour"}
START = json.dumps({"session_id": "s1", "hook_event_name": "SessionStart", "source": "startup"}).encode()
SOON = {"ATHENA_HOOKS_TIMEOUT_MS": "2000"}


def make_home(path: Path) -> Home:
    made = Home(path)
    made.athena("remember", FACT, "--tags", "important")
    made.install()
    return made


@pytest.fixture(scope="module")
def _template_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("filled") / "home").path


@pytest.fixture
def home(tmp_path: Path, _template_home: Path) -> Generator[Home]:
    """Return a home with a memory to tell, and no daemon."""
    made = Home(tmp_path / "home")
    (made.path / "athena.db").write_bytes((_template_home / "athena.db").read_bytes())
    made.install()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Generator[Home]:
    """Return a home with a memory to tell, and a daemon."""
    made = make_home(tmp_path_factory.mktemp("warm") / "home")
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def other(warm: Home) -> str:
    """Yield the URL of another memory server that answers over MCP."""
    facts = warm.server_info
    assert facts is not None
    token = (warm.path / "token").read_text().strip()
    return facts["url"].replace("http://", f"http://{token}@") + "/mcp"  # type: ignore[no-any-return]


def start_session(home: Home, session: str = "s1", **more: str) -> HookResult:
    payload = START.replace(b"s1", session.encode())
    return home.hook("session-start", payload, **PROJECT, **more)


def assert_no_errors(home: Home) -> None:
    """Assert that the launcher exited with 0 and that neither log reports an error."""
    assert not (home.path / "logs" / "launcher.log").exists()
    log = home.path / "logs" / daemon.DAEMON_LOG_FILE
    assert not log.exists() or "hook failed" not in log.read_text()
    assert not [line for line in home.lines if "Error" in line["why"]]


def corrupt_store(home: Home) -> None:
    (home.path / "athena.db").write_bytes(os.urandom(100_000))


def test_daemon_answers_without_log(warm: Home) -> None:
    result = start_session(warm, "first")
    assert result.code == 0
    assert FACT in result.context
    assert warm.lines == []
    assert json.loads(warm.athena("hook", "session-start", stdin=START))  # the command gives the same answer
    assert warm.lines == []


def test_fallback_answers_and_starts_daemon(home: Home) -> None:
    result = start_session(home)
    assert result.code == 0
    assert FACT in result.context
    assert home.links == ["process"]
    assert home.lines[0]["why"].startswith("no daemon")
    home.wait_until(served=True)
    assert start_session(home, "s2").code == 0
    assert home.links == ["process"]


def test_killed_daemon_is_replaced_by_fallback(home: Home) -> None:
    killed = home.start()
    os.kill(killed, signal.SIGKILL)
    assert_gone(killed)
    output = home.athena("hook", "session-start", stdin=START)
    assert FACT in output
    assert home.links == ["process"]
    home.wait_until(served=True)
    assert home.pid != killed


def test_concurrent_hooks_start_one_daemon(home: Home) -> None:
    many = rounds(8, 20)
    with ThreadPoolExecutor(many) as pool:
        every = list(pool.map(lambda number: start_session(home, f"s{number}"), range(many)))
    assert {said.code for said in every} == {0}
    assert all(FACT in said.context for said in every if said.out)
    assert any(said.out for said in every), home.lines  # on a slow machine some hooks time out
    home.wait_until(served=True)
    assert home.start_count() == 1


def test_hanging_daemon_does_not_block_hook(home: Home) -> None:
    hung = home.start()
    os.kill(hung, signal.SIGSTOP)
    try:
        # a quarter of the time for the daemon, the rest for this process: on a busy machine it may need the longest
        for timeout_ms in ("10000", LONG_TIMEOUT["ATHENA_HOOKS_TIMEOUT_MS"]):
            result = start_session(home, ATHENA_HOOKS_TIMEOUT_MS=timeout_ms)
            if result.out:
                break
    finally:
        os.kill(hung, signal.SIGCONT)
    assert (result.code, home.links[-1]) == (0, "process")
    assert FACT in result.context
    assert all("does not answer" in line["why"] for line in home.lines)
    assert home.pid == hung


def test_daemon_of_other_database_is_ignored(warm: Home, tmp_path: Path) -> None:
    before = len(warm.lines)
    result = start_session(warm, ATHENA_DB_PATH=str(tmp_path / "other.db"))
    assert (result.code, result.context) == (0, "")
    assert "another database" in warm.lines[before]["why"]


def test_broken_store_does_not_break_session(home: Home) -> None:
    corrupt_store(home)
    result = start_session(home)
    assert (result.code, result.out, home.links) == (0, b"", ["nothing"])
    assert "there is no mcp_url" in home.lines[0]["why"]


@pytest.mark.parametrize("malformed", [b"", b"not json", b"[1]", b'{"session_id": '])
def test_malformed_input_leaves_line_in_log(warm: Home, malformed: bytes) -> None:
    before = len(warm.lines)
    assert warm.hook("session-start", malformed, **PROJECT)[:2] == (0, b"")
    (line,) = warm.lines[before:]
    assert (line["event"], line["link"]) == ("session-start", "daemon")
    assert "not a JSON object" in line["why"]
    warm.hook("stop", b"{}", **PROJECT)  # empty, but well formed
    assert len(warm.lines) == before + 1
    assert count_fallbacks(str(warm.path))[0].get("daemon") is None


def test_malformed_input_without_daemon_is_logged(home: Home) -> None:
    assert home.hook("session-start", b"not json", **PROJECT)[:2] == (0, b"")
    assert home.links == ["process"]
    assert "not a JSON object" in home.lines[0]["why"]


def test_other_server_is_asked_over_mcp(home: Home, other: str) -> None:
    corrupt_store(home)
    home.settings(f"[hooks]\nmcp_url = '{other}'\n")
    result = home.hook("user-prompt-submit", b'{"prompt": "How are releases signed?"}', **PROJECT)
    assert (result.code, home.links) == (0, ["mcp"])
    assert home.lines[0]["why"].startswith("no daemon")
    assert json.loads(result.out)["hookSpecificOutput"]["hookEventName"] == "UserPromptSubmit"
    result = home.hook("stop", b"{}", **PROJECT)  # this event has no answer
    assert (result.code, result.out) == (0, b"")


def test_other_server_can_be_disabled(home: Home, other: str) -> None:
    corrupt_store(home)
    home.settings(f"[hooks]\nmcp_url = '{other}'\nfallback_to_mcp = false\n")
    result = start_session(home)
    assert (result.code, result.out, home.links) == (0, b"", ["nothing"])
    assert "fallback_to_mcp is off" in home.lines[0]["why"]


def test_silent_other_server_does_not_block(home: Home) -> None:
    corrupt_store(home)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        result = start_session(home, ATHENA_HOOKS_MCP_URL=url, **SOON)
    assert (result.code, result.out, home.links) == (0, b"", ["nothing"])
    assert result.seconds < 30  # less than the minute that a client would wait
    result = start_session(home, ATHENA_HOOKS_MCP_URL=url)
    assert (result.code, result.out, home.links) == (0, b"", ["nothing"] * 2)


def test_disabled_hooks_ask_only_other_server(home: Home, other: str) -> None:
    home.settings("[hooks]\nenabled = false\n")
    result = start_session(home)
    assert (result.code, result.out, home.links) == (0, b"", ["nothing"])
    assert start_session(home, ATHENA_HOOKS_MCP_URL=other).context
    assert home.links == ["nothing", "mcp"]
    assert home.start_count() == 0
    home.start()
    assert start_session(home)[:2] == (0, b"")
    assert home.links == ["nothing", "mcp"]


@pytest.mark.parametrize("folder", ["secret", "secret/gone"])
def test_disabled_folder_asks_no_server(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / "secret").mkdir()
    address = "http://127.0.0.1:9/mcp"  # nothing listens there
    home.settings(f'[hooks]\nenabled = false\nmcp_url = "{address}"\n[hooks.projects]\n"{tmp_path}/secret" = "*"\n')
    monkeypatch.setenv("ATHENA_HOME", str(home.path))
    payload = json.dumps({"cwd": str(tmp_path / folder), "prompt": "what is it"}).encode()
    found = fallback.answer_without_daemon("user-prompt-submit", payload, "hooks are off", time.monotonic() + 5)
    assert (found.link, found.reason) == ("mcp", "hooks are off")


def test_events_are_disabled_while_daemon_runs(home: Home) -> None:
    home.start()
    home.settings('[hooks]\noff = ["session-start"]\n')
    assert start_session(home, "s1").out == b""
    home.settings('[hooks.projects]\nharbour = "*"\n')
    assert start_session(home, "s2").out == b""
    home.settings('[hooks.projects]\nharbour = ["stop"]\n')
    assert FACT in start_session(home, "s3").context
    assert start_session(home, "s4", ATHENA_HOOKS_OFF="*").out == b""
    assert home.links == []


def test_invalid_settings_are_logged(home: Home) -> None:
    home.settings("[hooks]\ntimeout_ms = 'soon'\n")
    result = start_session(home, ATHENA_HOOKS_TIMEOUT_MS="")
    assert (result.code, result.out, home.links) == (0, b"", ["nothing"])
    assert "hooks.timeout_ms must be a number" in home.lines[0]["why"]


def test_problem_is_logged_once(home: Home) -> None:
    home.start()
    home.settings("[hooks]\nbudget_tokens = 90000\n")
    assert start_session(home).out == b""
    assert home.lines[0]["why"].count("hooks.budget_tokens") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        "[hooks]\npython_path = 'python3'",
        "[hooks]\noff = ['lunch']",
        "[hooks]\nmcp_url = 'ftp://x'",
        "[hooks]\nprojects = 3",
        "[hooks.projects]\nx = 'lunch'",
        "[hooks]\nbudget_tokens = 1",
        "[daemon]\nidle_minutes = -1",
        "[hooks]\nenable = true",
    ],
)
def test_invalid_setting_is_error(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "config.toml").write_text(wrong)
    with pytest.raises(Misconfigured):
        settings.load_settings({"ATHENA_HOME": str(tmp_path)})


@pytest.mark.parametrize("python", ["/nowhere/python3", "/bin/false", "/etc/passwd"])
def test_launcher_without_python_exits_quietly(home: Home, python: str) -> None:
    home.install(python=python)
    for _ in range(2):
        result = start_session(home)
        assert (result.code, result.out) == (0, b"")
    assert (home.path / "logs" / "launcher.log").read_text() == f"the hook could not be run by {python}\n"
    (home.path / "logs" / "launcher.log").unlink()
    (home.path / "logs").rmdir()
    assert start_session(home)[:2] == (0, b"")


def test_missing_package_is_logged(home: Home) -> None:
    script = home.path / "bin" / "athena-hook"
    script.write_text(script.read_text().replace(str(Path(daemon.PACKAGE_ROOT)), "/nowhere"))
    result = start_session(home, PYTHONPATH="")
    # An installed package is still found, and answers.
    assert result.code == 0
    assert home.links in (["nothing"], ["process"])


def test_foreign_socket_is_not_used(home: Home) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be two users")
    path = socket_path(str(home.path), "hook.sock")
    program = f"""
import os, socket, sys
listening = socket.socket(socket.AF_UNIX); listening.bind({path!r}); os.setuid(65534); listening.listen()
print(flush=True)
connection, _ = listening.accept(); print(connection.recv(100))
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        result = start_session(home)
        assert FACT in result.context
        assert "somebody else" in home.lines[0]["why"]
        assert stranger.stdout.readline() == b"b''\n"  # it received nothing


def test_unknown_event_is_harmless(warm: Home) -> None:
    before = len(warm.lines)
    for event in ("", "lunch", "../../etc", "$(touch x)", "--help", '"\n'):
        result = warm.hook(event)
        assert (result.code, result.out) == (0, b"")
    assert [line["link"] for line in warm.lines[before:]] == ["nothing"] * 6


def test_endless_input_is_not_awaited(warm: Home) -> None:
    command = [str(warm.path / "bin" / "athena-hook"), "stop"]
    around = warm.environ(ATHENA_HOOKS_TIMEOUT_MS="300")
    before = len(warm.lines)
    with subprocess.Popen(command, env=around, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hook:
        assert hook.wait(LONG) == 0
    assert "did not end" in warm.lines[before]["why"]


def test_client_that_reads_nothing_is_harmless(warm: Home) -> None:
    command = [str(warm.path / "bin" / "athena-hook"), "session-start"]
    out, into = os.pipe()
    os.close(out)
    before = len(warm.lines)
    done = subprocess.run(command, env=warm.environ(**PROJECT), input=START, stdout=into, timeout=100)
    os.close(into)
    assert done.returncode == 0
    assert len(warm.lines) == before
    assert_no_errors(warm)


def test_event_answered_twice_is_recorded_once(warm: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in warm.environ(ATHENA_PROJECT="twice").items():
        monkeypatch.setenv(name, value)
    path, end = socket_path(str(warm.path), "hook.sock"), time.monotonic() + LONG
    payload = json.dumps({"session_id": "s1", "last_assistant_message": "The ship sails at noon. " * 5}).encode()
    for number, events in (("a" * 32, 1), ("b" * 32, 2)):  # the same event may happen twice, and is then two events
        monkeypatch.setenv("ATHENA_HOOK_ID", number)
        assert hooks_client.ask_daemon(path, "stop", payload, end, end) == (b"", "")
        assert hooks_client.ask_daemon(path, "stop", payload, end, end) == (b"", "")
        assert fallback.answer_without_daemon("stop", payload, "the daemon does not answer", end).link == "process"
        found = json.loads(warm.athena("call", "recall_events", project="twice"))
        assert len(found) == events
    warm.hook("stop", payload, ATHENA_PROJECT="twice")  # each run of the client is its own event
    assert len(json.loads(warm.athena("call", "recall_events", project="twice"))) == 3


def test_client_disconnect_is_no_error(warm: Home) -> None:
    path = socket_path(str(warm.path), "hook.sock")
    for number in range(30):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall((b"", b"4\n", b"4\nstop{")[number % 3])
    assert start_session(warm, "after those who left").code == 0
    assert "hook failed" not in (warm.path / "logs" / daemon.DAEMON_LOG_FILE).read_text()


def test_ten_megabyte_prompt_is_answered(warm: Home) -> None:
    before = len(warm.lines)
    payload = json.dumps({"session_id": "long", "prompt": "How are releases signed? " * 400_000}).encode()
    assert len(payload) > 10_000_000
    assert warm.hook("user-prompt-submit", payload, **PROJECT).code == 0
    assert warm.hook("user-prompt-submit", b"x" * (hooks_client.MAX_EVENT_BYTES + 1), **PROJECT).code == 0
    assert [line["why"].split(";")[0] for line in warm.lines[before:]] == ["the input is too long"]


NASTY = (
    "'; touch {canary}; '", '"; touch {canary}; "', "$(touch {canary})", "`touch {canary}`", "| touch {canary}",
    "\n touch {canary}", "__import__('os').system('touch {canary}')", "{{0.__class__}}", "%s%n%x", "\0", "\r\n\r\n",
    "\u202e\u2066", "\ud800", "../../../etc/passwd", "<script>", "</system>", "${{ATHENA_HOME}}", "~root", "-rf /",
    "\\", "\x1b]0;x\x07", "9" * 400,
)  # fmt: skip
BARE = ("_collections_abc", "_socket", "_stat", "genericpath", "os", "os.path", "posixpath", "stat")
KEYS = (
    "session_id",
    "prompt",
    "cwd",
    "source",
    "tool_name",
    "tool_input",
    "tool_response",
    "transcript_path",
    "reason",
)


def hostile_input(chance: random.Random, canary: Path) -> bytes:
    """Return an input that no client would send."""
    text = "".join(chance.choice(NASTY).format(canary=canary) for _ in range(chance.randint(1, 4)))
    form = chance.randrange(6)
    if form == 0:
        return text.encode("utf-8", "surrogatepass")
    if form == 1:
        return chance.randbytes(chance.randint(0, 2_000))
    if form == 2:
        return b"[" * 100_000
    value = chance.choice([text, [text], {text: text}, None, 1e308, -1, True, {"command": text, "file_path": text}])
    payload = json.dumps({key: chance.choice([value, text]) for key in chance.sample(KEYS, 5)}).encode()
    return payload[: chance.randint(0, len(payload))] if form == 3 else payload


def test_hostile_input_executes_nothing(warm: Home, home: Home, tmp_path: Path) -> None:
    chance = random.Random(9)
    canary = tmp_path / "canary"
    pid = warm.pid
    shut = threading.Lock()

    def one(number: int) -> None:
        with shut:
            given, event = hostile_input(chance, canary), chance.choice([*EVENT_HANDLERS])
        result = (home if number % 50 == 49 else warm).hook(event, given, **PROJECT)
        assert result.code == 0
        assert len(result.out) < 40_000
        assert not result.out or isinstance(json.loads(result.out), dict)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, range(rounds(100, 1_000))))
    assert not canary.exists()
    assert warm.pid == pid
    assert_no_errors(warm)
    assert_no_errors(home)
    assert FACT in start_session(warm, "after all that").context


def test_installed_files_are_private_and_stable(home: Home) -> None:
    script, client = home.path / "bin" / "athena-hook", home.path / "bin" / "hookclient.py"
    assert stat.S_IMODE(script.stat().st_mode) == 0o700
    before = script.stat().st_mtime_ns
    home.install()
    assert script.stat().st_mtime_ns == before
    home.install(timeout_ms=900)
    assert " 900 " in script.read_text()
    assert client.read_bytes() == Path(hooks_client.__file__).read_bytes()
    assert sorted(path.name for path in script.parent.iterdir()) == ["athena-hook", "athena-mcp", "hookclient.py"]


def test_path_with_quotes_works(tmp_path: Path) -> None:
    made = Home(tmp_path / """it's $(touch x) "here" `y`""")
    made.install()
    try:
        assert made.hook("stop").code == 0
        assert made.links == ["process"]
    finally:
        made.stop()


def test_event_lists_agree() -> None:
    assert tuple(EVENT_HANDLERS) == hooks_client.EVENTS


def test_client_imports_only_stdlib(home: Home) -> None:
    program = (
        "import sys; before = set(sys.modules); "
        f"exec(open({hooks_client.__file__!r}).read(), {{'__name__': 'x'}}); print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(sorted(BARE)), done


def test_log_size_is_bounded(tmp_path: Path) -> None:
    for number in range(4_000):
        hooks_client.log_hook(str(tmp_path), "stop", "nothing", 0.0, f"{number} " + 'why "\\\n' * 20)
    sizes = [path.stat().st_size for path in (tmp_path / "logs").iterdir()]
    assert len(sizes) == 2
    assert max(sizes) < hooks_client.MAX_LOG_BYTES + 1_000
    lines = (tmp_path / "logs" / "hooks.log").read_text().splitlines()
    assert lines
    for line in lines:
        assert json.loads(line)["link"] == "nothing"


def test_concurrent_log_writers_lose_nothing(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(Path(hooks_client.__file__).parent)!r})
import client as hookclient
hookclient.MAX_LOG_BYTES = 6_000  # it begins anew once
sys.stdin.read()
for attempt in range(30):
    for number in range(10):
        hookclient.log_hook(f"{tmp_path}/{{attempt}}", "stop", "nothing", 0.0, "so it is")
"""
    command = [sys.executable, "-I", "-S", "-c", program]
    many = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(8)]
    for one in many:
        assert one.stdin is not None
        one.stdin.close()
    assert [one.wait(20) for one in many] == [0] * 8
    for attempt in range(30):
        logs = (tmp_path / str(attempt) / "logs").iterdir()
        assert sum(len(path.read_text().splitlines()) for path in logs) == 80


def test_answers_and_latency_are_counted(home: Home) -> None:
    start_session(home, "s1")
    home.wait_until(served=True)
    start_session(home, "s2")
    home.hook("stop", b"{}")
    wanted = [("session-start", "daemon", 1), ("session-start", "process", 1), ("stop", "daemon", 1)]

    def counted() -> Any:
        data = json.loads(home.athena("savings", "--json"))["hooks"]
        return data if [(one["event"], one["link"], one["calls"]) for one in data] == wanted else None

    found = wait_until(counted)
    assert all(0 < one["median_ms"] <= one["slowest_ms"] for one in found)
    output = home.athena("savings")
    assert "session-start      daemon " in output
    head, row = (next(line.split() for line in output.splitlines() if word in line) for word in ("by op", "briefing"))
    assert head == ["by", "operation", "calls", "read", "as", "tool", "results"]
    whole = next(line.split()[4] for line in output.splitlines() if line.startswith("read by a model"))
    assert row[:2] == ["briefing", "hook"]
    assert row[3] == whole, "a part is not more than the whole, and what a person read at a terminal is none"
    facts = home.server_info
    assert facts is not None
    request = urllib.request.Request(facts["url"] + "/metrics")
    request.add_header("authorization", f"Bearer {(home.path / 'token').read_text().strip()}")
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert 'operation="session-start",surface="hook",outcome="daemon"} 1' in reply.read().decode()
    assert json.loads(home.athena("daemon", "status", "--json"))["fallbacks"] == {"process": 1}


def test_learning_outlasts_answer(warm: Home, tmp_path: Path) -> None:
    """A session that takes longer to learn than a hook may take is learned all the same."""
    talk = [{"role": "user", "content": f"remember that door {i} opens with the brass key"} for i in range(400)]
    transcript = tmp_path / "talk.jsonl"
    transcript.write_text("".join(json.dumps({"type": "user", "message": turn}) + "\n" for turn in talk))
    payload = json.dumps(
        {"session_id": "long", "cwd": str(tmp_path), "transcript_path": str(transcript), "reason": "other"}
    ).encode()
    done = warm.hook("session-end", payload, ATHENA_HOOKS_TIMEOUT_MS="100", **PROJECT)
    assert done.code == 0
    for i in range(600):
        if b"brass key" in start_session(warm, f"after{i}").out:
            return
        time.sleep(0.1)
    pytest.fail("nothing of the session was learned")
