"""`athena hook`: what a coding agent's client runs at an event of its session."""

import time

import click

from athena import fallback, hookclient
from athena import settings as configuration
from athena.errors import AthenaError
from athena.home import HOOK_SOCKET, home_folder, socket_path

PATIENCE = 5.0  # seconds, where the settings cannot be read


@click.command()
@click.argument("event")
def hook(event: str) -> None:
    """Answer an event of a session: its JSON on standard input, what to tell on standard output; always exits with 0.

    Example: echo '{}' | athena hook session-start
    """
    began, home = time.monotonic(), home_folder()
    if event not in hookclient.EVENTS:
        return hookclient.note(home, event, "nothing", began, "there is no such event")
    try:
        whole = configuration.load().hooks_timeout_ms / 1000
    except AthenaError:
        whole = PATIENCE
    asked = hookclient.Hook(home, event, began, whole)
    given = hookclient.read(0)
    said, reason = asked.ask(socket_path(home, HOOK_SOCKET), given)
    if said is None:
        asked.why = f"{reason}; nobody else answered in time"
        try:
            said, link, why = fallback.answer(event, given, reason, asked.at(hookclient.ELSEWHERE))
        except Exception as error:  # noqa: BLE001  # never break the session of whoever runs us
            said, link, why = b"", "nothing", f"{reason}; {type(error).__name__}: {error}"
        asked.tell(link, why)
    return hookclient.write(said)
