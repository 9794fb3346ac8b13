"""Looking at what a server offers, and allowing it: what a person sees before agreeing."""

import json
import os
import sys
from difflib import unified_diff
from typing import Any

import click

from athena.app import connect
from athena.cli import consent, output, running
from athena.core.threads import run_sync
from athena.errors import AthenaError, Conflict, InvalidInput
from athena.gateway import approvals, sanitize, working_directory
from athena.gateway.config import Entry, reject_self, validate_entry
from athena.gateway.config import read_foreign_entries as foreign_entries
from athena.gateway.gateway import Gateway, RegisteredServer

MAX_DESCRIPTION_CHARS = 200  # characters of what each says of itself
MAX_DIFF_LINE_CHARS = 2_000  # characters of a line of a difference
MAX_DIFF_LINES = 200  # lines of it


def load_gateway() -> Gateway:
    """Return the servers as they are configured now."""
    app = connect.shared_app()
    app.catalog.version  # noqa: B018  # reads what is configured
    return app.gateway


def parse_server_entry(name: str, command: tuple[str, ...], options: dict[str, Any]) -> Entry:
    """Make an entry of what was typed."""
    given: dict[str, Any] = {"command": command[0], "args": list(command[1:])} if command else {}
    given |= {key: options[key] for key in ("url", "cwd", "timeout", "approval") if options[key] is not None}
    given |= {key: dict(map(_parse_key_value, options[key])) for key in ("headers", "env") if options[key]}
    made = reject_self(validate_entry(name, working_directory.add_default_cwd(given, os.getcwd())))
    if made.options.get("cwd") and not options["cwd"]:
        click.echo(f"it runs here, since its words mean something here: {made.options['cwd']}", err=True)
    return made


def read_foreign_entries(file: str) -> tuple[list[Entry], dict[str, str]]:
    """Read another client's file: what can be taken, and why the rest cannot."""
    try:
        with open(file, "rb") as opened:
            return foreign_entries(opened.read(), file)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from None


def _parse_key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key.strip() and equals):
        raise InvalidInput(f"{text!r:.60} is no K=V", hint="for example: --header 'Authorization=Bearer ${TOKEN}'")
    return key.strip(), value


def _log_in(gateway: Gateway, name: str) -> None:
    """Have a person log in with a browser."""

    def show_address(address: str) -> None:
        click.echo(f"to log in, open this address:\n{sanitize.escape_hidden(address)}", err=True)
        if sys.stdin.isatty() and click.confirm("Open it in a browser now?", default=True, err=True):
            click.launch(address)

    gateway.login(name, show_address)
    click.echo(f"logged in to {name}", err=True)


def try_approve(entry: Entry, json_output: bool) -> str:
    """Approve a server that was just added; return what is wrong with it."""
    gateway = load_gateway()
    name = gateway.resolve_name(entry.name)
    try:
        offered, left_out = run_sync(_fetch_offered_tools(gateway, name))
    except AthenaError as error:
        trouble = f"{error}; {error.hint}"
        if not json_output:
            click.echo(f"{name}: {sanitize.escape_hidden(trouble)}")
        return trouble
    if not json_output:
        _print_offered_tools(offered, {}, None)
    made = gateway.approve_tools(name, offered, left_out)
    if not json_output:
        click.echo(f"{name}: added, {len(made.tools)} tools can be called, as {name}.{_first_tool_name(made)}(...)")
    return ""


async def _fetch_offered_tools(gateway: Gateway, name: str) -> tuple[approvals.ToolDefinitions, int]:
    """Connect a server and return what it offers; where that fails, say what becomes of it."""
    try:
        return await gateway.fetch_tools(name)
    except Conflict:  # it is ourselves
        if gateway.is_unapproved(gateway.get_server(name).config.name):
            gateway.remove_server(name)
        raise
    except AthenaError as error:
        kept = f"{name} is kept, not connected; when it works: athena servers approve {name}"
        error.hint = f"{error.hint}; {kept}" if error.hint else kept
        raise


