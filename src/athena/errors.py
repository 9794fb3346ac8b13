"""The errors that a caller may see.

    AthenaError              code             http  exit
    ├─ InvalidInput          invalid_input     422     2   also a ValueError
    ├─ NotFound              not_found         404     3
    ├─ Conflict              conflict          409     4
    ├─ Unauthenticated       unauthenticated   401     5
    ├─ Denied                denied            403     5
    │  └─ ApprovalNeeded     approval_needed   403     5
    ├─ LimitExceeded         limit_exceeded    429     6
    ├─ Unavailable           unavailable       503     7   trying again may help
    └─ Misconfigured         misconfigured     503     8   mostly at start

A program that fails in the sandbox is a result, not an error. Any other exception that escapes is a bug.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing is too slow for `athena mcp`
if TYPE_CHECKING:
    from typing import ClassVar


class AthenaError(Exception):
    """Something the caller can act on; `hint` says how."""

    code: ClassVar[str] = "internal"
    http: ClassVar[int] = 500
    exit: ClassVar[int] = 1
    retry: bool = False
    retry_after_s: int = 1  # where `retry` is set: how long to wait first

    def __init__(self, message: str, *, hint: str | None = None, retry: bool | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")
        if retry is not None:
            self.retry = retry

    def to_json(self) -> dict[str, object]:
        return {"code": self.code, "message": str(self), "hint": self.hint, "retry": self.retry}


class InvalidInput(AthenaError, ValueError):
    """The arguments do not fit the operation."""

    code, http, exit = "invalid_input", 422, 2


class NotFound(AthenaError):
    """No such operation, memory, entity, file or skill."""

    code, http, exit = "not_found", 404, 3


class Conflict(AthenaError):
    """The store is not in the state that the call expects."""

    code, http, exit = "conflict", 409, 4


class Unauthenticated(AthenaError):
    """No token, or a wrong one."""

    code, http, exit = "unauthenticated", 401, 5


class Denied(AthenaError):
    """The caller may not do this."""

    code, http, exit = "denied", 403, 5


class ApprovalNeeded(Denied):
    """A person has to agree first."""

    code = "approval_needed"


class LimitExceeded(AthenaError):
    """More than the limits allow."""

    code, http, exit = "limit_exceeded", 429, 6


class Unavailable(AthenaError):
    """Something we depend on does not answer now."""

    code, http, exit = "unavailable", 503, 7
    retry = True


class Misconfigured(AthenaError):
    """A setting, file or engine that cannot work; found at start, or when the database disappears."""

    code, http, exit = "misconfigured", 503, 8
