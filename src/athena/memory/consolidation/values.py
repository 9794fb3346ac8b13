"""A pattern: something that recurs, leads somewhere or contradicts, as callers see it."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from athena.memory.values import format_preview

PatternType = Literal["recurring", "sequence", "topic", "near_duplicate", "contradiction"]

Strategy = Literal["minimal", "speed", "balanced", "quality"]


@dataclass(frozen=True, slots=True)
class Found:
    """A pattern as it is shown; without an id where it was only looked for."""

    id: int | None
    type: str
    summary: str
    confidence: float
    support: int
    evidence: tuple[int, ...]
    merged: bool = False  # whether memories became one because of it
    new: bool = False  # whether this run found it first
    memory: int | None = None  # the memory that it was promoted to
    details: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """An event or a memory that a pattern rests on."""

    id: int
    kind: str
    content: str
    created: float
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class WithEvidence(Found):
    """A pattern, and what it rests on as far as it is still there."""

    found_in: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Consolidated:
    strategy: str
    examined: int  # events and memories
    merged: int
    strengthened: int
    faded: int
    promoted: int
    new: int  # patterns that no run found before
    patterns: tuple[Found, ...]
    skipped: bool = False  # nothing had changed since the last run
    resumed: bool = False  # the last run was interrupted, this one went on
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """How the last run of a strategy went, or how the one in progress stands."""

    strategy: str
    days_back: float
    state: str  # running, interrupted, done
    stage: str
    began: float
    ended: float | None
    seconds: float
    found: dict[str, int]


# recurring: one kind of event comes again and again. sequence: after some events, an outcome is likelier than usual.
# topic: tags or names stand together more often than chance explains. near_duplicate: memories say nearly the same.
# contradiction: two memories about one subject cannot both be true.


@dataclass(frozen=True, slots=True)
class Pattern:
    type: PatternType
    about: str  # what it is about, without counts: two runs that find the same agree on it
    summary: str
    confidence: float  # how often such a pattern is really there, 0 to 1
    support: int
    evidence: tuple[int, ...]  # ids of events or memories
    details: dict[str, Any] = field(default_factory=dict)
    features: tuple[float, ...] = ()  # what the confidence was worked out from
    quotes: tuple[int, ...] = ()  # of the evidence, what the summary repeats the words of


def to_quote(text: str, longest: int = 120) -> str:
    """Return a text as a part of a sentence."""
    return format_preview(text, longest).rstrip(".! ")


def format_count(count: int, one: str) -> str:
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


class Event(NamedTuple):
    """Something that happened."""

    id: int
    at: float
    event_type: str
    text: str
    outcome: str | None = None  # success, failure, partial
    session: str | None = None
    tags: tuple[str, ...] = ()


class MinedMemory(NamedTuple):
    """A memory, as far as patterns depend on it."""

    id: int
    at: float
    text: str
    tags: tuple[str, ...] = ()
    memory_type: str = "note"
