"""What is written down of a run: that it began, how it ended, the variables it left, and its answer."""

import json
import os
import socket
from functools import cache
from typing import Any

from athena.core.clock import Clock
from athena.core.hashing import create_serial
from athena.core.types import to_json
from athena.core.values import Scope
from athena.errors import InvalidInput
from athena.programs.sandbox import Run
from athena.programs.sandbox.state import State, unseal
from athena.programs.values import Fault, Past, Result, Waiting
from athena.storage import runs, workspaces
from athena.storage.database import Transaction
from athena.storage.workspaces import WorkspaceRow

MAX_VARIABLES_BYTES = 256 << 20  # bytes of all variables of a project
MAX_WORKSPACES = 100  # with variables, of a project
LOST_AFTER_S = 600.0  # seconds after which a run that somebody else began cannot be under way any more


def get_process_name() -> str:
    """Name this process."""
    return f"{_get_hostname()}:{os.getpid()}"


@cache
def _get_hostname() -> str:
    return socket.gethostname()[:200]


def is_lost(row: runs.RunRow, now: float) -> bool:
    """Tell whether a run that is said to be under way has lost its process."""
    if row.status != "running":
        return False
    host, _, process = row.process.rpartition(":")
    if now - (row.claimed or row.started) > LOST_AFTER_S:
        return True
    if host != _get_hostname():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, ValueError):
        return False
    return False


def to_past(row: runs.RunRow, now: float) -> Past:
    """Return a run as it is listed: whether one ended whose process is gone, nobody knows."""
    status: Any = "unknown" if is_lost(row, now) else row.status
    return Past(
        row.id, row.workspace, status, row.started, row.elapsed_ms, row.calls, row.engine, row.error, to_waiting(row)
    )


def to_waiting(row: runs.RunRow) -> Waiting | None:
    if row.waits_for is None:
        return None
    kept = json.loads(row.waits_for)
    return Waiting(kept["operation"], kept["arguments"])


def create_lost_result(row: runs.RunRow) -> Result:
    """Answer for a run of which nobody knows how it ended."""
    fault = Fault(
        "Unknown",
        "the process that ran this program ended before the program did; what it had called by then was done, "
        "though a machine that failed may have lost the last of it",
        hint="look at what is there before running it again: it is not repeated by itself",
    )
    return Result(False, "unknown", "", None, fault, row.elapsed_ms or 0.0, row.calls, row.id)


def create_gone_result(row: runs.RunRow) -> Result:
    """Answer for a run whose answer is not kept: how it ended is known, unless its process was lost."""
    if row.status not in ("done", "failed"):
        return create_lost_result(row)
    fault = Fault("Gone", f"this run is {row.status}; its answer is not kept any more", hint="it is not repeated")
    done: Any = row.status
    return Result(row.status == "done", done, "", None, fault, row.elapsed_ms or 0.0, row.calls, row.id)


def parse_answer(row: runs.RunRow) -> Result | None:
    """Return the answer that was given, if it is still known."""
    if row.answer is None:
        return None
    kept = json.loads(row.answer)
    fault, asked = kept.pop("error"), kept.pop("waiting")
    return Result(**kept, error=fault and Fault(**fault), waiting=asked and Waiting(**asked))


def to_result(run: Run, number: str, handle: str | None) -> Result:
    """Put into words what a run came to."""
    fault = None
    if run.error is not None:
        fault = Fault(run.error["type"], run.error["message"], run.error["line"], run.error["hint"])
    asked = None
    if run.pause is not None:
        asked = Waiting(run.pause.path, dict(run.pause.arguments))
        message = f"{asked.operation} waits for a person's approval"
        fault = Fault("ApprovalNeeded", message, hint=f"a person decides: athena approve {number} (or --refuse)")
    output = run.output
    if run.lost:
        output += f"\n[not kept for the next run: {', '.join(run.lost[:20])}]"
    return Result(
        run.success,
        run.status,
        output,
        run.result,
        fault,
        run.elapsed_ms,
        run.calls,
        number,
        run.truncated,
        handle,
        asked,
    )


def dump_result(made: Result) -> str:
    return json.dumps(to_json(made), ensure_ascii=False)


async def write_variables(
    tx: Transaction, scope: Scope, name: str, key: bytes, before: WorkspaceRow, after: WorkspaceRow, clock: Clock
) -> list[str]:
    """Write down the variables that a run left; return those that cannot be kept.

    Another process may have run a program in this workspace meanwhile: then plain values are put beside its own.
    """
    count, size = await workspaces.fetch_workspace_usage(tx, scope, name)
    if size + len(after.state or b"") + len(after.variables) > MAX_VARIABLES_BYTES or (
        before.state is None and count >= MAX_WORKSPACES
    ):
        return ["all variables: the project's workspaces are full"]
    lost: list[str] = []
    for _ in range(3):
        if await workspaces.upsert_workspace(tx, scope, name, after, before.updated):
            return lost
        there = await workspaces.fetch_workspace(tx, scope, name)
        if there is None:
            return ["all variables"]
        after, lost = _merge_variables(key, before, there, after, clock())
        before = there
    return ["all variables: other processes use this workspace"]


def _merge_variables(
    key: bytes, before: WorkspaceRow, there: WorkspaceRow, after: WorkspaceRow, now: float
) -> tuple[WorkspaceRow, list[str]]:
    """Put the plain values that a run changed into what somebody else has written meanwhile."""
    old: dict[str, Any] = json.loads(before.variables)
    ours = State.from_sealed(key, after.owner, after.state)
    changed = {name: value for name, value in ours.plain.items() if name not in old or old[name] != value}
    state = load_state(key, there)
    theirs = State.from_sealed(key, there.owner, state)
    known = set(theirs.known)
    lost = [name for name in ours.known if name not in ours.plain and name not in known]
    lost += [name for name, value in changed.items() if name in known and theirs.plain.get(name) != value]
    theirs.plain |= changed
    theirs.known = list(dict.fromkeys([*theirs.known, *changed]))
    theirs.newer = list(dict.fromkeys([*theirs.newer, *changed]))
    variables = json.dumps(theirs.plain, ensure_ascii=False)
    return WorkspaceRow(there.owner, theirs.to_sealed(key, there.owner), variables, now), lost


async def load_workspace(tx: Transaction, scope: Scope, name: str) -> WorkspaceRow:
    """Return a workspace, or a new one."""
    return await workspaces.fetch_workspace(tx, scope, name) or WorkspaceRow(create_serial(), None, "{}", 0.0)


def load_state(key: bytes, kept: WorkspaceRow) -> bytes | None:
    """Return the variables as the sandbox takes them: sealed by this installation, else those that are plain JSON."""
    if kept.state is None:
        return None
    try:
        unseal(key, "state", kept.owner, kept.state)
    except InvalidInput:
        values: dict[str, Any] = json.loads(kept.variables)
        return (
            State(plain=values, known=list(values), newer=list(values)).to_sealed(key, kept.owner) if values else None
        )
    return kept.state


def find_changed_workspace(key: bytes, kept: WorkspaceRow, state: bytes | None, now: float) -> WorkspaceRow | None:
    """Return a workspace with the variables that a run left in it; None if they are what they were."""
    if state is None or state == kept.state:
        return None
    found = State.from_sealed(key, kept.owner, state)
    variables = json.dumps(found.plain, ensure_ascii=False)
    # Only where every variable is plain can nothing else have changed, such as what a function remembers.
    if kept.state is not None and variables == kept.variables and found.plain.keys() >= set(found.known):
        return None
    return WorkspaceRow(kept.owner, state, variables, now)
