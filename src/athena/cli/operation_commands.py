"""Make commands from the declarations of operations: names, types, limits and help stand there and nowhere else.

A table of a group says which operation each command calls, which parameters stand without an option's name, and which
fields people see.
"""

import json
import re
import shlex
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

import click

from athena.cli import formats, output
from athena.cli.command_group import CommandGroup, ExplainedCommand
from athena.cli.invoke import invoke_operation, json_option, parse_json_object, project_option
from athena.core.catalog import AnyOperation
from athena.core.operation import Parameter
from athena.core.types import split_annotation
from athena.errors import NotFound
from athena.operations import CATALOG

OPTION_NAMES = {
    "k": "limit",
    "max_results": "limit",
    "memory_type": "type",
    "event_type": "type",
    "entity_type": "type",
    "session_id": "session",
    "observations": "observation",
}
METAVARS = {
    "content": "TEXT",
    "contents": "TEXT",
    "entityName": "NAME",
    "entityNames": "NAME",
    "memory_id": "ID",
    "memory_ids": "ID",
    "names": "NAME",
    "observations": "TEXT",
    "pattern_id": "ID",
    "relationType": "RELATION",
    "tags": "TAG",
    "add": "TAG",
    "remove": "TAG",
    "task_id": "ID",
}


class OperationCommand(NamedTuple):
    """A command that calls an operation."""

    operation: str
    arguments: tuple[str, ...] | None = None  # parameters given by position; by default those that are required
    columns: tuple[str, ...] = ()  # fields that people see
    empty: str = "nothing found"  # what is said where a list is empty
    say: Callable[[Any], str] | None = None  # what is said of another result
    fixed: Mapping[str, Any] = types.MappingProxyType({})  # parameters with this value
    hidden: tuple[str, ...] = ()  # parameters without an option
    summary: str = ""  # instead of the operation's
    example: str = ""  # instead of the operation's


def create_group(
    name: str, summary: str, commands: Mapping[str, OperationCommand], default: str = "list"
) -> click.Group:
    """Return a group of commands; without a command's name it runs the default one."""
    help_text = f"{summary}\n\nWithout a command it does what '{default}' does.\n\nExample: athena {name}"
    group = CommandGroup(name, help=help_text, default=default)
    for command_name, spec in commands.items():
        group.add_command(create_command(f"{name} {command_name}", spec))
    return group


def create_command(path: str, spec: OperationCommand) -> click.Command:
    """Return the command that calls an operation with what its declaration asks for."""
    operation = CATALOG.get_operation(spec.operation)
    fields = [p for p in _list_fields(operation) if p.name not in spec.fixed and p.name not in spec.hidden]
    positional = [p.name for p in fields if p.required] if spec.arguments is None else list(spec.arguments)
    by_name = {p.name: p for p in fields}
    params: list[click.Parameter] = [
        _create_argument(by_name[name], name == positional[-1], spec.arguments is not None) for name in positional
    ]
    params += [_create_option(p) for p in fields if p.name not in positional]

    def run(project: str | None, json_output: bool, **values: Any) -> None:
        given = {p.name: _to_argument(p, value) for p in fields if _is_given(value := values.get(p.name.lower()))}
        arguments = {**_nest_record(operation, given), **spec.fixed}
        result = invoke_operation(spec.operation, project, **arguments)
        if isinstance(result, dict) and result.get("redacted"):
            click.echo(f"taken out before storing: {', '.join(result['redacted'])}", err=True)
        if json_output:
            return formats.print_data(result, spec.columns)
        return _print_result(spec, result)

    summary = spec.summary or operation.summary
    details = "" if spec.summary else operation.documentation.details
    example = spec.example or _format_example(path, operation, positional, spec)
    paragraphs = [_to_command_words(summary), _to_command_words(details), f"\b\nExample: {example}"]
    command = click.command(
        path.split()[-1], cls=ExplainedCommand, params=params, help="\n\n".join(filter(None, paragraphs))
    )(project_option(json_option(run)))
    given = [by_name[name] for name in positional]
    command.argument_help = [(_get_metavar(p), _to_command_words(p.help)) for p in given if p.help]
    return command


# --- parameters -------------------------------------------------------------------------------------------------------


def _list_fields(operation: AnyOperation) -> list[Parameter]:
    """Return the parameters of an operation; those of one that takes a list of records are the fields of a record."""
    if (record := _find_record(operation)) is None:
        return list(operation.parameters)
    kind = record[1]
    hints = get_type_hints(kind)  # without NotRequired
    required = kind.__required_keys__ | {"observations"}
    return [Parameter(name, hint, name in required, None) for name, hint in hints.items()]


def _find_record(operation: AnyOperation) -> tuple[str, Any] | None:
    """Return the only parameter of an operation and the type of its records, where it takes a list of these."""
    if len(operation.parameters) != 1:
        return None
    kind, _ = split_annotation(operation.parameters[0].annotation)
    items = get_args(kind)[:1] if get_origin(kind) is list else ()
    return (operation.parameters[0].name, items[0]) if items and is_typeddict(items[0]) else None


def _nest_record(operation: AnyOperation, given: dict[str, Any]) -> dict[str, Any]:
    record = _find_record(operation)
    return given if record is None else {record[0]: [given]}


class _Shape(NamedTuple):
    """How a parameter is written on a command line."""

    type: click.ParamType[Any]
    is_list: bool = False
    is_flag: bool = False
    is_json: bool = False


