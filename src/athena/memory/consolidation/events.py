"""Group events of the same kind: the same thing in other words, at other times.

A text becomes a set of stems, its signature. Signatures that share most of their weight (rare words weigh more) are
one kind. The clustering is greedy: a text is compared only with groups that share one of its rarer words, so that the
cost grows with the number of texts, not with its square.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from athena.core.words import STOP_WORDS, stem_word
from athena.memory.consolidation.values import MinedEvent

MIN_GROUP_SIMILARITY = 0.36
MIN_CORE_SHARE = 0.6  # of the members that must have a word for it to be in the core
MIN_WORD_COUNT = 5  # rarer words weigh no more than this: they tell occasions apart, not kinds
OCCASION_GAP_S = 1_800.0  # repetitions in a session within this time are one occasion
MAX_PROBE_WORDS = 6  # rare words of a text by which groups are looked up


def split_words(text: str) -> list[str]:
    """Return the words of a table that is written as text."""
    return text.split()


# A hash, an id, a version, a time or a number tells occasions apart, never kinds.
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
# "p99" and "k6" are words, "worker3" is "worker".
WORD_PATTERN = re.compile(r"[^\W\d_]{4,}|[^\W\d_]+\d{1,3}(?![^\W_])|[^\W\d_]{2,}")
# A path is one word: two files are two things, however much of their paths they share.
FILE_PATH_PATTERN = re.compile(
    r"(?<![\w/.-])(?:(?:[\w.-]*\w/)+[\w.-]*\w"
    r"|[\w-]+\.(?:py|[jt]sx?|go|rs|md|sql|toml|ya?ml|json|css|html|sh|java|c|h)\b)"
)
URL_PATTERN = re.compile(r"https?://\S+")
NEGATION_STEM = "not"  # stands for every form of negation
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
    """Return the stems of a text in order, without numbers, ids and times, which change with the occasion."""
    text = URL_PATTERN.sub(" ", text)
    paths = [re.sub(r"\d+", "0", path.lower()) for path in FILE_PATH_PATTERN.findall(text)]
    plain = VOLATILE_TOKEN_PATTERN.sub(" ", FILE_PATH_PATTERN.sub(" ", text))
    stems = [stem(word) for word in map(str.lower, WORD_PATTERN.findall(plain)) if word not in EVENT_STOP_WORDS]
    return [*([NEGATION_STEM] if NEGATION_PATTERN.search(text) else []), *paths, *stems]


def select_paths(signature: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word in signature if "/" in word or "." in word)


def compute_signature(text: str, max_stems: int = 40) -> frozenset[str]:
    """Return the first stems of a text as a set."""
    return frozenset(extract_stems(text[:2_000])[:max_stems])


# The forms of one line mean the same action. Forms of the present tense count only as the first word of a text.
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
IRREGULAR_PAST_FORMS = frozenset(split_words("wrote written ran sent"))
NUMBER_START_PATTERN = re.compile(r"[#v]?\d")
EVENT_TOKEN_PATTERN = re.compile(r"\w(?:[\w./'’-]*\w)?")
NAME_PATTERN = re.compile(r"[A-Z][a-z]+")


@cache
def _load_verb_forms() -> tuple[dict[str, str], frozenset[str]]:
    """Return the action of each form, and the forms of the present tense, which may be nouns ("a run")."""
    actions = {form: line.split()[0] for line in VERB_FORMS for form in line.split()}
    present = frozenset(form for form in actions if not form.endswith("ed") and form not in IRREGULAR_PAST_FORMS)
    return actions, present


class EventShape(NamedTuple):
    """The features of a text that tell kinds of events apart."""

    tokens: tuple[str, ...]
    actions: frozenset[str]
    paths: frozenset[str]
    is_negated: bool


def parse_shape(text: str, signature: frozenset[str]) -> EventShape:
    tokens = tuple(EVENT_TOKEN_PATTERN.findall(text[:400]))
    action_by_form, present_forms = _load_verb_forms()
    actions = set()
    for i, token in enumerate(tokens):
        word = token.lower()
        if word in action_by_form and (i == 0 or word not in present_forms):
            actions.add(action_by_form[word])
        elif i == 0 and word.endswith("ed") and len(word) > 4:
            actions.add(stem(word))
    return EventShape(tokens, frozenset(actions), select_paths(signature), NEGATION_STEM in signature)


def are_different_kinds(shape: EventShape, other: EventShape) -> bool:
    """Return whether two texts cannot be events of one kind."""
    return (
        shape.is_negated != other.is_negated
        or bool(shape.actions and other.actions and not shape.actions & other.actions)
        or bool(shape.paths and other.paths and not shape.paths & other.paths)
        or _differ_in_one_word(shape.tokens, other.tokens)
    )


def _differ_in_one_word(tokens: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Return whether two texts differ in exactly one word that is neither a number nor a name."""
    if len(tokens) != len(others):
        return False
    changed = [(a, b) for a, b in zip(tokens, others, strict=True) if not _are_same_token(a, b)]
    return len(changed) == 1 and len(tokens) > 1 and not all(NAME_PATTERN.fullmatch(token) for token in changed[0])


