"""Select the items of a briefing: the most worth for the tokens, no two alike, never over the budget."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from athena.core import tokens
from athena.core.values import Author, Page, Scope
from athena.core.words import STOP_WORDS, stem_word, tokenize
from athena.memory import recall
from athena.memory.recall import Query
from athena.memory.sessions.voice import BriefingLine, BriefingText, Heading, SafeText
from athena.memory.store import Store
from athena.memory.values import Hit, Memory, Task
from athena.storage.filters import Filter

MAX_SCANNED_CHARS = 4_000
MAX_FILTERED_CHARS = 120_000  # of the texts of others than persons, for one briefing
MAX_ANALYSED_CHARS = 20_000  # of a memory that is compared with a prompt or a sentence
MIN_SHARED_WORDS = 2  # specific words that a prompt and a memory must share
MIN_SCORE_WITH_MODEL, MIN_SCORE_WORDS_ONLY = 0.62, 0.42  # recall's scores from which on a hit is relevant
MAX_ITEM_OVERLAP = 0.6
MIN_WORTH = 0.25
SECTION_PENALTY = 0.15  # how much less each further item of a section is worth
LINE_OVERHEAD_TOKENS = 4
WORD_PATTERN = re.compile(r"[^\W\d_]{3,}|\d{2,}")
# Words that any prompt to a coding agent may have, on any topic.
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


@dataclass(frozen=True, slots=True)
class BriefingItem:
    """A memory, event or task that a briefing may contain."""

    section: Heading
    kind: str
    id: int
    hash: str
    text: SafeText
    note: str  # its age or due time
    reason: str
    worth: float  # from 0 to 1
    full_text: str = ""  # if `text` is only a part of it
    words: frozenset[str] = field(default_factory=frozenset)
    steady: bool = False  # exempt from the section penalty

    @property
    def line(self) -> BriefingLine:
        return BriefingLine(self.text, self.hash, self.note)


class StandingMemory(NamedTuple):
    """A memory of what holds in the project, and how much it was used."""

    memory: Memory
    strength: float
    last_used: float


class BriefingSources(NamedTuple):
    """Everything that a briefing reads from the store in one transaction."""

    seen: dict[int, float]  # ids that the session was told, and when
    last_log_id: int
    due: list[tuple[Task, Author]]
    episodes: list[tuple[float, Memory]]
    tagged: list[Memory]
    standing: list[StandingMemory]
    newest: list[tuple[float, Memory]]

    def leave_out_longest(self) -> Self:
        """Leave out the longest texts of others than persons where all of them would take long to filter."""
        dated = [memory for _, memory in (*self.episodes, *self.newest)]
        memories = [*dated, *self.tagged, *(one.memory for one in self.standing)]
        lines = [(memory.content, memory.author) for memory in memories]
        texts = choose_filtered([*lines, *((task.title, author) for task, author in self.due)])
        return self._replace(
            due=[pair for pair in self.due if pair[0].title in texts],
            episodes=[pair for pair in self.episodes if pair[1].content in texts],
            tagged=[memory for memory in self.tagged if memory.content in texts],
            standing=[one for one in self.standing if one.memory.content in texts],
            newest=[pair for pair in self.newest if pair[1].content in texts],
        )


def choose_filtered(lines: Iterable[tuple[str, Author]]) -> set[str]:
    """Return the texts that a briefing may tell: those of persons, and the shortest of others; the filter takes time.

    The shortest, so that nobody crowds out the others' texts with long ones.
    """
    authors: dict[str, bool] = {}
    for text, author in lines:
        authors[text] = author == "person" or authors.get(text, False)
    chars_left, chosen = MAX_FILTERED_CHARS, set[str]()
    for text in sorted(authors, key=len):
        chars_left -= 0 if authors[text] else min(len(text), MAX_SCANNED_CHARS)
        if authors[text] or chars_left >= 0:
            chosen.add(text)
    return chosen


async def recall_without_use(store: Store, scope: Scope, text: str, limit: int) -> Page[Hit]:
    """Recall memories without counting them as used, because no user or agent asked for them."""
    query = Query(text, Filter(scope.with_kind("memory")), limit, longest=MAX_ANALYSED_CHARS)
    return await recall.recall(store, query, used=False)


def is_relevant(hit: Hit, prompt_words: set[str], by_meaning: bool) -> bool:
    """Return whether a hit is surely about the topic of a prompt."""
    shared = len(prompt_words & find_specific_words(hit.content))
    return shared >= MIN_SHARED_WORDS and hit.score >= (MIN_SCORE_WITH_MODEL if by_meaning else MIN_SCORE_WORDS_ONLY)


def find_specific_words(text: str) -> set[str]:
    """Return the stems of the words that say what a text is about."""
    return {
        stem_word(word)
        for word in tokenize(text)
        if word not in COMMON_WORDS and (len(word) > 2 or any(map(str.isdigit, word)))
    }


def extract_words(text: str) -> frozenset[str]:
    """Return the words by which `measure_overlap` compares two texts."""
    return frozenset(word.casefold() for word in WORD_PATTERN.findall(text[:MAX_SCANNED_CHARS]))


def measure_overlap(words: frozenset[str], other_words: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets of words."""
    return len(words & other_words) / len(words | other_words) if words and other_words else 0.0


