"""See what events and memories add up to: what recurs, leads somewhere or contradicts."""

from typing import Annotated

from athena.core.operation import EVERYONE, Effect, Reach, operation
from athena.core.types import Param
from athena.memory.consolidation import patterns
from athena.memory.consolidation.values import Consolidated, Found, PatternType, Status, Strategy, WithEvidence
from athena.operations import params
from athena.operations.context import Context


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    reach=[Reach.NETWORK],
    asks="look for patterns and tidy up your memories; learn from the last days; clean up the memory; go "
    "through recent events and draw conclusions; merge and refresh what you know; run the nightly "
    "clean-up",
)
async def consolidate(
    ctx: Context,
    strategy: Annotated[Strategy, Param("How far to go, from careful to thorough.")] = "balanced",
    days_back: Annotated[float, Param("How many days to look at.", least=0, most=36_500)] = 7,
    dry_run: Annotated[bool, Param("Report only, change nothing.")] = False,
) -> Consolidated:
    """Find patterns in the last days, merge, strengthen or fade memories accordingly; `undo` takes it back.

    >>> consolidation.consolidate(strategy="balanced", dry_run=True)
    """
    from athena.memory.consolidation import run  # compiling its patterns takes long

    return await run.consolidate(ctx.store, strategy, days_back, dry_run, ctx.call)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="what habits have you noticed; what keeps happening; which patterns did you find; what recurs; what "
    "have you learned about how I work; regularities in my work; what usually leads to failure",
)
async def list_patterns(
    ctx: Context,
    type: Annotated[PatternType | None, Param("Only patterns of this type.")] = None,  # noqa: A002  # the public name
    min_confidence: Annotated[float, Param("Leave out what is less sure, from 0 to 1.", least=0, most=1)] = 0.0,
    limit: params.Limit = 50,
    offset: params.Offset = 0,
) -> list[Found]:
    """List patterns that were found, the surest first.

    >>> consolidation.list_patterns(type="sequence", min_confidence=0.8)
    """
    return await patterns.browse_patterns(ctx.store, ctx.scope, type, min_confidence, limit, offset)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="why do you think this is a pattern; the evidence behind that pattern; tell me more about this "
    "pattern; what is it based on",
)
async def get_pattern(ctx: Context, pattern_id: Annotated[int | str, Param("The pattern's id.")]) -> WithEvidence:
    """Return one pattern with its evidence.

    >>> consolidation.get_pattern(pattern_id=1)
    """
    return await patterns.get_pattern(ctx.store, pattern_id, ctx.scope)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="when did you last tidy up; is the clean-up of memories running; has the consolidation been running; "
    "last time the memories were processed",
)
async def consolidation_status(ctx: Context) -> list[Status]:
    """Say when consolidation last ran, and whether it runs.

    >>> consolidation.consolidation_status()
    """
    from athena.memory.consolidation import run  # compiling its patterns takes long

    return await run.list_run_status(ctx.store, ctx.scope)
