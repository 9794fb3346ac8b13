"""`athena tools`: find out what can be done."""

import os
from typing import Any

import click

from athena.app import connect
from athena.cli import output
from athena.core.catalog import AnyOperation, Catalog
from athena.core.home.paths import current_project
from athena.core.threads import drive
from athena.discovery import export
from athena.discovery.entry import Entry
from athena.operations import finding
from athena.operations.context import Context

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
        return output.as_json([_line(one.name, one) for one in _catalog().listed(category)])
    return _print_all(category)


@tools.command("search")
@click.argument("query")
@click.option("-k", default=5, show_default=True, help="How many.")
@click.option("--category", help="Only of this category or server.")
@as_json
def search_tools(query: str, k: int, category: str | None, json_output: bool) -> None:
    """Find tools and skills by what they do. Example: athena tools search "undo a change" """
    found = drive(finding.found(_context(), query, category))[:k]
    if json_output:
        return output.as_json([_line(one.key, one) for one in found])
    for one in found:
        click.echo(output.safe(finding.line(one.thing)))
    if not found:
        click.echo("nothing fits; try other words", err=True)
    return None


@tools.command("show")
@click.argument("name")
@as_json
def show_tool(name: str, json_output: bool) -> None:
    """Show how a tool or skill is called. Example: athena tools show recall"""
    if json_output:
        operation = _catalog().find(name)
        more = {"approval": operation.approval, "arguments": operation.arguments_schema}
        return output.as_json(_line(operation.name, operation) | more)
    return click.echo(drive(finding.described(_context(), name)))


@tools.command("export")
@click.argument("folder", metavar="DIR")
@click.option("--force", is_flag=True, help="Also replace files of an earlier export that were changed since.")
@as_json
def export_tools(folder: str, force: bool, json_output: bool) -> None:
    """Write a folder of stubs: a file a tool, an index a category.

    Example: athena tools export ./tools
    """
    done = export.write(folder, drive(finding.exported(_context())), force=force)
    if json_output:
        return output.as_json({"folder": os.path.abspath(folder), **done._asdict()})
    return click.echo(
        f"{output.counted(done.written, 'file', 'files')} written to {output.safe(folder)},"
        f" {done.unchanged} unchanged, {done.removed} removed"
    )


def _context() -> Context:
    """Return what a search is given: servers and skills are known to the store alone."""
    return connect.shared_app().context(current_project(), "cli")


def _catalog() -> Catalog:
    return connect.shared_app().catalog


def _line(name: str, one: Entry | AnyOperation) -> dict[str, Any]:
    return {"name": name, "category": one.category, "description": one.summary, "effect": str(one.effect)}


def _print_all(category: str | None) -> None:
    heading = None
    catalog = _catalog()
    for operation in catalog.listed(category):
        if operation.category != heading:
            heading = operation.category
            click.echo(click.style(f"{heading}: {catalog.categories[heading]}", bold=True))
        click.echo(f"  {operation.name:<18} {operation.summary}")
