"""Values of events, sessions, timelines and briefings."""

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from athena.memory.sessions.voice import BriefingText
from athena.memory.values import MOMENT_KEY, Memory, strip_reserved_keys

OUTCOME_KEY, SESSION_KEY, DURATION_KEY = "outcome", "session_id", "duration_ms"  # keys of an event's metadata
REQUESTED_KEY = "requested"  # key of a memory's metadata: the person asked to remember it
SAID_KEY = "said"  # key of a memory's metadata: when the person said it, where that is not when it was stored
EVERYWHERE_KEY = "everywhere"  # key of a memory's metadata: the person said that it holds in all projects
IDLE_KEY = "idle"  # key of an episode's metadata: the session had no result
IDLE_TEXT = "nothing was done"  # the text of such an episode
MAX_DECIDED_CHARS = 160  # of a decision in an episode
# Outcomes that mean the same; the first one is canonical.
FAILURE_OUTCOMES = (
    "failure", "failed", "fail", "fails", "failing", "error", "errors", "errored", "exception", "timeout", "timed out",
    "crash", "crashed", "aborted", "broken", "ko", "unsuccessful",
)  # fmt: skip
SUCCESS_OUTCOMES = (
    "success", "succeeded", "successful", "succeeds", "ok", "okay", "pass", "passed", "passes", "done", "completed",
    "complete", "worked", "green",
)  # fmt: skip
STEP_PATTERN = re.compile(r"^(?:next(?: steps?| time| up)?|to-?do(?: for \w+(?: \w+)?)?)\s*:\s*", re.IGNORECASE)
WORK_EVENT_TYPE = "work"  # the end of an agent's turn
FAILED_EVENT_TYPES = ("error", "exception", "failure", "crash")  # failures even without an outcome


def get_said_time(memory: Memory) -> float:
    """Return when a memory was said, as far as that is known, else when it was stored."""
    said = memory.metadata.get(SAID_KEY)
    return min(float(said), memory.created) if isinstance(said, int | float) else memory.created


def strip_step(text: str) -> str:
    """Return a next step without the words that call it one: "Next time: the manual" becomes "the manual"."""
    return STEP_PATTERN.sub("", text)


def list_outcome_synonyms(outcome: str) -> tuple[str, ...]:
    """Return the outcomes that mean the same as this one, including itself."""
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
    score: float | None = None  # only if a question was asked


@dataclass(frozen=True, slots=True)
class Recorded(Event):
    """An event that was just stored."""

    redacted: tuple[str, ...] = ()  # the kinds of secrets that were removed from the text


def event_from_memory(memory: Memory, score: float | None = None) -> Event:
    m, rest = memory, strip_reserved_keys(memory.metadata)
    outcome, session, duration = (rest.pop(name, None) for name in (OUTCOME_KEY, SESSION_KEY, DURATION_KEY))
    happened = m.metadata.get(MOMENT_KEY, m.created)
    return Event(
        m.id, m.hash, m.memory_type, m.content, outcome, session, duration, rest, happened, m.created, m.project, score
    )


def to_stored_event(memory: Memory, redacted: tuple[str, ...]) -> Recorded:
    event = event_from_memory(memory)
    return Recorded(**{name: getattr(event, name) for name in Event.__dataclass_fields__}, redacted=redacted)


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
    """The entries of one day or one session of a timeline."""

    name: str | None
    started: float
    ended: float
    entries: tuple[Entry, ...]
    left_out: int = 0  # entries before the first or after the last chapter that did not fit


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
    """Files and names in the texts of a session, the most frequent first."""

    files: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """A session, summarized by quotations."""

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
    """The branch, files and commits that the user works on."""

    branch: str | None = None
    files: tuple[str, ...] = ()  # changed files
    commits: tuple[str, ...] = ()  # subjects of the last commits


class BriefingTurn(NamedTuple):
    """The session that gets a briefing, and the hook event."""

    session: str
    event: str
    after: int  # id of the session's last log entry when the briefing was composed
    afresh: bool = False  # the session has lost its context, so that items may come again
    key: str | None = None  # idempotency key; a retry replaces the entries of the same key


class Utterance(NamedTuple):
    """A message of a conversation."""

    role: str  # user, assistant
    text: str
    at: float | None = None  # when it was said


class Candidate(NamedTuple):
    """A sentence that may be worth storing."""

    text: str
    kind: str  # decision, preference, convention, fact, fix, todo
    role: str
    turn: int | None = None  # number of the user's turn in which it was said
    confidence: float | None = None  # probability that it is worth keeping
    is_correction: bool = False
    is_request: bool = False  # the person asked to remember it
    is_weak: bool = False  # worth keeping only if it replaces something
    context: str = ""  # what was said around it; not stored
    answer: str = ""  # how the answer before it ends, if it may reply to that; not stored
    replaced: str | None = None  # what the same person said before and does not hold any more
    replaced_turn: int | None = None  # the number of the turn in which that was said
    holds_everywhere: bool = False  # the person said that it holds in all projects
    proposer: str | None = None  # who but the classifier found it
    at: float = 0.0  # when it was said


@dataclass(frozen=True, slots=True)
class Told:
    """One item of a briefing."""

    kind: str  # memory, event, task, question
    id: int
    hash: str
    reason: str
    score: float  # its worth, from 0 to 1
    tokens: int


@dataclass(frozen=True, slots=True)
class Briefing:
    text: str  # empty if no item is worth its tokens
    tokens: int
    direct: int  # tokens that the same items would cost as results of a tool
    told: tuple[Told, ...]

    def __post_init__(self) -> None:
        if self.text and not isinstance(self.text, BriefingText):
            raise TypeError("the text of a briefing is a BriefingText")


@dataclass(frozen=True, slots=True)
class Injection:
    """An entry of the briefing log."""

    at: float
    session_id: str
    event: str
    id: int
    hash: str | None  # None if the memory was deleted
    text: str
    reason: str
    score: float
    tokens: int


EMPTY_BRIEFING = Briefing("", 0, 0, ())


@dataclass(frozen=True, slots=True)
class Learned:
    id: int
    hash: str
    content: str
    memory_type: str
    outcome: str  # new, known, revived
    role: str | None = None  # who said it: user or assistant
    turn: int | None = None  # the number of the user's turn
    confidence: float | None = None  # from 0 to 1


@dataclass(frozen=True, slots=True)
class Lesson:
    """The episode and the memories that a session left."""

    episode: int | None  # id of the event that summarizes it
    learned: tuple[Learned, ...]
    known: int  # candidates that a memory says already
    refused: int = 0  # candidates that the person has ruled out
