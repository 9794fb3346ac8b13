"""How far a consolidation goes: what it looks for and what it may change.

| strategy | looks for | changes |
| --- | --- | --- |
| minimal | memories that are all but identical, episodes that recur | no memory |
| speed | the same | merges memories of the very same words |
| balanced | also paraphrases, sequences of two steps, topics, contradictions | also strengthens, fades, promotes |
| quality | also looser likenesses, sequences of three steps, what is less sure | the same, sooner |
"""

from typing import NamedTuple


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
