"""`athena hook`: what a coding agent's client runs at an event of its session."""

import time
from collections.abc import Callable
from typing import Any

import click

from athena.app import settings as configuration
from athena.core.home.paths import HOOK_SOCKET, home_folder, socket_path
from athena.errors import AthenaError
from athena.hooks import client, fallback

DEFAULT_HOOK_TIMEOUT_S = 5.0  # seconds, where the settings cannot be read


@click.command()
@click.argument("event")
@click.option("-n", "many", type=click.IntRange(1, 1_000), default=50, show_default=True, help="Of log: how many.")
@click.option("--session", help="Of log: what this session was told, by its name or how that begins.")
@click.option("--json", "json_output", is_flag=True, help="Of log: print JSON.")
def hook(event: str, many: int, session: str | None, json_output: bool) -> None:
    """Answer an event of a session: its JSON on standard input, what to tell on standard output; always exits with 0.

    `athena hook log` shows what sessions of this project were told, and why, each with the name by which athena show,
    edit and forget know it.

    Example: echo '{}' | athena hook session-start
    """
    if event == "log":
        return _print_briefing_log(many, session, json_output)
    began, home = time.monotonic(), home_folder()
    if event not in client.EVENTS:
        return client.log_hook(home, event, "nothing", began, "there is no such event")
    try:
        whole = configuration.load_settings().hooks_timeout_ms / 1000
    except AthenaError:
        whole = DEFAULT_HOOK_TIMEOUT_S
    asked = client.HookDeadline(home, event, began, whole)
    given = client.read_input(0)
    said, reason = asked.ask_daemon(socket_path(home, HOOK_SOCKET), given)
    if said is None:
        asked.reason = f"{reason}; nobody else answered in time"
        try:
            said, link, why = fallback.answer_without_daemon(
                event, given, reason, asked.deadline_at(client.FALLBACK_SHARE)
            )
        except Exception as error:  # noqa: BLE001  # never break the session of whoever runs us
            said, link, why = b"", "nothing", f"{reason}; {type(error).__name__}: {error}"
        asked.log_once(link, why)
    return client.write_output(said)


def _print_briefing_log(many: int, session: str | None, json_output: bool) -> None:
    """List what sessions were told, the last first."""
    from athena.cli import output
    from athena.cli.invoke import invoke_operation

    found = (
        _find_session_entries(invoke_operation, many, session)
        if session
        else invoke_operation("list_injections", None, limit=many)
    )
    if json_output:
        return output.print_json(found)
    for one in found:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["at"]))
        why = f"{one['reason']} ({one['score']:.2f}, {one['tokens']} tokens)"
        told = f"{one['hash'] or 'forgotten'}  {' '.join(one['text'].split())[:100]}"
        click.echo(output.escape_control_chars(f"{when}  {one['session_id'][:8]}  {told}  {why}"))
    if not found:
        click.echo("no session of this project was told anything yet", err=True)
    return None


def _find_session_entries(call: Callable[..., Any], many: int, session: str) -> Any:
    """Return what the session of a name was told; where there is none, what one was whose name begins so."""
    if found := call("list_injections", None, session_id=session, limit=many):
        return found
    lately = call("list_injections", None, limit=1_000)
    return [one for one in lately if one["session_id"].startswith(session)][:many]
