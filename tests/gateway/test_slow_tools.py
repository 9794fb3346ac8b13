"""Programs that wait for slow tools: waiting is allowed, computing is not, and nobody else is held up."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_tools import GatewayApp, open_gateway_app, server_entry

from athena import client
from athena.cli import mcp_proxy
from athena.core.threads import start_in_thread
from athena.errors import InvalidInput
from athena.gateway import config
from athena.programs import run_record
from athena.programs.runner import ProgramRunner
from athena.programs.sandbox import Limits
from athena.server import guard
from wait_tools import succeeds_once, wait_until

MAX_PROGRAM_S = 600.0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GatewayApp]:
    with open_gateway_app(tmp_path / "home") as made:
        yield made


def set_limits(home: GatewayApp, **limits: Any) -> None:
    home.app._programs = ProgramRunner(lambda: b"k" * 32, home.app.approver, limits=Limits(**limits))


def test_program_may_take_as_long_as_tool(home: GatewayApp) -> None:
    assert home.run("1 + 1", timeout_s=MAX_PROGRAM_S).result == 2
    with pytest.raises(InvalidInput, match=r"timeout_s is 601\.0; it must be at most 600"):
        home.run("1 + 1", timeout_s=601)


def test_every_layer_waits_for_slowest_program() -> None:
    assert Limits().wall_s == config.MAX_TIMEOUT_S == client.MAX_PROGRAM_S == MAX_PROGRAM_S
    for layer_s in (guard.REQUEST_TIMEOUT_S, mcp_proxy.DRAIN_TIMEOUT_S, run_record.LOST_AFTER_S):
        assert layer_s >= MAX_PROGRAM_S + config.STARTUP_TIMEOUT_S


@pytest.mark.parametrize("engine", ["monty", "python"])
def test_waiting_is_no_computing(home: GatewayApp, tmp_path: Path, engine: str) -> None:
    set_limits(home, cpu_s=1.0, turn_s=1.0)
    home.add("slow", server_entry("counts", env={"COUNTED": str(tmp_path / "counted"), "SLOWLY": "1.5"}))
    done = home.run("said = slow.bad()\nsaid", timeout_s=MAX_PROGRAM_S, engine=engine)
    assert (done.error, done.result) == (None, "did counts")
    assert done.elapsed_ms > 1_400
    busy = home.run("while True: pass", timeout_s=MAX_PROGRAM_S, engine=engine)
    assert busy.error.type == "TimeoutError"
    assert "1 s of computing" in busy.error.message


@pytest.mark.parametrize("engine", ["monty", "python"])
def test_own_time_stays_short(home: GatewayApp, tmp_path: Path, engine: str) -> None:
    set_limits(home, own_s=1.0)
    home.add("slow", server_entry("counts", env={"COUNTED": str(tmp_path / "counted"), "SLOWLY": "1.5"}))
    sleeps = home.run("import time\ntime.sleep(300)", timeout_s=MAX_PROGRAM_S, engine=engine)
    assert sleeps.error.type == "TimeoutError"
    assert "1 s besides waiting for servers (limit own_s)" in sleeps.error.message
    code = "import time\nslow.bad()\ntime.sleep(0.2)\n'done'"
    # on a busy machine a second may pass before the program starts
    assert succeeds_once(lambda: home.run(code, timeout_s=MAX_PROGRAM_S, engine=engine).result == "done")
    late = home.run("import time\nslow.bad()\ntime.sleep(300)", timeout_s=MAX_PROGRAM_S, engine=engine)
    assert "(limit own_s)" in late.error.message


@pytest.mark.parametrize("engine", ["monty", "python"])
def test_waiting_programs_hold_up_no_others(home: GatewayApp, tmp_path: Path, engine: str) -> None:
    set_limits(home, runs=1)
    counted, go = tmp_path / "counted", tmp_path / "go"
    home.add("slow", server_entry("counts", env={"COUNTED": str(counted), "GO": str(go)}))
    waiting = [
        start_in_thread(home.run, "slow.bad()", timeout_s=60, workspace=f"w{number}", engine=engine)
        for number in range(3)
    ]
    try:
        wait_until(lambda: home.gateway._pool.get_status("slow")[0] and counted.exists())
        for number in range(3):  # one after the other, in the only slot
            assert home.run(f"{number} + 1", timeout_s=20, workspace="quick", engine=engine).result == number + 1
        assert not any(run.wait(0) for run in waiting)
    finally:
        go.touch()
    for run in waiting:
        run.wait()
        assert run.result().result == "did counts"


def test_client_waits_as_long_as_program() -> None:
    compute = client.compute_extra_s
    assert compute("recall", {}) == 0
    assert compute("execute_code", {}) == 30
    assert compute("execute_code", {"timeout_s": 400}) == 400
    assert compute("run_skill", {}) == compute("files.read", {}) == MAX_PROGRAM_S
    assert compute("execute_code", {"timeout_s": "soon"}) == MAX_PROGRAM_S
