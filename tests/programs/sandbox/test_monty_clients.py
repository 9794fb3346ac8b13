"""Monty's client processes: few, forked from one that has imported everything, and apart from each other."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from small_world import KEY, NAMES, HeldWorld, run
from test_sandbox_kill import assert_gone, child_processes

from athena.programs.sandbox import Limits, Program, Sandbox
from athena.programs.sandbox.monty import client
from athena.programs.sandbox.monty.client import MontyClient, MontyCrashed
from athena.programs.sandbox.run import ActiveRun
from wait_tools import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at /proc")
SCRIPT = b"monty_client.py"


def _list_processes() -> dict[int, int]:
    """Return the parents of the processes that run the script: the server, and the clients that it forked."""
    parents = {}
    for pid in child_processes(os.getpid()):
        with suppress(OSError):  # it has just ended
            if SCRIPT in Path(f"/proc/{pid}/cmdline").read_bytes():
                parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return parents


def _list_clients() -> list[int]:
    return sorted(pid for pid, parent in _list_processes().items() if parent != os.getpid())


def _list_servers() -> list[int]:
    return sorted(pid for pid, parent in _list_processes().items() if parent == os.getpid())


@contextmanager
def _hold_programs(sandbox: Sandbox, count: int) -> Generator[list[ActiveRun]]:
    """Run programs that wait in a call until the end of the block."""
    world = HeldWorld()
    started = [sandbox.start(Program("slow.wait(seconds=0)", NAMES), world) for _ in range(count)]
    wait_until(lambda: len(world.log) == count)
    yield started
    world.go.set()
    for running in started:
        running.result()


def test_clients_start_only_for_overlapping_programs() -> None:
    others = _list_clients()
    sandbox = Sandbox(Limits(), key=KEY)
    engine = sandbox._open_process_state().monty
    clients, state = [], None
    for number in range(6):  # with variables and without, in turn
        done = run(sandbox, f"x = {number}\nx", state=state if number % 2 else None)
        assert done.result == number
        state = done.state
        wait_until(lambda: engine._ready_workers)
        clients.append([pid for pid in _list_clients() if pid not in others])
    assert len(clients[0]) == 1
    assert clients == [clients[0]] * 6
    with _hold_programs(sandbox, 2):
        pass
    wait_until(lambda: len(engine._ready_workers) == 2)  # each is kept for the next two
    assert len([pid for pid in _list_clients() if pid not in others]) == 2
    sandbox.close()


def test_client_shares_nothing_with_another() -> None:
    os.environ["ATHENA_CANARY"] = "secret"
    sandbox, other = (Sandbox(Limits(), key=KEY) for _ in range(2))
    try:
        with _hold_programs(sandbox, 2), _hold_programs(other, 1):
            clients = _list_clients()
            assert len(clients) >= 3
            servers = _list_servers()
            connections: list[str] = []
            for pid in [*clients, *servers]:
                files = {int(path.name): os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
                assert [files[number] for number in range(3)] == ["/dev/null"] * 3
                connections += {name for name in files.values() if name.startswith(("pipe:", "socket:"))}
                assert Path(f"/proc/{pid}/environ").read_bytes() == b""
                assert os.readlink(f"/proc/{pid}/cwd") == "/"
            assert len(connections) == len(set(connections)), "a client has a pipe of another, or can ask for a fork"
            for pid in servers:
                assert len(os.listdir(f"/proc/{pid}/task")) == 1, "a fork of a process with threads is not safe"
    finally:
        del os.environ["ATHENA_CANARY"]
        sandbox.close()
        other.close()


def test_killed_server_is_replaced() -> None:
    sandbox = Sandbox(Limits(), key=KEY)
    with _hold_programs(sandbox, 1) as started:
        clients = _list_clients()
        for pid in _list_servers():
            os.kill(pid, signal.SIGKILL)
        assert_gone(set(clients))
    error = started[0].result().error
    assert error is not None
    assert error["type"] == "WorkerDied"
    assert run(sandbox, "1 + 1").result == 2
    sandbox.close()


def test_hanging_server_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_shared_server", client._SharedServer())
    first = MontyClient()
    first._server._channel.settimeout(0.1)
    [server] = [parent for pid, parent in _list_processes().items() if pid == first.pid]
    os.kill(server, signal.SIGSTOP)
    second = MontyClient()
    assert_gone({server, first.pid})
    first.terminate()  # of the server that is gone
    assert second.is_alive
    second.terminate()
    client._shared_server.close()


def test_abandoned_client_ends() -> None:
    first = MontyClient()
    pid = first.pid
    assert pid in _list_clients()
    del first
    gc.collect()
    assert_gone({pid})
    other = MontyClient()  # which reaps the first
    assert not Path(f"/proc/{pid}").exists()
    other.terminate()
    assert not Path(f"/proc/{other.pid}").exists()


def test_server_ends_with_host_whose_child_lives() -> None:
    """A child that the host forked has copies of its descriptors, but the clients are not its own."""
    code = (
        "import os, sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from small_world import *\n"
        "sandbox = Sandbox(Limits(), key=KEY)\n"
        "run(sandbox, '1 + 1')\n"
        "if not os.fork(): time.sleep(600)\n"
        "print('forked', flush=True); time.sleep(600)"
    )
    host = subprocess.Popen([sys.executable, "-c", code, str(Path(__file__).parent)], stdout=subprocess.PIPE)
    assert host.stdout is not None
    assert host.stdout.readline() == b"forked\n"
    below = child_processes(host.pid)
    scripts = {pid for pid in below if SCRIPT in Path(f"/proc/{pid}/cmdline").read_bytes()}
    assert len(scripts) == 2
    host.kill()
    host.wait()
    assert_gone(scripts)
    for pid in below - scripts:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    host.stdout.close()


def test_garbage_of_an_ended_client_ends_no_other() -> None:
    other, ended = MontyClient(), MontyClient()
    try:
        ended.kill()
        with pytest.raises(MontyCrashed):
            ended.request("exit")
        del ended
        gc.collect()
        MontyClient().terminate()  # the server hears of the garbage first
        assert other.is_alive
    finally:
        other.terminate()
