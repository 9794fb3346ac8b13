"""The stages of a consolidation: each finds the patterns of one type."""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from athena.core.threads import run_long_in_thread
from athena.core.values import Scope
from athena.memory import duplicates
from athena.memory.consolidation import confidence as consolidation_confidence
from athena.memory.consolidation import contradictions, events, sequences
from athena.memory.consolidation.read import ConsolidationInput
from athena.memory.consolidation.values import Pattern, to_quote
from athena.memory.duplicates import Group
from athena.memory.graph.mentions import find_forms
from athena.memory.store import Store
from athena.memory.values import DOCUMENT_TYPE, Memory
from athena.storage.filters import tag_key


class StrategyPlan(NamedTuple):
    """The patterns that a strategy looks for, and the confidence that it needs to report one and to act on it."""

    min_duplicate_similarity: float
    merges_duplicates: bool
    max_sequence_steps: int  # 0 finds no sequences
    finds_topics: bool
    finds_contradictions: bool
    min_reported_confidence: float
    min_acting_confidence: float | None  # to strengthen, fade and promote memories; None never does


STRATEGY_PLANS: dict[str, StrategyPlan] = {
    "minimal": StrategyPlan(0.945, False, 0, False, False, 0.6, None),
    "speed": StrategyPlan(0.945, True, 0, False, False, 0.5, None),
    "balanced": StrategyPlan(0.93, True, 2, True, True, 0.4, 0.8),
    "quality": StrategyPlan(0.88, True, 3, True, True, 0.25, 0.65),
}


MIN_TOPIC_MEMORIES = 3
MAX_TOPICS = 50
MAX_MENTION_TEXT_CHARS = 2_000
MAX_TERMS_PER_TEXT = 8  # pairs grow with the square
MAX_DUPLICATE_GROUPS = 1_000
MAX_PATTERNS_PER_STAGE = 300
# The kind of rows that each stage reads.
STAGE_INPUTS = {
    "duplicates": "memory", "recurring": "event", "sequences": "event", "topics": "memory", "contradictions": "memory"
}  # fmt: skip
IDENTITY_FIELDS = ("session_id", "source", "speaker", "date")  # metadata that keep equal texts apart
Item = tuple[int, str, tuple[str, ...]]  # id, text, tags


def extract_mentions(text: str) -> list[str]:
    """Return the @people, #tags, code and files in a text."""
    return [token.removesuffix("()") for form, token in find_forms(text[:MAX_MENTION_TEXT_CHARS]) if form != "url"]


def find_topics(items: Iterable[Item]) -> list[Pattern]:
    """Return pairs of tags and names that occur together more often than by chance, the most frequent first."""
    terms_by_id: dict[int, list[str]] = {}
    for memory_id, text, tags in items:
        terms = [tag_key(tag) for tag in tags] + [tag_key(name) for name in extract_mentions(text)]
        terms_by_id[memory_id] = list(dict.fromkeys(terms))[:MAX_TERMS_PER_TEXT]
    counts = Counter(term for terms in terms_by_id.values() for term in terms)
    ids_by_pair: dict[tuple[str, str], list[int]] = defaultdict(list)
    for memory_id, terms in terms_by_id.items():
        for pair in combinations(sorted(terms), 2):
            ids_by_pair[pair].append(memory_id)
    total, test_count = max(len(terms_by_id), 1), max(len(ids_by_pair), 1)
    topics = []
    for (first, second), ids in sorted(ids_by_pair.items(), key=lambda item: (-len(item[1]), item[0])):
        expected = counts[first] * counts[second] / total
        if len(ids) < MIN_TOPIC_MEMORIES or len(ids) < 2 * expected:
            continue
        tail = consolidation_confidence.log_poisson_tail(len(ids), expected)
        share = len(ids) / min(counts[first], counts[second])
        certainty = 1 - min(1.0, 10**tail * test_count) if len(ids) > MIN_TOPIC_MEMORIES else 0.5
        confidence = round(share * (1 - 1 / (len(ids) + 1)) * (0.5 + 0.5 * certainty), 4)
        topics.append(_create_topic(first, second, ids, confidence))
    return topics[:MAX_TOPICS]


def _create_topic(first: str, second: str, ids: list[int], confidence: float) -> Pattern:
    return Pattern(
        type="topic",
        about=f"{first}\n{second}",
        summary=f"'{first}' and '{second}' come up together in {len(ids)} memories",
        confidence=confidence,
        support=len(ids),
        evidence=tuple(ids),
        details={"topics": [first, second]},
    )


