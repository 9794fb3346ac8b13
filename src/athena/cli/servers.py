"""`athena servers`: which MCP servers there are. Only here, by a person, is one added, approved or removed."""

import json
import os
import sys
from difflib import unified_diff
from typing import Any

import click

from athena.app import connect
from athena.cli import output
from athena.cli.invoke import invoke_operation, json_option
from athena.client import AthenaClient
from athena.core import redaction
from athena.core.home import lock
from athena.core.threads import run_sync
from athena.errors import AthenaError, Conflict, InvalidInput
from athena.gateway import approvals, config, sanitize
from athena.gateway.config import VARIABLE_PATTERN, ServerEntry, reject_self, validate_entry
from athena.gateway.config import read_foreign_entries as foreign_entries
from athena.gateway.gateway import Gateway, RegisteredServer

SERVER_STATUS_TIMEOUT_S = 5.0  # seconds


def fetch_server_problems(home: str) -> dict[str, str]:
    """Return what is wrong with each server there, where another process serves this home."""
    facts = lock.find_server(home)
    if facts is None or facts["pid"] == os.getpid():
        return {}
    found = [] if not facts.get("url") else _fetch_servers(str(facts["url"]))
    return {one["name"]: f"in process {facts['pid']}: {one['detail']}" for one in found if one["status"] == "failing"}


def _fetch_servers(url: str) -> list[dict[str, Any]]:
    try:
        with AthenaClient(url, timeout=SERVER_STATUS_TIMEOUT_S) as client:
            found = client.call_tool("list_servers")
    except AthenaError:
        return []  # how it is itself is said elsewhere
    return found if isinstance(found, list) else []


UNATTENDED_VARIABLE = (
    "ATHENA_UNATTENDED"  # "1" where nobody sits at a terminal and somebody has decided that beforehand
)
MAX_VALUE_CHARS = 300  # characters of a value


def is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def require_person(command: str) -> None:
    """Refuse to go on where no person can be: a program that an agent started must not let others in."""
    if not is_interactive() and os.environ.get(UNATTENDED_VARIABLE) != "1":
        raise consent_error(command)


def consent_error(command: str) -> InvalidInput:
    return InvalidInput("a person has to agree", hint=f"a person does it at a terminal: athena servers {command}")


def describe_entry(entry: ServerEntry) -> list[str]:
    """Say what a server is given besides its command: its folder, its environment, its headers, our variables."""
    given = entry.options
    told = [f"folder: {given['cwd']}"] if given.get("cwd") else []
    told += [_format_pair("env", name, "=", value) for name, value in (given.get("env") or {}).items()]
    told += [_format_pair("header", name, ": ", value) for name, value in (given.get("headers") or {}).items()]
    if names := list(dict.fromkeys(found[1] for found in VARIABLE_PATTERN.finditer(entry.fingerprint))):
        told.append(f"given from your environment: {', '.join(names)}")
    return [sanitize.escape_hidden(line) for line in told]


def _format_pair(kind: str, name: str, between: str, value: str) -> str:
    """Write a pair as it stands in the file, where no variable has its value; a secret that does is not shown."""
    return f"{kind} {redaction.redact(f'{name}{between}{value}').text[:MAX_VALUE_CHARS]}"


def describe_changes(before: str, entry: ServerEntry) -> list[str]:
    """Say what is not as it was when it was approved, from the fingerprint of then."""
    try:
        then = {key: value for key, value in json.loads(before).items() if value is not None}
    except (ValueError, AttributeError):
        then = {}
    old, new = (_describe_server(ServerEntry(entry.name, given)) if given else [] for given in (then, entry.options))
    found = [f"- {line}" for line in old if line not in new] + [f"+ {line}" for line in new if line not in old]
    return found or ["a value that is not shown is another one"]


def _describe_server(entry: ServerEntry) -> list[str]:
    return [
        sanitize.escape_hidden(f"{'address' if entry.transport == 'http' else 'command'}: {entry.target}"),
        *describe_entry(entry),
    ]


MAX_DESCRIPTION_CHARS = 200  # characters of what each says of itself
MAX_DIFF_LINE_CHARS = 2_000  # characters of a line of a difference
MAX_DIFF_LINES = 200  # lines of it


def load_gateway() -> Gateway:
    """Return the servers as they are configured now."""
    app = connect.shared_app()
    app.catalog.refresh()
    return app.gateway


def parse_server_entry(name: str, command: tuple[str, ...], options: dict[str, Any]) -> ServerEntry:
    """Make an entry of what was typed."""
    given: dict[str, Any] = {"command": command[0], "args": list(command[1:])} if command else {}
    given |= {key: options[key] for key in ("url", "cwd", "timeout", "approval") if options[key] is not None}
    given |= {key: dict(map(_parse_key_value, options[key])) for key in ("headers", "env") if options[key]}
    made = reject_self(validate_entry(name, config.add_default_cwd(given, os.getcwd())))
    if made.options.get("cwd") and not options["cwd"]:
        click.echo(f"it runs here, since its words mean something here: {made.options['cwd']}", err=True)
    return made


def read_foreign_entries(file: str) -> tuple[list[ServerEntry], dict[str, str]]:
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


def try_approve(entry: ServerEntry, json_output: bool) -> str:
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
        if json_output or not is_interactive():
            raise consent_error(f"approve {name}")
        click.confirm(f"Allow these {len(offered)} tools of {name}?", abort=True, err=True)
    made = gateway.approve_tools(name, offered, left_out)
    if there := fetch_server_problems(gateway.servers_file.home).get(name):
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
    told = describe_changes("{}" if known.approvals is None else known.approvals.fingerprint, known.config)
    if not json_output:
        click.echo(f"{name} is not the one that was approved:" if known.approvals else f"{name} was never approved:")
        for line in told:
            click.echo(f"  {line}")
    if ask:
        if json_output or not is_interactive():
            raise consent_error(f"approve {name}")
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