def _are_same_token(token: str, other: str) -> bool:
    if token == other or (NUMBER_START_PATTERN.match(token) and NUMBER_START_PATTERN.match(other)):
        return True
    return stem(token.lower()) == stem(other.lower()) or (_is_hex_id(token) and _is_hex_id(other))


def _is_hex_id(token: str) -> bool:
    return len(token) >= 6 and all(c in "0123456789abcdef" for c in token) and any(c.isdigit() for c in token)


@dataclass(slots=True)
class EventGroup:
    """Events of one kind, and the words that most of them share."""

    event_type: str
    events: list[MinedEvent]
    occasions: list[MinedEvent]  # the first event of each occasion
    core: frozenset[str]
    coverage: float  # the mean share of a member's weight that is in the core
    same_wording: bool = False
    confidence: float = 0.0  # that these are of one kind; `sequences.find_recurring` sets it


@dataclass(slots=True)
class _Cluster:
    shape: EventShape
    total: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def add_member(self, signature: frozenset[str], shape: EventShape, occasion_count: int) -> None:
        self.total += occasion_count
        self.adopt_shape(shape)
        for word in signature:
            self.counts[word] += occasion_count

    def adopt_shape(self, shape: EventShape) -> None:
        """Take over the actions and paths of a member if the cluster has none yet."""
        own = self.shape
        self.shape = own._replace(actions=own.actions or shape.actions, paths=own.paths or shape.paths)

    def compute_word_shares(self, min_share: float) -> dict[str, float]:
        """Return the share of the members that have each word, for words with at least `min_share`."""
        shares = {word: count / self.total for word, count in self.counts.items()}
        return {word: share for word, share in shares.items() if share >= min_share}


class Vocabulary:
    """In how many occasions each word occurs."""

    def __init__(self, signatures: Sequence[tuple[frozenset[str], int]]) -> None:
        self.total = sum(occasion_count for _, occasion_count in signatures)
        self.counts: Counter[str] = Counter()
        for signature, occasion_count in signatures:
            for word in signature:
                self.counts[word] += occasion_count

    def compute_weight(self, word: str) -> float:
        """Return the inverse document frequency of a word."""
        return math.log((self.total + 1) / max(self.counts[word], min(MIN_WORD_COUNT, self.total))) + 0.1


def group_events(events: Iterable[MinedEvent]) -> tuple[list[EventGroup], Vocabulary, list[tuple[frozenset[str], int]]]:
    """Return the groups of events of one kind, the vocabulary, and each signature with its count of occasions."""
    events_by_key: dict[tuple[str, frozenset[str]], list[MinedEvent]] = defaultdict(list)
    for event in events:
        events_by_key[event.event_type, compute_signature(event.text)].append(event)
    occasions = {key: select_occasions(members) for key, members in events_by_key.items()}
    background = [(signature, len(members)) for (_, signature), members in occasions.items()]
    vocabulary = Vocabulary(background)
    weights = {word: vocabulary.compute_weight(word) for word in vocabulary.counts}
    groups: list[EventGroup] = []
    signatures_by_type: dict[str, list[frozenset[str]]] = defaultdict(list)
    for event_type, signature in events_by_key:
        if signature:
            signatures_by_type[event_type].append(signature)
    for event_type, signatures in signatures_by_type.items():
        sizes = {signature: len(occasions[event_type, signature]) for signature in signatures}
        shapes = {
            signature: parse_shape(events_by_key[event_type, signature][0].text, signature) for signature in signatures
        }
        groups += [
            _create_event_group(event_type, members, events_by_key, weights)
            for members in _cluster_signatures(sizes, weights, shapes)
        ]
    return groups, vocabulary, background


def select_occasions(events: Sequence[MinedEvent]) -> list[MinedEvent]:
    """Return the first event of each occasion: repetitions in a session within minutes count once."""
    last_at: dict[str | None, float] = {}
    occasions = []
    for event in sorted(events, key=lambda event: event.at):
        if event.session not in last_at or event.at - last_at[event.session] > OCCASION_GAP_S:
            occasions.append(event)
        last_at[event.session] = event.at
    return occasions


