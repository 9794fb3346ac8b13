"""Stored runs: convert rows to results, find out whether a run was lost, store and merge variables."""

import json
import os
import socket
from base64 import b64decode, b64encode
from functools import cache
from typing import Any

from athena.core.clock import Clock
from athena.core.hashing import create_serial
from athena.core.redaction import redact_json
from athena.core.types import to_json
from athena.core.values import Scope
from athena.errors import InvalidInput
from athena.programs.sandbox import Run
from athena.programs.sandbox.state import State, is_encrypting, seal, unseal
from athena.programs.values import Fault, Past, Result, Waiting
from athena.storage import runs, workspaces
from athena.storage.database import Transaction
from athena.storage.workspaces import WorkspaceRow

MAX_VARIABLES_BYTES = 256 << 20  # of a project
MAX_WORKSPACES = 100  # of a project, with variables
MAX_LOST_NAMES = 20  # in an output
MERGE_ATTEMPTS = 3
SEALED_NAME = "encrypted variables"  # no name of a variable
LOST_AFTER_S = 900.0  # no program may run that long


def get_process_name() -> str:
    """Return a name of this process that is unique among machines."""
    return f"{_get_hostname()}:{os.getpid()}"


@cache
def _get_hostname() -> str:
    return socket.gethostname()[:200]


def is_lost(row: runs.RunRow, now: float) -> bool:
    """Return whether a run is stored as running although its process has ended."""
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
    """Return a run as lists show it; a run whose process has ended has the status unknown."""
    status: Any = "unknown" if is_lost(row, now) else row.status
    return Past(
        row.id, row.workspace, status, row.started, row.elapsed_ms, row.calls, row.engine, row.error, to_waiting(row)
    )


def to_waiting(row: runs.RunRow) -> Waiting | None:
    if row.waits_for is None:
        return None
    pause = json.loads(row.waits_for)
    return Waiting(pause["operation"], pause["arguments"], pause.get("reason", ""))


def get_pause_owner(row: runs.RunRow) -> str:
    """Return for whom the pause of a run is sealed."""
    assert row.waits_for is not None
    return str(json.loads(row.waits_for)["owner"])


def create_lost_result(row: runs.RunRow) -> Result:
    """Return the result of a run whose end is unknown."""
    fault = Fault(
        "Unknown",
        "the process that ran this program ended before the program did; what it had called by then was done, "
        "though a machine that failed may have lost the last of it",
        hint="look at what is there before running it again: it is not repeated by itself",
    )
    return Result(False, "unknown", "", None, fault, row.elapsed_ms or 0.0, row.calls, row.id)


def create_gone_result(row: runs.RunRow) -> Result:
    """Return the result of a run whose answer is not stored any more, or never was."""
    if row.status not in ("done", "failed", "refused"):
        return create_lost_result(row)
    fault = Fault("Gone", f"this run is {row.status}; its answer is not kept any more", hint="it is not repeated")
    return Result(
        row.status == "done",
        "done" if row.status == "done" else "failed",
        "",
        None,
        fault,
        row.elapsed_ms or 0.0,
        row.calls,
        row.id,
    )


def parse_answer(row: runs.RunRow) -> Result | None:
    """Return the stored answer of a run."""
    return None if row.answer is None else parse_result(json.loads(row.answer))


def parse_result(fields: dict[str, Any]) -> Result:
    """Return a result from its JSON."""
    fault, waiting = fields.pop("error"), fields.pop("waiting")
    return Result(**fields, error=fault and Fault(**fault), waiting=waiting and Waiting(**waiting))


def to_result(run: Run, run_id: str, handle: str | None) -> Result:
    """Return the result of a run for its caller."""
    fault = None
    if run.error is not None:
        fault = Fault(run.error["type"], run.error["message"], run.error["line"], run.error["hint"])
    waiting = None
    if run.pause is not None:
        waiting = Waiting(run.pause.path, dict(run.pause.arguments), run.pause.request.get("reason", ""))
        message = f"{waiting.operation} waits for a person's approval{waiting.reason and f': {waiting.reason}'}"
        hint = f"a person decides: athena approve {run_id} (or --refuse)"
        if way_out := run.pause.request.get("way_out"):
            hint += f"; to let such calls pass: {way_out}"
        fault = Fault("ApprovalNeeded", message, hint=hint)
    output = run.output
    if run.lost:
        output += f"\n[not kept for the next run: {', '.join(run.lost[:MAX_LOST_NAMES])}]"
    return Result(
        run.success,
        run.status,
        output,
        run.result,
        fault,
        run.elapsed_ms,
        run.calls,
        run_id,
        run.truncated,
        handle,
        waiting,
    )


def dump_result(result: Result) -> str:
    """Return a result as it is stored, without secrets; only the caller of the run itself gets it whole."""
    return json.dumps(redact_json(to_json(result))[0], ensure_ascii=False)


