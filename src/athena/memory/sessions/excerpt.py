"""Memory text inside of a model's context: on one line, short, and never more than data."""

import re

from athena.core.text import FILLING, hidden

GIST = 240  # characters of a text that are told
LONGEST_READ = 4_000
# What could end our own element, open another, or pass for a turn of the conversation.
MARKUP = re.compile(r"<(?=\s*[/!?|a-zA-Z])|(?<=[/|a-zA-Z\"'])\s*\|>")
TURN = re.compile(r"\b(system|human|assistant|user|developer)\s*:", re.IGNORECASE)
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[^\s])")
WORD = re.compile(r"[^\W\d_]{3,}|\d{2,}")


def quoted(text: str) -> str:
    """Return a text on one line that cannot be taken for anything but data."""
    line = " ".join(FILLING.sub("", text).split())
    if not line.isprintable():
        line = "".join(one for one in line if one.isprintable() or not hidden(one))
    return TURN.sub(r"\1 -", MARKUP.sub("‹", line))


def gist(text: str, longest: int = GIST) -> str:
    """Return as many whole sentences from the beginning as fit; of one that is too long, its beginning."""
    line = quoted(text[:LONGEST_READ])
    if len(line) <= longest and len(text) <= LONGEST_READ:
        return line
    told = ""
    for sentence in SENTENCE.split(line):
        if len(told) + len(sentence) + 3 > longest:
            break
        told = f"{told} {sentence}".strip()
    return f"{told} …" if len(told) >= longest // 4 else line[: longest - 1].rsplit(" ", 1)[0] + "…"


def telling(text: str) -> frozenset[str]:
    """Return the words by which two texts are compared."""
    return frozenset(word.casefold() for word in WORD.findall(text[:LONGEST_READ]))


def overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Tell how much two texts say the same: 0 nothing, 1 all."""
    return len(one & other) / len(one | other) if one and other else 0.0
