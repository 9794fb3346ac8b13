"""Topics: tags and names that stand together more often than each one's own count explains."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import combinations

from athena.memory.consolidation import confidence as consolidation_confidence
from athena.memory.consolidation.findings import Pattern
from athena.memory.graph.mentions import find_forms
from athena.memory.values import tag_key

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
