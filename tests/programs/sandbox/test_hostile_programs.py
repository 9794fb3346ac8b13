"""Every hostile program is contained within its limits and does not disturb the next one."""

import os
import socket
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest
from hostile import CASES, Hostile
from small_world import KEY, QUICK, World, run

from athena.programs.sandbox import Run, Sandbox
from conftest import rounds

SECRET = "canary-7d1f"
WALL_S = 2.0  # for a hostile program; others may take as long as they need
CHOSEN = CASES[:: rounds(5, 1)]


@pytest.fixture(scope="module")
def sandbox() -> Generator[Sandbox]:
    made = Sandbox(QUICK, key=KEY)
    yield made
    made.close()


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Path, Path]]:
    """Create a file with a secret and a socket that answers, both open to everybody."""
    folder = tmp_path_factory.mktemp("traps")
    for place in (folder, *folder.parents[:2]):
        place.chmod(0o755)
    secret = folder / "secret.txt"
    secret.write_text(SECRET)
    secret.chmod(0o666)
    path = f"/tmp/athena-canary-{os.getpid()}.sock"
    listening, hidden = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    listening.bind(path)
    os.chmod(path, 0o777)
    listening.listen()
    with suppress(OSError):  # else another test listens on the port, which serves as well
        hidden.bind("\0athena-canary")
        hidden.listen()
    yield secret, Path(path)
    listening.close()
    hidden.close()
    os.unlink(path)


def resident_mb() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) >> 10


@pytest.mark.parametrize(("engine_name", "program"), CHOSEN, ids=lambda one: one if isinstance(one, str) else one.name)
def test_hostile_program_is_contained(
    sandbox: Sandbox, traps: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, engine_name: str, program: Hostile
) -> None:
    monkeypatch.setenv("ATHENA_CANARY", SECRET)
    assert run(sandbox, "1 + 1").result == 2
    code = program.code.replace("CANARY'", f"{traps[0]}'").replace("SOCKET'", f"{traps[1]}'")
    code = code.replace("PARENT", str(os.getpid()))
    before, began = resident_mb(), time.monotonic()
    done = run(sandbox, code, World(), engine=engine_name, timeout_s=WALL_S)
    took = time.monotonic() - began
    assert_contained(done, program)
    assert took < 15 * WALL_S
    assert resident_mb() - before < 100, "the host keeps its memory"
    assert run(sandbox, "1 + 1").result == 2


def assert_contained(done: Run, program: Hostile) -> None:
    assert SECRET not in repr(done)
    assert "root:x" not in repr(done)
    assert not list(Path("/tmp").glob("athena-escaped*"))
    assert len(done.output) <= QUICK.output_chars + 200
    assert len(str(done.result)) <= QUICK.result_chars + 200
    if program.kind in "FL":
        assert done.status in ("failed", "unknown"), done
        assert done.error is not None
        assert len(done.error["message"]) <= 4_000
    if program.kind == "N" and done.status == "done":
        assert not done.result, done


def test_program_table_is_long_enough() -> None:
    assert len(CASES) >= 150
    assert {engine for engine, _ in CASES} == {"monty", "python"}
