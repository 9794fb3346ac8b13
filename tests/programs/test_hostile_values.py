"""Values that a program chose to be slow: the server answers others meanwhile, and the timeout of the run holds."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from http_tools import RunningServer, run_server

pytestmark = [
    pytest.mark.sqlite_only("the server has a file of its own"),
    pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="reads the server's CPU time there"),
]

TIMEOUT_S = 0.5
MAX_ANSWER_CPU_S = 1.0  # of the server, between a request for its health and the answer
KEYS = "{i * (2**61 - 1): i for i in range(60_000)}"  # Python's hash of all of them is 0
TUPLE_KEYS = "{(i * (2**61 - 1), 1): i for i in range(60_000)}"
FORGED_FRAME = """
import json, os, struct
def send(frame):
    data = json.dumps(frame).encode()
    data = memoryview(struct.pack(">I", len(data)) + data)
    while data:
        data = data[os.write(1, data):]
pairs = [[i * (2**61 - 1), 1] for i in range(60_000)]
same = {"$kind": "dict", "value": pairs}
"""
FORGED_END = """
send({"op": "done", "value": 1, "variables": {"x": %s}, "lost": [], "gone": [], "dropped": 0})
os._exit(0)
"""
# engine, program; the run after it reads `x` on that engine
ATTACKS = {
    "a dict as the result": ("monty", KEYS),
    "a dict inside a list": ("monty", f"[1, {{'a': {KEYS}}}]"),
    "a set as the result": ("monty", "{i * (2**61 - 1) for i in range(60_000)}"),
    "negative keys": ("monty", "{-i * (2**61 - 1): i for i in range(60_000)}"),
    "tuples as keys": ("monty", TUPLE_KEYS),
    "an argument": ("monty", f"memory.remember(content='a', metadata={KEYS})"),
    "an argument in a partial": (
        "monty",
        f"import functools\nfunctools.partial(memory.remember, content='a', metadata={KEYS})()",
    ),
    "an argument of an unknown operation": ("monty", f"memory.rememberr({KEYS})"),
    "elements of parallel": ("monty", f"parallel({KEYS})"),
    "a variable": ("monty", f"x = {KEYS}\n1"),
    "a variable in a tuple": ("monty", f"x = (1, [{TUPLE_KEYS}])\n1"),
    "a dict on CPython": ("python", KEYS),
    "a variable on CPython": ("python", f"x = {TUPLE_KEYS}\n1"),
    "a forged variable, read by Monty": ("monty", FORGED_FRAME + FORGED_END % "same"),
    "a forged set, read by CPython": (
        "python",
        FORGED_FRAME + FORGED_END % "{'$kind': 'set', 'value': [pair[0] for pair in pairs]}",
    ),
    "a forged call": (
        "python",
        FORGED_FRAME + 'send({"op": "call", "id": 1, "path": "memory.remember", "args": [], "kwargs": {"content": "a", '
        '"metadata": same}, "at_once": False})\nimport time\ntime.sleep(5)',
    ),
    "a forged frame of many numbers": (
        "python",
        FORGED_FRAME + 'send({"op": "done", "value": [1.5] * 3_000_000})\nos._exit(0)',
    ),
    "a dotted import": ("auto", "import a" + ".a" * 32_000),
    "a name of many marks": ("auto", "a" + "\u0301\u0323" * 15_000),
}


def read_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_attack(server: RunningServer, name: str) -> dict[str, Any]:
    """Run a hostile program, and then another one in its workspace."""
    engine, code = ATTACKS[name]
    first_engine = "python" if "forged" in name else engine
    workspace = f"attack {list(ATTACKS).index(name)}"
    run = server.call("execute_code", code=code, engine=first_engine, timeout_s=TIMEOUT_S, workspace=workspace)
    if "variable" in name or "forged" in name:
        later = server.call("execute_code", code="1 + 1", engine=engine, workspace=workspace)
        assert later["result"] == 2, "the workspace can still be used"
    assert isinstance(run, dict)
    return run


def test_hostile_values_stop_nobody_else(tmp_path: Path) -> None:
    with run_server(tmp_path) as server:
        server.call("execute_code", code="1")
        is_over = threading.Event()
        answers_cpu_s: list[float] = []

        def watch_health() -> None:
            while not is_over.is_set():
                before = read_cpu_s(server.process.pid)
                assert server.get("/health").status == 200
                answers_cpu_s.append(read_cpu_s(server.process.pid) - before)
                time.sleep(0.02)

        with ThreadPoolExecutor(4) as threads:
            watch = threads.submit(watch_health)
            runs = list(threads.map(lambda name: run_attack(server, name), ATTACKS))
            is_over.set()
            watch.result()
        assert len(answers_cpu_s) > 20
        assert max(answers_cpu_s) < MAX_ANSWER_CPU_S
        assert {run["status"] for run in runs} <= {"done", "failed", "unknown"}
        assert runs[0]["error"]["type"] == "TimeoutError", "timeout_s holds"
