"""Programs, their runs, and the errors of both."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

from athena.core.text import make_storable
from athena.errors import ApprovalNeeded
from athena.programs.sandbox.names import Namespace

EngineName = Literal["auto", "monty", "python"]
Status = Literal["done", "failed", "needs_approval", "unknown"]
HostCall = Callable[[str, dict[str, Any]], Any]  # takes a path and arguments, returns a plain value


@dataclass(frozen=True, slots=True)
class Program:
    code: str
    names: Namespace = field(default_factory=Namespace)
    engine: EngineName = "auto"
    state: bytes | None = None  # the variables that the last run left
    timeout_s: float | None = None  # at most `Limits.wall_s`
    owner: str = ""  # of the state; the state of another owner is refused
    inputs: Mapping[str, Any] = field(default_factory=dict)  # variables to add to its state


class Failure(TypedDict):
    type: str
    message: str
    line: int | None
    hint: str | None
    limit: NotRequired[str]  # the limit that was met


class CallCounts(TypedDict):
    """The calls of one operation by a program, by outcome."""

    done: int
    failed: int
    unknown: int  # under way when the run ended


@dataclass(frozen=True, slots=True)
class Pause:
    """A call that waits for a person."""

    snapshot: bytes  # resumes the run in any process that has the key
    path: str
    arguments: Mapping[str, Any]
    request: Mapping[str, Any]  # from `NeedsApproval`


@dataclass(frozen=True, slots=True)
class Run:
    status: Status
    output: str = ""
    result: Any = None  # for the model
    value: Any = None  # the whole value, for a handle
    truncated: bool = False  # `result` is not all of `value`, or `value` not all that there was
    error: Failure | None = None
    elapsed_ms: float = 0.0
    calls: int = 0
    call_counts: Mapping[str, CallCounts] = field(default_factory=dict)
    state: bytes | None = None  # for the next run
    lost: tuple[str, ...] = ()  # variables that could not be kept
    engine: str = ""  # empty: nothing was run
    reason: str = ""  # why this engine
    pause: Pause | None = None

    @property
    def success(self) -> bool:
        return self.status == "done"


class NeedsApproval(ApprovalNeeded):
    """Raised by a call that needs a person's approval: the run pauses until `resume`."""

    def __init__(self, message: str, *, hint: str | None = None, request: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.request = dict(request or {})


class PauseRequired(Exception):
    """A call of a program waits for a person's approval, and the run can pause there."""

    def __init__(self, path: str, arguments: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        super().__init__(path)
        self.path, self.arguments, self.request = path, arguments, request


class ProgramRejected(Exception):
    """A program was refused before it ran."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure["message"])
        self.failure = failure


MAX_HINT_CHARS = 2_000
DENIED_MESSAGE = "a person refused this call"


def create_failure(
    kind: str, message: str, line: int | None = None, hint: str | None = None, limit: str = ""
) -> Failure:
    """Create an error whose text can be stored and sent, also if the program put invalid text into it."""
    hint_text = make_storable(hint[:MAX_HINT_CHARS]) if hint else None
    failure: Failure = {
        "type": make_storable(kind),
        "message": make_storable(message[:4_000]),
        "line": line,
        "hint": hint_text,
    }
    if limit:
        failure["limit"] = limit
    return failure