def _cluster_signatures(
    sizes: dict[frozenset[str], int], weights: dict[str, float], shapes: dict[frozenset[str], EventShape]
) -> list[list[frozenset[str]]]:
    """Add each signature to the nearest cluster, the most frequent first; then merge clusters that are one kind."""
    clusters: list[_Cluster] = []
    clusters_by_word: dict[str, set[int]] = defaultdict(set)
    members: list[list[frozenset[str]]] = []
    for signature in sorted(sizes, key=lambda signature: (-sizes[signature], sorted(signature))):
        shape = shapes[signature]
        nearest = _find_nearest_cluster(signature, shape, clusters, clusters_by_word, weights)
        if nearest is None:
            nearest = len(clusters)
            clusters.append(_Cluster(shape))
            members.append([])
        clusters[nearest].add_member(signature, shape, sizes[signature])
        members[nearest].append(signature)
        for word in signature:
            clusters_by_word[word].add(nearest)
    return _merge_clusters(clusters, members, weights)


def _merge_clusters(
    clusters: list[_Cluster], members: list[list[frozenset[str]]], weights: dict[str, float]
) -> list[list[frozenset[str]]]:
    """Merge each cluster into the larger one that shares most of its words."""
    largest_first = sorted((i for i in range(len(clusters)) if clusters[i].total > 1), key=lambda i: -clusters[i].total)
    leaders_by_word: dict[str, list[int]] = defaultdict(list)
    merged: set[int] = set()
    for i in largest_first:
        shares = clusters[i].compute_word_shares(MIN_CORE_SHARE / 2)
        candidates = Counter(other for word in shares for other in leaders_by_word[word])
        for other, _ in candidates.most_common(20):
            if are_different_kinds(clusters[i].shape, clusters[other].shape):
                continue
            other_shares = clusters[other].compute_word_shares(MIN_CORE_SHARE / 2)
            common = sum(weights[word] * min(share, other_shares.get(word, 0.0)) for word, share in shares.items())
            union = sum(
                weights[w] * max(shares.get(w, 0.0), other_shares.get(w, 0.0))
                for w in shares.keys() | other_shares.keys()
            )
            if common >= MIN_GROUP_SIMILARITY * union:
                members[other] += members[i]
                clusters[other].total += clusters[i].total
                clusters[other].counts += clusters[i].counts
                clusters[other].adopt_shape(clusters[i].shape)
                merged.add(i)
                break
        else:
            for word in shares:
                leaders_by_word[word].append(i)
    return [signatures for i, signatures in enumerate(members) if i not in merged]


def _find_nearest_cluster(
    signature: frozenset[str],
    shape: EventShape,
    clusters: list[_Cluster],
    clusters_by_word: dict[str, set[int]],
    weights: dict[str, float],
) -> int | None:
    rare_words = sorted(signature, key=lambda word: -weights[word])[:MAX_PROBE_WORDS]
    shared: Counter[int] = Counter()
    for word in rare_words:
        for i in clusters_by_word.get(word, ()):
            shared[i] += 1
    own_weight = sum(weights[word] for word in signature)
    best, best_similarity = None, MIN_GROUP_SIMILARITY
    for i, _ in shared.most_common(40):
        cluster = clusters[i]
        total = cluster.total
        common = missing = 0.0
        for word, count in cluster.counts.items():
            share = count / total
            if word in signature:
                common += weights[word] * share
            elif share > 0.2:
                missing += weights[word] * share
        similarity = common / (own_weight + missing)
        if similarity > best_similarity and not are_different_kinds(shape, cluster.shape):
            best, best_similarity = i, similarity
    return best


def _create_event_group(
    event_type: str,
    members: list[frozenset[str]],
    events_by_key: dict[tuple[str, frozenset[str]], list[MinedEvent]],
    weights: dict[str, float],
) -> EventGroup:
    events = sorted(
        (e for signature in members for e in events_by_key[event_type, signature]),
        key=lambda event: (event.at, event.id),
    )
    occasions = select_occasions(events)
    signatures = [compute_signature(event.text) for event in occasions]
    counts = Counter(word for signature in signatures for word in signature)
    core = frozenset(word for word, count in counts.items() if count >= MIN_CORE_SHARE * len(occasions))
    covered = sum(
        sum(weights[w] for w in signature & core) / (sum(weights[w] for w in signature) or 1.0)
        for signature in signatures
    )
    return EventGroup(event_type, events, occasions, core, covered / len(occasions), len(members) == 1)
