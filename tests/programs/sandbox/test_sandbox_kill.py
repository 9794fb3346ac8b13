"""Killed processes: a run ends with one correct answer, no call happens twice, and nothing is left behind."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from small_world import KEY, NAMES, World, run

from athena.programs.sandbox import Limits, Program, Sandbox
from conftest import rounds
from wait_tools import LONG, wait_until

WORK = "for i in range(40):\n    memory.remember(content=f'{i:03d}')\n    slow.wait(seconds=0.002)\nprint('end')\n'all'"
HOST = """
import sys
sys.path.insert(0, sys.argv[1])
from small_world import KEY, NAMES, World
from athena.programs.sandbox import Limits, Program, Sandbox

class Loud(World):
    def memory_remember(self, content, tags=None):
        sys.stdout.write(content + "\\n")
        sys.stdout.flush()
        return {}

sandbox = Sandbox(Limits(), key=KEY)
sandbox.run(Program("1 + 1", NAMES), World())
sandbox.run(Program("1 + 1", NAMES, engine="python"), World())
print("ready", flush=True)
for number in range(100):
    engine = ("monty", "python")[number % 2]
    code = f"for i in range(20):\\n    memory.remember(content=f'{number}-{{i}}')\\n    slow.wait(seconds=0.003)"
    sandbox.run(Program(code, NAMES, engine=engine), Loud())
"""


def child_processes(parent: int) -> set[int]:
    """Return the child processes of this one, recursively, except the tests' PostgreSQL."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().rpartition(")")
                fields = rest.split()
            except OSError:
                continue
            if int(fields[1]) == parent and fields[0] != "Z" and "(postgres" not in name:
                found |= {int(entry.name)} | child_processes(int(entry.name))
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def assert_gone(pids: set[int]) -> None:
    wait_until(lambda: not any(_is_alive(pid) for pid in pids))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine_name", ["monty", "python"])
def test_killed_worker_ends_run_with_error(engine_name: str) -> None:
    sandbox = Sandbox(Limits(), key=KEY)
    random_one = random.Random(7)
    seen = set()
    for number in range(rounds(10, 200)):
        world = World()
        running = sandbox.start(Program(WORK, NAMES, engine=engine_name), world)  # type: ignore[arg-type]
        time.sleep(random_one.uniform(0.0, 0.25 if number % 2 else 0.05))
        victims = sorted(child_processes(os.getpid()))
        some = random_one.randint(1, max(3, len(victims))) if number % 2 else len(victims)
        for victim in random_one.sample(victims, min(len(victims), some)):
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        done = running.result()
        seen.add(done.status)
        kept = [arguments["content"] for path, arguments in world.log if path == "memory.remember"]
        assert kept == [f"{i:03d}" for i in range(len(kept))], "in order, none twice"
        assert done.status in ("done", "failed", "unknown")
        assert done.calls == len(world.log)
        if done.status == "done":
            assert (done.result, len(kept)) == ("all", 40)
        else:
            assert done.error is not None
            assert done.error["type"] == "WorkerDied", done.error
        assert run(sandbox, "1 + 1", engine=engine_name).result == 2
    assert "failed" in seen
    sandbox.close()
    assert_gone(child_processes(os.getpid()))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(rounds(3, 30)))
def test_worker_dies_with_killed_host(number: int) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert host.stdout is not None
    assert host.stdout.readline() == "ready\n"
    time.sleep(random.Random(number).uniform(0.0, 0.5))
    workers = child_processes(host.pid)
    host.kill()
    made = host.stdout.read().split()
    host.wait()
    host.stdout.close()
    assert workers
    assert_gone(workers)
    assert len(made) == len(set(made)), "something was done twice"


def test_no_descriptor_is_leaked(tmp_path: Path) -> None:
    run(warm := Sandbox(Limits(), key=KEY), "1 + 1")  # modules that load once stay open
    warm.close()
    before, threads = descriptors(), threading.active_count()
    for _ in range(3):
        sandbox = Sandbox(Limits(), key=KEY)
        for code in ("1 + 1", "import statistics\n1", "import os\nos._exit(3)", "'a' * 10 ** 11", "1 / 0"):
            run(sandbox, code)
        run(sandbox, "while True: pass", timeout_s=0.1)
        run(sandbox, "while True: pass", timeout_s=0.1, engine="python")
        sandbox.close()
    wait_until(lambda: descriptors() <= before + 1)  # on a busy machine the last of them end a little later
    assert_gone(child_processes(os.getpid()))
    assert threading.active_count() <= threads + 3 * 8, "only threads that wait for work"


def test_process_exits_quietly_after_run() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from small_world import *\n"
        "sandbox = Sandbox(Limits(wall_s=600, cpu_s=600, turn_s=600), key=KEY)\n"
        "print(run(sandbox, '1 + 1').result, run(sandbox, 'import statistics; 3').result)\n"
        "sandbox.start(Program('while True: pass', NAMES), World())\n"
        "sandbox.start(Program('slow.wait(seconds=600)', NAMES), World())\n"
        "import time; time.sleep(0.1)"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    # Not after the ten minutes that each of the two may take.
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 3\n", "")


def test_forked_child_uses_both_engines() -> None:
    sandbox = Sandbox(Limits(), key=KEY)
    assert run(sandbox, "1 + 1").result == 2
    child = os.fork()
    if not child:
        try:
            done = [run(sandbox, "40 + 2", engine=engine) for engine in ("monty", "python")]
            os._exit(0 if [one.result for one in done] == [42, 42] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(sandbox, "2 + 2").result == 4
    sandbox.close()