def merge_items(items: Sequence[BriefingItem]) -> list[BriefingItem]:
    """Merge the items of the same memory: it is worth more, and stays in the section where it is worth most."""
    merged: dict[tuple[str, int], BriefingItem] = {}
    for item in items:
        other = merged.get((item.kind, item.id))
        if other is None:
            merged[item.kind, item.id] = item
            continue
        best, second = (item, other) if item.worth > other.worth else (other, item)
        worth = 1 - (1 - best.worth) * (1 - second.worth)
        reason = f"{best.reason}; {second.reason}" if second.reason not in best.reason else best.reason
        merged[item.kind, item.id] = replace(best, worth=worth, reason=reason)
    return [replace(item, words=extract_words(item.text)) for item in merged.values()]


def select_items(
    items: Sequence[BriefingItem],
    budget: int,
    max_json_chars: int,
    format_items: Callable[[Sequence[BriefingItem]], BriefingText],
) -> tuple[list[BriefingItem], BriefingText | None]:
    """Return the best items whose formatted text fits into the budget, and that text; None if none does."""
    max_tokens = tokens.reduce_budget(budget)
    worthy = [item for item in items if item.text and item.worth >= MIN_WORTH]
    selected = _select_greedily(worthy, max_tokens - tokens.count_tokens(format_items([])))
    while selected:
        text = format_items(selected)
        if tokens.count_tokens(text) <= max_tokens and _count_json_chars(text) <= max_json_chars:
            return selected, text
        selected.pop()  # the last one has the least worth for its tokens
    return [], None


def _count_json_chars(text: str) -> int:
    """Return the length of a text as JSON in UTF-16 units, as clients in JavaScript count it."""
    return len(json.dumps(text, ensure_ascii=False).encode("utf-16-le", "surrogatepass")) // 2


def _select_greedily(items: Sequence[BriefingItem], max_tokens: int) -> list[BriefingItem]:
    """Take the best item of each section, then the items with the most worth beside those already selected.

    If not all items fit, worth per token decides; squared, so that short trifles do not crowd out what matters.
    """
    cost = {id(item): tokens.count_tokens(item.line) + LINE_OVERHEAD_TOKENS for item in items}
    is_tight = sum(cost.values()) > max_tokens
    novelty = {id(item): 1.0 for item in items}
    section_counts: Counter[str] = Counter()

    def marginal_worth(item: BriefingItem) -> float:
        return item.worth * novelty[id(item)] / (1 + SECTION_PENALTY * section_counts[item.section])

    remaining = sorted(items, key=lambda item: (-item.worth, -item.id))
    best_of_section = {item.section: item for item in reversed(remaining)}
    opening = [item for item in remaining if best_of_section[item.section] is item]
    selected: list[BriefingItem] = []
    while remaining:
        if opening:
            best = opening.pop(0)
        else:
            best = max(remaining, key=lambda item: marginal_worth(item) ** 2 / (cost[id(item)] if is_tight else 1))
        remaining = [item for item in remaining if item is not best]
        if (
            cost[id(best)] > max_tokens
            or novelty[id(best)] <= 1 - MAX_ITEM_OVERLAP
            or (marginal_worth(best) < MIN_WORTH and not best.steady)
        ):
            continue
        max_tokens -= cost[id(best)]
        section_counts[best.section] += 1
        selected.append(best)
        for item in remaining:
            novelty[id(item)] = min(novelty[id(item)], 1 - measure_overlap(item.words, best.words))
    return selected
