"""The stages of a consolidation: each looks for one type of pattern."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cached_property

from athena.core.scope import Scope
from athena.core.threads import aside
from athena.memory import duplicates
from athena.memory.consolidation import contradictions, events, recurring, sequences, topics
from athena.memory.consolidation.findings import Pattern, said
from athena.memory.consolidation.read import Material
from athena.memory.consolidation.strategies import Plan
from athena.memory.documents import ingest
from athena.memory.duplicates import Group
from athena.memory.store import Store
from athena.memory.values import Memory

MOST_GROUPS = 1_000
MOST_PATTERNS = 300  # of one type
# Which kind of thing each stage looks at.
READS = {
    "duplicates": "memory", "recurring": "event", "sequences": "event", "topics": "memory", "contradictions": "memory"
}  # fmt: skip
APART = ("session_id", "source", "speaker", "date")  # facts that keep memories of the same words apart


class Mine:
    """The material of one run, and what the stages share."""

    def __init__(self, store: Store, scope: Scope, material: Material, plan: Plan) -> None:
        self._store, self._scope, self._material, self._plan = store, scope, material, plan

    @property
    def stages(self) -> dict[str, Callable[[], Awaitable[list[Pattern]]]]:
        """The stages of the plan, in their order."""
        wanted: dict[str, Callable[[], Awaitable[list[Pattern]]]] = {
            "duplicates": self._duplicates,
            "recurring": self._recurring,
        }
        if self._plan.steps:
            wanted["sequences"] = self._sequences
        if self._plan.topics:
            wanted["topics"] = self._topics
        if self._plan.contradictions:
            wanted["contradictions"] = self._contradictions
        return wanted

    async def run(self, stage: str) -> list[Pattern]:
        """Return what a stage finds, as far as it is sure enough."""
        found = [one for one in await self.stages[stage]() if one.confidence >= self._plan.reported]
        return sorted(found, key=lambda one: (-one.confidence, -one.support, one.about))[:MOST_PATTERNS]

    @cached_property
    def _kinds(self) -> tuple[list[events.Kind], list[Pattern]]:
        found, vocabulary, background = events.kinds(self._material.events)
        return found, recurring.find(found, vocabulary, background)

    async def _recurring(self) -> list[Pattern]:
        return (await aside(lambda: self._kinds))[1]

    async def _sequences(self) -> list[Pattern]:
        found = (await aside(lambda: self._kinds))[0]
        return await aside(lambda: sequences.find(self._material.events, found, longest=self._plan.steps))

    async def _topics(self) -> list[Pattern]:
        return await aside(lambda: topics.find((note.id, note.text, note.tags) for note in self._material.notes))

    async def _contradictions(self) -> list[Pattern]:
        return await aside(lambda: contradictions.find(self._material.notes))

    async def _duplicates(self) -> list[Pattern]:
        ours = {note.id for note in self._material.notes}
        groups = await duplicates.find(self._store, self._scope, self._plan.alike, MOST_GROUPS) if ours else []
        agreed = await aside(lambda: [_agreeing(group) for group in groups])
        return [
            _duplicate(group, ours)
            for group in agreed
            if len(group.memories) > 1 and any(one.id in ours for one in group.memories)
        ]


def _agreeing(group: Group) -> Group:
    """Leave out of a group what gives other values than its newest, or denies what that says."""
    newest = group.memories[0]
    return replace(
        group, memories=tuple(one for one in group.memories if contradictions.agree(newest.content, one.content))
    )


def _duplicate(group: Group, ours: set[int]) -> Pattern:
    newest, count = group.memories[0], len(group.memories)
    same = [[m.id for m in found] for found in _same_words(group) if all(m.id in ours for m in found)]
    return Pattern(
        type="near_duplicate",
        about=str(min(one.id for one in group.memories)),
        summary=f"{count} memories say nearly the same: {said(newest.content)}",
        confidence=group.likeness,
        support=count,
        evidence=tuple(one.id for one in group.memories),
        details={"same": same},
        quotes=(newest.id,),
    )


def _same_words(group: Group) -> list[list[Memory]]:
    """Return those of a group that may become one, together."""
    found: dict[tuple[object, ...], list[Memory]] = {}
    for memory in group.memories:
        if memory.memory_type != ingest.KIND:
            found.setdefault(identity(memory), []).append(memory)
    return [same for same in found.values() if len(same) > 1]


def identity(memory: Memory) -> tuple[object, ...]:
    """Return what two memories share that are the very same but for space around them and a full stop at the end."""
    words = memory.content.strip().removesuffix(".").rstrip()
    return words, memory.memory_type, *(str(memory.metadata.get(name)) for name in APART)