class StageRunner:
    """Runs the stages of a plan on one input; the event groups are shared between stages."""

    def __init__(self, store: Store, scope: Scope, run_input: ConsolidationInput, plan: StrategyPlan) -> None:
        self._store, self._scope, self._input, self._plan = store, scope, run_input, plan

    @property
    def stages(self) -> dict[str, Callable[[], Awaitable[list[Pattern]]]]:
        """The stages of the plan in order."""
        stages: dict[str, Callable[[], Awaitable[list[Pattern]]]] = {
            "duplicates": self._find_duplicates,
            "recurring": self._find_recurring,
        }
        if self._plan.max_sequence_steps:
            stages["sequences"] = self._find_sequences
        if self._plan.finds_topics:
            stages["topics"] = self._find_topics
        if self._plan.finds_contradictions:
            stages["contradictions"] = self._find_contradictions
        return stages

    async def run_stage(self, stage: str) -> list[Pattern]:
        """Return the patterns of a stage that are confident enough, the most certain first."""
        min_confidence = self._plan.min_reported_confidence
        patterns = [pattern for pattern in await self.stages[stage]() if pattern.confidence >= min_confidence]
        return sorted(patterns, key=lambda p: (-p.confidence, -p.support, p.about))[:MAX_PATTERNS_PER_STAGE]

    @cached_property
    def _grouped_events(self) -> tuple[list[events.EventGroup], list[Pattern]]:
        groups, vocabulary, background = events.group_events(self._input.events)
        return groups, sequences.find_recurring(groups, vocabulary, background)

    async def _find_recurring(self) -> list[Pattern]:
        return (await run_long_in_thread(lambda: self._grouped_events))[1]

    async def _find_sequences(self) -> list[Pattern]:
        groups = (await run_long_in_thread(lambda: self._grouped_events))[0]
        return await run_long_in_thread(
            lambda: sequences.find_sequences(self._input.events, groups, max_steps=self._plan.max_sequence_steps)
        )

    async def _find_topics(self) -> list[Pattern]:
        return await run_long_in_thread(
            lambda: find_topics((memory.id, memory.text, memory.tags) for memory in self._input.memories)
        )

    async def _find_contradictions(self) -> list[Pattern]:
        return await run_long_in_thread(lambda: contradictions.find_contradictions(self._input.memories))

    async def _find_duplicates(self) -> list[Pattern]:
        input_ids = {memory.id for memory in self._input.memories}
        if not input_ids:
            return []
        min_similarity = self._plan.min_duplicate_similarity
        groups = await duplicates.find_groups(self._store, self._scope, min_similarity, MAX_DUPLICATE_GROUPS)
        consistent = await run_long_in_thread(lambda: [_drop_inconsistent(group) for group in groups])
        return [
            _create_duplicate(group, input_ids)
            for group in consistent
            if len(group.memories) > 1 and any(memory.id in input_ids for memory in group.memories)
        ]


def _drop_inconsistent(group: Group) -> Group:
    """Remove the memories that contradict the newest of the group."""
    newest = group.memories[0].content
    return replace(group, memories=tuple(m for m in group.memories if contradictions.are_consistent(newest, m.content)))


def _create_duplicate(group: Group, input_ids: set[int]) -> Pattern:
    newest, count = group.memories[0], len(group.memories)
    same = [
        [m.id for m in memories] for memories in _group_identical(group) if all(m.id in input_ids for m in memories)
    ]
    return Pattern(
        type="near_duplicate",
        about=str(min(memory.id for memory in group.memories)),
        summary=f"{count} memories say nearly the same: {to_quote(newest.content)}",
        confidence=group.likeness,
        support=count,
        evidence=tuple(memory.id for memory in group.memories),
        details={"same": same},
        quotes=(newest.id,),
    )


def _group_identical(group: Group) -> list[list[Memory]]:
    """Return the memories of a group that may be merged, in lists of identical ones."""
    by_identity: dict[tuple[object, ...], list[Memory]] = {}
    for memory in group.memories:
        if memory.memory_type != DOCUMENT_TYPE:
            by_identity.setdefault(compute_identity(memory), []).append(memory)
    return [memories for memories in by_identity.values() if len(memories) > 1]


def compute_identity(memory: Memory) -> tuple[object, ...]:
    """Return a key that is equal for memories that differ at most in outer space and the final full stop."""
    text = memory.content.strip().removesuffix(".").rstrip()
    return text, memory.memory_type, *(str(memory.metadata.get(name)) for name in IDENTITY_FIELDS)
