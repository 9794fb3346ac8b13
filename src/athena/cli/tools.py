"""`athena tools`: list, search, show and export operations and skills; `athena call`: call one."""

import json
import os
from typing import Any

import click
from click.shell_completion import CompletionItem

from athena.app import connect
from athena.cli import output
from athena.cli.approval import Terminal, ask_approvals
from athena.cli.command_group import CommandGroup
from athena.cli.commands import CALL_HINT_PATTERN
from athena.cli.invoke import (
    call_approved,
    call_operation,
    invoke_operation,
    json_option,
    parse_json_object,
    project_option,
    read_stdin,
)
from athena.core.approval import format_call_subject
from athena.core.catalog import AnyOperation, Catalog
from athena.core.home.paths import current_project
from athena.core.threads import run_sync
from athena.core.types import to_json
from athena.discovery import export
from athena.discovery.entry import ToolEntry
from athena.errors import InvalidInput
from athena.operations import CATALOG
from athena.operations import tools as operations_tools
from athena.operations.context import Context

MAX_BUDGET_TOKENS = 1_000_000  # a person reads as many as were asked for


def complete_operations(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the operations whose names begin so."""
    return [CompletionItem(each.name, help=each.summary) for each in CATALOG if each.name.startswith(incomplete)]


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.pass_context
def tools(context: click.Context) -> None:
    """List, search and show what can be called. Example: athena tools search "find duplicates" """
    if context.invoked_subcommand is None:
        _print_tools(None)


@tools.command("list")
@click.argument("category", required=False)
@json_option
def list_tools(category: str | None, json_output: bool) -> None:
    """List operations, all or of one category. Example: athena tools list memory"""
    if json_output:
        return output.print_data(
            [_tool_to_dict(operation.name, operation) for operation in _get_catalog().list_operations(category)]
        )
    return _print_tools(category)


@tools.command("search")
@click.argument("query")
@click.option("-k", "--limit", "k", default=5, show_default=True, help="How many.")
@click.option("--category", help="Only of this category or server.")
@json_option
def search_tools(query: str, k: int, category: str | None, json_output: bool) -> None:
    """Find tools and skills by what they do. Example: athena tools search "undo a change" """
    detail = "names" if json_output else "signatures"
    lines = call_operation("search_tools", query=query, k=k, category=category, detail=detail, budget=MAX_BUDGET_TOKENS)
    if json_output:
        entries = {entry.path: entry for entry in run_sync(operations_tools.list_entries(_create_context()))}
        found = [entries[path] for line in lines if (path := line.partition("  # ")[0]) in entries]
        return output.print_data([_tool_to_dict(entry.key, entry) for entry in found])
    for line in lines:
        click.echo(output.escape_control_chars(line))
    if not lines:
        click.echo("nothing fits; try other words", err=True)
    return None


@tools.command("show")
@click.argument("name", shell_complete=complete_operations)
@json_option
def show_tool(name: str, json_output: bool) -> None:
    """Show how a tool or skill is called. Example: athena tools show recall"""
    if json_output:
        operation = _get_catalog().get_operation(name)
        more = {"approval": operation.approval, "arguments": operation.arguments_schema}
        return output.print_data(_tool_to_dict(operation.name, operation) | more)
    return click.echo(run_sync(operations_tools.describe_by_name(_create_context(), name)))


@tools.command("export")
@click.argument("folder", metavar="DIR")
@click.option("--force", is_flag=True, help="Also replace files of an earlier export that were changed since.")
@json_option
def export_tools(folder: str, force: bool, json_output: bool) -> None:
    """Write a folder of stubs: a file a tool, an index a category.

    Example: athena tools export ./tools
    """
    result = export.write_folder(folder, run_sync(operations_tools.export_stubs(_create_context())), force=force)
    if json_output:
        return output.print_data({"folder": os.path.abspath(folder), **result._asdict()})
    return click.echo(
        f"{output.format_count(result.written, 'file', 'files')} written to {output.escape_control_chars(folder)},"
        f" {result.unchanged} unchanged, {result.removed} removed"
    )


def _create_context() -> Context:
    """Return a context with the store, which has the skills and the tools of connected servers."""
    return connect.shared_app().create_context(current_project(), "cli")


def _get_catalog() -> Catalog:
    catalog = connect.shared_app().catalog
    catalog.refresh()
    return catalog


def _tool_to_dict(name: str, tool: ToolEntry | AnyOperation) -> dict[str, Any]:
    return {"name": name, "category": tool.category, "description": tool.summary, "effect": str(tool.effect)}


def _print_tools(category: str | None) -> None:
    heading = None
    catalog = _get_catalog()
    lines: list[str] = []
    for operation in catalog.list_operations(category):
        if operation.category != heading:
            heading = operation.category
            lines.append(output.style(f"{heading}: {catalog.categories[heading]}", bold=True))
        lines.append(f"  {output.escape_control_chars(f'{operation.name:<20} {operation.summary}')}")
    output.print_lines(lines)


@click.command("call", context_settings={"allow_extra_args": True})
@click.argument("name", shell_complete=complete_operations)
@click.option("--json", "arguments", default="{}", help="The arguments, as a JSON object; '-' reads them.")
@project_option
@click.pass_context
def call(ctx: click.Context, name: str, arguments: str, project: str | None) -> None:
    """Call any operation by its name; prints JSON.

    Example: athena call recall --json '{"query": "deploy", "k": 3}'
    """
    if ctx.args:
        raise InvalidInput(
            f"unexpected argument {ctx.args[0]!r:.60}",
            hint=f'pass arguments as a JSON object: athena call {name} --json \'{{"argument": "value"}}\'',
        )
    parsed = parse_json_object(read_stdin() if arguments == "-" else arguments)
    try:
        result = _call_with_approval(name, project, parsed)
    except InvalidInput as error:
        if error.hint and CALL_HINT_PATTERN.match(error.hint):
            raise InvalidInput(str(error), hint=f"it is called as {error.hint}") from None
        raise
    output.print_data(result)
    if isinstance(result, dict) and result.get("ok") is False:  # a check found problems
        raise click.exceptions.Exit(1)


def _call_with_approval(name: str, project: str | None, arguments: dict[str, Any]) -> Any:
    """Call an operation; ask the person first where the operation is a server's tool that needs approval."""
    if "." not in name:  # our own
        return invoke_operation(name, project, **arguments)
    operation = _get_catalog().get_operation(name)
    if not (operation.is_foreign and operation.approval):
        return invoke_operation(name, project, **arguments)
    checked = operation.check_arguments(arguments)
    with Terminal(f"call {name}") as terminal:
        terminal.show([f"{operation.path} needs a person's approval, with", json.dumps(checked, ensure_ascii=False)])
        subject = format_call_subject(operation.path, to_json(checked))
        [approval] = ask_approvals(terminal, "Make this call?", [subject])
    return call_approved(name, project, arguments, approval)
