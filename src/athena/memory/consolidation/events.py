"""Events of one kind: the same thing in other words, at other times.

Texts become sets of stems; sets that share most of their weight (rare words weigh more) are one kind. Greedy and
incremental: each text is compared only with kinds that share one of its rarer words, so the cost grows with the
number of texts and not with its square.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from athena.memory.consolidation.acts import EventShape, parse_shape
from athena.memory.consolidation.acts import are_different_kinds as differ
from athena.memory.consolidation.material import Event
from athena.memory.consolidation.signature import compute_signature

MIN_GROUP_SIMILARITY = 0.36  # from this likeness on, a text belongs to a kind
MIN_CORE_SHARE = 0.6  # a word is of the core of a kind if this part of its members has it
MIN_WORD_COUNT = 5  # rarer words weigh no more: they tell occasions apart, not kinds
OCCASION_GAP_S = 1_800.0  # seconds: what happens again in a session within this time is the same occasion
MAX_PROBE_WORDS = 6  # rare words of a text by which kinds are looked up


@dataclass(slots=True)
class EventGroup:
    """A group of events, and the words that most of them share."""

    event_type: str
    events: list[Event]
    occasions: list[Event]  # one event each
    core: frozenset[str]
    coverage: float  # which part of a member's weight the core is, on average
    same_wording: bool = False  # all in the same words
    confidence: float = 0.0  # that these are of one kind, as `recurring` finds


@dataclass(slots=True)
class _Cluster:
    shape: EventShape
    total: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def add_member(self, words: frozenset[str], shape: EventShape, times: int) -> None:
        self.total += times
        self.adopt_shape(shape)
        for word in words:
            self.counts[word] += times

    def adopt_shape(self, shape: EventShape) -> None:
        """Let what a member does and does it to be what the group does, where it said nothing of it yet."""
        mine = self.shape
        self.shape = mine._replace(deeds=mine.deeds or shape.deeds, paths=mine.paths or shape.paths)

    def compute_word_shares(self, least: float) -> dict[str, float]:
        """Return which part of the members has each word, of words that enough of them have."""
        found = {word: count / self.total for word, count in self.counts.items()}
        return {word: part for word, part in found.items() if part >= least}


class Vocabulary:
    """How often each word occurs, over occasions."""

    def __init__(self, signatures: Sequence[tuple[frozenset[str], int]]) -> None:
        self.total = sum(times for _, times in signatures)
        self.counts: Counter[str] = Counter()
        for words, times in signatures:
            for word in words:
                self.counts[word] += times

    def compute_weight(self, word: str) -> float:
        return math.log((self.total + 1) / max(self.counts[word], min(MIN_WORD_COUNT, self.total))) + 0.1


def group_events(events: Iterable[Event]) -> tuple[list[EventGroup], Vocabulary, list[tuple[frozenset[str], int]]]:
    """Sort events into kinds, also return the words of all of them."""
    grouped: dict[tuple[str, frozenset[str]], list[Event]] = defaultdict(list)
    for event in events:
        grouped[event.event_type, compute_signature(event.text)].append(event)
    occasions = {key: select_occasions(found) for key, found in grouped.items()}
    background = [(key[1], len(found)) for key, found in occasions.items()]
    vocabulary = Vocabulary(background)
    weights = {word: vocabulary.compute_weight(word) for word in vocabulary.counts}
    made: list[EventGroup] = []
    types: dict[str, list[frozenset[str]]] = defaultdict(list)
    for event_type, words in grouped:
        if words:
            types[event_type].append(words)
    for event_type, found in types.items():
        sizes = {words: len(occasions[event_type, words]) for words in found}
        shapes = {words: parse_shape(grouped[event_type, words][0].text, words) for words in found}
        made += [
            _create_event_group(event_type, members, grouped, weights)
            for members in _cluster_signatures(sizes, weights, shapes)
        ]
    return made, vocabulary, background


def select_occasions(events: Sequence[Event]) -> list[Event]:
    """Return one event of each occasion: what a session does again and again within minutes happened once."""
    last: dict[str | None, float] = {}
    found = []
    for event in sorted(events, key=lambda one: one.at):
        if event.session not in last or event.at - last[event.session] > OCCASION_GAP_S:
            found.append(event)
        last[event.session] = event.at
    return found


def _cluster_signatures(
    sizes: dict[frozenset[str], int], weights: dict[str, float], shapes: dict[frozenset[str], EventShape]
) -> list[list[frozenset[str]]]:
    """Put signatures together, the most frequent first; then put groups together that turn out to be one."""
    groups: list[_Cluster] = []
    places: dict[str, set[int]] = defaultdict(set)
    members: list[list[frozenset[str]]] = []
    for words in sorted(sizes, key=lambda words: (-sizes[words], sorted(words))):
        best = _find_nearest_cluster(words, shapes[words], groups, places, weights)
        if best is None:
            best = len(groups)
            groups.append(_Cluster(shapes[words]))
            members.append([])
        groups[best].add_member(words, shapes[words], sizes[words])
        members[best].append(words)
        for word in words:
            places[word].add(best)
    return _merge_clusters(groups, members, weights)


def _merge_clusters(
    groups: list[_Cluster], members: list[list[frozenset[str]]], weights: dict[str, float]
) -> list[list[frozenset[str]]]:
    """Put small groups into the larger one whose words are nearly theirs."""
    order = sorted((i for i in range(len(groups)) if groups[i].total > 1), key=lambda i: -groups[i].total)
    leading: dict[str, list[int]] = defaultdict(list)
    gone: set[int] = set()
    for place in order:
        mine = groups[place].compute_word_shares(MIN_CORE_SHARE / 2)
        near = Counter(other for word in mine for other in leading[word])
        for other, _ in near.most_common(20):
            if differ(groups[place].shape, groups[other].shape):
                continue
            theirs = groups[other].compute_word_shares(MIN_CORE_SHARE / 2)
            common = sum(weights[word] * min(part, theirs.get(word, 0.0)) for word, part in mine.items())
            whole = sum(weights[w] * max(mine.get(w, 0.0), theirs.get(w, 0.0)) for w in mine.keys() | theirs.keys())
            if common >= MIN_GROUP_SIMILARITY * whole:
                members[other] += members[place]
                groups[other].total += groups[place].total
                groups[other].counts += groups[place].counts
                groups[other].adopt_shape(groups[place].shape)
                gone.add(place)
                break
        else:
            for word in mine:
                leading[word].append(place)
    return [found for place, found in enumerate(members) if place not in gone]


def _find_nearest_cluster(
    words: frozenset[str],
    mine: EventShape,
    groups: list[_Cluster],
    places: dict[str, set[int]],
    weights: dict[str, float],
) -> int | None:
    rare = sorted(words, key=lambda word: -weights[word])[:MAX_PROBE_WORDS]
    shared: Counter[int] = Counter()
    for word in rare:
        for place in places.get(word, ()):
            shared[place] += 1
    own = sum(weights[word] for word in words)
    best, most = None, MIN_GROUP_SIMILARITY
    for place, _ in shared.most_common(40):
        group = groups[place]
        total = group.total
        common = whole = 0.0
        for word, count in group.counts.items():
            part = count / total
            if word in words:
                common += weights[word] * part
            elif part > 0.2:
                whole += weights[word] * part
        likeness = common / (own + whole)
        if likeness > most and not differ(mine, group.shape):
            best, most = place, likeness
    return best


def _create_event_group(
    event_type: str,
    members: list[frozenset[str]],
    grouped: dict[tuple[str, frozenset[str]], list[Event]],
    weights: dict[str, float],
) -> EventGroup:
    events = sorted((e for words in members for e in grouped[event_type, words]), key=lambda one: (one.at, one.id))
    occasions = select_occasions(events)
    signatures = [compute_signature(event.text) for event in occasions]
    counts = Counter(word for words in signatures for word in words)
    core = frozenset(word for word, count in counts.items() if count >= MIN_CORE_SHARE * len(occasions))
    covered = sum(
        sum(weights[w] for w in words & core) / (sum(weights[w] for w in words) or 1.0) for words in signatures
    )
    return EventGroup(event_type, events, occasions, core, covered / len(occasions), len(members) == 1)
