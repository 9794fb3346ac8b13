"""A pattern: something that recurs, as consolidation reports it."""

from dataclasses import dataclass, field
from typing import Any

from athena.memory.consolidation.values import PatternType
from athena.memory.values import format_preview

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
