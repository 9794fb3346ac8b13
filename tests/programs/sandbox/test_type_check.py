"""The type check finds errors before a run, and accepts realistic programs."""

from collections.abc import Generator

import pytest
from agent_programs import PROGRAMS
from small_world import FUNCTIONS, KEY

from athena.programs.sandbox import Limits, Namespace, Sandbox
from conftest import rounds

NAMES = Namespace(FUNCTIONS)
WRONG = [
    ("names = 'alice'\ngraph.open_nodes(names=names)", 2, "list[Any]"),
    ("def f(q: int) -> list:\n    return memory.recall(query=q)", 2, "Expected 'str', found 'int'"),
    ("def f(q: str) -> list:\n    return memory.recall(q, kk=2)", 2, "kk"),
    ("def f() -> list:\n    return memory.recall()", 2, "query"),
    ("def f() -> list:\n    return memory.recal(query='a')", 2, "no attribute 'recal'"),
    ("def f() -> list[str]:\n    return 'one'", 2, "expected 'list[str]', found 'Literal[\"one\"]'"),
    ("def f(n: int) -> int:\n    return n + m", 2, "Name 'm' used when not defined"),
    ("def f(n: int) -> int:\n    return n\nf('2')", 3, "Expected 'int'"),
    ("parallel([lambda: graph.open_nodes(names=3)])", 1, "list[Any]"),
]


@pytest.fixture(scope="module")
def sandbox() -> Generator[Sandbox]:
    made = Sandbox(Limits(), key=KEY)
    yield made
    made.close()


@pytest.mark.parametrize(("code", "line", "said"), WRONG, ids=[code for code, _, _ in WRONG])
def test_type_error_has_its_line(sandbox: Sandbox, code: str, line: int, said: str) -> None:
    found = sandbox.check_types(code, NAMES)
    assert [one["line"] for one in found] == [line]
    assert said in found[0]["message"]


def test_realistic_programs_pass_type_check(sandbox: Sandbox) -> None:
    chosen = PROGRAMS[:: rounds(4, 1)]
    wrong = {one.name: sandbox.check_types(one.code, NAMES) for one in chosen}
    assert {name: found for name, found in wrong.items() if found} == {}
