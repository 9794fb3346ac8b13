"""Realistic programs of agents return the right answer with `engine="auto"`."""

from collections.abc import Generator

import pytest
from agent_programs import PROGRAMS, Agent
from small_world import KEY, World, run

from athena.programs.sandbox import Limits, Sandbox

NEED_CPYTHON = [one.name for one in PROGRAMS if one.engine == "python"]


@pytest.fixture(scope="module")
def sandbox() -> Generator[Sandbox]:
    made = Sandbox(Limits(), key=KEY)
    yield made
    made.close()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: f"{one.engine}-{one.name}")
def test_realistic_program_returns_right_answer(sandbox: Sandbox, program: Agent) -> None:
    done = run(sandbox, program.code, World())
    assert done.error is None, (done.error, done.reason)
    assert done.result == program.answer
    assert done.engine == program.engine, done.reason


@pytest.mark.parametrize("program", PROGRAMS[::3], ids=lambda one: one.name)
def test_cpython_agrees_with_monty(sandbox: Sandbox, program: Agent) -> None:
    done = run(sandbox, program.code, World(), engine="python")
    assert done.error is None, done.error
    assert done.result == program.answer


def test_program_table_is_long_enough() -> None:
    assert len(PROGRAMS) >= 60
    assert 20 <= len(NEED_CPYTHON) <= len(PROGRAMS) // 2
