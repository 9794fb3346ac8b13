"""The stages of a consolidation: each looks for one type of pattern."""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from athena.core.threads import run_in_thread
from athena.core.values import Scope
from athena.memory import duplicates
from athena.memory.consolidation import confidence as consolidation_confidence
from athena.memory.consolidation import contradictions, events, sequences
from athena.memory.consolidation.read import ConsolidationInput
from athena.memory.consolidation.values import Pattern, to_quote
from athena.memory.documents import ingest
from athena.memory.duplicates import Group
from athena.memory.graph.mentions import find_forms
from athena.memory.store import Store
from athena.memory.values import Memory
from athena.storage.filters import tag_key


class StrategyPlan(NamedTuple):
    min_duplicate_similarity: float  # from this likeness on, memories are near duplicates
    merges_duplicates: bool
    max_sequence_steps: int  # of a sequence at most; 0 looks for none
    finds_topics: bool
    finds_contradictions: bool
    min_reported_confidence: float  # the confidence from which on a pattern is kept
    min_acting_confidence: float | None  # the confidence from which on memories are strengthened, faded and promoted


STRATEGY_PLANS: dict[str, StrategyPlan] = {
    "minimal": StrategyPlan(0.97, False, 0, False, False, 0.6, None),
    "speed": StrategyPlan(0.97, True, 0, False, False, 0.5, None),
    "balanced": StrategyPlan(0.93, True, 2, True, True, 0.4, 0.8),
    "quality": StrategyPlan(0.88, True, 3, True, True, 0.25, 0.65),
}


MIN_TOPIC_MEMORIES = 3  # memories that make a topic
MAX_TOPICS = 50
MAX_MENTION_TEXT_CHARS = 2_000  # characters of a text
MAX_TERMS_PER_TEXT = 8  # things of one text that are paired, at most
Item = tuple[int, str, tuple[str, ...]]  # an id, a text, its tags


def extract_mentions(text: str) -> list[str]:
    """Return what a text names by its form: @people, #tags, code and files."""
    return [token.removesuffix("()") for form, token in find_forms(text[:MAX_MENTION_TEXT_CHARS]) if form != "url"]


def find_topics(items: Iterable[Item]) -> list[Pattern]:
    """Return pairs, the most frequent first."""
    named: dict[int, list[str]] = {}
    for number, text, tags in items:
        things = [tag_key(tag) for tag in tags] + [tag_key(name) for name in extract_mentions(text)]
        named[number] = list(dict.fromkeys(things))[:MAX_TERMS_PER_TEXT]
    single = Counter(thing for things in named.values() for thing in things)
    together: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, things in named.items():
        for pair in combinations(sorted(things), 2):
            together[pair].append(number)
    total, tests = max(len(named), 1), max(len(together), 1)
    found = []
    for (one, other), ids in sorted(together.items(), key=lambda item: (-len(item[1]), item[0])):
        expected = single[one] * single[other] / total
        if len(ids) < MIN_TOPIC_MEMORIES or len(ids) < 2 * expected:
            continue
        tail = consolidation_confidence.log_poisson_tail(len(ids), expected)
        share = len(ids) / min(single[one], single[other])
        sure = 1 - min(1.0, 10**tail * tests) if len(ids) > MIN_TOPIC_MEMORIES else 0.5
        confidence = round(share * (1 - 1 / (len(ids) + 1)) * (0.5 + 0.5 * sure), 4)
        found.append(_create_topic(one, other, ids, confidence))
    return found[:MAX_TOPICS]


def _create_topic(one: str, other: str, ids: list[int], confidence: float) -> Pattern:
    return Pattern(
        type="topic",
        about=f"{one}\n{other}",
        summary=f"'{one}' and '{other}' come up together in {len(ids)} memories",
        confidence=confidence,
        support=len(ids),
        evidence=tuple(ids),
        details={"topics": [one, other]},
    )


MAX_DUPLICATE_GROUPS = 1_000
MAX_PATTERNS_PER_STAGE = 300  # of one type
# Which kind of thing each stage looks at.
STAGE_INPUTS = {
    "duplicates": "memory", "recurring": "event", "sequences": "event", "topics": "memory", "contradictions": "memory"
}  # fmt: skip
IDENTITY_FIELDS = ("session_id", "source", "speaker", "date")  # facts that keep memories of the same words apart


