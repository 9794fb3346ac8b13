"""`athena servers`: add, approve, list and remove MCP servers, which only a person at a terminal may do."""

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
from athena.gateway.gateway import Gateway, RegisteredServer

UNATTENDED_VARIABLE = "ATHENA_UNATTENDED"  # "1": the caller has decided, and no person is at the terminal
SERVER_STATUS_TIMEOUT_S = 5.0
MAX_VALUE_CHARS = 300
MAX_DESCRIPTION_CHARS = 200
MAX_DIFF_LINE_CHARS = 2_000
MAX_DIFF_LINES = 200
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
    gateway = load_gateway()
    problems = run_sync(gateway.check_servers()) if check else {}
    listed, daemon_problems = invoke_operation("list_servers"), fetch_server_problems(gateway.servers_file.home)
    for server in listed:
        server["command"] = gateway.get_server(server["name"]).config.target
        server["detail"] = problems.get(server["name"]) or server["detail"]
        if problem := daemon_problems.get(server["name"]):
            server |= {"status": "failing", "detail": "; ".join(filter(None, [server["detail"], problem]))}
    if json_output:
        return output.print_json(listed)
    for server in listed:
        status = output.style(f"{server['status']:<10}", fg=STATUS_COLOURS.get(server["status"]))
        command = sanitize.escape_hidden(server["command"])
        click.echo(f"{status} {server['name']:<16} {server['tools']:>4} tools  {command}")
        for line in filter(None, [server["detail"], *server["refused"]]):
            click.echo(f"           {output.escape_control_chars(line)}")
    if not listed:
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
    require_person(f"import {file}")
    (entries, skipped), gateway = read_foreign_entries(file), load_gateway()
    new = [entry for entry in entries if gateway.is_unapproved(entry.name)]
    for entry in entries:
        note = "" if entry in new else "  (there already)"
        click.echo(f"{entry.name}: {sanitize.escape_hidden(entry.target)}{note}", err=True)
        for line in describe_entry(entry) if entry in new else ():
            click.echo(f"  {line}", err=True)
    for name, reason in skipped.items():
        click.echo(f"{sanitize.escape_hidden(name)}: skipped: {sanitize.escape_hidden(reason)}", err=True)
    if new and not yes:
        click.confirm(f"Add {len(new)} and run what they name?", abort=True, err=True)
    if new:
        gateway.add_servers(new)
    problems = {entry.name: try_approve(entry, json_output) for entry in new}
    if json_output:
        output.print_json(problems | {name: f"skipped: {reason}" for name, reason in skipped.items()})
    if skipped:
        raise click.exceptions.Exit(1)


@servers.command("remove")
@click.argument("name")
@json_option
def remove_server(name: str, json_output: bool) -> None:
    """Remove a server and what was approved of it.

    Example: athena servers remove github
    """
    gateway = load_gateway()
    server = gateway.resolve_name(name)
    gateway.remove_server(server)
    return output.print_json({"removed": server}) if json_output else click.echo(f"removed {server}")


@servers.command("login")
@click.argument("name")
@json_option
def login_to_server(name: str, json_output: bool) -> None:
    """Log in to a server that is reached over HTTP.

    Example: athena servers login github
    """
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
    require_person(f"approve {name}")
    approve_tools(name, json_output, ask=not yes)


