"""`athena vault` and `athena privacy`: tokens, secrets by name, the key, and who received what."""

import os
import sys

import click

from athena.app import connect
from athena.app.settings import CONFIG_FILE
from athena.cli import output
from athena.cli.approval import Terminal, ask_approvals
from athena.cli.command_group import CommandGroup
from athena.cli.invoke import call_operation, json_option, project_option, read_stdin
from athena.core.home.paths import current_project, home_folder
from athena.core.threads import run_sync
from athena.core.values import Scope
from athena.errors import InvalidInput
from athena.gateway.review import describe_server
from athena.storage.vault import Vault

DAY_S = 86_400


def _open_vault(project: str | None) -> tuple[Vault, Scope]:
    return connect.shared_app().guard.vault, Scope.from_name(current_project() if project is None else project)


@click.group(cls=CommandGroup, invoke_without_command=True)
@project_option
@json_option
@click.pass_context
def vault(context: click.Context, project: str | None, json_output: bool) -> None:
    """Keep secrets and tokens; forget values, renew the key.

    Without a command it lists the tokens, not their values.

    Example: athena vault
    """
    if context.invoked_subcommand is not None:
        return
    tokens = call_operation("list_tokens", project)
    if json_output:
        output.print_data(tokens)
        return
    for entry in tokens:
        receivers = f"  for {', '.join(entry['allowed']) or 'nobody yet'}" if entry["kind"] == "SECRET" else ""
        state = "forgotten" if entry["forgotten"] else output.format_day(entry["created"])
        click.echo(f"{entry['token']:24} {state}{receivers}")
    if not tokens:
        click.echo("nothing is in the vault of this project")


@vault.command("put")
@click.argument("name")
@click.option("--for", "receivers", multiple=True, metavar="SERVER[.TOOL]", help="Who may receive it; again for each.")
@project_option
@json_option
def put_secret(name: str, receivers: tuple[str, ...], project: str | None, json_output: bool) -> None:
    """Store a secret under a name; programs pass it to an allowed tool as [VAULT:NAME] and never see it.

    It is typed at the terminal, or read from standard input.

    Example: athena vault put crm_key --for crm.send_mail
    """
    if sys.stdin.isatty():
        with Terminal(f"vault put {name}") as terminal:
            value = terminal.read_secret(f"{name}: ")
    else:
        value = read_stdin().rstrip("\r\n")
    store, scope = _open_vault(project)
    info = run_sync(store.put_secret(scope, name, value, _ask_leave(store, name, receivers)))
    if json_output:
        return output.print_data({"token": info.token, "allowed": info.allowed})
    return click.echo(f"kept as {info.token}, for {', '.join(info.allowed) or 'nobody yet: athena vault allow'}")


@vault.command("allow")
@click.argument("name")
@click.argument("receivers", nargs=-1, metavar="SERVER[.TOOL]...")
@project_option
@json_option
def allow_secret(name: str, receivers: tuple[str, ...], project: str | None, json_output: bool) -> None:
    """Let these servers or tools, and no others, receive a secret; without any, nobody may.

    Example: athena vault allow crm_key crm.send_mail
    """
    store, scope = _open_vault(project)
    info = run_sync(store.allow_secret(scope, name, _ask_leave(store, name, receivers)))
    if json_output:
        return output.print_data({"token": info.token, "allowed": info.allowed})
    return click.echo(f"{info.token} is for {', '.join(info.allowed) or 'nobody'}")


def _ask_leave(store: Vault, name: str, receivers: tuple[str, ...]) -> list[str]:
    """Ask the person at the terminal before a server may receive a secret; return the servers as they were shown."""
    bound = store.bind_receivers(receiver.partition("@")[0] for receiver in receivers)
    if receivers:
        gateway = connect.shared_app().gateway
        with Terminal(f"vault allow {name}") as terminal:
            for server in dict.fromkeys(receiver.partition(".")[0] for receiver in receivers):
                terminal.show([f"{server}:", *describe_server(gateway.get_server(server).config)])
            ask_approvals(terminal, f"Let {', '.join(receivers)} receive the secret {name}?", [f"secret {name}"])
    return bound


