"""Choosing what a session is told: the most worth for the tokens, nothing twice, never more than fits."""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from athena.core import tokens
from athena.core.text import INVISIBLE_FILLER_PATTERN, is_invisible
from athena.core.values import Page, Scope
from athena.core.words import STOP_WORDS, stem_word, tokenize
from athena.memory import recall
from athena.memory.recall import Query
from athena.memory.store import Store
from athena.memory.values import Hit
from athena.storage.filters import Filter

MAX_GIST_CHARS = 240  # characters of a text that are told
MAX_SCANNED_CHARS = 4_000
# What could end our own element, open another, or pass for a turn of the conversation.
MARKUP_PATTERN = re.compile(r"<(?=\s*[/!?|a-zA-Z])|(?<=[/|a-zA-Z\"'])\s*\|>")
TURN_PATTERN = re.compile(r"\b(system|human|assistant|user|developer)\s*:", re.IGNORECASE)
SENTENCE_BREAK_PATTERN = re.compile(r"(?<=[.!?])\s+(?=[^\s])")
WORD_PATTERN = re.compile(r"[^\W\d_]{3,}|\d{2,}")


def quote_line(text: str) -> str:
    """Return a text on one line that cannot be taken for anything but data."""
    line = " ".join(INVISIBLE_FILLER_PATTERN.sub("", text).split())
    if not line.isprintable():
        line = "".join(one for one in line if one.isprintable() or not is_invisible(one))
    return TURN_PATTERN.sub(r"\1 -", MARKUP_PATTERN.sub("‹", line))


def shorten_text(text: str, longest: int = MAX_GIST_CHARS) -> str:
    """Return as many whole sentences from the beginning as fit; of one that is too long, its beginning."""
    line = quote_line(text[:MAX_SCANNED_CHARS])
    if len(line) <= longest and len(text) <= MAX_SCANNED_CHARS:
        return line
    told = ""
    for sentence in SENTENCE_BREAK_PATTERN.split(line):
        if len(told) + len(sentence) + 3 > longest:
            break
        told = f"{told} {sentence}".strip()
    return f"{told} …" if len(told) >= longest // 4 else line[: longest - 1].rsplit(" ", 1)[0] + "…"


def extract_words(text: str) -> frozenset[str]:
    """Return the words by which two texts are compared."""
    return frozenset(word.casefold() for word in WORD_PATTERN.findall(text[:MAX_SCANNED_CHARS]))


def measure_overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Tell how much two texts say the same: 0 nothing, 1 all."""
    return len(one & other) / len(one | other) if one and other else 0.0


MIN_SHARED_WORDS = 2  # particular words that both must name
MIN_SCORE_WITH_MODEL, MIN_SCORE_WORDS_ONLY = (
    0.62,
    0.42,
)  # scores of recall's from which on it is believed, with the model and without it
# Words that any prompt to a coding agent may have, whatever it is about.
PROMPT_WORDS_TEXT = """
    add always app argument call change check class clean code comment commit compile create delete description
    different doc docs edit error errors etc every everything explain fail fails failed file files find first fix
    format function functions get give go good help implement import imports keep know last let like line list look
    make many merge method module move much name need new next now one ones open option output please print problem
    program project push put python read really refactor remove rename repo return run script see set show simple
    something split sort sorted start still string sum summary sure take tell test tests thank thanks thing time try
    turn type typo undo unit update use used user users using value variable version want way without work works
    write yes