class StageRunner:
    """The material of one run, and what the stages share."""

    def __init__(self, store: Store, scope: Scope, material: ConsolidationInput, plan: StrategyPlan) -> None:
        self._store, self._scope, self._input, self._plan = store, scope, material, plan

    @property
    def stages(self) -> dict[str, Callable[[], Awaitable[list[Pattern]]]]:
        """The stages of the plan, in their order."""
        wanted: dict[str, Callable[[], Awaitable[list[Pattern]]]] = {
            "duplicates": self._find_duplicates,
            "recurring": self._find_recurring,
        }
        if self._plan.max_sequence_steps:
            wanted["sequences"] = self._find_sequences
        if self._plan.finds_topics:
            wanted["topics"] = self._find_topics
        if self._plan.finds_contradictions:
            wanted["contradictions"] = self._find_contradictions
        return wanted

    async def run_stage(self, stage: str) -> list[Pattern]:
        """Return what a stage finds, as far as it is sure enough."""
        found = [one for one in await self.stages[stage]() if one.confidence >= self._plan.min_reported_confidence]
        return sorted(found, key=lambda one: (-one.confidence, -one.support, one.about))[:MAX_PATTERNS_PER_STAGE]

    @cached_property
    def _grouped_events(self) -> tuple[list[events.EventGroup], list[Pattern]]:
        found, vocabulary, background = events.group_events(self._input.events)
        return found, sequences.find_recurring(found, vocabulary, background)

    async def _find_recurring(self) -> list[Pattern]:
        return (await run_in_thread(lambda: self._grouped_events))[1]

    async def _find_sequences(self) -> list[Pattern]:
        found = (await run_in_thread(lambda: self._grouped_events))[0]
        return await run_in_thread(
            lambda: sequences.find_sequences(self._input.events, found, longest=self._plan.max_sequence_steps)
        )

    async def _find_topics(self) -> list[Pattern]:
        return await run_in_thread(
            lambda: find_topics((note.id, note.text, note.tags) for note in self._input.memories)
        )

    async def _find_contradictions(self) -> list[Pattern]:
        return await run_in_thread(lambda: contradictions.find_contradictions(self._input.memories))

    async def _find_duplicates(self) -> list[Pattern]:
        ours = {note.id for note in self._input.memories}
        groups = (
            await duplicates.find_groups(
                self._store, self._scope, self._plan.min_duplicate_similarity, MAX_DUPLICATE_GROUPS
            )
            if ours
            else []
        )
        agreed = await run_in_thread(lambda: [_drop_disagreeing(group) for group in groups])
        return [
            _create_duplicate(group, ours)
            for group in agreed
            if len(group.memories) > 1 and any(one.id in ours for one in group.memories)
        ]


def _drop_disagreeing(group: Group) -> Group:
    """Leave out of a group what gives other values than its newest, or denies what that says."""
    newest = group.memories[0]
    return replace(
        group,
        memories=tuple(one for one in group.memories if contradictions.are_consistent(newest.content, one.content)),
    )


def _create_duplicate(group: Group, ours: set[int]) -> Pattern:
    newest, count = group.memories[0], len(group.memories)
    same = [[m.id for m in found] for found in _group_identical(group) if all(m.id in ours for m in found)]
    return Pattern(
        type="near_duplicate",
        about=str(min(one.id for one in group.memories)),
        summary=f"{count} memories say nearly the same: {to_quote(newest.content)}",
        confidence=group.likeness,
        support=count,
        evidence=tuple(one.id for one in group.memories),
        details={"same": same},
        quotes=(newest.id,),
    )


def _group_identical(group: Group) -> list[list[Memory]]:
    """Return those of a group that may become one, together."""
    found: dict[tuple[object, ...], list[Memory]] = {}
    for memory in group.memories:
        if memory.memory_type != ingest.DOCUMENT_TYPE:
            found.setdefault(compute_identity(memory), []).append(memory)
    return [same for same in found.values() if len(same) > 1]


def compute_identity(memory: Memory) -> tuple[object, ...]:
    """Return what two memories share that are the very same but for space around them and a full stop at the end."""
    words = memory.content.strip().removesuffix(".").rstrip()
    return words, memory.memory_type, *(str(memory.metadata.get(name)) for name in IDENTITY_FIELDS)
