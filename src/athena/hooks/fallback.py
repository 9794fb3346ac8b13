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

TURN_LOCK_FILE = "fallback.lock"
DAEMON_POLL_INTERVAL_S = 0.03  # seconds between two looks at whether the daemon is there
TIME_SHARE = 0.95  # part of the time that we take
OWN_TIME_SHARE = 0.6  # and if another server can be asked afterwards
DEADLINE_VARIABLE = "ATHENA_HOOK_UNTIL"
MAX_PROMPT_CHARS = 20_000  # characters of a prompt in which secrets are looked for
DEFAULT_TIMEOUT_S = 4.0  # where nobody says until when


class FallbackAnswer(NamedTuple):
    """What to tell the client, who found it, and why it had to."""

    output: bytes
    link: str
    reason: str


def main() -> None:
    """Answer instead of the daemon; the words are the event, and why it did not. A line about it comes first."""
    event, reason = sys.argv[1:3]
    deadline = float(os.environ.pop(DEADLINE_VARIABLE, "0")) or time.monotonic() + DEFAULT_TIMEOUT_S
    given = client.read_input(0)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    found = answer_without_daemon(event, given, reason, deadline)
    why = " ".join(found.reason.split()).encode("utf-8", "replace")
    client.write_output(found.link.encode() + b" " + why + b"\n" + found.output)
    os._exit(0)


def answer_without_daemon(event: str, given: bytes, reason: str, deadline: float) -> FallbackAnswer:
    """Try one after the other."""
    from athena.app import settings as configuration  # heavy from here on

    home, began = home_folder(), time.monotonic()
    try:
        settings = configuration.load_settings()
    except AthenaError as error:
        return FallbackAnswer(b"", "nothing", _join_reasons([reason, str(error)]))
    why = [reason]
    if settings.hooks_enabled:
        missing = reason.startswith("no daemon") and settings.db_path != ":memory:"
        limit = began + (deadline - began) * (OWN_TIME_SHARE if settings.hooks_mcp_url else TIME_SHARE)
        said = _wait_for_daemon(home, event, given, limit) if missing else None
        if said is None:
            said = _run_with_timeout(limit - time.monotonic(), lambda: _answer_in_process(event, given, settings), why)
            if missing:  # last, so that the two do not get in each other's way
                _start_daemon(home, why)
        if said is not None:
            return FallbackAnswer(said, "process", _join_reasons(why))
    if not settings.hooks_mcp_url:
        why.append("there is no mcp_url")
    elif settings.hooks_enabled and not settings.hooks_fallback_to_mcp:
        why.append("fallback_to_mcp is off")
    else:
        left = (deadline - time.monotonic()) * TIME_SHARE
        said = _run_with_timeout(left, lambda: _ask_other_server(event, given, settings, left), why)
        if said is not None:
            return FallbackAnswer(said, "mcp", _join_reasons(why))
    return FallbackAnswer(b"", "nothing", _join_reasons(why))


def _join_reasons(why: list[str]) -> str:
    """Join what went wrong; what the daemon says already is not said again."""
    return "; ".join(dict.fromkeys(" ".join(one.split()) for one in why))


def _run_with_timeout(seconds: float, work: Callable[[], bytes], why: list[str]) -> bytes | None:
    """Do it on another thread, which may take as long as it likes: we do not wait longer."""
    made: list[bytes] = []

    def run_work() -> None:
        try:
            made.append(work())
        except Exception as error:  # noqa: BLE001  # told in the log; the session goes on
            why.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=run_work, daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if thread.is_alive():
        why.append("it took too long here")
    return made[0] if made else None


def _wait_for_daemon(home: str, event: str, given: bytes, deadline: float) -> bytes | None:
    """Wait for our turn, since of many that load the same at once all are late; or for the daemon of another's."""
    try:
        turn = os.open(os.path.join(home, TURN_LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None  # nobody can write here, nor wait
    path = socket_path(home, HOOK_SOCKET)
    while time.monotonic() < deadline:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
            return None
        except OSError:
            time.sleep(DAEMON_POLL_INTERVAL_S)
        said = client.ask_daemon(path, event, given, deadline, deadline)[0]
        if said is not None:
            return said
    return None


def _start_daemon(home: str, why: list[str]) -> None:
    if not daemon.may_start(home):
        return why.append("the last daemon could not start")
    try:
        daemon.spawn_daemon(home)
    except OSError as error:
        why.append(f"no daemon can be started: {error}")
    return None


def _answer_in_process(event: str, given: bytes, settings: "configuration.Settings") -> bytes:
    from athena.app.compose import open_app
    from athena.app.settings import create_hook_rules
    from athena.core.threads import run_sync
    from athena.core.values import HOOK_SURFACE
    from athena.hooks import events
    from athena.memory.savings import record_hook

    began = time.monotonic()
    app = open_app(settings)
    try:
        context = app.create_context(DEFAULT_PROJECT, HOOK_SURFACE)
        project = os.environ.get("ATHENA_PROJECT", "").strip() or None
        rules, key = create_hook_rules(settings), os.environ.get(events.HOOK_ID_VARIABLE)
        said = run_sync(events.answer_event(event, given, context, rules, hurry=True, project=project, key=key))
        record_hook(app.store, context.scope, event, "process", time.monotonic() - began)
        return said
    finally:
        app.close()


def _ask_other_server(event: str, given: bytes, settings: "configuration.Settings", seconds: float) -> bytes:
    from athena.app.settings import create_hook_rules
    from athena.core import redaction
    from athena.hooks import events, other_server
    from athena.hooks.other_server import CLIENT_EVENT_NAMES, search_other_server

    said, rules = events.parse_payload(given), create_hook_rules(settings)
    folder = events.get_named_folder(said)
    if not settings.hooks_mcp_url or not rules.allows_event(event, current_project(folder=folder), folder):
        return b""
    if isinstance(prompt := said.get("prompt"), str):
        said["prompt"] = redaction.redact(prompt[:MAX_PROMPT_CHARS]).text
    found = search_other_server(settings.hooks_mcp_url, event, said, seconds)
    return other_server.format_memories(CLIENT_EVENT_NAMES[event], found, rules.budget_tokens) if found else b""
