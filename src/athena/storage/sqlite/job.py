"""What a caller wants done on the writer's connection."""

from typing import Any

from athena.core.threads import ThreadFuture
from athena.storage.database import Work


class WriteJob:
    """What one caller wants done: work in a transaction, or statements that must stand outside of one."""

    __slots__ = ("deferred_sync", "error", "outcome", "statements", "value", "work")

    def __init__(
        self,
        work: Work[Any],
        outcome: ThreadFuture[Any] | None,
        outside: tuple[str, ...] = (),
        *,
        relaxed: bool = False,
    ) -> None:
        self.work = work
        self.outcome = outcome
        self.statements = outside
        self.deferred_sync = relaxed
        self.value: Any = None
        self.error: BaseException | None = None

    def deliver_result(self) -> None:
        outcome, self.outcome = self.outcome, None
        if outcome is None:
            return
        if self.error is not None:
            outcome.set_exception(self.error)
        else:
            outcome.set_result(self.value)


async def commit_only(_: Any) -> None:
    """A job that only brings a commit about."""


STOP_JOB = WriteJob(commit_only, None)
