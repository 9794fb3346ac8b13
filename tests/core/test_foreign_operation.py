"""Operations that other servers define by JSON Schema."""

import sys
from contextlib import suppress
from typing import Any

import pytest
from test_operation import FakeContext

from athena.core import stubs
from athena.core.catalog import invoke
from athena.core.foreign_operation import ForeignOperation, ToolDefinition, assign_identifiers, to_identifier
from athena.core.json_schema import JsonSchemaType
from athena.core.operation import Effect
from athena.core.threads import run_sync
from athena.errors import InvalidInput, NotFound
from athena.operations import CATALOG

ISSUE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "labels": {"type": "array", "items": {"type": "string"}},
        "title": {"type": "string", "minLength": 1, "description": "What it is about."},
        "state": {"type": "string", "enum": ["open", "closed"], "default": "open"},
        "assignee": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "file-path": {"type": "string"},
        "class": {"type": "integer"},
        "author": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name"],
            "additionalProperties": False,
        },
    },
    "required": ["title"],
}


async def echo(ctx: Any, arguments: dict[str, Any]) -> Any:
    return arguments


def create_issue(**more: Any) -> ForeignOperation:
    return ForeignOperation(ToolDefinition("github", "create_issue", "Create an issue.", arguments=ISSUE, **more), echo)


def test_signature_reads_as_python() -> None:
    assert stubs.format_call_line(create_issue()) == (
        "github.create_issue(title: str, labels: list[str] = None, state: Literal['open', 'closed'] = 'open', "
        "assignee: str = None, file_path: str = None, class_: int = None, "
        "author: {name: str, age?: int} = None)  # Create an issue."
    )


def test_call_uses_owners_parameter_names() -> None:
    catalog = CATALOG.copy()
    catalog.replace_category("github", "Issues.", [create_issue()])
    sent = run_sync(
        invoke(catalog, "github.create_issue", {"title": "x", "file_path": "a", "class_": 1}, FakeContext())
    )
    assert sent == {"title": "x", "file-path": "a", "class": 1}
    assert run_sync(create_issue()(FakeContext(), title="x", labels=None, assignee=None)) == {
        "title": "x",
        "assignee": None,  # the schema allows None: no labels
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "title is missing"),
        ({"title": 5}, "title must be text, not int"),
        ({"title": ""}, "title has a length of 0; it must be at least 1"),
        ({"title": "x", "state": "gone"}, "state must be one of 'open', 'closed', not 'gone'"),
        ({"title": "x", "labels": ["a", 5]}, r"labels\[1\] must be text, not int"),
        ({"title": "x", "labels": "a"}, "labels must be a list, not str"),
        ({"title": "x", "author": {}}, "author lacks 'name'"),
        ({"title": "x", "author": {"name": "a", "size": 5}}, "author has no 'size'"),
        ({"title": "x", "class": True}, "class_ must be a whole number, not bool"),
        ({"title": "x", "class": 10**5_000}, "class_ is too large a number"),
        ({"title": "x", "assignee": 5}, "assignee must be text, not int"),
        ({"title": "x", "lables": []}, "there is no parameter 'lables'; did you mean 'labels'"),
    ],
)
def test_schema_violation_error_matches_ours(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=f"github.create_issue: {said}") as caught:
        create_issue().check_arguments(arguments)
    assert caught.value.hint


HOSTILE: list[Any] = [
    None,
    5,
    [],
    {"type": 7},
    {"type": ["string", 5]},
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"$ref": "https://example.com/schema"},
    {"type": "object", "properties": {"self": {"$ref": "#"}}, "required": "self"},
    {"type": "object", "properties": 5, "required": [5]},
    {"anyOf": [{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, {"$ref": "#"}]},
    {"enum": [], "items": 5},
    {"type": "string", "minLength": "5", "pattern": "(a+)+$"},
    {"type": "array", "items": {"$ref": "#"}},
    {"const": {"a": 1}},
]


@pytest.mark.parametrize("schema", HOSTILE, ids=repr)
def test_invalid_or_recursive_schema_is_safe(schema: Any) -> None:
    declared = JsonSchemaType(schema)
    assert len(declared.source) < 2_000
    values: list[Any] = [None, 5, "a" * 40 + "!", [[[]]], {"self": {"self": {}}}]
    for value in values:
        with suppress(InvalidInput):
            declared.check_value(value, "value")


def test_branching_schema_is_checked_quickly() -> None:
    schema: dict[str, Any] = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}] * 50}}, "$ref": "#/$defs/a"}
    schema["$defs"]["b"] = {"anyOf": [{"$ref": "#/$defs/a"}] * 50}
    JsonSchemaType(schema).check_value("x", "value")
    schema["$defs"]["b"] = {"anyOf": [{"$ref": "#/$defs/a", "x": 1}, {"type": "array", "items": {"$ref": "#/$defs/a"}}]}
    JsonSchemaType(schema).check_value([[[[[[5]]]]]], "value")


