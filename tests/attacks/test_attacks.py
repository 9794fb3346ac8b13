"""Hostile programs and values over HTTP, in each kind of jail: nothing leaks, nothing is left, the server answers."""

import os
import random
import socket
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from attack_server import CELLS, AttackServer, CannotHave, Cell, list_descendants, run_cell
from attack_set import WRAPPERS, Attack, list_programs, list_values

from conftest import FULL
from wait_tools import wait_until

pytestmark = pytest.mark.sqlite_only("each server has a file of its own")
SEED = 16
QUICK_PERCENT = {"programs": 3, "values": 2}
THREADS = 4  # programs at once, each in a project of its own
JAIL_GROUPS = {"files", "network", "processes"}  # what the layers of a jail decide
Case = tuple[Attack, str]  # an attack and its engine


def choose_cases(attacks: Iterable[Attack], cell: Cell, percent: int) -> list[Case]:
    """Return the cases of a cell: all in the first one, what depends on the jail in the others, and a share."""
    cases = [(attack, engine) for attack in attacks for engine in attack.engines]
    place = CELLS.index(cell)
    if not FULL:
        chosen = random.Random(SEED).sample(cases, len(cases) * percent // 100)
        return chosen[place :: len(QUICK_CELLS)]
    if place == 0:
        return cases
    shares = len(CELLS) - 1  # together the other cells take every case once more
    share = {id(case) for case in cases[place - 1 :: shares]}
    return [case for case in cases if id(case) in share or (case[0].group in JAIL_GROUPS and case[0].verdict != "L")]


QUICK_CELLS = CELLS[:2]


@pytest.fixture(scope="module", params=CELLS if FULL else QUICK_CELLS, ids=lambda cell: cell.name)
def attacked(request: pytest.FixtureRequest) -> Generator[AttackServer]:
    """Start a server in a cell; afterwards none of its processes may live."""
    try:
        with run_cell(request.param) as started:
            yield started
    except CannotHave as error:
        pytest.skip(str(error))
    wait_until(lambda: not any(process.is_alive for process in started.seen_processes))


def attack_all(attacked: AttackServer, cases: Sequence[Case], threads: int) -> list[str]:
    """Run attacks and return what was not contained, and each time that the server did not answer."""
    slow_before = len(attacked.slow_health)
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda case: attacked.judge(*case, alone=threads == 1), cases))
    problems = [problem for some in found for problem in some]
    return problems + attacked.slow_health[slow_before:] + attacked.find_leftovers()


def test_programs_are_contained(attacked: AttackServer) -> None:
    cases = choose_cases(list_programs(), attacked.cell, QUICK_PERCENT["programs"])
    assert attack_all(attacked, cases, THREADS) == []


def test_values_are_contained(attacked: AttackServer) -> None:
    cases = choose_cases(list_values(), attacked.cell, QUICK_PERCENT["values"])
    assert attack_all(attacked, cases, 1) == []


def test_set_is_large_and_varied() -> None:
    programs, values = list_programs(), list_values()
    plain = [attack for attack in programs if not attack.name.endswith(tuple(WRAPPERS))]
    assert len(programs) >= 600
    assert len(plain) >= 500
    assert len(values) >= 500
    assert len({attack.code for attack in plain}) == len(plain)
    assert len({attack.name for attack in programs + values}) == len(programs) + len(values)
    assert {attack.group for attack in programs} == {path.stem for path in Path(__file__).parent.glob("programs/*.txt")}


def test_verdict_sees_what_is_not_contained(attacked: AttackServer) -> None:
    """Attacks that succeed, because the test helps them."""
    traps, engine = attacked.traps, "monty"

    def judge(verdict: str, code: str) -> str:
        return " ".join(attacked.judge(Attack("control", "both", verdict, code), engine))

    secret = traps.canary("file")
    assert "holds the canary file" in judge("H", f"x = {secret!r}\nx")
    assert "holds the canary file" in judge("H", f"print({secret!r}[::-1])")
    assert "holds the canary token" in judge("H", f"raise ValueError('a' + {attacked.server.token!r}.encode().hex())")
    assert "did not fail" in judge("F", "1")
    assert "got something" in judge("N", "[1]")
    assert "did not work" in " ".join(attacked.judge(Attack("control", "both", "H", "1", after="1 / 0"), engine))
    with socket.create_connection(("127.0.0.1", traps.tcp)) as connection:
        connection.send(b"x")
    wait_until(lambda: traps.received)
    assert "listener" in judge("H", "1")
    traps.received.clear()
    escaped = Path("/tmp", f"{traps.out_prefix}-control")
    escaped.write_text("x")
    assert "was created" in judge("H", "1")
    escaped.unlink()
    assert judge("H", "1") == ""
    # else the attacks on ingestion would fail for want of a folder
    ingests = "documents.ingest_document(path='readme.md')\n'deploy' in str(memory.recall(query='deploy', k=5))"
    assert "got something" in judge("N", ingests)


def test_server_has_children_only_for_programs(attacked: AttackServer) -> None:
    attacked.judge(Attack("control", "both", "H", "1"), "monty")
    names = []
    for process in list_descendants(attacked.pid):
        with suppress(OSError):  # it has just ended
            names.append(os.path.basename(os.readlink(f"/proc/{process.pid}/exe")))
    assert names
    assert [name for name in names if not name.startswith(("python", "monty", "bwrap", "dash", "sh"))] == []