@servers.command("privacy")
@click.argument("name")
@click.option("--accept", "accepted", multiple=True, metavar="KIND", help="files, server:NAME or all; again for each.")
@click.option("--refuse", "refused", multiple=True, metavar="KIND", help="Take back what it accepts.")
@click.option("--private/--public", "private", default=None, help="Whether other servers may get its results.")
@json_option
def set_server_privacy(
    name: str, accepted: tuple[str, ...], refused: tuple[str, ...], private: bool | None, json_output: bool
) -> None:
    """Show or change which private data programs may send to a server, and whether its own results are private.

    A program that has read ingested files or a private server waits for a person before it calls a server that does
    not accept them.

    Example: athena servers privacy github --accept files
    """
    gateway = load_gateway()
    entry = gateway.get_server(name).config
    if accepted or refused or private is not None:
        require_person(f"privacy {name}")
        marks = sorted((entry.accepted_marks | {*accepted}) - {*refused})
        is_private = entry.is_private if private is None else private
        gateway.servers_file.update_entry(entry.name, {"accepts": marks or None, "private": is_private or None})
        entry = load_gateway().get_server(name).config
    if json_output:
        return output.print_json({"accepts": sorted(entry.accepted_marks), "private": entry.is_private})
    click.echo(f"{name} accepts: {', '.join(sorted(entry.accepted_marks)) or 'nothing private'}")
    click.echo(f"its results are {'private' if entry.is_private else 'not private'}")
    return None


def fetch_server_problems(home: str) -> dict[str, str]:
    """Return the problem of each failing server in another process that serves this data folder."""
    facts = lock.find_server(home)
    if facts is None or facts["pid"] == os.getpid():
        return {}
    listed = _fetch_servers(str(facts["url"])) if facts.get("url") else []
    return {
        server["name"]: f"in process {facts['pid']}: {server['detail']}"
        for server in listed
        if server["status"] == "failing"
    }


def _fetch_servers(url: str) -> list[dict[str, Any]]:
    try:
        with AthenaClient(url, timeout=SERVER_STATUS_TIMEOUT_S) as client:
            listed = client.call_tool("list_servers")
    except AthenaError:
        return []  # `athena daemon status` reports a daemon that does not answer
    return listed if isinstance(listed, list) else []


def is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def require_person(command: str) -> None:
    """Raise an error unless a person is at the terminal: a program of an agent must not approve servers."""
    if not is_interactive() and os.environ.get(UNATTENDED_VARIABLE) != "1":
        raise consent_error(command)


def consent_error(command: str) -> InvalidInput:
    return InvalidInput("a person has to agree", hint=f"a person does it at a terminal: athena servers {command}")


def describe_entry(entry: ServerEntry) -> list[str]:
    """Describe a server besides its command: working directory, environment, headers, variables of ours it gets."""
    options = entry.options
    lines = [f"folder: {options['cwd']}"] if options.get("cwd") else []
    lines += [_format_pair("env", name, "=", value) for name, value in (options.get("env") or {}).items()]
    lines += [_format_pair("header", name, ": ", value) for name, value in (options.get("headers") or {}).items()]
    if names := list(dict.fromkeys(match[1] for match in VARIABLE_PATTERN.finditer(entry.fingerprint))):
        lines.append(f"given from your environment: {', '.join(names)}")
    return [sanitize.escape_hidden(line) for line in lines]


def _format_pair(label: str, name: str, separator: str, value: str) -> str:
    """Format a pair as the file has it, with variables unexpanded and secrets redacted."""
    return f"{label} {redaction.redact(f'{name}{separator}{value}').text[:MAX_VALUE_CHARS]}"


def describe_changes(fingerprint: str, entry: ServerEntry) -> list[str]:
    """Return a diff between a server when it was approved, by its fingerprint of then, and now."""
    try:
        approved = {key: value for key, value in json.loads(fingerprint).items() if value is not None}
    except (ValueError, AttributeError):
        approved = {}
    old, new = (
        _describe_server(ServerEntry(entry.name, options)) if options else [] for options in (approved, entry.options)
    )
    lines = [f"- {line}" for line in old if line not in new] + [f"+ {line}" for line in new if line not in old]
    return lines or ["a value that is not shown is another one"]


def _describe_server(entry: ServerEntry) -> list[str]:
    return [
        sanitize.escape_hidden(f"{'address' if entry.transport == 'http' else 'command'}: {entry.target}"),
        *describe_entry(entry),
    ]


def load_gateway() -> Gateway:
    """Return the gateway with the servers that are configured now."""
    app = connect.shared_app()
    app.catalog.refresh()
    return app.gateway


