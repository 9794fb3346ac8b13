"""Parse the source of a function into a skill, write skills as source, and the skills that come with Athena."""

import ast
import keyword
from collections.abc import Iterator, Sized
from dataclasses import replace
from functools import cache
from typing import Any

from athena.core.python_source import parse_python
from athena.core.stubs import format_docstring
from athena.errors import InvalidInput
from athena.programs.values import KeptSkill, Skill

MAX_SKILL_BYTES = 32 << 10  # leaves room for the program that calls it
MAX_SKILL_NAME_CHARS = 60
MAX_DESCRIPTION_CHARS = 2_000
MAX_PARAMETERS, MAX_SIGNATURE_CHARS = 50, 2_000  # every program that names skills gets those of all of them
JSON_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "None": "null"}
LIST_TYPES = {"list", "List", "tuple", "Tuple", "Sequence", "Iterable", "set", "Set"}
OBJECT_TYPES = {"dict", "Dict", "Mapping"}
SKILL_FORM_HINT = 'def name(argument: str, limit: int = 10) -> list: """What it does."""'


def parse_skill(
    name: str, code: str, description: str | None = None, example: str = "", *, is_stored: bool = False
) -> Skill:
    """Parse a skill, or say what is wrong with its source; too many types are cut from a stored one."""
    function = _find_function(check_skill_name(name), _parse_code(code), code)
    summary = (description or ast.get_docstring(function) or "").strip()
    if not summary:
        raise InvalidInput("a skill needs a description", hint="give description, or write a docstring")
    if len(summary) > MAX_DESCRIPTION_CHARS:
        raise InvalidInput(
            f"description has {len(summary):,} characters; at most {MAX_DESCRIPTION_CHARS:,} are allowed"
        )
    arguments = function.args
    if arguments.posonlyargs or arguments.vararg or arguments.kwarg:
        raise InvalidInput(
            f"line {function.lineno}: a skill takes named arguments only, without * and **", hint=SKILL_FORM_HINT
        )
    try:
        returns = ast.unparse(function.returns) if function.returns else "Any"
        signature = _format_signature(arguments)
        if not is_stored and _is_too_long(signature, returns, [*_iter_parameters(arguments)]):
            most = f"{MAX_PARAMETERS} arguments, or its types more than {MAX_SIGNATURE_CHARS:,} characters"
            raise InvalidInput(f"{name} has more than {most}", hint="take a dict or a list, or save several skills")
        schema = _build_schema(arguments)
    except RecursionError:
        raise InvalidInput(f"line {function.lineno}: a type or a default is nested too deeply") from None
    return cut_types(Skill(name, summary, code.rstrip() + "\n", signature, returns, schema, example.strip()))


def _is_too_long(signature: str, returns: str, parameters: Sized) -> bool:
    return len(signature) + len(returns) > MAX_SIGNATURE_CHARS or len(parameters) > MAX_PARAMETERS


def cut_types(skill: Skill) -> Skill:
    """Take the types from a skill that an earlier version stored with too many; its signature says that it is cut."""
    properties = skill.parameters["properties"]
    if not _is_too_long(skill.signature, skill.returns, properties):
        return skill
    return replace(
        skill,
        signature=f"{skill.signature[: MAX_SIGNATURE_CHARS // 2]}... (cut: {len(skill.signature):,} characters)",
        returns=skill.returns if len(skill.returns) <= MAX_SIGNATURE_CHARS // 2 else "Any",
        parameters=skill.parameters | {"properties": {name: {} for name in properties}},
    )


