"""Events of one kind: the same thing in other words, at other times.

Texts become sets of stems; sets that share most of their weight (rare words weigh more) are one kind. Greedy and
incremental: each text is compared only with kinds that share one of its rarer words, so the cost grows with the
number of texts and not with its square.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from athena.core.words import STOP_WORDS, stem_word
from athena.memory.consolidation.values import Event


def split_words(words: str) -> list[str]:
    """Return the words of a table that is written as text."""
    return words.split()


# A hash, an id, a version, a time or a number tells one occasion from another, never one kind from another.
VOLATILE_TOKEN_PATTERN = re.compile(
    r"""https?://\S+
      | \b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{20,}\b
      | \b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{6,64}\b
      | \b\d{4}-\d\d-\d\d(?:[T ][\d:.]+Z?)?\b | \b\d{1,2}:\d\d(?::\d\d)?\b
      | (?<![^\W_])[#v]?\d+(?:[.,]\d+)*\s*
        (?:%|[kmgt]i?b\b|m?s\b|seconds?\b|minutes?\b|mins?\b|hours?\b|h\b|days?\b|rows?\b)?
    """,
    re.IGNORECASE | re.VERBOSE,
)
# p99 and k6 are words, worker3 is a worker
WORD_PATTERN = re.compile(r"[^\W\d_]{4,}|[^\W\d_]+\d{1,3}(?![^\W_])|[^\W\d_]{2,}")
# A file or a folder is one word: two files are two things, however much of their paths they share.
FILE_PATH_PATTERN = re.compile(
    r"(?<![\w/.])(?:[\w.-]*\w/)+[\w.-]*\w|(?<![\w/.])[\w-]+\.(?:py|[jt]sx?|go|rs|md|sql|toml|ya?ml|json|css|html|sh|java|c|h)\b"
)
URL_PATTERN = re.compile(r"https?://\S+")
NEGATION_STEM = "not"  # the word that stands for every denial
NEGATION_PATTERN = re.compile(
    r"\b(?:not|no|never|none|without|cannot|skip(?:s|ped|ping)?|forgot(?:ten)?|omit(?:s|ted)?)\b|n['’]t\b",
    re.IGNORECASE,
)
# Words that every event may have: an ending and a step forward tell no kind apart.
EVENT_STOP_WORDS = STOP_WORDS | frozenset(
    split_words(
        """ok finished finish completed complete now still yet via per onto without got get gets let lets go goes went
    see percent"""
    )
)
SYNONYMS = {
    "db": "database", "databases": "database", "config": "configuration", "prod": "production", "repo": "repository",
    "pr": "pullrequest", "auth": "authentication", "dep": "dependency", "deps": "dependency", "k8s": "kubernetes",
    "env": "environment", "frozen": "freeze", "froze": "freeze", "ran": "run", "wrote": "write", "written": "write",
    "built": "build", "broke": "break", "broken": "break", "sent": "send", "led": "lead", "made": "make",
    "changed": "chang", "restarted": "restart", "rebuilt": "rebuild",
}  # fmt: skip


def stem(word: str) -> str:
    """Return the stem of a lower-case word, the same for its synonyms."""
    return stem_word(SYNONYMS.get(word, word))


def extract_stems(text: str) -> list[str]:
    """Return the stems of a text in their order, without what changes from occasion to occasion."""
    text = URL_PATTERN.sub(" ", text)
    paths = [re.sub(r"\d+", "0", path.lower()) for path in FILE_PATH_PATTERN.findall(text)]
    plain = VOLATILE_TOKEN_PATTERN.sub(" ", FILE_PATH_PATTERN.sub(" ", text))
    found = [stem(word) for word in map(str.lower, WORD_PATTERN.findall(plain)) if word not in EVENT_STOP_WORDS]
    return [*([NEGATION_STEM] if NEGATION_PATTERN.search(text) else []), *paths, *found]


def select_paths(words: frozenset[str]) -> frozenset[str]:
    """Return the files and folders of a signature."""
    return frozenset(word for word in words if "/" in word or "." in word)


def compute_signature(text: str, longest: int = 40) -> frozenset[str]:
    """Return the words of the beginning of a text, as a set."""
    return frozenset(extract_stems(text[:2_000])[:longest])


# Forms of one line tell of the same deed. The first three forms of a verb also count where a text begins with them.
VERB_FORMS = [
    "edit edits editing edited change changes changing changed modify modified update updated adjusted patched tweaked",
    "read reads reading viewed",
    "write writes writing wrote written create creates creating created added",
    "delete deletes deleting deleted remove removes removing removed dropped",
    "run runs running ran executed",
    "skip skips skipping skipped omitted",
    "apply applies applying applied",
    "fix fixes fixing fixed",
    "revert reverts reverting reverted",
    "rename renames renaming renamed",
    "install installs installing installed",
    "uninstall uninstalls uninstalling uninstalled",
    "enable enables enabling enabled",
    "disable disables disabling disabled",
    "start starts starting started",
    "stop stops stopping stopped",
    "send sends sending sent announce announces announcing announced posted",
    "ask asks asking asked request requests requesting requested",
    "search searches searching searched grep",
    "commit commits committing committed",
    "push pushes pushing pushed",
    "pull pulls pulling pulled",
    "deploy deploys deploying deployed",
    "bump bumps bumping bumped upgrade upgrades upgrading upgraded",
    "downgrade downgrades downgrading downgraded",
    "close closes closing closed",
    "reviewed", "merged", "refactored", "documented", "benchmarked", "reopened", "approved", "rejected",
]  # fmt: skip
NUMBER_START_PATTERN = re.compile(r"[#v]?\d")
EVENT_TOKEN_PATTERN = re.compile(r"\w(?:[\w./'’-]*\w)?")
NAME_PATTERN = re.compile(r"[A-Z][a-z]+")


@lru_cache(maxsize=1)
def _load_verb_forms() -> tuple[dict[str, str], frozenset[str]]:
    lines = [split_words(line) for line in VERB_FORMS]
    told = {form: line[0] for line in lines for form in line}
    return told, frozenset(form for form in told if not form.endswith("ed") and form not in IRREGULAR_PAST_FORMS)


IRREGULAR_PAST_FORMS = frozenset(split_words("wrote written ran sent"))


class EventShape(NamedTuple):
    """How a text is built, as far as it tells kinds apart."""

    tokens: tuple[str, ...]
    deeds: frozenset[str]
    paths: frozenset[str]
    is_negated: bool


def parse_shape(text: str, words: frozenset[str]) -> EventShape:
    tokens = tuple(EVENT_TOKEN_PATTERN.findall(text[:400]))
    told, unsure = _load_verb_forms()
    deeds = set()
    for place, token in enumerate(tokens):
        word = token.lower()
        if word in told and (place == 0 or word not in unsure):
            deeds.add(told[word])
        elif place == 0 and word.endswith("ed") and len(word) > 4:
            deeds.add(stem(word))
    return EventShape(tokens, frozenset(deeds), select_paths(words), NEGATION_STEM in words)


def are_different_kinds(one: EventShape, other: EventShape) -> bool:
    """Tell whether two texts cannot be of one kind."""
    return (
        one.is_negated != other.is_negated
        or bool(one.deeds and other.deeds and not one.deeds & other.deeds)
        or bool(one.paths and other.paths and not one.paths & other.paths)
        or _differ_in_one_word(one.tokens, other.tokens)
    )


def _differ_in_one_word(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Tell whether two texts are the same but for one word that is neither a number nor a name."""
    if len(one) != len(other):
        return False
    changed = [(a, b) for a, b in zip(one, other, strict=True) if not _are_same_token(a, b)]
    return len(changed) == 1 and len(one) > 1 and not all(NAME_PATTERN.fullmatch(token) for token in changed[0])


def _are_same_token(one: str, other: str) -> bool:
    if one == other or (NUMBER_START_PATTERN.match(one) and NUMBER_START_PATTERN.match(other)):
        return True
    return stem(one.lower()) == stem(other.lower()) or (_is_hex_id(one) and _is_hex_id(other))


def _is_hex_id(token: str) -> bool:
    return len(token) >= 6 and all(c in "0123456789abcdef" for c in token) and any(c.isdigit() for c in token)


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
            if are_different_kinds(groups[place].shape, groups[other].shape):
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
        if likeness > most and not are_different_kinds(mine, group.shape):
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
