"""Whether what recall found is surely about the same thing: it is confident, and both name the same particular things.

Words that every programmer's prompt has ("fix", "function") name nothing. The bounds were fitted on half of
tests/data/prompts.tsv and measured on the other half; docs/hooks.md says how well.
"""

import re

from athena.core.page import Page
from athena.core.scope import Scope
from athena.memory import recall
from athena.memory.recall import Query
from athena.memory.store import Store
from athena.memory.values import Filter, Hit

MIN_SHARED_WORDS = 2  # particular words that both must name
MIN_SCORE_WITH_MODEL, MIN_SCORE_WORDS_ONLY = (
    0.62,
    0.42,
)  # scores of recall's from which on it is believed, with the model and without it
WORD_PATTERN = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
STEM_CHARS = 5  # letters by which words are compared: charge, charged, charges
COMMON_WORDS_TEXT = """
    a about add again all also always an and any app are argument as at be been before but by call can change check
    class clean code comment commit compile could create delete description did different do does doc docs done each
    edit error errors etc every everything explain fail fails failed file files find first fix for format from
    function functions get give go good has have help here how i if implement import imports in into is it its just
    keep know last let like line list look make many may me merge method module more most move much must my name
    need new next no not now of off on one ones only open option or other our out output please print problem
    program project push put python read really refactor remove rename repo return run same script see set should
    show simple so some something split sort sorted start still string sum summary sure take tell test tests than
    thank thanks that the their them then there these they thing this those time to too try turn type typo undo unit
    up update us use used user users using value variable version very want was way we were what when where which
    who why will with without work works would write yes you your yours
"""
COMMON_WORDS = frozenset(COMMON_WORDS_TEXT.split())


def find_specific_words(text: str) -> set[str]:
    """Return what a text names, each word by its beginning."""
    words = (word.casefold() for word in WORD_PATTERN.findall(text))
    return {
        _stem_word(word)
        for word in words
        if word not in COMMON_WORDS and (len(word) > 2 or any(map(str.isdigit, word)))
    }


def _stem_word(word: str) -> str:
    one = word.removesuffix("s")
    return (f"{one[:-1]}i" if one.endswith("y") else one)[:STEM_CHARS]


async def recall_without_use(store: Store, scope: Scope, text: str, limit: int) -> Page[Hit]:
    """Return what recall finds, without counting it as used: nobody asked."""
    return await recall.recall(store, Query(text, Filter(scope.with_kind("memory")), limit), used=False)


def is_relevant(hit: Hit, names: set[str], by_meaning: bool) -> bool:
    """Tell whether a memory is surely about what a prompt names."""
    shared = len(names & find_specific_words(hit.content))
    return shared >= MIN_SHARED_WORDS and hit.score >= (MIN_SCORE_WITH_MODEL if by_meaning else MIN_SCORE_WORDS_ONLY)
