"""Read times: phrases such as "last week", dates in many formats, epoch numbers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from athena.memory.time.phrase import find_phrase, parse_coming_period, parse_due_time, parse_period

__all__ = ["find_phrase", "parse_coming_period", "parse_due_time", "parse_period"]


def __getattr__(name: str) -> Any:
    """Import the parser at its first use: its tables are slow to load, and most calls name no time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from athena.memory.time import phrase

    return getattr(phrase, name)