def parse_server_entry(name: str, command: tuple[str, ...], options: dict[str, Any]) -> ServerEntry:
    """Create an entry from the command line."""
    fields: dict[str, Any] = {"command": command[0], "args": list(command[1:])} if command else {}
    fields |= {key: options[key] for key in ("url", "cwd", "timeout", "approval") if options[key] is not None}
    fields |= {key: dict(map(_parse_key_value, options[key])) for key in ("headers", "env") if options[key]}
    entry = reject_self(validate_entry(name, config.add_default_cwd(fields, os.getcwd())))
    if entry.options.get("cwd") and not options["cwd"]:
        click.echo(f"it runs in this folder, since its command names files here: {entry.options['cwd']}", err=True)
    return entry


def read_foreign_entries(file: str) -> tuple[list[ServerEntry], dict[str, str]]:
    """Read another client's file; return its servers, and why others cannot be imported."""
    try:
        with open(file, "rb") as stream:
            return config.read_foreign_entries(stream.read(), file)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from None


def _parse_key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key.strip() and equals):
        raise InvalidInput(f"{text!r:.60} is no K=V", hint="for example: --header 'Authorization=Bearer ${TOKEN}'")
    return key.strip(), value


def _log_in(gateway: Gateway, name: str) -> None:
    """Let a person log in with a browser."""

    def show_address(address: str) -> None:
        click.echo(f"to log in, open this address:\n{sanitize.escape_hidden(address)}", err=True)
        if sys.stdin.isatty() and click.confirm("Open it in a browser now?", default=True, err=True):
            click.launch(address)

    gateway.login(name, show_address)
    click.echo(f"logged in to {name}", err=True)


def try_approve(entry: ServerEntry, json_output: bool) -> str:
    """Approve a server that was just added; return its problem, an empty text if there is none."""
    gateway = load_gateway()
    name = gateway.resolve_name(entry.name)
    try:
        offered, left_out = run_sync(_fetch_offered_tools(gateway, name))
    except AthenaError as error:
        problem = f"{error}; {error.hint}"
        if not json_output:
            click.echo(f"{name}: {sanitize.escape_hidden(problem)}")
        return problem
    if not json_output:
        _print_offered_tools(offered, {}, None)
    approved = gateway.approve_tools(name, offered, left_out)
    if not json_output:
        example = f"{name}.{_first_tool_name(approved)}(...)"
        click.echo(f"{name}: added, {len(approved.tools)} tools can be called, as {example}")
    return ""


async def _fetch_offered_tools(gateway: Gateway, name: str) -> tuple[approvals.ToolDefinitions, int]:
    """Connect a server and return its tools; on an error, the hint says whether the server is kept."""
    try:
        return await gateway.fetch_tools(name)
    except Conflict:  # the server is Athena itself
        if gateway.is_unapproved(gateway.get_server(name).config.name):
            gateway.remove_server(name)
        raise
    except AthenaError as error:
        hint = f"{name} is kept, not connected; when it works: athena servers approve {name}"
        error.hint = f"{error.hint}; {hint}" if error.hint else hint
        raise


def approve_tools(key: str, json_output: bool, *, ask: bool, login: bool = False) -> None:
    """Show the tools that a server has now, after a login if wanted, ask, and approve them."""
    gateway = load_gateway()
    name = gateway.resolve_name(key)
    server = gateway.get_server(name)
    before = server.approvals
    ask = ask or (login and before is not None)  # a new login does not approve changes
    same_server = before is not None and before.fingerprint == server.config.fingerprint
    if not same_server and (ask or before is not None):
        _show_server_changes(name, server, json_output, ask=ask)
    if login:
        _log_in(gateway, name)
    offered, left_out = run_sync(_fetch_offered_tools(gateway, name))
    changes = approvals.compare_tools(before, offered) if before else {}
    if not json_output:
        _print_offered_tools(offered, changes, before)
    if before is not None and same_server and not changes and not before.refused:
        if json_output:
            return output.print_json(_approval_to_dict(name, before))
        return click.echo(f"{name}: all as approved")
    if ask:
        if json_output or not is_interactive():
            raise consent_error(f"approve {name}")
        click.confirm(f"Allow these {len(offered)} tools of {name}?", abort=True, err=True)
    approved = gateway.approve_tools(name, offered, left_out)
    if problem := fetch_server_problems(gateway.servers_file.home).get(name):
        click.echo(f"{name} will not work yet {problem}", err=True)
    if json_output:
        return output.print_json(_approval_to_dict(name, approved))
    renamed = ({} if key == name else {key: name}) | approved.renamed_tools
    for theirs, ours in renamed.items():
        click.echo(f"called in programs: {sanitize.escape_hidden(theirs[:80])} -> {ours}")
    if left_out:
        click.echo(
            f"{left_out} tools were left out: more than {approvals.MAX_TOOLS:,}, too large, or named twice", err=True
        )
    example = f"{name}.{_first_tool_name(approved)}(...)"
    return click.echo(f"{name}: {len(approved.tools)} tools can be called, as {example}")


