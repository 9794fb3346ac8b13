"""An event: something that happened, in a session where it belongs to one."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from athena.memory.values import MOMENT_KEY, Memory, strip_reserved_keys

OUTCOME_KEY, SESSION_KEY, DURATION_KEY = "outcome", "session_id", "duration_ms"  # where the metadata keeps them
IDLE_KEY = "idle"  # in the metadata of an episode: the session came to nothing
# Outcomes that mean the same; the first of each is what Athena calls it.
FAILURE_OUTCOMES = (
    "failure", "failed", "fail", "fails", "failing", "error", "errors", "errored", "exception", "timeout", "timed out",
    "crash", "crashed", "aborted", "broken", "ko", "unsuccessful",
)  # fmt: skip
SUCCESS_OUTCOMES = (
    "success", "succeeded", "successful", "succeeds", "ok", "okay", "pass", "passed", "passes", "done", "completed",
    "complete", "worked", "green",
)  # fmt: skip
FAILED_EVENT_TYPES = ("error", "exception", "failure", "crash")  # events that are failures though they name no outcome


def list_outcome_synonyms(outcome: str) -> tuple[str, ...]:
    """Return the outcomes that mean the same as one, itself among them."""
    return next((group for group in (FAILURE_OUTCOMES, SUCCESS_OUTCOMES) if outcome.casefold() in group), (outcome,))


@dataclass(frozen=True, slots=True)
class Event:
    id: int
    hash: str
    event_type: str
    content: str
    outcome: str | None
    session_id: str | None
    duration_ms: float | None
    metadata: dict[str, Any]
    happened: float
    created: float
    project: str
    score: float | None = None  # how well it fits, where something was asked


@dataclass(frozen=True, slots=True)
class Recorded(Event):
    """An event as it is now kept."""

    redacted: tuple[str, ...] = ()  # the kinds of secrets that were taken out of the text


def event_from_memory(memory: Memory, score: float | None = None) -> Event:
    m, rest = memory, strip_reserved_keys(memory.metadata)
    outcome, session, duration = (rest.pop(name, None) for name in (OUTCOME_KEY, SESSION_KEY, DURATION_KEY))
    happened = m.metadata.get(MOMENT_KEY, m.created)
    return Event(
        m.id, m.hash, m.memory_type, m.content, outcome, session, duration, rest, happened, m.created, m.project, score
    )


def to_stored_event(memory: Memory, redacted: tuple[str, ...]) -> Recorded:
    made = event_from_memory(memory)
    return Recorded(**{name: getattr(made, name) for name in Event.__dataclass_fields__}, redacted=redacted)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a timeline: an event or a memory."""

    at: float
    kind: Literal["event", "memory"]
    id: int
    type: str
    text: str  # its beginning
    outcome: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Chapter:
    """A part of a timeline: a day, or a session."""

    name: str | None
    started: float
    ended: float
    entries: tuple[Entry, ...]
    left_out: int = 0  # entries beyond this chapter that did not fit: before the first, or after the last


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    started: float
    ended: float
    events: int
    outcomes: dict[str, int]
    began_with: str


@dataclass(frozen=True, slots=True)
class Mentions:
    """What the texts of a session name, the most often named first."""

    files: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """A session in a few of its own words."""

    session_id: str
    started: float
    ended: float
    duration_s: float
    events: int
    by_type: dict[str, int]
    by_outcome: dict[str, int]
    text: str
    key: tuple[Entry, ...]
    mentions: Mentions


class GitContext(NamedTuple):
    """What is being worked on, as the version control sees it."""

    branch: str | None = None
    files: tuple[str, ...] = ()  # that were changed
    commits: tuple[str, ...] = ()  # what the last ones say


class BriefingTurn(NamedTuple):
    """When a session is told something: at which event, and after what."""

    session: str
    event: str
    after: int  # the last thing that it had been told, when it was decided what to tell
    afresh: bool = False  # it does not know any more what it was told before
    key: str | None = None  # of whoever asks: what was found under the same one was not heard, as they ask again


class Utterance(NamedTuple):
    """Something that was said, and by whom: user or assistant."""

    role: str
    text: str


class Candidate(NamedTuple):
    """A sentence that may be worth keeping."""

    text: str
    kind: str  # decision, preference, convention, fact, fix
    role: str


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that a session is told."""

    kind: str  # memory, event, task
    id: int
    hash: str
    reason: str
    score: float  # what it is worth, from 0 to 1
    tokens: int


@dataclass(frozen=True, slots=True)
class Briefing:
    text: str  # what the model reads; empty where nothing is worth it
    tokens: int
    direct: int  # tokens that the same things cost as results of a tool
    told: tuple[Told, ...]


@dataclass(frozen=True, slots=True)
class Injection:
    """Something that a session was told: when, at which event, why."""

    at: float
    session_id: str
    event: str
    id: int
    hash: str | None  # none where it is gone
    text: str
    reason: str
    score: float
    tokens: int


EMPTY_BRIEFING = Briefing("", 0, 0, ())
