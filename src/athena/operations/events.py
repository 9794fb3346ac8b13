"""Record what happened and look back at it."""

from functools import partial
from typing import Annotated, Any, Literal, TypedDict

from athena.core.operation import EVERYONE, EVERYONE_AND_HOOKS, PEOPLE, CallerKind, Effect, Reach, operation
from athena.core.types import Param
from athena.core.values import Author
from athena.memory import inputs
from athena.memory.sessions import briefing as briefings
from athena.memory.sessions import events as recording
from athena.memory.sessions import learning, learning_rules, prompts, questions
from athena.memory.sessions import timeline as sessions_timeline
from athena.memory.sessions.learning import LearnedItem
from athena.memory.sessions.learning_rules import LearningRule
from athena.memory.sessions.questions import OpenQuestion
from athena.memory.sessions.values import (
    WORK_EVENT_TYPE,
    Briefing,
    Chapter,
    Event,
    GitContext,
    Injection,
    Lesson,
    Recorded,
    Session,
    Summary,
    Utterance,
)
from athena.memory.values import Stored
from athena.operations import params
from athena.operations.context import Context
from athena.storage.vault_keys import TURNS_KEY

Kind = Annotated[str, Param("What sort of thing happened, e.g. action, error, decision.")]
Outcome = Annotated[str | None, Param("How it ended, e.g. success, failure.")]
InSession = Annotated[str | None, Param("The session that it belongs to.")]
Duration = Annotated[float | None, Param("How long it took, in milliseconds.", least=0)]
Budget = Annotated[int, Param("How many tokens it may take.", least=50, most=20_000)]
Facts = Annotated[dict[str, Any] | None, Param("Anything else worth knowing.")]


class EventFields(TypedDict):
    """The required fields of an event."""

    event_type: str
    content: str


class MessageFields(TypedDict):
    """The required fields of a message."""

    role: Literal["user", "assistant"]
    text: str


class Message(MessageFields, total=False):
    """Something that was said in a session."""

    at: float | None


class Happening(EventFields, total=False):
    """An event to record."""

    outcome: str | None
    session_id: str | None
    duration_ms: Duration
    metadata: dict[str, Any] | None
    happened: str | float | None


@operation(
    Effect.WRITE,
    callers=EVERYONE_AND_HOOKS,
    asks="log that this happened; write down that it failed; record that it worked; put on record what was "
    "done; make a log entry; note the outcome; we just finished this, log it; register an incident in the "
    "history; the attempt did not succeed, write it down; keep a record of what we tried",
)
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
    event = Happening(
        event_type=event_type, content=content, outcome=outcome, session_id=session_id,
        duration_ms=duration_ms, metadata=metadata, happened=happened,
    )  # fmt: skip
    # hooks record the end of an agent's turn as it is
    author: Author | None = "agent" if ctx.caller is CallerKind.HOOK and event_type == WORK_EVENT_TYPE else None
    return (await recording.record_events(ctx.store, [event], ctx.call, author))[0]


