"""`athena servers`: which MCP servers there are. Only here, by a person, is one added, approved or removed."""

from typing import Any

import click

from athena.cli import output, running
from athena.cli.programs import as_json, call
from athena.core.threads import drive

COLOURS = {"ready": "green", "connected": "green", "waiting": "yellow", "changed": "yellow", "failing": "red"}
yes = click.option("--yes", is_flag=True, help="Do not ask.")


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
@as_json
def list_servers(check: bool = False, json_output: bool = False) -> None:
    """List servers and how they are.

    Example: athena servers list --check
    """
    from athena.cli import approving  # what they need is needed nowhere else
    from athena.gateway import sanitize

    gateway = approving.opened()
    wrong = drive(gateway.check()) if check else {}
    found, elsewhere = call("list_servers", None), running.troubles(gateway.config.home)
    for one in found:
        one["command"] = gateway.known(one["name"]).entry.shown
        one["detail"] = wrong.get(one["name"]) or one["detail"]
        if there := elsewhere.get(one["name"]):
            one |= {"status": "failing", "detail": "; ".join(filter(None, [one["detail"], there]))}
    if json_output:
        return output.as_json(found)
    for one in found:
        status = click.style(f"{one['status']:<10}", fg=COLOURS.get(one["status"]))
        click.echo(f"{status} {one['name']:<16} {one['tools']:>4} tools  {sanitize.visible(one['command'])}")
        for line in filter(None, [one["detail"], *one["refused"]]):
            click.echo(f"           {output.safe(line)}")
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
@as_json
def add(name: str, command: tuple[str, ...], json_output: bool, **options: Any) -> None:
    """Add a server and approve the tools that it has now.

    Example: athena servers add github --url https://example.com/mcp --header 'Authorization=Bearer ${GITHUB_TOKEN}'
    """
    from athena.cli import approving, consent  # what they need is needed nowhere else

    consent.required(f"add {name}")
    entry = approving.entry(name, command, options)
    if entry.is_open:
        click.echo("the address is not encrypted: others on the way can read and change what is sent", err=True)
    approving.opened().add([entry])
    approving.approve(name, json_output, ask=False)


@servers.command("import")
@click.argument("file")
@yes
@as_json
def import_servers(file: str, yes: bool, json_output: bool) -> None:
    """Add the servers of another client's file.

    Example: athena servers import ~/.cursor/mcp.json
    """
    from athena.cli import approving, consent  # what they need is needed nowhere else
    from athena.gateway import sanitize

    consent.required(f"import {file}")
    (entries, skipped), gateway = approving.entries(file), approving.opened()
    new = [entry for entry in entries if gateway.is_new(entry.name)]
    for entry in entries:
        known = "" if entry in new else "  (there already)"
        click.echo(f"{entry.name}: {sanitize.visible(entry.shown)}{known}", err=True)
        for line in consent.lines(entry) if entry in new else ():
            click.echo(f"  {line}", err=True)
    for name, why in skipped.items():
        click.echo(f"{sanitize.visible(name)}: skipped: {sanitize.visible(why)}", err=True)
    if new and not yes:
        click.confirm(f"Add {len(new)} and run what they name?", abort=True, err=True)
    if new:
        gateway.add(new)
    done = {entry.name: approving.tried(entry, json_output) for entry in new}
    if json_output:
        output.as_json(done | {name: f"skipped: {why}" for name, why in skipped.items()})
    if skipped:
        raise click.exceptions.Exit(1)


@servers.command("remove")
@click.argument("name")
@as_json
def remove(name: str, json_output: bool) -> None:
    """Remove a server and what was approved of it.

    Example: athena servers remove github
    """
    from athena.cli import approving  # what it needs is needed nowhere else

    gateway = approving.opened()
    found = gateway.named(name)
    gateway.remove(found)
    return output.as_json({"removed": found}) if json_output else click.echo(f"removed {found}")


@servers.command("login")
@click.argument("name")
@as_json
def login(name: str, json_output: bool) -> None:
    """Log in to a server that is reached over HTTP.

    Example: athena servers login github
    """
    from athena.cli import approving, consent  # what they need is needed nowhere else

    consent.required(f"login {name}")
    approving.approve(name, json_output, ask=False, login=True)


@servers.command("approve")
@click.argument("name")
@yes
@as_json
def approve(name: str, yes: bool, json_output: bool) -> None:
    """Look at what a server offers now, and allow it.

    Example: athena servers approve github
    """
    from athena.cli import approving, consent  # what they need is needed nowhere else

    consent.required(f"approve {name}")
    approving.approve(name, json_output, ask=not yes)