@vault.command("forget")
@click.argument("token")
@project_option
@json_option
def forget_value(token: str, project: str | None, json_output: bool) -> None:
    """Forget the value of a token, or a secret by its name; texts keep the token, which means nothing from then on.

    Backups of before still hold it, encrypted; 'athena vault rotate' makes them unreadable.

    Example: athena vault forget EMAIL_1
    """
    app = connect.shared_app()
    store, scope = _open_vault(project)
    forgotten = run_sync(store.forget(scope, token))
    app.guard.forget_rules()
    if json_output:
        return output.print_data({"forgotten": forgotten})
    return click.echo(f"forgotten: {forgotten}")


@vault.command("show")
@click.argument("token")
@project_option
@json_option
def show_value(token: str, project: str | None, json_output: bool) -> None:
    """Show the value of a token to the person at the terminal.

    Example: athena vault show EMAIL_1
    """
    store, scope = _open_vault(project)
    with Terminal(f"vault show {token}") as terminal:
        ask_approvals(terminal, f"Show the value of {token} here?", [f"show {token}"])
        value = run_sync(store.show(scope, token))
        if not json_output:
            terminal.show([value])
    if json_output:
        output.print_data({"token": token, "value": value})


@vault.command("rotate")
@json_option
def rotate_key(json_output: bool) -> None:
    """Encrypt all values with a new key and delete the old one.

    Backups of before cannot be read any more, nor can values that were forgotten since. Variables of programs keep
    their plain values only.

    Example: athena vault rotate
    """
    store, _ = _open_vault(None)
    count = run_sync(store.rotate_key())
    if json_output:
        return output.print_data({"values": count, "key_folder": store.keys.path})
    return click.echo(f"{count} value{'s' * (count != 1)} encrypted with a new key in {store.keys.path}")


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.pass_context
def privacy(context: click.Context) -> None:
    """Report what privacy does, and who received personal data.

    Example: athena privacy report
    """
    if context.invoked_subcommand is None:
        context.invoke(report)


@privacy.command("report")
@project_option
@json_option
def report(project: str | None, json_output: bool) -> None:
    """Show the mode, the tokens by kind, and which tools received how many values of each kind.

    Example: athena privacy report
    """
    facts = call_operation("privacy_report", project)
    if json_output:
        return output.print_data(facts)
    click.echo(f"mode: {facts['mode']}")
    if facts["mode"] == "off":
        file = os.path.join(home_folder(), CONFIG_FILE)
        line = f'privacy = "boundary" (or "strict") in {file}, above the first [section]'
        click.echo(f"to turn it on: write {output.escape_control_chars(line)}, and start a server that runs again")
    kinds = ", ".join(f"{count} {kind}" for kind, count in facts["tokens"].items())
    click.echo(f"tokens: {kinds or 'none'}")
    for row in facts["received"]:
        day = output.format_day(row["last_day"] * DAY_S)
        click.echo(f"{row['server']}.{row['tool']} received {row['sent']:,} {row['kind']}, the last on {day}")
    if not facts["received"]:
        click.echo("no tool of a server has received any")
    return None


@privacy.command("find")
@click.argument("text")
@project_option
@json_option
def find_values(text: str, project: str | None, json_output: bool) -> None:
    """Find personal data and secrets in a text; '-' reads it from standard input.

    Example: athena privacy find "write to ada@example.com"
    """
    text = read_stdin() if text == "-" else text
    if not text:
        raise InvalidInput("there is no text", hint="athena privacy find - < FILE")
    matches = call_operation("detect_pii", project, text=text)
    if json_output:
        return output.print_data(matches)
    for match in matches:
        click.echo(f"{match['kind']:16} {output.escape_control_chars(text[match['start'] : match['end']])}")
    return None
