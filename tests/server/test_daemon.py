"""One daemon per home, whoever starts it and however it ends."""

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from athena.app import settings
from athena.core.home import daemon, lock, sockets
from athena.core.home.paths import HOOK_SOCKET, socket_path
from athena.errors import Conflict, Unavailable
from athena.server.daemon_main import IdleCheck
from daemon_tools import Home, assert_gone
from http_tools import run_server
from wait_tools import LONG, wait_until

ROOT = Path(__file__).parents[2] / "src"


@pytest.fixture
def home(tmp_path: Path) -> Generator[Home]:
    made = Home(tmp_path / "home")
    yield made
    made.stop()


def test_daemon_starts_once_and_stops(home: Home) -> None:
    first = json.loads(home.athena("daemon", "start", "--json"))
    assert first["daemon"] is True
    assert daemon.start_daemon(str(home.path)) == home.server_info == first
    status = json.loads(home.athena("daemon", "status", "--json"))
    assert (status["running"], status["answers"], status["pid"]) == (True, True, first["pid"])
    for name in ("athena.sock", "mcp.sock", "hook.sock", "server.json", "token"):
        assert stat.S_IMODE((home.path / name).stat().st_mode) == 0o600
    assert json.loads(home.athena("daemon", "stop", "--json")) == {"stopped": first["pid"]}
    assert not list(home.path.glob("*.sock"))
    assert json.loads(home.athena("daemon", "stop", "--json")) == {"stopped": None}
    assert json.loads(home.athena("daemon", "status", "--json"))["running"] is False


