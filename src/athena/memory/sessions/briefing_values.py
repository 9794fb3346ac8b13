"""A briefing: what a session is told from memory, and why."""

from dataclasses import dataclass
from typing import NamedTuple


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
