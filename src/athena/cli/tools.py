"""`athena tools`: find out what can be done."""

from typing import Any

import click

from athena.cli import shown
from athena.kernel.catalog import AnyOperation
from athena.kernel.stubs import render, render_module
from athena.operations import CATALOG

as_json = click.option("--json", "json_output", is_flag=True, help="Print JSON.")


@click.group(invoke_without_command=True)
@click.pass_context
def tools(context: click.Context) -> None:
    """Find out what can be done. Example: athena tools search "find duplicates" """
    if context.invoked_subcommand is None:
        _print_all(None)


@tools.command("list")
@click.argument("category", required=False)
@as_json
def list_tools(category: str | None, json_output: bool) -> None:
    """List operations, all or of one category. Example: athena tools list memory"""
    if json_output:
        return shown.as_json([_summary(operation) for operation in CATALOG.listed(category)])
    return _print_all(category)


@tools.command("search")
@click.argument("query")
@click.option("-k", default=5, show_default=True, help="How many.")
@as_json
def search_tools(query: str, k: int, json_output: bool) -> None:
    """Find operations by what they do. Example: athena tools search "undo a change" """
    found = CATALOG.search(query, k)
    if json_output:
        return shown.as_json([_summary(operation) for operation in found])
    for operation in found:
        click.echo(render(operation, bare=True))
    return None


@tools.command("show")
@click.argument("name")
@as_json
def show_tool(name: str, json_output: bool) -> None:
    """Show how an operation is called. Example: athena tools show recall"""
    operation = CATALOG.find(name)
    if json_output:
        more = {"approval": operation.approval, "arguments": operation.arguments_schema}
        return shown.as_json(_summary(operation) | more)
    return click.echo(render_module([operation]))


def _summary(operation: AnyOperation) -> dict[str, Any]:
    return {
        "name": operation.name,
        "category": operation.category,
        "description": operation.summary,
        "effect": str(operation.effect),
    }


def _print_all(category: str | None) -> None:
    heading = None
    for operation in CATALOG.listed(category):
        if operation.category != heading:
            heading = operation.category
            click.echo(click.style(f"{heading}: {CATALOG.categories[heading]}", bold=True))
        click.echo(f"  {operation.name:<18} {operation.summary}")