def approve_tools(key: str, json_output: bool, *, ask: bool, login: bool = False) -> None:
    """Show what a server offers now, after a login where it needs one, ask, and pin it."""
    gateway = load_gateway()
    name = gateway.resolve_name(key)
    known = gateway.get_server(name)
    before = known.approvals
    ask = ask or (login and before is not None)  # to log in again is not to agree to what has changed
    same_server = before is not None and before.fingerprint == known.config.fingerprint
    if not same_server and (ask or before is not None):
        _show_server_changes(name, known, json_output, ask=ask)
    if login:
        _log_in(gateway, name)
    offered, left_out = run_sync(_fetch_offered_tools(gateway, name))
    changes = approvals.compare_tools(before, offered) if before else {}
    if not json_output:
        _print_offered_tools(offered, changes, before)
    if before is not None and same_server and not changes and not before.refused:
        return (
            output.print_json(_approval_to_dict(name, before))
            if json_output
            else click.echo(f"{name}: all as approved")
        )
    if ask:
        if json_output or not consent.is_interactive():
            raise consent.consent_error(f"approve {name}")
        click.confirm(f"Allow these {len(offered)} tools of {name}?", abort=True, err=True)
    made = gateway.approve_tools(name, offered, left_out)
    if there := running.fetch_server_problems(gateway.servers_file.home).get(name):
        click.echo(f"{name} will not work yet {there}", err=True)
    if json_output:
        return output.print_json(_approval_to_dict(name, made))
    renamed = ({} if key == name else {key: name}) | made.renamed_tools
    for theirs, ours in renamed.items():
        click.echo(f"called in programs: {sanitize.escape_hidden(theirs[:80])} -> {ours}")
    if left_out:
        click.echo(
            f"{left_out} tools were left out: more than {approvals.MAX_TOOLS:,}, too large, or named twice", err=True
        )
    return click.echo(f"{name}: {len(made.tools)} tools can be called, as {name}.{_first_tool_name(made)}(...)")


def _show_server_changes(name: str, known: RegisteredServer, json_output: bool, *, ask: bool) -> None:
    """Show what would run, or what is different about it, and ask, before it does."""
    told = consent.describe_changes("{}" if known.approvals is None else known.approvals.fingerprint, known.config)
    if not json_output:
        click.echo(f"{name} is not the one that was approved:" if known.approvals else f"{name} was never approved:")
        for line in told:
            click.echo(f"  {line}")
    if ask:
        if json_output or not consent.is_interactive():
            raise consent.consent_error(f"approve {name}")
        click.confirm("Run it, and see what it offers?", abort=True, err=True)


def _first_tool_name(made: approvals.ServerApprovals) -> str:
    return next((pin.program_name for pin in made.tools.values()), "tool")


def _approval_to_dict(name: str, made: approvals.ServerApprovals) -> dict[str, Any]:
    called = {pin.program_name: tool for tool, pin in made.tools.items()}
    return {"name": name, "tools": sorted(called), "renamed": made.renamed_tools, "left_out": made.left_out}


def _print_offered_tools(
    offered: approvals.ToolDefinitions, changes: dict[str, Any], before: approvals.ServerApprovals | None
) -> None:
    """Print the tools, or what is different about them; nothing that hides stays hidden."""
    for tool, definition in offered.items():
        why = changes.get(tool, "") if before else ""
        if before and not why:
            continue
        hides = click.style("  HIDDEN CHARACTERS", fg="red") if sanitize.has_hidden_text(definition) else ""
        if why == "changed" and before is not None:
            click.echo(f"changed: {sanitize.escape_hidden(tool)}{hides}")
            for line in _diff_definitions(before.tools[tool].definition, definition):
                click.echo(f"  {line}")
        else:
            about = sanitize.escape_hidden(" ".join(str(definition.get("description") or "").split()))
            click.echo(
                f"{why or '+'} {sanitize.escape_hidden(tool)}  {_format_hints(definition)}{_truncate_text(about, MAX_DESCRIPTION_CHARS)}{hides}"
            )
    for tool, why in changes.items():
        if why == "gone":
            click.echo(f"gone: {sanitize.escape_hidden(tool)}")


def _format_hints(definition: Any) -> str:
    hints = definition.get("annotations") or {}
    if hints.get("readOnlyHint") is True:
        return "(reads) "
    return "(destroys) " if hints.get("destructiveHint") is True else ""


def _diff_definitions(old: Any, new: Any) -> list[str]:
    before, now = (json.dumps(one, indent=1, sort_keys=True, ensure_ascii=False).splitlines() for one in (old, new))
    found = [one for one in unified_diff(before, now, n=0, lineterm="") if not one.startswith(("---", "+++", "@@"))]
    lines = [_truncate_text(sanitize.escape_hidden(line), MAX_DIFF_LINE_CHARS) for line in found[:MAX_DIFF_LINES]]
    return [*lines, f"... and {len(found) - MAX_DIFF_LINES} more lines"] if len(found) > MAX_DIFF_LINES else lines


def _truncate_text(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"
