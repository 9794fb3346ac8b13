"""`athena servers`: add, approve, list and remove MCP servers, which only a person at a terminal may do."""

import os
from collections.abc import Iterator
from typing import Any

import click

from athena.app import connect
from athena.cli import output
from athena.cli.approval import Terminal, ask_approvals, open_terminal
from athena.cli.command_group import CommandGroup
from athena.cli.invoke import json_option
from athena.cli.progress import show_progress
from athena.cli.ui import open_browser
from athena.client import AthenaClient
from athena.core.home import lock
from athena.core.threads import run_sync
from athena.errors import AthenaError, Conflict, InvalidInput, NotFound
from athena.gateway import approvals, config, definitions, sanitize
from athena.gateway.approvals import RegisteredServer
from athena.gateway.config import ServerEntry, reject_self, validate_entry
from athena.gateway.gateway import APPROVE_WORDS, Gateway
from athena.gateway.review import MAX_DIFFERENCES, describe_changes, describe_entry

SERVER_STATUS_TIMEOUT_S = 5.0
STATUS_COLOURS = {"ready": "green", "connected": "green", "waiting": "yellow", "changed": "yellow", "failing": "red"}

yes_option = click.option("--yes", is_flag=True, help="Do not ask; a terminal is needed all the same.")


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.pass_context
def servers(context: click.Context) -> None:
    """Connect other MCP servers, and approve their tools.

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
    with show_progress("Asking the servers"):
        problems = run_sync(gateway.check_servers()) if check else {}
    # as this process sees them; a running server's view is beside it
    listed = run_sync(connect.AppConnection(connect.shared_app, None, "cli").call("list_servers", {})).data
    daemon_problems = fetch_server_problems(gateway.servers_file.home)
    for server in listed:
        server["command"] = gateway.get_server(server["name"]).config.target
        server["detail"] = problems.get(server["name"]) or server["detail"]
        if problem := daemon_problems.get(server["name"]):
            server |= {"status": "failing", "detail": "; ".join(filter(None, [server["detail"], problem]))}
    if json_output:
        return output.print_data(listed)
    for server in listed:
        status = output.style(f"{server['status']:<10}", fg=STATUS_COLOURS.get(server["status"]))
        command = sanitize.escape_hidden(server["command"])
        click.echo(f"{status} {server['name']:<16} {_count_tools(server['tools']):>9}  {command}")
        problem, _, approve = server["detail"].partition(APPROVE_WORDS)
        way_out = approve and f"{APPROVE_WORDS.strip('; ')} {approve}"
        for line in filter(None, [problem, *server["refused"], way_out]):
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
    with open_terminal(f"servers add {name}") as terminal:
        entry = parse_server_entry(name, command, options)
        if entry.is_unencrypted:
            click.echo("the address is not encrypted: others on the way can read and change what is sent", err=True)
        load_gateway().add_servers([entry])
        approve_tools(terminal, name, json_output, is_new=True)


@servers.command("import")
@click.argument("file")
@yes_option
@json_option
def import_servers(file: str, yes: bool, json_output: bool) -> None:
    """Add the servers of another client's file.

    Example: athena servers import ~/.cursor/mcp.json
    """
    entries, skipped = read_foreign_entries(file)
    with open_terminal(f"servers import {file}", assume_yes=yes) as terminal:
        gateway = load_gateway()
        new = [entry for entry in entries if gateway.is_unapproved(entry.name)]
        for entry in entries:
            terminal.show([f"{entry.name}: {entry.target}{'' if entry in new else '  (there already)'}"])
            terminal.show(f"  {line}" for line in (describe_entry(entry) if entry in new else ()))
        for name, reason in skipped.items():
            terminal.show([f"{name}: skipped: {reason}"])
        problems: dict[str, str] = {}
        if new:
            terminal.confirm(f"Add {len(new)} and run what they name?")
            gateway.add_servers(new)
            problems = _approve_new(terminal, new, json_output)
    if json_output:
        output.print_data(problems | {name: f"skipped: {reason}" for name, reason in skipped.items()})
    if skipped:
        raise click.exceptions.Exit(1)


@servers.command("remove")
@click.argument("name")
@json_option
def remove_server(name: str, json_output: bool) -> None:
    """Remove a server, what was approved of it, and its leave to receive secrets.

    Example: athena servers remove github
    """
    gateway = load_gateway()
    server = gateway.resolve_name(name)
    run_sync(connect.shared_app().guard.vault.withdraw_leave(server))
    gateway.remove_server(server)
    return output.print_data({"removed": server}) if json_output else click.echo(f"removed {server}")


@servers.command("login")
@click.argument("name")
@json_option
def login_to_server(name: str, json_output: bool) -> None:
    """Log in to a server that is reached over HTTP.

    Example: athena servers login github
    """
    with open_terminal(f"servers login {name}") as terminal:
        approve_tools(terminal, name, json_output, login=True)


@servers.command("approve")
@click.argument("name")
@yes_option
@json_option
def approve_server(name: str, yes: bool, json_output: bool) -> None:
    """Look at what a server offers now, and allow it.

    Example: athena servers approve github
    """
    with open_terminal(f"servers approve {name}", assume_yes=yes) as terminal:
        approve_tools(terminal, name, json_output)


@servers.command("privacy")
@click.argument("name")
@click.option("--accept", "accepted", multiple=True, metavar="KIND", help="files, server:NAME or all; again for each.")
@click.option("--refuse", "refused", multiple=True, metavar="KIND", help="Take back what it accepts.")
@click.option("--private/--public", "private", default=None, help="Whether other servers may get its results.")
@click.option("--receives", metavar="KINDS", help="Personal data that it may get: EMAIL,PHONE or all or none.")
@click.option("--tool", metavar="TOOL", help="With --receives: only this tool.")
@json_option
def set_server_privacy(
    name: str,
    accepted: tuple[str, ...],
    refused: tuple[str, ...],
    private: bool | None,
    receives: str | None,
    tool: str | None,
    json_output: bool,
) -> None:
    """Show or change which private data programs may send to a server, and whether its own results are private.

    A program that has read ingested files or a private server waits for a person before it calls a server that does
    not accept them. Where privacy is on, --receives limits the kinds of personal data that its tools are given.

    Example: athena servers privacy github --accept files
    """
    gateway = load_gateway()
    entry = gateway.get_server(name).config
    if receives is not None or tool is not None:
        _set_received_kinds(entry, receives, tool)
        gateway = load_gateway()
        entry = gateway.get_server(name).config
    if accepted or refused or private is not None:
        change = entry.plan_privacy(accepted, refused, private)
        if change.lines:
            with Terminal(f"servers privacy {name}") as terminal:  # always: later calls then ask nobody
                terminal.show(change.lines)
                [approval] = ask_approvals(terminal, f"Change this for {name}?", [change.subject])
            gateway.set_privacy(change, approval)
        else:
            click.echo("nothing changes", err=True)
        entry = load_gateway().get_server(name).config
    if json_output:
        facts = {key: entry.options.get(key) for key in ("receives", "receivesByTool")}
        return output.print_data({"accepts": sorted(entry.accepted_marks), "private": entry.is_private} | facts)
    click.echo(f"{name} accepts: {', '.join(sorted(entry.accepted_marks)) or 'nothing private'}")
    click.echo(f"its results are {'private' if entry.is_private else 'not private'}")
    limits = {"it": entry.options.get("receives"), **entry.options.get("receivesByTool", {})}
    for receiver, kinds in limits.items():
        named = "all kinds" if kinds is None else ", ".join(kinds) or "nothing"
        click.echo(f"{receiver} receives, of personal data: {named}")
    return None


def _set_received_kinds(entry: ServerEntry, receives: str | None, tool: str | None) -> None:
    """Let a server, or one tool of it, receive these kinds of personal data and no others."""
    if receives is None:
        raise InvalidInput("--tool goes with --receives", hint=f"athena servers privacy {entry.name} --receives KINDS")
    kinds = None if receives == "all" else [] if receives == "none" else receives.upper().split(",")
    with Terminal(f"servers privacy {entry.name}") as terminal:
        question = f"Let {f'{tool} of ' if tool else ''}{entry.name} receive {receives} of personal data?"
        ask_approvals(terminal, question, [f"privacy {entry.name}"])
    by_tool = {name: given for name, given in entry.options.get("receivesByTool", {}).items() if name != tool}
    if tool is None:
        load_gateway().servers_file.update_entry(entry.name, {"receives": kinds})
    else:
        by_tool |= {} if kinds is None else {tool: kinds}
        load_gateway().servers_file.update_entry(entry.name, {"receivesByTool": by_tool or None})


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
        raise NotFound(f"{file} cannot be read: {error.strerror}", hint="name the file of another client") from None


def _count_tools(count: int) -> str:
    return output.format_count(count, "tool", "tools")


def _format_these(count: int) -> str:
    return "this tool" if count == 1 else f"these {count:,} tools"


def _parse_key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key.strip() and equals):
        raise InvalidInput(f"{text!r:.60} is no K=V", hint="for example: --header 'Authorization=Bearer ${TOKEN}'")
    return key.strip(), value


def _log_in(terminal: Terminal, gateway: Gateway, name: str) -> None:
    """Let a person log in with a browser."""

    def show_address(address: str) -> None:
        terminal.show(["to log in, open this address:", address])
        if terminal.ask("Open it in a browser now?", default=True):
            open_browser(address)

    gateway.login(name, show_address)
    click.echo(f"logged in to {name}", err=True)


def _approve_new(terminal: Terminal, entries: list[ServerEntry], json_output: bool) -> dict[str, str]:
    """Show the tools of servers that were just added, ask once and approve them; return the problem of each."""
    gateway = load_gateway()
    problems, offers = dict.fromkeys((entry.name for entry in entries), ""), {}
    for entry in entries:
        name = gateway.resolve_name(entry.name)
        try:
            with show_progress(f"Asking {output.escape_control_chars(name)}"):
                offers[name] = run_sync(_fetch_offered_tools(gateway, name))
        except AthenaError as error:
            problems[entry.name] = f"{error}; {error.hint}"
            if not json_output:
                click.echo(f"{name}: {sanitize.escape_hidden(problems[entry.name])}")
            continue
        terminal.show([f"{name} offers:"])
        terminal.show(_format_offered_tools(gateway, name, offers[name][0], {}, None))
    if offers:
        count = sum(len(offered) for offered, _ in offers.values())
        subjects = [gateway.format_subject(name, offered) for name, (offered, _) in offers.items()]
        granted = ask_approvals(terminal, f"Allow {_format_these(count)} of {', '.join(offers)}?", subjects)
        for (name, (offered, left_out)), approval in zip(offers.items(), granted, strict=True):
            approved = gateway.approve_tools(name, offered, left_out, approval)
            if not json_output:
                example = f"{name}.{_first_tool_name(approved)}(...)"
                click.echo(f"{name}: added, {_count_tools(len(approved.tools))} can be called, as {example}")
    return problems


async def _fetch_offered_tools(gateway: Gateway, name: str) -> tuple[approvals.ToolDefinitions, int]:
    """Connect a server and return its tools; on an error, the hint says whether the server is kept."""
    try:
        return await gateway.fetch_tools(name)
    except Conflict:  # the server is Athena itself
        if gateway.is_unapproved(gateway.get_server(name).config.name):
            gateway.remove_server(name)
        raise
    except AthenaError as error:
        approve, remove = f"athena servers approve {name}", f"athena servers remove {name}"
        hint = f"{name} is kept, not connected; when it works: {approve}; to remove it: {remove}"
        error.hint = f"{error.hint}; {hint}" if error.hint else hint
        raise


def approve_tools(
    terminal: Terminal, key: str, json_output: bool, *, is_new: bool = False, login: bool = False
) -> None:
    """Show the tools that a server has now, after a login if wanted, ask, and approve them."""
    gateway = load_gateway()
    name = gateway.resolve_name(key)
    server = gateway.get_server(name)
    before = server.approvals
    same_server = before is not None and before.fingerprint == server.config.fingerprint
    if not same_server and not is_new:
        _show_server_changes(terminal, name, server)
    if login:
        _log_in(terminal, gateway, name)
    with show_progress(f"Asking {output.escape_control_chars(name)}"):
        offered, left_out = run_sync(_fetch_offered_tools(gateway, name))
    changes = approvals.compare_tools(before, offered, whole=True) if before else {}
    terminal.show(_format_offered_tools(gateway, name, offered, changes, before))
    if before is not None and same_server and not changes and not before.refused:
        if json_output:
            return output.print_data(_approval_to_dict(name, before))
        return click.echo(f"{name}: all as approved")
    subject = gateway.format_subject(name, offered)
    [approval] = ask_approvals(terminal, f"Allow {_format_these(len(offered))} of {name}?", [subject])
    approved = gateway.approve_tools(name, offered, left_out, approval)
    if problem := fetch_server_problems(gateway.servers_file.home).get(name):
        click.echo(f"{name} will not work yet {problem}", err=True)
    if json_output:
        return output.print_data(_approval_to_dict(name, approved))
    renamed = ({} if key == name else {key: name}) | approved.renamed_tools
    for theirs, ours in renamed.items():
        click.echo(f"called in programs: {sanitize.escape_hidden(theirs[:80])} -> {ours}")
    if left_out:
        click.echo(
            f"{left_out} tools were left out: more than {approvals.MAX_TOOLS:,}, too large, or named twice", err=True
        )
    example = f"{name}.{_first_tool_name(approved)}(...)"
    return click.echo(f"{name}: {_count_tools(len(approved.tools))} can be called, as {example}")


def _show_server_changes(terminal: Terminal, name: str, server: RegisteredServer) -> None:
    """Show the command of a server, or what changed in it, and ask before it runs."""
    lines = describe_changes("{}" if server.approvals is None else server.approvals.fingerprint, server.config)
    terminal.show([f"{name} is not the one that was approved:" if server.approvals else f"{name} was never approved:"])
    terminal.show(f"  {line}" for line in lines)
    terminal.confirm("Run it, and see what it offers?")


def _first_tool_name(approved: approvals.ServerApprovals) -> str:
    return next((tool.program_name for tool in approved.tools.values()), "tool")


def _approval_to_dict(name: str, approved: approvals.ServerApprovals) -> dict[str, Any]:
    tools = sorted(tool.program_name for tool in approved.tools.values())
    return {"name": name, "tools": tools, "renamed": approved.renamed_tools, "left_out": approved.left_out}


def _format_offered_tools(
    gateway: Gateway,
    name: str,
    offered: approvals.ToolDefinitions,
    changes: dict[str, approvals.Refusal],
    before: approvals.ServerApprovals | None,
) -> Iterator[str]:
    """Yield the tools that are new or changed, each exactly as a model will read it."""
    operations = gateway.preview_operations(name, offered)
    for tool, definition in offered.items():
        change = changes[tool].reason if before and tool in changes else ""
        if before and not change:
            continue
        warning = "  HIDDEN CHARACTERS" if sanitize.has_hidden_text(definition) else ""
        if change == "changed" and before is not None:
            yield f"changed: {tool}{warning}"
            approved = before.tools[tool].definition
            for line in definitions.format_differences(approved, definition, MAX_DIFFERENCES):
                yield f"  {line}"
        else:
            yield f"{change or '+'} {tool}  {_format_hints(definition)}{operations[tool].summary}{warning}"
        for line in definitions.format_as_read(operations[tool]):
            yield f"    {line}"
    for tool, refusal in changes.items():
        if refusal.reason == "gone":
            yield f"gone: {tool}"


def _format_hints(definition: Any) -> str:
    hints = definition.get("annotations") or {}
    if hints.get("readOnlyHint") is True:
        return "(reads) "
    return "(destroys) " if hints.get("destructiveHint") is True else ""