@operation(
    Effect.WRITE,
    callers=EVERYONE_AND_HOOKS,
    asks="log all of these events; record several things that happened; write several log entries; add all "
    "these happenings to the history",
)
async def record_events(
    ctx: Context,
    items: Annotated[list[Happening], Param("Objects with what record_event takes.", least=1, most=10_000)],
) -> list[Recorded]:
    """Record many events at once; all are checked before any is kept.

    >>> events.record_events(items=[{"event_type": "action", "content": "opened the shop", "outcome": "success"}])
    """
    return await recording.record_events(ctx.store, items, ctx.call)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="what failed yesterday; what happened with that; which attempts went wrong; when did we last try "
    "this; did this ever fail before; what errors did we run into; how did the last attempt go; look back "
    "at what went wrong; history of failures",
)
async def recall_events(
    ctx: Context,
    query: Annotated[
        str | None,
        Param("What to look for; a time, an outcome or a session in it is a filter.", least=1, most=20_000),
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
    event_filter = recording.create_event_filter(
        ctx.scope, session_id, event_type, outcome, since, until, ctx.store.clock()
    )
    return await recording.find_events(ctx.store, query, event_filter, limit, offset)


@operation(
    Effect.READ,
    callers=EVERYONE_AND_HOOKS,
    asks="what happened in which order; walk me through the last days; a chronology of this week; show me the "
    "course of events; list everything in order of time; what has been going on since Monday; "
    "chronological overview",
)
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
    event_filter = recording.create_event_filter(ctx.scope, session_id, None, None, since, until, ctx.store.clock())
    return await sessions_timeline.build_timeline(ctx.store, event_filter, by, limit, offset)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="which conversations did we have; list past sessions; when did we last work together; show earlier "
    "chats; our previous conversations; how many sessions were there",
)
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
    event_filter = recording.create_event_filter(ctx.scope, None, None, None, since, until, ctx.store.clock())
    return await sessions_timeline.list_sessions(ctx.store, event_filter, limit, offset)


@operation(
    Effect.READ,
    callers=EVERYONE_AND_HOOKS,
    asks="sum up our last conversation; recap of the session; what did we do and decide last time; give me the "
    "short version of that conversation; wrap up what happened in the session; outcome of our previous "
    "chat",
)
async def session_summary(
    ctx: Context,
    session_id: Annotated[str, Param("The session.", least=1, most=1_000)],
    sentences: Annotated[int, Param("How many events to tell of.", least=1, most=100)] = 5,
) -> Summary:
    """Sum up a session: its failures, decisions, beginning and end, counts and names, in its own words.

    >>> events.session_summary(session_id="s1", sentences=3)
    """
    return await sessions_timeline.summarize_session(ctx.store, session_id, ctx.scope, sentences)


@operation(
    Effect.READ,
    callers=EVERYONE_AND_HOOKS,
    asks="catch me up; what should I know before I start; bring me up to date on this project; where did we "
    "leave off; what is the current state of affairs; I am new here, fill me in; start of the day "
    "overview; what was I working on; give me the background before we begin",
)
async def briefing(
    ctx: Context,
    budget_tokens: Budget = briefings.BRIEFING_BUDGET_TOKENS,
    branch: Annotated[str | None, Param("The branch that is worked on.", most=1_000)] = None,
    files: Annotated[list[str] | None, Param("Files that were changed.", most=1_000)] = None,
    commits: Annotated[list[str] | None, Param("What the last commits say, the newest first.", most=100)] = None,
    session_id: Annotated[str | None, Param("Session id; items already sent to it are left out.", most=1_000)] = None,
    again: Annotated[bool, Param("True if the session's context was reset.")] = False,
) -> Briefing:
    """Tell what a new session should know.

    What is due, what the last sessions did, what the branch and the changed files touch, what is important and new:
    the most worth for the tokens.

    >>> events.briefing(budget_tokens=400, branch="fix/retries")
    """
    git = GitContext(branch, tuple(files or ()), tuple(commits or ()))
    return await briefings.compose_briefing(
        ctx.store,
        ctx.scope,
        git,
        budget_tokens,
        session_id,
        afresh=again,
        key=ctx.idempotency_key,
        is_preview=not ctx.tells_session,
    )


@operation(
    Effect.READ,
    callers=EVERYONE_AND_HOOKS,
    asks="is there anything I should bear in mind for this prompt; what matters for this question; anything "
    "relevant you know about what I am about to do; hints for this request",
)
async def remind(
    ctx: Context,
    prompt: Annotated[str, Param("What was asked.", least=1, most=20_000)],
    session_id: Annotated[str | None, Param("Session id; items already sent to it are left out.", most=1_000)] = None,
    budget_tokens: Budget = prompts.REMINDER_BUDGET_TOKENS,
) -> Briefing:
    """Return what memory says about a prompt; mostly nothing.

    >>> events.remind(prompt="why does the billing job retry failed charges?", session_id="s1")
    """
    return await prompts.compose_reminder(
        ctx.store,
        ctx.scope,
        prompt,
        session_id,
        budget_tokens,
        ctx.idempotency_key,
        is_preview=not ctx.tells_session,
    )


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="what were you told at the start; why did you bring that up; which memories were injected and why; "
    "what context did you get automatically; show what was put into the prompt; which reminders were "
    "shown",
)
async def list_injections(
    ctx: Context, session_id: InSession = None, limit: params.Limit = 20, offset: params.Offset = 0
) -> list[Injection]:
    """List what sessions were told, and why.

    >>> events.list_injections(limit=5)
    """
    return await briefings.list_briefing_log(ctx.store, ctx.scope, session_id, limit, offset)


