"""Better sentences for patterns, from a language model where one is configured. Nothing needs it."""

from athena.memory.consolidation.pattern import Pattern
from athena.memory.store import Store


async def reworded(store: Store, patterns: list[Pattern]) -> list[Pattern]:
    return patterns
