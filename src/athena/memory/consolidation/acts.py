"""Which texts cannot be of one kind, however many words they share: other deeds, other things, a denial."""

import re
from functools import lru_cache
from typing import NamedTuple

from athena.memory.consolidation.signature import NEGATION_STEM, select_paths, split_words, stem

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
