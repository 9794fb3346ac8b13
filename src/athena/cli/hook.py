"""`athena hook`: answer an event of a coding agent's session, and show what sessions were told."""

import sys
import time
from typing import Any

import click

from athena.app import settings as configuration
from athena.cli import output
from athena.cli.invoke import invoke_operation
from athena.core.home.paths import HOOK_SOCKET, home_folder, socket_path
from athena.errors import AthenaError
from athena.hooks import client, fallback

DEFAULT_HOOK_TIMEOUT_S = 5.0  # if the settings cannot be read


@click.command()
@click.argument("event")
@click.option("-n", "many", type=click.IntRange(1, 1_000), default=50, show_default=True, help="Of log: how many.")
@click.option("--session", help="Of log: what this session was told, by its name or how that begins.")
@click.option("--json", "json_output", is_flag=True, help="Of log: print JSON.")
def hook(event: str, many: int, session: str | None, json_output: bool) -> None:
    """Answer an event of a session; coding agents call it.

    The event's JSON comes on standard input, what to tell goes to standard output; it always exits with 0.

    `athena hook log` shows what sessions of this project were told, and why, each with the name by which athena show,
    edit and forget know it.

    Example: echo '{}' | athena hook session-start
    """
    if event == "log":
        return _print_briefing_log(many, session, json_output)
    started_at, home = time.monotonic(), home_folder()
    if event not in client.EVENTS:
        if sys.stderr.isatty():  # a person tries it; agents must not be disturbed
            click.echo(f"there is no event {event!r}; there are {', '.join(client.EVENTS)}", err=True)
        return client.log_hook(home, event, "nothing", started_at, "there is no such event")
    try:
        timeout_s = configuration.load_settings().hooks_timeout_ms / 1000
    except AthenaError:
        timeout_s = DEFAULT_HOOK_TIMEOUT_S
    deadline = client.HookDeadline(home, event, started_at, timeout_s)
    payload = client.read_input(0)
    response, reason = deadline.ask_daemon(socket_path(home, HOOK_SOCKET), payload)
    if response is None:
        deadline.reason = f"{reason}; nobody else answered in time"
        try:
            response, link, detail = fallback.answer_without_daemon(
                event, payload, reason, deadline.deadline_at(client.FALLBACK_SHARE)
            )
        except Exception as error:  # noqa: BLE001  # a hook must never break the session
            response, link, detail = b"", "nothing", f"{reason}; {fallback.describe_error(error)}"
        deadline.log_once(link, detail)
    return client.write_output(response)


def _print_briefing_log(limit: int, session: str | None, json_output: bool) -> None:
    """Print the memories that sessions were told, the last first."""
    entries = _find_session_entries(limit, session) if session else invoke_operation("list_injections", limit=limit)
    if json_output:
        return output.print_data(entries)
    for entry in entries:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["at"]))
        reason = f"{entry['reason']} ({entry['score']:.2f}, {entry['tokens']} tokens)"
        memory = f"{entry['hash'] or 'forgotten'}  {' '.join(entry['text'].split())[:100]}"
        click.echo(output.escape_control_chars(f"{when}  {entry['session_id'][:8]}  {memory}  {reason}"))
    if not entries:
        click.echo("no session of this project was told anything yet", err=True)
    return None


def _find_session_entries(limit: int, session: str) -> Any:
    """Return the entries of a session by its id, else of those whose ids begin with it."""
    if entries := invoke_operation("list_injections", session_id=session, limit=limit):
        return entries
    recent = invoke_operation("list_injections", limit=1_000)
    return [entry for entry in recent if entry["session_id"].startswith(session)][:limit]
