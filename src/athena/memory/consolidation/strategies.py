"""How far a consolidation goes: what it looks for and what it may change.

| strategy | looks for | changes |
| --- | --- | --- |
| minimal | memories that are all but identical, episodes that recur | no memory |
| speed | the same | merges memories of the very same words |
| balanced | also paraphrases, sequences of two steps, topics, contradictions | also strengthens, fades, promotes |
| quality | also looser likenesses, sequences of three steps, what is less sure | the same, sooner |
"""

from typing import NamedTuple


class Plan(NamedTuple):
    alike: float  # from this likeness on, memories are near duplicates
    merges: bool
    steps: int  # of a sequence at most; 0 looks for none
    topics: bool
    contradictions: bool
    reported: float  # the confidence from which on a pattern is kept
    acts: float | None  # the confidence from which on memories are strengthened, faded and promoted


PLANS: dict[str, Plan] = {
    "minimal": Plan(0.97, False, 0, False, False, 0.6, None),
    "speed": Plan(0.97, True, 0, False, False, 0.5, None),
    "balanced": Plan(0.93, True, 2, True, True, 0.4, 0.8),
    "quality": Plan(0.88, True, 3, True, True, 0.25, 0.65),
}