@operation(
    Effect.WRITE,
    callers=PEOPLE | {CallerKind.HOOK},
    reach=[Reach.VOICE],
    asks="learn from this session; keep what we decided today; take the lessons of this conversation to heart; "
    "extract the lessons from what we did; store the decisions of this session; draw conclusions from "
    "today's work",
)
async def learn(
    ctx: Context,
    session_id: Annotated[str, Param("The session.", least=1, most=1_000)],
    messages: Annotated[list[Message] | None, Param("What was said, in order.", most=10_000)] = None,
    summary: Annotated[str | None, Param("A summary of it, where there is one.")] = None,
    keep: Annotated[bool, Param("Whether to keep memories, beside the episode.")] = True,
    happened: Annotated[float | None, Param("When the session ended, in seconds since 1970; now by default.")] = None,
    dry_run: Annotated[bool, Param("Only say what would be kept.")] = False,
) -> Lesson:
    """Keep what a session did and decided.

    Decisions, preferences, rules, facts and causes become memories with the tag `auto`, unless they are known.

    >>> events.learn(session_id="s1", messages=[{"role": "user", "text": "We decided to use PostgreSQL for billing."}])
    """
    ctx.require_reach(Reach.VOICE)  # what the messages of users say is stored as a person's words
    utterances = [
        Utterance(message["role"], message["text"], inputs.check_time_range(message.get("at"), "at"))
        for message in messages or ()
    ]
    from athena.memory.sessions import lessons  # compiling its patterns takes long

    store, moment = ctx.store, inputs.check_time_range(happened, "happened")
    store = store if moment is None else store._replace(clock=lambda: moment)
    session = recording.clean_session_id(session_id)
    sign = partial(ctx.required_guard.vault.keys.sign, name=TURNS_KEY)
    return await lessons.learn_from_session(store, session, utterances, summary, ctx.call, sign, keep, dry_run)


@operation(
    Effect.READ,
    callers=PEOPLE,
    reach=[Reach.PROJECTS],
    asks="what did you keep by yourself; what have you learned from my sessions and why",
)
async def list_learned(
    ctx: Context,
    session_id: Annotated[str | None, Param("Only of this session, by its id or how that begins.", most=1_000)] = None,
    limit: params.Limit = 20,
    offset: params.Offset = 0,
) -> list[LearnedItem]:
    """List what was learned from sessions without a request, and why, the newest first.

    What may hold in all projects has an `offer`: it says so, or was said in another project too.

    >>> events.list_learned(limit=5)
    """
    ctx.require_reach(Reach.PROJECTS)
    return await learning.list_learned(ctx.store, ctx.scope, session_id, limit, offset)


@operation(
    Effect.READ,
    callers=PEOPLE,
    asks="which of my statements contradict each other; what do you need to know from me about what holds",
)
async def list_open_questions(ctx: Context) -> list[OpenQuestion]:
    """List pairs of learned statements of which a person is to say which one holds, the newest first.

    `keep_learned` of one of the two settles it.

    >>> events.list_open_questions()
    """
    return await questions.list_questions(ctx.store, ctx.scope)


