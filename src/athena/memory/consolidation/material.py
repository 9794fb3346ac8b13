"""What the miners look at: events and memories as plain values."""

from typing import NamedTuple


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
