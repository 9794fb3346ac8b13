"""Call operations from a command. Without click, so that a command that a running server answers starts fast."""

from __future__ import annotations

import sys

from athena.app import connect
from athena.cli.progress import show_progress
from athena.core.threads import run_sync

TYPE_CHECKING = False  # importing typing is too slow here
if TYPE_CHECKING:
    from typing import Any

    from athena.core.approval import Approval

MODEL_WARNING = "search by meaning is off, words still work: see athena doctor"


def invoke_operation(operation: str, project: str | None = None, /, **arguments: Any) -> Any:
    """Call an operation and return its result as plain JSON values; warn if the model does not work."""
    return invoke_page(operation, project, **arguments).data


def invoke_page(operation: str, project: str | None = None, /, **arguments: Any) -> connect.OperationResult:
    """Call an operation and return its result with how many there are; warn if the model does not work."""
    result = _call_home(operation, project, arguments, None)
    if result.is_model_off:
        sys.stderr.write(f"{MODEL_WARNING}\n")
    return result


def call_operation(operation: str, project: str | None = None, /, **arguments: Any) -> Any:
    """Call an operation and return its result as plain JSON values."""
    return _call_home(operation, project, arguments, None).data


def call_approved(operation: str, project: str | None, arguments: dict[str, Any], approval: Approval | None) -> Any:
    """Call an operation with a person's approval and return its result as plain JSON values."""
    return _call_home(operation, project, arguments, approval).data


def _call_home(
    operation: str, project: str | None, arguments: dict[str, Any], approval: Approval | None
) -> connect.OperationResult:
    connection = connect.HomeConnection(project, "cli")
    with show_progress(operation.replace("_", " "), in_lines=False):
        return run_sync(connection.call(operation, arguments, approval=approval))