async def write_variables(
    tx: Transaction, scope: Scope, name: str, key: bytes, before: WorkspaceRow, after: WorkspaceRow, clock: Clock
) -> list[str]:
    """Store the variables that a run left; return the names of those that could not be stored.

    If another process ran a program in this workspace meanwhile, the plain values are merged into its variables.
    """
    while True:
        count, size = await workspaces.fetch_workspace_usage(tx, scope, name)
        is_too_large = size + len(after.state or b"") + len(after.variables) > MAX_VARIABLES_BYTES
        if not is_too_large and not (before.state is None and count >= MAX_WORKSPACES):
            break
        if not await workspaces.delete_oldest_variables(tx, scope, name):
            return ["all variables: the project's workspaces are full"]
    lost: list[str] = []
    for _ in range(MERGE_ATTEMPTS):
        if await workspaces.upsert_workspace(tx, scope, name, after, before.updated):
            return lost
        current = await workspaces.fetch_workspace(tx, scope, name)
        if current is None:
            return ["all variables"]
        after, lost = _merge_variables(key, before, current, after, clock())
        before = current
    return ["all variables: other processes use this workspace"]


def _merge_variables(
    key: bytes, before: WorkspaceRow, current: WorkspaceRow, after: WorkspaceRow, now: float
) -> tuple[WorkspaceRow, list[str]]:
    """Merge the plain values that a run changed into the current variables; return the names that were lost."""
    old = _load_variables(key, before)
    ours = State.from_sealed(key, after.owner, after.state)
    changed = {name: value for name, value in ours.plain.items() if name not in old or old[name] != value}
    theirs = State.from_sealed(key, current.owner, load_state(key, current))
    known = set(theirs.known)
    lost = [name for name in ours.known if name not in ours.plain and name not in known]
    lost += [name for name, value in changed.items() if name in known and theirs.plain.get(name) != value]
    theirs.plain |= changed
    theirs.known = list(dict.fromkeys([*theirs.known, *changed]))
    theirs.newer = list(dict.fromkeys([*theirs.newer, *changed]))
    variables, _ = _dump_variables(key, current.owner, theirs.plain)
    return WorkspaceRow(current.owner, theirs.to_sealed(key, current.owner), variables, now), lost


def _dump_variables(key: bytes, owner: str, plain: dict[str, Any]) -> tuple[str, bool]:
    """Return the plain values as they are stored, without secrets, and whether they have any.

    They are readable for whoever opens the store, unless the key encrypts: then values may be personal.
    """
    values, kinds = redact_json(plain)
    text = json.dumps(values, ensure_ascii=False)
    if is_encrypting(key) and plain:
        text = json.dumps({SEALED_NAME: b64encode(seal(key, "variables", owner, text.encode())).decode()})
    return text, bool(kinds)


def _load_variables(key: bytes, workspace: WorkspaceRow) -> dict[str, Any]:
    """Return the plain values of a workspace; none if another key encrypted them."""
    values: dict[str, Any] = json.loads(workspace.variables)
    if SEALED_NAME not in values:
        return values
    try:
        values = json.loads(unseal(key, "variables", workspace.owner, b64decode(values[SEALED_NAME])))
    except InvalidInput:
        return {}
    return values


async def load_workspace(tx: Transaction, scope: Scope, name: str) -> WorkspaceRow:
    """Return the stored workspace of a name, or a new one."""
    return await workspaces.fetch_workspace(tx, scope, name) or WorkspaceRow(create_serial(), None, "{}", 0.0)


def load_state(key: bytes, workspace: WorkspaceRow) -> bytes | None:
    """Return the variables, sealed, for the sandbox; if another installation sealed them, only the plain values."""
    if workspace.state is None:
        return None
    try:
        unseal(key, "state", workspace.owner, workspace.state)
    except InvalidInput:
        values = _load_variables(key, workspace)
        if not values:
            return None
        return State(plain=values, known=list(values), newer=list(values)).to_sealed(key, workspace.owner)
    return workspace.state


def find_changed_workspace(
    key: bytes, workspace: WorkspaceRow, sealed: bytes | None, now: float
) -> WorkspaceRow | None:
    """Return the workspace with the variables that a run left in it; None if they did not change."""
    if sealed is None or sealed == workspace.state:
        return None
    state = State.from_sealed(key, workspace.owner, sealed)
    variables, has_secrets = _dump_variables(key, workspace.owner, state.plain)
    # equal plain values prove no change only if there are no others: a function, say, may remember something
    is_all_plain = state.plain.keys() >= set(state.known)
    is_same = variables == workspace.variables or (
        is_encrypting(key) and _load_variables(key, workspace) == redact_json(state.plain)[0]
    )
    if workspace.state is not None and is_same and is_all_plain and not has_secrets:
        return None
    return WorkspaceRow(workspace.owner, sealed, variables, now)