@operation(
    Effect.WRITE,
    callers=PEOPLE,
    reach=[Reach.VOICE, Reach.PROJECTS],
    asks="yes, what you learned there is right; confirm what you kept by yourself",
)
async def keep_learned(
    ctx: Context,
    memory_id: params.Ref,
    everywhere: Annotated[bool, Param("Move it to the project `user`, which all projects see.")] = False,
) -> Stored:
    """Confirm something learned: it no longer counts as automatic, and for more.

    >>> events.keep_learned(memory_id=1)
    """
    ctx.require_reach(Reach.VOICE)
    if everywhere:
        ctx.require_reach(Reach.PROJECTS)
        return await learning.keep_everywhere(ctx.store, memory_id, ctx.call)
    return await learning.keep_learned(ctx.store, memory_id, ctx.call)


@operation(
    Effect.WRITE,
    callers=PEOPLE,
    reach=[Reach.VOICE],
    asks="correct what you learned by yourself; what you kept from my session is not quite right",
)
async def edit_learned(ctx: Context, memory_id: params.Ref, content: params.Content) -> Stored:
    """Correct something learned, which also confirms it; the old statement is not learned again.

    >>> events.edit_learned(memory_id=1, content="Tabs are for Makefiles only")
    """
    ctx.require_reach(Reach.VOICE)
    return await learning.edit_learned(ctx.store, memory_id, content, ctx.call)


@operation(
    Effect.WRITE,
    callers=PEOPLE,
    reach=[Reach.SETTINGS],
    asks="forget what you learned by yourself and do not learn it again; that should never have been kept",
)
async def drop_learned(ctx: Context, memory_ids: params.Refs) -> list[LearnedItem]:
    """Forget things learned, and do not learn the same statements again; `undo` takes both back.

    >>> events.drop_learned(memory_ids=[1])
    """
    return await learning.drop_learned(ctx.store, memory_ids, ctx.call)


@operation(
    Effect.WRITE,
    callers=PEOPLE,
    reach=[Reach.SETTINGS, Reach.PROJECTS],
    asks="never keep anything like this again; do not learn things of this sort from my sessions",
)
async def refuse_learned(
    ctx: Context,
    memory_id: params.Ref,
    topic: Annotated[str | None, Param("Also refuse what has all of these words.", least=1, most=100)] = None,
    everywhere: Annotated[bool, Param("In every project, not only in this one.")] = False,
) -> LearningRule:
    """Forget something learned, and learn nothing like it from now on: the same kind, alike in meaning.

    >>> events.refuse_learned(memory_id=1, topic="lunch")
    """
    return await learning.refuse_alike(ctx.store, memory_id, ctx.call, topic, everywhere=everywhere)


@operation(
    Effect.READ,
    callers=PEOPLE,
    asks="what may not be learned from my sessions; list the rules about what you never keep",
)
async def list_learning_rules(
    ctx: Context, with_dropped: Annotated[bool, Param("Also single statements that were dropped.")] = False
) -> list[LearningRule]:
    """List the rules of what is not learned from sessions, in this project and everywhere.

    >>> events.list_learning_rules()
    """
    return await learning_rules.list_rules(ctx.store, ctx.scope, with_dropped=with_dropped)


@operation(
    Effect.WRITE,
    callers=PEOPLE,
    reach=[Reach.SETTINGS, Reach.PROJECTS],
    asks="you may learn such things again; remove the rule about what is never kept",
)
async def remove_learning_rule(
    ctx: Context, number: Annotated[int, Param("The rule's number, as list_learning_rules shows it.", least=1)]
) -> bool:
    """Remove a rule of what is not learned; `undo` brings it back.

    >>> events.remove_learning_rule(number=1)
    """
    return await learning.remove_rule(ctx.store, number, ctx.call) == 1
