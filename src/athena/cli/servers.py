"""`athena servers`: which MCP servers there are. Only here, by a person, is one added, approved or removed."""

from typing import Any

import click

from athena.cli import output, running
from athena.cli.programs import invoke_operation, json_option
from athena.core.threads import run_sync

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
    from athena.cli import approving  # what they need is needed nowhere else
    from athena.gateway import sanitize

    gateway = approving.load_gateway()
    wrong = run_sync(gateway.check_servers()) if check else {}
    found, elsewhere = invoke_operation("list_servers", None), running.fetch_server_problems(gateway.servers_file.home)
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
    from athena.cli import approving, consent  # what they need is needed nowhere else

    consent.require_person(f"add {name}")
    entry = approving.parse_server_entry(name, command, options)
    if entry.is_unencrypted:
        click.echo("the address is not encrypted: others on the way can read and change what is sent", err=True)
    approving.load_gateway().add_servers([entry])
    approving.approve_tools(name, json_output, ask=False)


@servers.command("import")
@click.argument("file")
@yes_option
@json_option
def import_servers(file: str, yes: bool, json_output: bool) -> None:
    """Add the servers of another client's file.

    Example: athena servers import ~/.cursor/mcp.json
    """
    from athena.cli import approving, consent  # what they need is needed nowhere else
    from athena.gateway import sanitize

    consent.require_person(f"import {file}")
    (entries, skipped), gateway = approving.read_foreign_entries(file), approving.load_gateway()
    new = [entry for entry in entries if gateway.is_unapproved(entry.name)]
    for entry in entries:
        known = "" if entry in new else "  (there already)"
        click.echo(f"{entry.name}: {sanitize.escape_hidden(entry.target)}{known}", err=True)
        for line in consent.describe_entry(entry) if entry in new else ():
            click.echo(f"  {line}", err=True)
    for name, why in skipped.items():
        click.echo(f"{sanitize.escape_hidden(name)}: skipped: {sanitize.escape_hidden(why)}", err=True)
    if new and not yes:
        click.confirm(f"Add {len(new)} and run what they name?", abort=True, err=True)
    if new:
        gateway.add_servers(new)
    done = {entry.name: approving.try_approve(entry, json_output) for entry in new}
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
    from athena.cli import approving  # what it needs is needed nowhere else

    gateway = approving.load_gateway()
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
    from athena.cli import approving, consent  # what they need is needed nowhere else

    consent.require_person(f"login {name}")
    approving.approve_tools(name, json_output, ask=False, login=True)


@servers.command("approve")
@click.argument("name")
@yes_option
@json_option
def approve_server(name: str, yes: bool, json_output: bool) -> None:
    """Look at what a server offers now, and allow it.

    Example: athena servers approve github
    """
    from athena.cli import approving, consent  # what they need is needed nowhere else

    consent.require_person(f"approve {name}")
    approving.approve_tools(name, json_output, ask=not yes)