def _show_server_changes(name: str, server: RegisteredServer, json_output: bool, *, ask: bool) -> None:
    """Show the command of a server, or what changed in it, and ask before it runs."""
    lines = describe_changes("{}" if server.approvals is None else server.approvals.fingerprint, server.config)
    if not json_output:
        click.echo(f"{name} is not the one that was approved:" if server.approvals else f"{name} was never approved:")
        for line in lines:
            click.echo(f"  {line}")
    if ask:
        if json_output or not is_interactive():
            raise consent_error(f"approve {name}")
        click.confirm("Run it, and see what it offers?", abort=True, err=True)


def _first_tool_name(approved: approvals.ServerApprovals) -> str:
    return next((tool.program_name for tool in approved.tools.values()), "tool")


def _approval_to_dict(name: str, approved: approvals.ServerApprovals) -> dict[str, Any]:
    tools = sorted(tool.program_name for tool in approved.tools.values())
    return {"name": name, "tools": tools, "renamed": approved.renamed_tools, "left_out": approved.left_out}


def _print_offered_tools(
    offered: approvals.ToolDefinitions, changes: dict[str, Any], before: approvals.ServerApprovals | None
) -> None:
    """Print the tools, or what changed in them, with hidden characters escaped."""
    for tool, definition in offered.items():
        change = changes.get(tool, "") if before else ""
        if before and not change:
            continue
        warning = output.style("  HIDDEN CHARACTERS", fg="red") if sanitize.has_hidden_text(definition) else ""
        if change == "changed" and before is not None:
            click.echo(f"changed: {sanitize.escape_hidden(tool)}{warning}")
            for line in _diff_definitions(before.tools[tool].definition, definition):
                click.echo(f"  {line}")
        else:
            description = sanitize.escape_hidden(" ".join(str(definition.get("description") or "").split()))
            details = _format_hints(definition) + _truncate_text(description, MAX_DESCRIPTION_CHARS)
            click.echo(f"{change or '+'} {sanitize.escape_hidden(tool)}  {details}{warning}")
    for tool, change in changes.items():
        if change == "gone":
            click.echo(f"gone: {sanitize.escape_hidden(tool)}")


def _format_hints(definition: Any) -> str:
    hints = definition.get("annotations") or {}
    if hints.get("readOnlyHint") is True:
        return "(reads) "
    return "(destroys) " if hints.get("destructiveHint") is True else ""


def _diff_definitions(old: Any, new: Any) -> list[str]:
    before, after = (
        json.dumps(definition, indent=1, sort_keys=True, ensure_ascii=False).splitlines() for definition in (old, new)
    )
    diff = [line for line in unified_diff(before, after, n=0, lineterm="") if not line.startswith(("---", "+++", "@@"))]
    lines = [_truncate_text(sanitize.escape_hidden(line), MAX_DIFF_LINE_CHARS) for line in diff[:MAX_DIFF_LINES]]
    return [*lines, f"... and {len(diff) - MAX_DIFF_LINES} more lines"] if len(diff) > MAX_DIFF_LINES else lines


def _truncate_text(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 1].rstrip()}…"
