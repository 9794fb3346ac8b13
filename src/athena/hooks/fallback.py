"""What a hook says when no daemon answers: in this process by words alone, else from `mcp_url`, else nothing."""

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from athena.core.home import daemon
from athena.core.home.paths import DEFAULT_PROJECT, HOOK_SOCKET, current_project, home_folder, socket_path
from athena.errors import AthenaError
from athena.hooks import client

if TYPE_CHECKING:
    from athena.app import settings as configuration

TURN = "fallback.lock"
LOOK = 0.03  # seconds between two looks at whether the daemon is there
ALL = 0.95  # part of the time that we take
OURS = 0.6  # and if another server can be asked afterwards
UNTIL = "ATHENA_HOOK_UNTIL"
COUNTING = 1.0  # seconds that must be left to count tokens exactly
READ = 20_000  # characters of a prompt in which secrets are looked for
SECONDS = 4.0  # where nobody says until when


class Answer(NamedTuple):
    """What to tell the client, who found it, and why it had to."""

    said: bytes
    link: str
    why: str


def main() -> None:
    """Answer instead of the daemon; the words are the event, and why it did not. A line about it comes first."""
    event, reason = sys.argv[1:3]
    deadline = float(os.environ.pop(UNTIL, "0")) or time.monotonic() + SECONDS
    given = client.read(0)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    found = answer(event, given, reason, deadline)
    why = " ".join(found.why.split()).encode("utf-8", "replace")
    client.write(found.link.encode() + b" " + why + b"\n" + found.said)
    os._exit(0)


def answer(event: str, given: bytes, reason: str, deadline: float) -> Answer:
    """Try one after the other."""
    from athena.app import settings as configuration  # heavy from here on

    home, began = home_folder(), time.monotonic()
    try:
        settings = configuration.load()
    except AthenaError as error:
        return Answer(b"", "nothing", _reasons([reason, str(error)]))
    why = [reason]
    if settings.hooks_enabled:
        missing = reason.startswith("no daemon") and settings.db_path != ":memory:"
        limit = began + (deadline - began) * (OURS if settings.hooks_mcp_url else ALL)
        said = _waited(home, event, given, limit) if missing else None
        if said is None:
            said = _within(limit - time.monotonic(), lambda: _here(event, given, settings), why)
            if missing:  # last, so that the two do not get in each other's way
                _begin(home, why)
        if said is not None:
            return Answer(said, "process", _reasons(why))
    if not settings.hooks_mcp_url:
        why.append("there is no mcp_url")
    elif settings.hooks_enabled and not settings.hooks_fallback_to_mcp:
        why.append("fallback_to_mcp is off")
    else:
        left = (deadline - time.monotonic()) * ALL
        said = _within(left, lambda: _elsewhere(event, given, settings, left), why)
        if said is not None:
            return Answer(said, "mcp", _reasons(why))
    return Answer(b"", "nothing", _reasons(why))


def _reasons(why: list[str]) -> str:
    """Join what went wrong; what the daemon says already is not said again."""
    return "; ".join(dict.fromkeys(" ".join(one.split()) for one in why))


def _within(seconds: float, work: Callable[[], bytes], why: list[str]) -> bytes | None:
    """Do it on another thread, which may take as long as it likes: we do not wait longer."""
    made: list[bytes] = []

    def run() -> None:
        try:
            made.append(work())
        except Exception as error:  # noqa: BLE001  # told in the log; the session goes on
            why.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if thread.is_alive():
        why.append("it took too long here")
    return made[0] if made else None


def _waited(home: str, event: str, given: bytes, deadline: float) -> bytes | None:
    """Wait for our turn, since of many that load the same at once all are late; or for the daemon of another's."""
    try:
        turn = os.open(os.path.join(home, TURN), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None  # nobody can write here, nor wait
    path = socket_path(home, HOOK_SOCKET)
    while time.monotonic() < deadline:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
            return None
        except OSError:
            time.sleep(LOOK)
        said = client.ask(path, event, given, deadline, deadline)[0]
        if said is not None:
            return said
    return None


def _begin(home: str, why: list[str]) -> None:
    if not daemon.may_work(home):
        return why.append("the last daemon could not start")
    try:
        daemon.spawn(home)
    except OSError as error:
        why.append(f"no daemon can be started: {error}")
    return None


def _here(event: str, given: bytes, settings: "configuration.Settings") -> bytes:
    from athena.app.compose import hook_rules, start
    from athena.core.call import HOOK
    from athena.core.threads import drive
    from athena.hooks import events
    from athena.memory.savings import note_hook

    began = time.monotonic()
    app = start(settings)
    try:
        context = app.context(DEFAULT_PROJECT, HOOK)
        project = os.environ.get("ATHENA_PROJECT", "").strip() or None
        rules, key = hook_rules(settings), os.environ.get(events.KEY)
        said = drive(events.answer(event, given, context, rules, hurry=True, project=project, key=key))
        note_hook(app.store, context.scope, event, "process", time.monotonic() - began)
        return said
    finally:
        app.close()


def _elsewhere(event: str, given: bytes, settings: "configuration.Settings", seconds: float) -> bytes:
    from athena.app.compose import hook_rules
    from athena.core import redaction, tokens
    from athena.hooks import events, other_server_text
    from athena.hooks.other_server import EVENTS, ask

    said, rules = events.read(given), hook_rules(settings)
    folder = events.named_by(said)
    if not settings.hooks_mcp_url or not rules.allow(event, current_project(folder=folder), folder):
        return b""
    if isinstance(prompt := said.get("prompt"), str):
        said["prompt"] = redaction.redact(prompt[:READ]).text
    began = time.monotonic()
    found = ask(settings.hooks_mcp_url, event, said, seconds)
    if found and seconds - (time.monotonic() - began) > COUNTING:
        tokens.load()
    return other_server_text.told(EVENTS[event], found, rules.budget_tokens) if found else b""