def _find_shape(parameter: Parameter) -> _Shape:
    kind, _ = split_annotation(parameter.annotation)
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    members = tuple(split_annotation(member)[0] for member in members if member is not type(None))
    first = members[0]
    if first is bool:
        return _Shape(click.BOOL, is_flag=True)
    if get_origin(first) is Literal:
        return _Shape(click.Choice(get_args(first)))
    if get_origin(first) is list:
        inner = get_args(first)[0]
        return _Shape(click.Choice(get_args(inner)) if get_origin(inner) is Literal else click.STRING, is_list=True)
    if get_origin(first) is dict or is_typeddict(first):
        return _Shape(click.STRING, is_json=True)
    if members == (int,):
        return _Shape(click.INT)
    return _Shape(click.FLOAT if members == (float,) else click.STRING)


def _create_argument(parameter: Parameter, is_last: bool, may_be_optional: bool) -> click.Argument:
    shape = _find_shape(parameter)
    metavar = _get_metavar(parameter)
    count = -1 if shape.is_list and is_last else 1
    required = parameter.required or not may_be_optional or parameter.name in ("add", "remove", "query")
    text = f"{metavar}..." if count == -1 else metavar
    shown = text if required else f"[{text}]"
    return click.Argument([parameter.name.lower()], type=shape.type, nargs=count, required=required, metavar=shown)


def _create_option(parameter: Parameter) -> click.Option:
    shape = _find_shape(parameter)
    name = OPTION_NAMES.get(parameter.name, parameter.name)
    spelling = "--" + re.sub(r"(?<=[a-z])([A-Z])", r"-\1", name).replace("_", "-").lower()
    names = ["-k", spelling] if name == "limit" else [spelling]
    default = "" if parameter.default in (None, False) else f" By default {parameter.default}."
    text = _to_command_words(f"{parameter.help}{default}") if parameter.help else ""
    if shape.is_flag:
        return click.Option([*names, parameter.name.lower()], is_flag=True, default=None, help=text)
    again = " Can be repeated." if shape.is_list else " As a JSON object." if shape.is_json else ""
    return click.Option(
        [*names, parameter.name.lower()], type=shape.type, multiple=shape.is_list, help=f"{text}{again}"
    )


def _get_metavar(parameter: Parameter) -> str:
    name = METAVARS.get(parameter.name, OPTION_NAMES.get(parameter.name, parameter.name))
    return name.upper()


def _is_given(value: Any) -> bool:
    return value is not None and value != ()


def _to_argument(parameter: Parameter, value: Any) -> Any:
    shape = _find_shape(parameter)
    if shape.is_json:
        return parse_json_object(value)
    if shape.is_list:
        return [value] if isinstance(value, str) else list(value)
    return value


# --- help -------------------------------------------------------------------------------------------------------------


def _format_example(path: str, operation: AnyOperation, positional: list[str], spec: OperationCommand) -> str:
    """Return the example of an operation as a command line."""
    values = operation.example_arguments
    if (record := _find_record(operation)) is not None:
        values = values[record[0]][0]
    words = ["athena", *path.split()]
    for name in positional:
        value = values.get(name, _get_metavar(Parameter(name, str, True, None)))
        words += map(str, value) if isinstance(value, list) else [str(value)]
    for name, value in values.items():
        if name in positional or name in spec.fixed or name in spec.hidden:
            continue
        option = f"--{OPTION_NAMES.get(name, name).replace('_', '-')}"
        if value is True:
            words.append(option)
        else:
            for item in value if isinstance(value, list) else [value]:
                words += [option, json.dumps(item) if isinstance(item, dict) else str(item)]
    return " ".join(word if re.fullmatch(r"[\w./-]+", word) else _quote(word) for word in words)


def _quote(word: str) -> str:
    return f'"{word}"' if not re.search(r'["$`\\!]', word) else shlex.quote(word)


def _to_command_words(text: str) -> str:
    """Return a text of an operation's help in words of the command line."""
    text = re.sub(r"^Return\b", "Show", text.replace("`undo`", "`athena undo`")).replace(" and return ", " and show ")
    text = text.replace("One tag, several between commas, or a list.", "One tag, or several between commas.")
    text = re.sub(r"`(limit|since|until|expect)`", r"--\1", text)
    return re.sub(r"; for people(?=\.|$)", "", text)


# --- what people see --------------------------------------------------------------------------------------------------


def _print_result(spec: OperationCommand, result: Any) -> None:
    if result is False:
        raise NotFound(spec.empty, hint="give another id, or --project NAME if it is in another project")
    if spec.say is not None:
        if text := spec.say(result):
            formats.print_lines(text.splitlines())
        else:
            click.echo(spec.empty, err=True)
    elif isinstance(result, list) and result and isinstance(result[0], dict):
        formats.print_lines(formats.format_table(*formats.pick_columns(result, spec.columns or tuple(result[0]))))
    elif isinstance(result, list):
        formats.print_lines(map(str, result))
        if not result:
            click.echo(spec.empty, err=True)
    else:
        names = spec.columns or tuple(result)
        width = max(map(len, names))
        rows = [(name, formats.format_cell(name, result.get(name))) for name in names]
        formats.print_lines(
            f"{name.replace('_', ' '):<{width}}  {output.escape_control_chars(text)}" for name, text in rows if text
        )
