"""Cut texts into words, stem them and tell stop words, for every comparison outside the database.

The database's full text has a tokenizer of its own (storage/terms.py) and shares STOP_WORDS.
"""

import re
from functools import lru_cache

STOP_WORDS = frozenset(
    """a about above after again against all also am an and any are as at be because been before being below
    between both but by can could d did do does doing done down during each few for from further had has have
    having he her here hers him his how i if in into is it its just ll m may me might more most must my no nor
    not of off on once only or other our ours out over own re s same shall she should so some such t than that
    the their theirs them then there these they this those through to too under until up us ve very was we were
    what when where which while who whom whose why will with would you your yours""".split()  # noqa: SIM905  # readable as a text
)
WORD_PATTERN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
STEM_CACHE_WORDS = 50_000
MIN_STEM_CHARS = 4
SUFFIXES = (
    "ations", "ation", "ments", "ment", "ings", "ing", "als", "al", "ers", "ied", "ies", "ed", "es", "er", "ly", "s",
)  # fmt: skip


def tokenize(text: str) -> list[str]:
    """Return the words of a text in their order, in lower case: letters and digits, with inner apostrophes."""
    return WORD_PATTERN.findall(text.lower())


@lru_cache(maxsize=STEM_CACHE_WORDS)
def stem_word(word: str) -> str:
    """Return the stem of a lower-case English word: a rough suffix stripper, not a dictionary."""
    for suffix in SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= MIN_STEM_CHARS:
            word = word[: -len(suffix)]
            break
    if len(word) == 4 and word[-1] == "s" and word[-2] not in "sui":
        return word[:3]  # "tags", but not "pass", "plus", "this"
    if len(word) > 4 and word[-1] == word[-2]:
        word = word[:-1]  # "planning" and "plan" differ by the doubled letter
    return word[:-1] if len(word) > 4 and word[-1] in "ey" else word


def stem_words(text: str) -> list[str]:
    """Return the stems of all words of a text, in their order."""
    return [stem_word(word) for word in tokenize(text)]


def stem_content_words(text: str) -> list[str]:
    """Return the stems of a text's words that are not stop words, in their order."""
    return [stem_word(word) for word in tokenize(text) if word not in STOP_WORDS]
