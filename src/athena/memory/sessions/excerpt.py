"""Memory text inside of a model's context: on one line, short, and never more than data."""

import re

from athena.core.text import INVISIBLE_FILLER_PATTERN, is_invisible

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
