"""Answer a hook when no daemon does: in this process without the model, else from `mcp_url`, else not at all."""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from athena.core.files import FileLock
from athena.core.home import daemon
from athena.core.home.paths import HOOK_SOCKET, home_folder, socket_path
from athena.errors import AthenaError, Misconfigured, Unavailable
from athena.hooks import client

if TYPE_CHECKING:
    from athena.app.settings import Settings

TURN_LOCK_FILE = "fallback.lock"
DAEMON_POLL_INTERVAL_S = 0.03
TIME_SHARE = 0.95  # of the time until the deadline
OWN_TIME_SHARE = 0.6  # if another server can be asked afterwards
DEADLINE_VARIABLE = "ATHENA_HOOK_UNTIL"
DEFAULT_TIMEOUT_S = 4.0


class FallbackAnswer(NamedTuple):
    """The output for the client, which link of the chain made it, and why the daemon did not."""

    output: bytes
    link: str
    reason: str


def main() -> None:
    """Answer the event in argv, given the reason why the daemon did not; print a line about it, then the answer."""
    event, reason = sys.argv[1:3]
    deadline = float(os.environ.pop(DEADLINE_VARIABLE, "0")) or time.monotonic() + DEFAULT_TIMEOUT_S
    payload = client.read_input(0)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    answer = answer_without_daemon(event, payload, reason, deadline)
    why = " ".join(answer.reason.split()).encode("utf-8", "replace")
    client.write_output(answer.link.encode() + b" " + why + b"\n" + answer.output)
    os._exit(0)


def answer_without_daemon(event: str, payload: bytes, reason: str, deadline: float) -> FallbackAnswer:
    """Try to answer in this process, then to ask the other server; never raise."""
    from athena.app.settings import load_settings  # always needed, but not to import this module

    home, started_at = home_folder(), time.monotonic()
    try:
        settings = load_settings()
    except AthenaError as error:
        return FallbackAnswer(b"", "nothing", _join_reasons([reason, str(error)]))
    reasons = [reason]
    if settings.hooks_enabled:
        is_daemon_missing = reason.startswith("no daemon") and settings.db_path != ":memory:"
        share = OWN_TIME_SHARE if settings.hooks_mcp_url else TIME_SHARE
        own_deadline = started_at + (deadline - started_at) * share
        output = _wait_for_daemon(home, event, payload, own_deadline) if is_daemon_missing else None
        if output is None:
            timeout_s = own_deadline - time.monotonic()
            output = _run_with_timeout(
                timeout_s, lambda: _answer_in_process(event, payload, settings, reasons), reasons
            )
            if is_daemon_missing:  # after the answer, which its start would slow down
                _start_daemon(home, reasons)
        if output is not None:
            return FallbackAnswer(output, "process", _join_reasons(reasons))
    if not settings.hooks_mcp_url:
        reasons.append("there is no mcp_url")
    elif settings.hooks_enabled and not settings.hooks_fallback_to_mcp:
        reasons.append("fallback_to_mcp is off")
    else:
        timeout_s = (deadline - time.monotonic()) * TIME_SHARE
        output = _run_with_timeout(
            timeout_s, lambda: _ask_other_server(event, payload, settings, timeout_s, reasons), reasons
        )
        if output is not None:
            return FallbackAnswer(output, "mcp", _join_reasons(reasons))
    return FallbackAnswer(b"", "nothing", _join_reasons(reasons))


def describe_error(error: BaseException) -> str:
    """Return what a log may say of an error: not its message where that may quote the event."""
    if isinstance(error, Unavailable | Misconfigured):
        return str(error)
    message = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _join_reasons(reasons: list[str]) -> str:
    """Join the reasons on one line, each once."""
    return "; ".join(dict.fromkeys(" ".join(reason.split()) for reason in reasons))


def _run_with_timeout(timeout_s: float, work: Callable[[], bytes], reasons: list[str]) -> bytes | None:
    """Run `work` on a daemon thread; return None, and add the reason, if it fails or takes too long."""
    results: list[bytes] = []

    def run_work() -> None:
        try:
            results.append(work())
        except Exception as error:  # noqa: BLE001  # logged; the session goes on
            reasons.append(describe_error(error))

    thread = threading.Thread(target=run_work, daemon=True)
    thread.start()
    thread.join(max(0.0, timeout_s))
    if thread.is_alive():
        reasons.append("it took too long here")
    return results[0] if results else None


def _wait_for_daemon(home: str, event: str, payload: bytes, deadline: float) -> bytes | None:
    """Return the answer of a daemon that another hook starts; None once it is this process's turn to answer.

    Hooks that answer in their own process take turns: many that load the store at once would all be late.
    """
    try:
        turn = FileLock(os.path.join(home, TURN_LOCK_FILE))  # never closed: it is ours until this process ends
        path = socket_path(home, HOOK_SOCKET)
        while time.monotonic() < deadline:
            if turn.acquire(timeout_s=0):
                return None
            time.sleep(DAEMON_POLL_INTERVAL_S)
            output = client.ask_daemon(path, event, payload, deadline, deadline)[0]
            if output is not None:
                return output
    except OSError:
        pass  # no file can be written or locked here, so there are no turns
    return None


def _start_daemon(home: str, reasons: list[str]) -> None:
    if not daemon.may_start(home):
        return reasons.append("the last daemon could not start")
    try:
        daemon.spawn_daemon(home)
    except OSError as error:
        reasons.append(f"no daemon can be started: {describe_error(error)}")
    return None


def _answer_in_process(event: str, payload: bytes, settings: "Settings", reasons: list[str]) -> bytes:
    from athena.hooks import in_process  # imports the app

    return in_process.answer_event(event, payload, settings, reasons.append)


def _ask_other_server(event: str, payload: bytes, settings: "Settings", timeout_s: float, reasons: list[str]) -> bytes:
    from athena.hooks import other_server  # imports the events and HTTP

    return other_server.answer_event(event, payload, settings, timeout_s, reasons.append)