STATUS_COLOURS = {"ready": "green", "connected": "green", "waiting": "yellow", "changed": "yellow", "failing": "red"}
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group(invoke_without_command=True)
@click.pass_context
def servers(context: click.Context) -> None:
    """Connect other MCP servers.

    Example: athena servers add files -- npx -y some-mcp-server ~/notes
    """
    if context.invoked_subcommand is None:
        context.invoke(list_servers)


@servers.command("list")
@click.option("--check", is_flag=True, help="Connect each of them first.")
@json_option
def list_servers(check: bool = False, json_output: bool = False) -> None:
    """List servers and how they are.

    Example: athena servers list --check
    """
    # what they need is needed nowhere else
    from athena.gateway import sanitize

    gateway = load_gateway()
    wrong = run_sync(gateway.check_servers()) if check else {}
    found, elsewhere = invoke_operation("list_servers", None), fetch_server_problems(gateway.servers_file.home)
    for one in found:
        one["command"] = gateway.get_server(one["name"]).config.target
        one["detail"] = wrong.get(one["name"]) or one["detail"]
        if there := elsewhere.get(one["name"]):
            one |= {"status": "failing", "detail": "; ".join(filter(None, [one["detail"], there]))}
    if json_output:
        return output.print_json(found)
    for one in found:
        status = click.style(f"{one['status']:<10}", fg=STATUS_COLOURS.get(one["status"]))
        click.echo(f"{status} {one['name']:<16} {one['tools']:>4} tools  {sanitize.escape_hidden(one['command'])}")
        for line in filter(None, [one["detail"], *one["refused"]]):
            click.echo(f"           {output.escape_control_chars(line)}")
    if not found:
        click.echo("none yet: athena servers add NAME -- COMMAND ARGS...", err=True)
    return None


@servers.command("add")
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--url", help="Of a server that is reached over HTTP.")
@click.option("--header", "headers", multiple=True, metavar="K=V", help="Sent with each request; ${VAR} is looked up.")
@click.option("--env", "env", multiple=True, metavar="K=V", help="Given to the command; ${VAR} is looked up.")
@click.option("--cwd", help="The command's folder.")
@click.option("--timeout", type=float, help="Seconds for a call; 60 by default.")
@click.option(
    "--approval", type=click.Choice(["never", "destructive", "always"]), help="Which calls wait for a person."
)
@json_option
def add_server(name: str, command: tuple[str, ...], json_output: bool, **options: Any) -> None:
    """Add a server and approve the tools that it has now.

    Example: athena servers add github --url https://example.com/mcp --header 'Authorization=Bearer ${GITHUB_TOKEN}'
    """
    # what they need is needed nowhere else

    require_person(f"add {name}")
    entry = parse_server_entry(name, command, options)
    if entry.is_unencrypted:
        click.echo("the address is not encrypted: others on the way can read and change what is sent", err=True)
    load_gateway().add_servers([entry])
    approve_tools(name, json_output, ask=False)


@servers.command("import")
@click.argument("file")
@yes_option
@json_option
def import_servers(file: str, yes: bool, json_output: bool) -> None:
    """Add the servers of another client's file.

    Example: athena servers import ~/.cursor/mcp.json
    """
    # what they need is needed nowhere else
    from athena.gateway import sanitize

    require_person(f"import {file}")
    (entries, skipped), gateway = read_foreign_entries(file), load_gateway()
    new = [entry for entry in entries if gateway.is_unapproved(entry.name)]
    for entry in entries:
        known = "" if entry in new else "  (there already)"
        click.echo(f"{entry.name}: {sanitize.escape_hidden(entry.target)}{known}", err=True)
        for line in describe_entry(entry) if entry in new else ():
            click.echo(f"  {line}", err=True)
    for name, why in skipped.items():
        click.echo(f"{sanitize.escape_hidden(name)}: skipped: {sanitize.escape_hidden(why)}", err=True)
    if new and not yes:
        click.confirm(f"Add {len(new)} and run what they name?", abort=True, err=True)
    if new:
        gateway.add_servers(new)
    done = {entry.name: try_approve(entry, json_output) for entry in new}
    if json_output:
        output.print_json(done | {name: f"skipped: {why}" for name, why in skipped.items()})
    if skipped:
        raise click.exceptions.Exit(1)


@servers.command("remove")
@click.argument("name")
@json_option
def remove_server(name: str, json_output: bool) -> None:
    """Remove a server and what was approved of it.

    Example: athena servers remove github
    """
    # what it needs is needed nowhere else

    gateway = load_gateway()
    found = gateway.resolve_name(name)
    gateway.remove_server(found)
    return output.print_json({"removed": found}) if json_output else click.echo(f"removed {found}")


@servers.command("login")
@click.argument("name")
@json_option
def login_to_server(name: str, json_output: bool) -> None:
    """Log in to a server that is reached over HTTP.

    Example: athena servers login github
    """
    # what they need is needed nowhere else

    require_person(f"login {name}")
    approve_tools(name, json_output, ask=False, login=True)


@servers.command("approve")
@click.argument("name")
@yes_option
@json_option
def approve_server(name: str, yes: bool, json_output: bool) -> None:
    """Look at what a server offers now, and allow it.

    Example: athena servers approve github
    """
    # what they need is needed nowhere else

    require_person(f"approve {name}")
    approve_tools(name, json_output, ask=not yes)
