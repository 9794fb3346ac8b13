"""A pattern: something that recurs, leads somewhere or contradicts, as callers see it."""

from dataclasses import dataclass
from typing import Any, Literal

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