def test_session_environment_is_not_shared(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HOOKS_PYTHON_PATH", "/nowhere/python"), ("HOOKS_TIMEOUT_MS", "150"), ("LLM_URL", "http://x")):
        monkeypatch.setenv(f"ATHENA_{name}", value)
    pid = home.start()
    home.wait_until(served=True)
    launcher = (home.path / "bin" / "athena-hook").read_text()
    assert "/nowhere" not in launcher
    assert " 150 " not in launcher
    if sys.platform == "linux":
        assert b"ATHENA_LLM_URL" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "variables",
    [
        {"ATHENA_DOCUMENTS_ROOTS": "/"},
        {"ATHENA_SANDBOX_BARE": "on"},
        {"ATHENA_EMBEDDING_URL": "http://127.0.0.1:9/v1", "ATHENA_EMBEDDING_MODEL": "x"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_daemon_opens_nothing_for_other_clients(
    home: Home, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    """What one client sets lets no other send questions to its address, read files anywhere or leave out the jail."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    home.start()
    for store, is_served in (({}, False), (variables, True)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(LONG)
            client.connect(socket_path(str(home.path), "mcp.sock"))
            client.sendall(json.dumps({"store": store}).encode() + b"\n")
            answer = json.loads(client.makefile().readline())
        assert ("workspace" in answer, answer.get("code")) == (is_served, None if is_served else "conflict")
    home.hook("stop", b"{}", **variables)
    assert home.lines == []
    home.hook("stop")
    assert "of the client that started it" in home.lines[0]["why"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at /proc")
def test_daemon_inherits_no_files(home: Home, tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    opened = os.open(tmp_path / "secret", os.O_RDONLY)
    high = os.dup2(opened, 300)  # above what a fixed range would close
    os.set_inheritable(opened, True)
    try:
        pid = home.start()
        files = [os.path.realpath(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        assert files
        assert str(tmp_path / "secret") not in files
    finally:
        os.close(opened)
        os.close(high)


def test_concurrent_starts_leave_one_daemon(home: Home) -> None:
    children = [daemon.spawn_daemon(str(home.path)) for _ in range(20)]
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(ended) == [0] + [daemon.ALREADY_SERVED_EXIT_CODE] * 19
    stopped = daemon.stop_daemon(str(home.path))
    assert stopped is not None
    assert_gone(stopped["pid"])
    assert home.start_count() <= 1


def test_killed_daemon_is_replaced(home: Home) -> None:
    killed = home.start()
    os.kill(killed, signal.SIGKILL)
    assert_gone(killed)
    assert (home.path / "athena.sock").exists()
    assert home.server_info is None
    assert daemon.stop_daemon(str(home.path)) is None
    assert home.start() != killed


def test_stop_creates_no_home(tmp_path: Path) -> None:
    assert daemon.stop_daemon(str(tmp_path / "none")) is None
    assert not (tmp_path / "none").exists()


def test_server_replaces_daemon(home: Home) -> None:
    old = home.start()
    command = [sys.executable, "-m", "athena", "serve", "--port", "0"]
    with subprocess.Popen(command, env=home.environ(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        assert b"http://" in server.stdout.readline()
        assert_gone(old)
        facts = home.server_info
        assert facts is not None
        assert (facts["pid"], facts["daemon"]) == (server.pid, False)
        assert daemon.start_daemon(str(home.path)) == facts
        with pytest.raises(Conflict, match="somebody started"):
            daemon.stop_daemon(str(home.path))
        server.kill()


def test_newer_client_gets_own_daemon(home: Home) -> None:
    old = home.start()
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import athena.core.version as v; v.__version__ = '99.1'; "
        f"from athena.core.home import daemon; print(daemon.start_daemon({str(home.path)!r})['pid'])"
    )
    done = subprocess.run([sys.executable, "-c", program], env=home.environ(), capture_output=True, timeout=60)
    assert int(done.stdout) not in (0, old), done
    assert_gone(old)


@pytest.mark.parametrize("version", ["0.0.9", "0.1", "0.1.0rc1"])
def test_only_older_version_is_older(version: str) -> None:
    assert daemon.is_older({"daemon": True, "version": version}) == (version != "0.1.0rc1")
    assert not daemon.is_older({"daemon": False, "version": version})
    assert not daemon.is_older({"daemon": True, "version": "99.0"})


def test_idle_daemon_exits(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATHENA_DAEMON_IDLE_MINUTES", "0.02")
    assert_gone(home.start())


def test_daemon_without_home_exits(home: Home, tmp_path: Path) -> None:
    first = home.start()
    (home.path / "hook.sock").unlink()
    other = Home(tmp_path / "other")
    second = other.start()
    os.kill(second, signal.SIGSTOP)
    shutil.rmtree(other.path)
    try:
        third = other.start()
        os.kill(second, signal.SIGCONT)
        assert_gone(first)
        assert_gone(second)
        assert len(list(other.path.glob("*.sock"))) == 4
        assert other.pid == third
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(second, signal.SIGKILL)
        other.stop()


def test_hook_settings_are_followed_live(home: Home) -> None:
    first = home.start()
    home.settings("[hooks]\ntimeout_ms = 1234\n")
    script = home.path / "bin" / "athena-hook"
    wait_until(lambda: " 1234 " in script.read_text())
    assert home.pid == first
    home.settings("[ranking]\nrole = 0.5\n")
    assert_gone(first)


def test_hanging_daemon_can_be_stopped(home: Home) -> None:
    pid = home.start()
    os.kill(pid, signal.SIGSTOP)
    assert json.loads(home.athena("daemon", "status", "--json"))["answers"] is False
    waited: list[int] = []
    lock.acquire_server_lock(str(home.path), 2 * lock.NOTIFY_AFTER_S, waited.append).release()
    assert waited == [pid]  # it waited for this process only
    assert_gone(pid)


def test_failed_start_is_explained(home: Home) -> None:
    home.settings("consolidate = 'now and then'")
    with pytest.raises(Unavailable, match="did not start") as caught:
        home.start()
    assert "consolidate must be one of" in (home.path / "logs" / "daemon.log").read_text()
    assert str(home.path) in str(caught.value.hint)
    assert not daemon.may_start(str(home.path))  # so that hooks do not retry each time
    home.settings("")
    home.start()
    assert daemon.may_start(str(home.path))


def test_long_home_path_moves_sockets(tmp_path: Path) -> None:
    home = Home(tmp_path / ("long" * 20))
    home.path.mkdir(exist_ok=True)
    path = socket_path(str(home.path), HOOK_SOCKET)
    assert len(path) <= 100
    assert not path.startswith(str(home.path))
    try:
        home.start()
        assert home.hook("session-start").code == 0
        assert home.links == []
        daemon.stop_daemon(str(home.path))
        assert not Path(path).exists()
    finally:
        home.stop()


def test_long_log_is_rotated(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from athena.core.home.logs import StderrLog
sys.stderr = StderrLog({str(tmp_path)!r}, "some.log", 1_000)
for number in range(100):
    print(f"line {{number}} ".ljust(49, "."), file=sys.stderr)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    now, before = ((tmp_path / "logs" / name).read_text() for name in ("some.log", "some.log.1"))
    assert max(len(now), len(before)) < 1_200
    assert now.endswith("line 99 ".ljust(49, ".") + "\n")
    assert int(now.split()[1]) == int(before.splitlines()[-1].split()[1]) + 1


def test_removed_log_is_harmless(tmp_path: Path) -> None:
    program = f"""
import shutil, sys
sys.path.insert(0, {str(ROOT)!r})
from athena.core.home.logs import StderrLog
sys.stderr = StderrLog({str(tmp_path)!r}, "some.log", 100)
print("." * 200, file=sys.stderr)
shutil.rmtree({str(tmp_path / "logs")!r})
print("." * 200, file=sys.stderr)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_socket_peer_is_identified() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert sockets.get_peer_uid(ours) == os.getuid()
        assert sockets.get_peer_pid(ours) in (0, os.getpid())


def test_unwritable_launchers_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATHENA_HOME", str(tmp_path))
    (tmp_path / "bin").write_text("in the way")
    (tmp_path / "config.toml").write_text("[hooks]\ntimeout_ms = 900\n")
    watch = IdleCheck(None, settings.load_settings())  # type: ignore[arg-type]  # nobody is served
    watch._reload_settings()
    assert "the launchers are not written" in capsys.readouterr().err


@pytest.mark.parametrize(("is_daemon", "way"), [(False, "Ctrl-C in its terminal"), (True, "athena daemon stop")])
def test_second_server_says_how_to_open_and_stop_the_first(tmp_path: Path, is_daemon: bool, way: str) -> None:
    first = lock.ServerLock(str(tmp_path))
    first.write_info(url="http://localhost:3000", daemon=is_daemon)
    with pytest.raises(Conflict, match=r"Athena already runs: process \d+ at http://localhost:3000") as caught:
        lock.ServerLock(str(tmp_path))
    assert caught.value.hint == f"open it: athena ui; stop it: {way}"
    first.release()


def test_status_names_no_log_that_does_not_exist(tmp_path: Path) -> None:
    with run_server(tmp_path) as server:
        environ = os.environ | {"ATHENA_HOME": str(server.home)}
        command = [sys.executable, "-m", "athena", "daemon", "status"]
        said = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.startswith("athena serve ")
    assert "daemon.log" not in said
