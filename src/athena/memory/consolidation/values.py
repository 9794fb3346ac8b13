"""Values of consolidation: patterns, the events and memories they are mined from, runs and their results."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from athena.memory.values import format_preview

# recurring: one kind of event happens repeatedly. sequence: after some events, an outcome is likelier than usual.
# topic: tags or names occur together more often than by chance. near_duplicate: memories say nearly the same.
# contradiction: two memories about one subject cannot both be true.
PatternType = Literal["recurring", "sequence", "topic", "near_duplicate", "contradiction"]

Strategy = Literal["minimal", "speed", "balanced", "quality"]


@dataclass(frozen=True, slots=True)
class Found:
    """A stored pattern; without an id in a dry run."""

    id: int | None
    type: str
    summary: str
    confidence: float
    support: int
    evidence: tuple[int, ...]
    merged: bool = False  # its memories were merged
    new: bool = False  # this run found it first
    memory: int | None = None  # id of the memory that it was promoted to
    details: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """An event or a memory that supports a pattern."""

    id: int
    kind: str
    content: str
    created: float
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class WithEvidence(Found):
    """A pattern with those of its events and memories that still exist."""

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
    resumed: bool = False  # continued an interrupted run
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the last run of a strategy."""

    strategy: str
    days_back: float
    state: str  # running, interrupted, done
    stage: str
    began: float
    ended: float | None
    seconds: float
    found: dict[str, int]


@dataclass(frozen=True, slots=True)
class Pattern:
    type: PatternType
    about: str  # its subject without counts, the same in every run that finds it
    summary: str
    confidence: float  # calibrated probability that the pattern is real
    support: int
    evidence: tuple[int, ...]  # ids of events or memories
    details: dict[str, Any] = field(default_factory=dict)
    features: tuple[float, ...] = ()  # inputs of the confidence
    quotes: tuple[int, ...] = ()  # ids of the evidence that the summary quotes


def to_quote(text: str, max_chars: int = 120) -> str:
    """Return a preview of a text that fits into a sentence."""
    return format_preview(text, max_chars).rstrip(".! ")


def format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class MinedEvent(NamedTuple):
    """The fields of an event that patterns depend on."""

    id: int
    at: float
    event_type: str
    text: str
    outcome: str | None = None  # success, failure, partial
    session: str | None = None
    tags: tuple[str, ...] = ()


class MinedMemory(NamedTuple):
    """The fields of a memory that patterns depend on."""

    id: int
    at: float
    text: str
    tags: tuple[str, ...] = ()
    memory_type: str = "note"
