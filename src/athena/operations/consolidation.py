"""Make one memory of several that say the same, and see what recurs."""

from typing import Annotated

from athena.kernel.operation import Effect, operation
from athena.kernel.shapes import Param
from athena.memory import consolidate as consolidating
from athena.memory.consolidate import Consolidated, Strategy
from athena.operations.context import Context


@operation(Effect.WRITE)
async def consolidate(
    ctx: Context,
    strategy: Annotated[Strategy, Param("How far to go, from careful to thorough.")] = "balanced",
    days_back: Annotated[float, Param("How many days to look at.", least=0, most=36_500)] = 7,
    dry_run: Annotated[bool, Param("Report only, change nothing.")] = False,
) -> Consolidated:
    """Merge memories of the last days that say the same, and name topics that recur; `undo` takes it back.

    >>> consolidation.consolidate(strategy="balanced", dry_run=True)
    """
    return await consolidating.consolidate(ctx.store, strategy, days_back, dry_run, ctx.call)
