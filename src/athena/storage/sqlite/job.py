"""What a caller wants done on the writer's connection."""

from typing import Any

from athena.core.threads import Outcome
from athena.storage.database import Work


class Job:
    """What one caller wants done: work in a transaction, or statements that must stand outside of one."""

    __slots__ = ("error", "outcome", "outside", "relaxed", "value", "work")

    def __init__(
        self, work: Work[Any], outcome: Outcome[Any] | None, outside: tuple[str, ...] = (), *, relaxed: bool = False
    ) -> None:
        self.work = work
        self.outcome = outcome
        self.outside = outside
        self.relaxed = relaxed
        self.value: Any = None
        self.error: BaseException | None = None

    def tell(self) -> None:
        outcome, self.outcome = self.outcome, None
        if outcome is None:
            return
        if self.error is not None:
            outcome.fail(self.error)
        else:
            outcome.deliver(self.value)


async def nothing(_: Any) -> None:
    """A job that only brings a commit about."""


STOP = Job(nothing, None)
