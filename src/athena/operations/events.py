"""Record what happened and look back at it."""

from typing import Annotated, Any, Literal, TypedDict

from athena.kernel.operation import Effect, operation
from athena.kernel.shapes import Param
from athena.memory import episodes
from athena.memory import events as recording
from athena.model.event import Chapter, Event, Recorded, Session, Summary
from athena.operations import params
from athena.operations.context import Context

Kind = Annotated[str, Param("What sort of thing happened, e.g. action, error, decision.")]
Outcome = Annotated[str | None, Param("How it ended, e.g. success, failure.")]
InSession = Annotated[str | None, Param("The session that it belongs to.")]
Duration = Annotated[float | None, Param("How long it took, in milliseconds.", least=0)]
Facts = Annotated[dict[str, Any] | None, Param("Anything else worth knowing.")]


class What(TypedDict):
    """What an event is at the least."""

    event_type: str
    content: str


class Happening(What, total=False):
    """An event to record."""

    outcome: str | None
    session_id: str | None
    duration_ms: Duration
    metadata: dict[str, Any] | None
    happened: str | float | None


@operation(Effect.WRITE)
async def record_event(
    ctx: Context,
    event_type: Kind,
    content: params.Content,
    outcome: Outcome = None,
    session_id: InSession = None,
    duration_ms: Duration = None,
    metadata: Facts = None,
    happened: Annotated[str | float | None, Param("When, in words or seconds since 1970; now by default.")] = None,
) -> Recorded:
    """Record what happened; the same twice is two events.

    >>> events.record_event(event_type="action", content="ran the tests", outcome="success", session_id="s1")
    """
    one = Happening(
        event_type=event_type, content=content, outcome=outcome, session_id=session_id,
        duration_ms=duration_ms, metadata=metadata, happened=happened,
    )  # fmt: skip
    return (await recording.record(ctx.store, [one], ctx.call))[0]


@operation(Effect.WRITE)
async def record_events(
    ctx: Context,
    items: Annotated[list[Happening], Param("Objects with what record_event takes.", least=1, most=10_000)],
) -> list[Recorded]:
    """Record many events at once; all are checked before any is kept.

    >>> events.record_events(items=[{"event_type": "action", "content": "opened the shop", "outcome": "success"}])
    """
    return await recording.record(ctx.store, items, ctx.call)


@operation(Effect.READ)
async def recall_events(
    ctx: Context,
    query: Annotated[
        str | None, Param("What to look for; a time, an outcome or a session in it is a filter.", least=1, most=20_000)
    ] = None,
    session_id: InSession = None,
    event_type: Annotated[str | None, Param("Only of this type.")] = None,
    outcome: Annotated[str | None, Param("How it ended; words that mean the same count, e.g. failed, error.")] = None,
    since: params.When = None,
    until: params.When = None,
    limit: params.Limit = 20,
    offset: params.Offset = 0,
) -> list[Event]:
    """Find events, by question, session or outcome.

    With a question the best first, e.g. "what failed yesterday"; without one the newest first.

    >>> events.recall_events(query="what failed yesterday", limit=5)
    """
    only = recording.narrowed(ctx.scope, session_id, event_type, outcome, since, until, ctx.store.clock())
    return await recording.find(ctx.store, query, only, limit, offset)


@operation(Effect.READ)
async def timeline(
    ctx: Context,
    since: params.When = None,
    until: params.When = None,
    session_id: InSession = None,
    by: Annotated[Literal["day", "session"], Param("What to put together.")] = "day",
    limit: params.Limit = 50,
    offset: params.Offset = 0,
) -> list[Chapter]:
    """Show what happened in order, events and memories.

    Of more than `limit`, the first from `since` on, else the last ones; `left_out` says how many did not fit.

    >>> events.timeline(since="yesterday")
    """
    only = recording.narrowed(ctx.scope, session_id, None, None, since, until, ctx.store.clock())
    return await episodes.timeline(ctx.store, only, by, limit, offset)


@operation(Effect.READ)
async def list_sessions(
    ctx: Context,
    limit: params.Limit = 20,
    since: params.When = None,
    until: params.When = None,
    offset: params.Offset = 0,
) -> list[Session]:
    """List sessions, the last first.

    >>> events.list_sessions(since="last week")
    """
    only = recording.narrowed(ctx.scope, None, None, None, since, until, ctx.store.clock())
    return await episodes.sessions(ctx.store, only, limit, offset)


@operation(Effect.READ)
async def session_summary(
    ctx: Context,
    session_id: Annotated[str, Param("The session.", least=1, most=1_000)],
    sentences: Annotated[int, Param("How many events to tell of.", least=1, most=100)] = 5,
) -> Summary:
    """Sum up a session: its failures, decisions, beginning and end, counts and names, in its own words.

    >>> events.session_summary(session_id="s1", sentences=3)
    """
    return await episodes.summary(ctx.store, session_id, ctx.scope, sentences)