"""
COMMON_WORDS = STOP_WORDS | frozenset(PROMPT_WORDS_TEXT.split())


def find_specific_words(text: str) -> set[str]:
    """Return the stems of the words that say what a text is about."""
    return {
        stem_word(word)
        for word in tokenize(text)
        if word not in COMMON_WORDS and (len(word) > 2 or any(map(str.isdigit, word)))
    }


async def recall_without_use(store: Store, scope: Scope, text: str, limit: int) -> Page[Hit]:
    """Return what recall finds, without counting it as used: nobody asked."""
    return await recall.recall(store, Query(text, Filter(scope.with_kind("memory")), limit), used=False)


def is_relevant(hit: Hit, names: set[str], by_meaning: bool) -> bool:
    """Tell whether a memory is surely about what a prompt names."""
    shared = len(names & find_specific_words(hit.content))
    return shared >= MIN_SHARED_WORDS and hit.score >= (MIN_SCORE_WITH_MODEL if by_meaning else MIN_SCORE_WORDS_ONLY)


ESTIMATED_BUDGET_FRACTION = 0.88  # of a budget that is used where tokens are only estimated
MAX_ITEM_OVERLAP = 0.6  # texts that overlap more say the same
MIN_WORTH = 0.25  # what is worth less is better left out: silence costs nothing
SECTION_PENALTY = 0.15  # how much less each further one of a section is worth
LINE_OVERHEAD_TOKENS = 4  # tokens that a line costs beside its words


@dataclass(frozen=True, slots=True)
class BriefingItem:
    """Something that could be told."""

    section: str
    kind: str
    id: int
    hash: str
    text: str
    note: str  # when it was, when it is due
    reason: str
    worth: float  # from 0 to 1
    full_text: str = ""  # the full text, where `text` is a part of it
    words: frozenset[str] = field(default_factory=frozenset)
    steady: bool = False  # not left out for being one of many in its section

    @property
    def line(self) -> str:
        return f"- [{self.hash}] {self.text}{f' ({self.note})' if self.note else ''}"


def merge_items(points: Sequence[BriefingItem]) -> list[BriefingItem]:
    """Join what was found in several ways: it is worth more, and told where it is worth most."""
    found: dict[tuple[str, int], BriefingItem] = {}
    for one in points:
        other = found.get((one.kind, one.id))
        if other is None:
            found[one.kind, one.id] = one
            continue
        best, also = (one, other) if one.worth > other.worth else (other, one)
        worth = 1 - (1 - best.worth) * (1 - also.worth)
        reason = f"{best.reason}; {also.reason}" if also.reason not in best.reason else best.reason
        found[one.kind, one.id] = replace(best, worth=worth, reason=reason)
    return [replace(one, words=extract_words(one.text)) for one in found.values()]


def select_items(
    points: Sequence[BriefingItem], budget: int, characters: int, write: Callable[[Sequence[BriefingItem]], str]
) -> tuple[list[BriefingItem], str]:
    """Return the best points whose text fits, as `write` puts them together, and that text."""
    room = budget if tokens.is_exact() else int(budget * ESTIMATED_BUDGET_FRACTION)
    worthy = [one for one in points if one.worth >= MIN_WORTH]
    chosen = _select_greedily(worthy, room - tokens.count_tokens(write([])))
    while chosen:
        text = write(chosen)
        if tokens.count_tokens(text) <= room and _count_json_chars(text) <= characters:
            return chosen, text
        chosen.pop()  # the last one taken has the least worth for its tokens
    return [], ""


def _count_json_chars(text: str) -> int:
    """Return how long a text is in JSON as clients count it: a sign beyond the first 65,536 is two."""
    return len(json.dumps(text, ensure_ascii=False).encode("utf-16-le", "surrogatepass")) // 2


def _select_greedily(points: Sequence[BriefingItem], room: int) -> list[BriefingItem]:
    """Take the best of each section first, then what is worth most beside what is taken already.

    Where there is not room for everything, that is what is worth most for its tokens.
    """
    cost = {id(one): tokens.count_tokens(one.line) + LINE_OVERHEAD_TOKENS for one in points}
    tight = sum(cost.values()) > room
    fresh = {id(one): 1.0 for one in points}
    taken: Counter[str] = Counter()

    def marginal_worth(one: BriefingItem) -> float:
        return one.worth * fresh[id(one)] / (1 + SECTION_PENALTY * taken[one.section])

    left = sorted(points, key=lambda one: (-one.worth, -one.id))
    first = {one.section: one for one in reversed(left)}
    opening = [one for one in left if first[one.section] is one]
    chosen: list[BriefingItem] = []
    while left:
        best = (
            opening.pop(0)
            if opening
            else max(left, key=lambda one: marginal_worth(one) / (cost[id(one)] if tight else 1))
        )
        left = [one for one in left if one is not best]
        if (
            cost[id(best)] > room
            or fresh[id(best)] <= 1 - MAX_ITEM_OVERLAP
            or (marginal_worth(best) < MIN_WORTH and not best.steady)
        ):
            continue
        room -= cost[id(best)]
        taken[best.section] += 1
        chosen.append(best)
        for one in left:
            fresh[id(one)] = min(fresh[id(one)], 1 - measure_overlap(one.words, best.words))
    return chosen
