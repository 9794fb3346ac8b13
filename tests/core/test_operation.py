"""Operations: checks, permissions, schemas, stubs and the catalog."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal, TypedDict

import pytest

from athena.core import stubs, types
from athena.core.catalog import Catalog, invoke
from athena.core.operation import PEOPLE, CallerKind, Effect, Operation, operation
from athena.core.threads import run_sync
from athena.core.types import Param
from athena.errors import Denied, InvalidInput, NotFound
from athena.operations import CATALOG


class OpenCall:
    """A call whose values nobody changes."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments

    async def resolve(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    async def release(self, result: Any) -> Any:
        return result


class FakeContext:
    surface = "test"

    def __init__(self, caller: CallerKind = CallerKind.API) -> None:
        self.caller = caller
        self.calls: list[str] = []
        self.outcomes: list[str] = []

    def begin_call(
        self, operation: Operation[Any, ..., Any], arguments: Mapping[str, Any], guarded: Any
    ) -> "FakeContext":
        self.calls.append(operation.name)
        return self

    def end_call(self, operation: Operation[Any, ..., Any], outcome: str) -> None:
        self.outcomes.append(outcome)

    @asynccontextmanager
    async def guard_values(
        self, operation: Operation[Any, ..., Any], arguments: dict[str, Any]
    ) -> AsyncGenerator["OpenCall"]:
        yield OpenCall(arguments)

    def record_usage(self, operation: str, arguments: Mapping[str, Any], result: Any) -> None:
        self.spent = (operation, dict(arguments), result)


class Point(TypedDict):
    x: int
    label: str


Count = Annotated[int, Param("How many.", least=1, most=10)]


@operation(Effect.READ, callers=PEOPLE, short="add")
async def add_points(
    ctx: FakeContext,
    points: list[Point],
    count: Count = 3,
    mode: Literal["fast", "slow"] = "fast",
    *,
    weight: float | None = None,
) -> dict[str, Any]:
    """Add points together.

    Slowly, where asked.
    >>> numbers.add_points(points=[])
    """
    return {"points": points, "count": count, "mode": mode, "weight": weight}


def call(raw: dict[str, Any], visitor: FakeContext | None = None) -> Any:
    return run_sync(add_points(visitor or FakeContext(), **raw))


def test_call_is_checked_recorded_and_run() -> None:
    visitor = FakeContext()
    result = call({"points": [{"x": 1, "label": "a"}], "count": 4, "weight": 2}, visitor)
    assert result == {"points": [{"x": 1, "label": "a"}], "count": 4, "mode": "fast", "weight": 2.0}
    assert visitor.calls == ["add_points"]
    assert visitor.outcomes == ["done"]


def test_failed_call_is_logged_with_its_code() -> None:
    @operation(Effect.READ, callers=PEOPLE)
    async def look_up(ctx: FakeContext) -> int:
        raise NotFound("it is not there")

    visitor = FakeContext()
    with pytest.raises(NotFound):
        run_sync(look_up(visitor))
    assert visitor.outcomes == ["not_found"]


@pytest.mark.parametrize("caller", [kind for kind in CallerKind if kind not in PEOPLE])
def test_caller_that_is_not_declared_is_denied(caller: CallerKind) -> None:
    visitor = FakeContext(caller)
    with pytest.raises(Denied, match=f"a {caller} may not call") as denied:
        call({"points": []}, visitor)
    assert denied.value.hint == "it is for: api, person"
    assert visitor.calls == []


@pytest.mark.parametrize("caller", list(CallerKind))
def test_operation_without_callers_serves_nobody(caller: CallerKind) -> None:
    @operation(Effect.READ)
    async def undeclared(ctx: FakeContext) -> int:
        return 1

    with pytest.raises(Denied):
        run_sync(undeclared(FakeContext(caller)))


def test_every_operation_declares_its_callers() -> None:
    assert [operation.name for operation in CATALOG if not operation.callers] == []


def test_what_reaches_out_is_closed_to_programs_and_models() -> None:
    """An operation that reaches beyond its project is open to programs only where it confines itself: list it here."""
    confined = {
        "ingest_document": "confined to allowed folders: tests/documents/test_file_access.py",
        "get_document": "reads what is kept; a path of a program leads to no file: tests/documents/test_file_access.py",
        "delete_document": "the same",
        "token_savings": "returns numbers only, and is closed to programs",
        "verify": "returns counts and hashes only",
        "reembed": "returns counts only",
        "consolidate": "sends to the language model that a person configured",
    }
    agents = {CallerKind.PROGRAM, CallerKind.MODEL}
    open_to_agents = {operation.name for operation in CATALOG if operation.reach and operation.callers & agents}
    assert open_to_agents == confined.keys()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "points is missing"),
        ({"points": "no"}, "points must be a list of an object, not str"),
        ({"points": [1]}, r"points\[0\] must be an object, not int"),
        ({"points": [{"x": 1}]}, r"points\[0\] lacks 'label'"),
        ({"points": [{"x": "1", "label": "a"}]}, r"points\[0\].x must be a whole number, not str"),
        ({"points": [{"x": True, "label": "a"}]}, r"points\[0\].x must be a whole number, not bool"),
        ({"points": [{"x": 1, "label": "a", "z": 1}]}, r"points\[0\] has no 'z'"),
        ({"points": [], "count": 0}, "count is 0; it must be at least 1"),
        ({"points": [], "count": 11}, "count is 11; it must be at most 10"),
        ({"points": [], "count": None}, "count must be a whole number, not null"),
        ({"points": [], "mode": "warp"}, "mode must be one of 'fast', 'slow', not 'warp'"),
        ({"points": [], "weight": "x"}, "weight must be a number or null, not str"),
        ({"points": [], "weight": float("nan")}, "weight must be a finite number"),
        ({"points": [], "speed": 1}, "there is no parameter 'speed'"),
    ],
)
def test_wrong_argument_error_shows_signature(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        call(raw)
    assert caught.value.hint


def test_wrong_argument_is_value_error() -> None:
    with pytest.raises(ValueError, match="points is missing"):
        call({})


def test_signature_and_stub_read_as_python() -> None:
    assert add_points.signature == (
        "test_operation.add_points(points: list[Point], count: int = 3, "
        "mode: Literal['fast', 'slow'] = 'fast', weight: float | None = None)"
    )
    compile(stubs.render_operation(add_points) + "\n    ...", "stub", "exec")
    assert "Slowly, where asked." in stubs.render_operation(add_points)
    assert add_points.documentation.examples == ("numbers.add_points(points=[])",)


def test_schema_matches_signature() -> None:
    schema = add_points.arguments_schema
    assert schema["required"] == ["points"]
    assert schema["properties"]["count"] == {
        "type": "integer", "minimum": 1, "maximum": 10, "description": "How many.", "default": 3,
    }  # fmt: skip
    assert schema["properties"]["points"]["items"]["required"] == ["x", "label"]


def test_misspelled_name_gets_suggestion() -> None:
    with pytest.raises(NotFound) as caught:
        CATALOG.get_operation("remembr")
    assert "remember" in (caught.value.hint or "")
    with pytest.raises(NotFound) as caught:
        CATALOG.get_operation("nothing_here")
    assert caught.value.hint == "search_tools finds one by what it does"  # no name is similar


@pytest.mark.parametrize(
    ("typo", "name"),
    [
        ("memory.recal", "recall"),
        ("find_duplicate", "find_duplicates"),
        ("list_tag", "list_tags"),
        ("tools.serch", "search_tools"),
        ("helth", "health"),
    ],
)
def test_operations_are_found_by_purpose(typo: str, name: str) -> None:
    with pytest.raises(NotFound) as caught:
        CATALOG.get_operation(typo)
    assert name in (caught.value.hint or "")


def test_short_name_works_in_category() -> None:
    assert CATALOG.get_operation("tools.search") is CATALOG.get_operation("search_tools")


def test_duplicate_operation_name_is_refused() -> None:
    catalog = Catalog()
    catalog.add(add_points)
    with pytest.raises(ValueError, match="two operations"):
        catalog.add(add_points)


def test_invoke_returns_plain_values() -> None:
    catalog = Catalog()
    catalog.add(add_points)
    assert run_sync(invoke(catalog, "add_points", {"points": []}, FakeContext()))["points"] == []


@pytest.mark.parametrize("one", list(CATALOG), ids=lambda o: o.name)
def test_every_operation_is_documented(one: Any) -> None:
    assert one.summary.endswith((".", "?")), "the first line of the docstring is a sentence"
    assert one.documentation.examples, "an example shows how it is called"
    for parameter in one.parameters:
        assert parameter.help, f"{parameter.name} has no help"
    compile(stubs.render_operation(one) + "\n    ...", one.name, "exec")
    assert one.arguments_schema["additionalProperties"] is False
    for example in one.documentation.examples:
        assert example.startswith(f"{one.category}."), example
    assert types.to_json_schema(one.result_type) is not None