def check_skill_name(name: str) -> str:
    """Return the name if a program can call it."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name.startswith("_"):
        raise InvalidInput(
            f"{name!r:.60} is not a valid function name", hint="letters, digits and _, e.g. weekly_report"
        )
    if len(name) > MAX_SKILL_NAME_CHARS:
        raise InvalidInput(f"name has {len(name)} characters; at most {MAX_SKILL_NAME_CHARS} are allowed")
    return name


def _parse_code(code: str) -> ast.Module:
    if len(code.encode("utf-8", "replace")) > MAX_SKILL_BYTES:
        raise InvalidInput(
            f"code has more than {MAX_SKILL_BYTES:,} bytes", hint="save it as several skills that call others"
        )
    try:
        return parse_python(code)
    except SyntaxError as error:
        raise InvalidInput(f"line {error.lineno}: {error.msg}", hint=SKILL_FORM_HINT) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidInput(f"code cannot be read: {error}") from None


def _find_function(name: str, tree: ast.Module, code: str) -> ast.FunctionDef:
    """Return the function of that name; the code may also have imports, constants and other functions."""
    function: ast.FunctionDef | None = None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            function = node
        elif isinstance(node, ast.AsyncFunctionDef) and node.name == name:
            raise InvalidInput(f"line {node.lineno}: a skill is a plain function", hint="no `async` is needed")
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Assign) and not (
            isinstance(node, ast.AnnAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        ):
            raise InvalidInput(
                f"line {node.lineno}: a skill holds definitions only; put calls into `example`", hint=SKILL_FORM_HINT
            )
    if function is None:
        raise InvalidInput(f"code does not define a function {name!r}", hint=SKILL_FORM_HINT)
    parameters = (*function.args.args, *function.args.kwonlyargs)
    if untyped := [parameter.arg for parameter in parameters if parameter.annotation is None]:
        raise InvalidInput(f"line {function.lineno}: the argument {untyped[0]!r} has no type", hint=SKILL_FORM_HINT)
    return function


def _build_schema(arguments: ast.arguments) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter, default in _iter_parameters(arguments):
        properties[parameter.arg] = _type_schema(parameter.annotation)
        if default is None:
            required.append(parameter.arg)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _format_signature(arguments: ast.arguments) -> str:
    parts = []
    for parameter, default in _iter_parameters(arguments):
        name = parameter.arg
        typed_name = f"{name}: {ast.unparse(parameter.annotation)}" if parameter.annotation else name
        parts.append(typed_name if default is None else f"{typed_name} = {ast.unparse(default)}")
    return ", ".join(parts)


def _iter_parameters(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    required_count = len(arguments.args) - len(arguments.defaults)
    yield from zip(arguments.args, [*[None] * required_count, *arguments.defaults], strict=True)
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)


def _type_schema(node: ast.expr | None) -> dict[str, Any]:
    """Return the JSON Schema of a type; an empty one, which allows anything, for types that it cannot express."""
    if isinstance(node, ast.Constant):
        return {"type": "null"} if node.value is None else {}
    if isinstance(node, ast.Name):
        if node.id in JSON_TYPES:
            return {"type": JSON_TYPES[node.id]}
        return {"type": "array"} if node.id in LIST_TYPES else {"type": "object"} if node.id in OBJECT_TYPES else {}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        left, right = _type_schema(node.left), _type_schema(node.right)
        return left if right in (left, *left.get("anyOf", ())) else {"anyOf": [left, right]}
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        return _subscript_schema(node.value.id, node.slice)
    return {}


def _subscript_schema(name: str, argument: ast.expr) -> dict[str, Any]:
    if name == "Literal":
        values = argument.elts if isinstance(argument, ast.Tuple) else [argument]
        return {"enum": [value.value for value in values if isinstance(value, ast.Constant)]}
    if name == "Optional":
        return {"anyOf": [_type_schema(argument), {"type": "null"}]}
    if name in LIST_TYPES:
        return {"type": "array"} | ({"items": _type_schema(argument)} if name in ("list", "List", "Sequence") else {})
    return {"type": "object"} if name in OBJECT_TYPES else {}


def build_example_program(skill: Skill) -> str:
    """Return a program that runs the example of a skill."""
    return f"{skill.code}\n{skill.example}\n"


def format_skill_file(skill: Skill) -> str:
    """Return a skill as the text of a file for review."""
    example = "".join(f"#   {line}\n" for line in skill.example.splitlines())
    description = "".join(f"# {line}".rstrip() + "\n" for line in skill.description.splitlines())
    return f"{description}{f'# Example:{chr(10)}{example}' if example else ''}\n{skill.code}"


_BACK_UP_SOURCE = '''
def back_up_entities(path: str = "backups/entities.json") -> dict:
    """Write all entities and relations of the knowledge graph to a file of the workspace."""
    snapshot = graph.read_graph()
    file = workspace.write(path=path, content=snapshot)
    return {
        "path": file["path"],
        "bytes": file["size"],
        "entities": len(snapshot["entities"]),
        "relations": len(snapshot["relations"]),
    }
'''

_DUPLICATES_SOURCE = '''
def duplicate_report(threshold: float = 0.92, path: str = "reports/duplicates.json") -> dict:
    """List memories that say nearly the same, with which to keep and which to forget; nothing is changed."""
    groups = []
    for group in memory.find_duplicates(threshold=threshold, k=200):
        rows = sorted(group["memories"], key=lambda row: (row["importance"], row["updated"]), reverse=True)
        tags = []
        for row in rows:
            tags.extend(tag for tag in row["tags"] if tag not in tags)
        groups.append({
            "keep": rows[0]["hash"],
            "says": rows[0]["content"][:200],
            "forget": [row["hash"] for row in rows[1:]],
            "tags": tags,
        })
    if groups:
        workspace.write(path=path, content=groups)
    duplicate_count = sum(len(group["forget"]) for group in groups)
    return {
        "groups": len(groups),
        "superfluous": duplicate_count,
        "path": path if groups else None,
        "first": groups[:5],
    }
'''

_WEEKLY_SOURCE = '''
def weekly_summary(days: int = 7, limit: int = 20) -> dict:
    """Sum up the last days: new memories, what happened, what is due, and the most used tags."""
    since = f"{days} days ago"
    rows = memory.list_memories(k=500, since=since)
    counts = {}
    for row in rows:
        for tag in row["tags"]:
            counts[tag] = counts.get(tag, 0) + 1
    tags = sorted(counts, key=lambda tag: (-counts[tag], tag))[:10]
    recent_events = events.recall_events(since=since, limit=500)
    outcomes = {}
    for event in recent_events:
        name = event["outcome"] or "none"
        outcomes[name] = outcomes.get(name, 0) + 1
    return {
        "days": days,
        "memories": len(rows),
        "newest": [row["content"][:120] for row in rows[:limit]],
        "tags": {tag: counts[tag] for tag in tags},
        "events": len(recent_events),
        "outcomes": outcomes,
        "due": [task["title"] for task in tasks.due_tasks(within="7 days", limit=limit)],
    }
'''


@cache
def load_shipped_skills() -> dict[str, Skill]:
    """Return the skills that come with Athena, by name."""
    return {
        skill.name: skill
        for skill in (
            parse_skill("back_up_entities", _BACK_UP_SOURCE.lstrip(), example="back_up_entities()"),
            parse_skill("duplicate_report", _DUPLICATES_SOURCE.lstrip(), example="duplicate_report(threshold=0.95)"),
            parse_skill("weekly_summary", _WEEKLY_SOURCE.lstrip(), example="weekly_summary(days=7)"),
        )
    }


def render_skill(skill: KeptSkill) -> str:
    """Return a skill as a function stub that an agent reads."""
    lines = [*skill.description.splitlines(), *([f">>> skills.{skill.example}"] if skill.example else [])]
    return (
        f"# skills.{skill.name}\ndef {skill.name}({skill.signature}) -> {skill.returns}:\n{format_docstring(lines)}\n"
    )