def test_invalid_names_become_python_names() -> None:
    assert to_identifier("get-issue") == "get_issue"
    assert to_identifier("getIssue") == "getIssue"
    assert to_identifier("  9 lives!") == "n9_lives"
    assert to_identifier("import") == "import_"
    assert to_identifier("__class__") == "class_"
    assert to_identifier("Überprüfen") == "berpr_fen"
    assert to_identifier("\u202e") == "unnamed"
    assert len(to_identifier("x" * 10_000)) == 60
    assert assign_identifiers(["get-issue", "get_issue", "get.issue"]) == {
        "get_issue": "get_issue",
        "get-issue": "get_issue_2",
        "get.issue": "get_issue_3",
    }


def test_each_app_has_own_versioned_catalog() -> None:
    catalog = CATALOG.copy()
    before = catalog.version
    catalog.replace_category("github", "Issues.", [create_issue()])
    assert catalog.version > before
    assert "github.create_issue" in catalog
    assert "github.create_issue" not in CATALOG
    assert catalog.get_operation("github.create_issue").is_foreign
    assert catalog.categories["github"] == "Issues."
    assert "github.create_issue" not in catalog.copy(frozenset(Effect) - {Effect.EXECUTE})
    with pytest.raises(ValueError, match="alone"):
        catalog.replace_category("memory", "Ours.", [create_issue()])
    catalog.remove_category("github")
    with pytest.raises(NotFound):
        catalog.get_operation("github.create_issue")


def test_changed_category_keeps_its_position() -> None:
    catalog = CATALOG.copy()
    for name in ("first", "second"):
        catalog.replace_category(name, "", [ForeignOperation(ToolDefinition(name, "a", "A."), echo)])
    before = [one.name for one in catalog]
    catalog.replace_category("first", "", [])
    catalog.replace_category("first", "", [ForeignOperation(ToolDefinition("first", "a", "Another."), echo)])
    assert [one.name for one in catalog] == before
    assert before[-2:] == ["first.a", "second.a"]


def test_stub_has_valid_python_types() -> None:
    written = stubs.render_module([create_issue()], strict=True)
    compile(written, "stub", "exec")
    head, _, rest = written.partition("\n")
    assert "author: dict[str, Any]" in head
    assert "{" not in head
    assert "author: {name: str" in rest  # the fields are listed inline


def test_catalog_refreshes_before_lookup() -> None:
    catalog = CATALOG.copy()

    def add_server() -> None:
        catalog.refresh_hook = None
        catalog.replace_category("github", "Issues.", [create_issue()])

    catalog.refresh_hook = add_server
    assert "github.create_issue" not in catalog  # looking has no side effect
    run_sync(invoke(catalog, "github.create_issue", {"title": "x", "file_path": "a"}, FakeContext()))
    assert catalog.get_operation("github.create_issue").effect is Effect.EXECUTE


def recursive_tool(count: int) -> ForeignOperation:
    """Return a tool whose parameters all refer to the whole schema."""
    schema = {"type": "object", "properties": {f"p{n}": {"$ref": "#"} for n in range(count)}}
    return ForeignOperation(ToolDefinition("odd", "loop", "Loop.", arguments=schema), echo)


def count_calls(work: Any) -> int:
    """Count the function calls of some work: a cost that does not depend on the machine."""
    count = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"
        if count > 2_000_000:
            raise AssertionError("there is no end to it")

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("count", [3, 30, 1_000])
def test_schema_rendering_cost_is_bounded(count: int) -> None:
    operation = recursive_tool(count)
    assert count_calls(lambda: operation.signature) < 150_000
    assert len(operation.signature) < 60_000
    assert operation.signature.startswith("odd.loop(p0: ")
    assert count_calls(lambda: stubs.format_call_line(operation)) < 20 * count + 1_000  # each is rendered once
    assert operation.result_type is operation.result_type


def test_similar_names_are_resolved_quickly() -> None:
    lines = 0

    def counted(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += 1
        assert lines < 100_000, "there is no end to it"
        return counted

    sys.settrace(counted)
    try:
        made = assign_identifiers(["!" * n for n in range(1, 1_001)])
    finally:
        sys.settrace(None)
    assert len(set(made.values())) == 1_000
    assert made["!" * 1_000] == "unnamed_1000"


def test_reference_is_expanded_once() -> None:
    tree = {"type": "object", "properties": {"name": {"type": "string"}, "more": {"$ref": "#"}}}
    assert JsonSchemaType({"$ref": "#"}, tree).source == "{name?: str, more?: dict}"


def test_arguments_share_check_budget() -> None:
    branches = {"anyOf": [{"$ref": "#/$defs/a"}] * 50}
    schema = {
        "type": "object",
        "properties": {f"p{n}": {"$ref": "#/$defs/a"} for n in range(50)},
        "$defs": {"a": {"anyOf": [*branches["anyOf"], {"enum": [str(n) for n in range(500)]}]}},
    }
    operation = ForeignOperation(ToolDefinition("odd", "branch", "Branch.", arguments=schema), echo)

    def check() -> None:
        with suppress(InvalidInput):
            operation.check_arguments(dict.fromkeys(operation.parameter_names, "nothing of these"))
        operation.check_arguments(dict.fromkeys(operation.parameter_names))

    assert count_calls(check) < 500_000
