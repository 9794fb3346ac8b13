"""Classify the fragments of a turn: is it worth keeping, what kind of clause is it, does a new clause begin with it.

A linear model over the states of the bundled model, read in the context of the turn, and over hashed words. It was
trained by `scripts/train_statements.py` on the sessions in `data/sessions`; see docs/learning.md for its figures.
"""

import re
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.memory.sessions.fragments import Fragment

if TYPE_CHECKING:
    from athena.embedding.minilm import MiniLM

KINDS = (
    "decision", "rule", "preference", "fact", "correction", "todo", "order", "report", "question", "hypothesis",
    "quote", "smalltalk", "private", "secret", "control",
)  # fmt: skip
WEIGHTS_FILE = Path(__file__).with_name("statements.npz")
HASH_BUCKETS = 1 << 13
MAX_WINDOW_CHARS = 1_100  # of a turn that the model reads at once
MAX_WORDS = 40  # of a fragment
WORD_PATTERN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|\d+|[^\w\s]")
IDENTIFIER_PATTERN = re.compile(r"[/_]|\w\.\w|\w\(")
NAME_PATTERN = re.compile(r"\b[A-Z][a-z]")


class Prediction(NamedTuple):
    """What the classifier says of one fragment."""

    keep: float  # probability that a colleague would write it down
    begin: float  # probability that a clause begins with it
    kind: str
    kinds: tuple[float, ...]  # a probability for each of KINDS


def classify_fragments(model: "MiniLM", text: str, fragments: Sequence[Fragment], answer: str) -> list[Prediction]:
    """Classify the fragments of a user's turn; `answer` is what the agent said before."""
    import numpy as np  # slow to load; only learning needs it

    if not fragments:
        return []
    weights = _load_weights()
    logits = np.tile(weights["bias"], (len(fragments), 1))
    logits += _pool_states(model, text, fragments) @ weights["dense"]
    words = [_split_words(text[fragment.start : fragment.end]) for fragment in fragments]
    for i in range(len(fragments)):
        logits[i] += weights["words"][_hash_features(text, fragments, words, i, answer)].sum(axis=0)
    kinds = np.exp(logits[:, 2:] - logits[:, 2:].max(axis=1, keepdims=True))
    kinds /= kinds.sum(axis=1, keepdims=True)
    chances = 1 / (1 + np.exp(-logits[:, :2]))
    return [
        Prediction(float(keep), float(begin), KINDS[int(row.argmax())], tuple(map(float, row)))
        for (keep, begin), row in zip(chances, kinds, strict=True)
    ]


@cache
def _load_weights() -> dict[str, Any]:
    import numpy as np  # slow to load; only learning needs it

    with np.load(WEIGHTS_FILE) as file:
        return {name: file[name].astype(np.float32) for name in ("dense", "words", "bias")}


def _pool_states(model: "MiniLM", text: str, fragments: Sequence[Fragment]) -> Any:
    """Return for each fragment the mean of its tokens' states, of unit length; the model reads the turn in windows."""
    import numpy as np  # slow to load; only learning needs it

    windows = list(_iter_windows(fragments))
    texts = [text[fragments[first].start : fragments[last - 1].end][:MAX_WINDOW_CHARS] for first, last in windows]
    pooled = []
    for (first, last), tokens in zip(windows, model.embed_tokens(texts), strict=True):
        offsets = np.array(tokens.offsets) + fragments[first].start
        is_inner = np.array(tokens.offsets)[:, 1] > 0
        mean = tokens.states.mean(axis=0)
        for fragment in fragments[first:last]:
            inside = is_inner & (offsets[:, 0] < fragment.end) & (offsets[:, 1] > fragment.start)
            pooled.append(tokens.states[inside].mean(axis=0) if inside.any() else mean)
    states = np.array(pooled, np.float32)
    return states / np.maximum(np.linalg.norm(states, axis=1, keepdims=True), 1e-6)


def _iter_windows(fragments: Sequence[Fragment]) -> Any:
    """Yield ranges of fragments that the model reads together; a window ends with a sentence."""
    first = 0
    for i in range(1, len(fragments)):
        ends_sentence = fragments[i].sentence != fragments[i - 1].sentence
        if ends_sentence and fragments[i].end - fragments[first].start > MAX_WINDOW_CHARS:
            yield first, i
            first = i
    yield first, len(fragments)


def _split_words(text: str) -> list[str]:
    words = WORD_PATTERN.findall(text.lower().replace("’", "'"))
    return ["0" if word.isdigit() else word for word in words][:MAX_WORDS]


def _hash_features(
    text: str, fragments: Sequence[Fragment], words: Sequence[list[str]], i: int, answer: str
) -> list[int]:
    """Return the buckets of a fragment's words, of its neighbours and of its form."""
    fragment, own = fragments[i], words[i]
    plain = [word for word in own if word[0].isalnum()]
    names = [f"u:{word}" for word in own]
    names += [f"b:{word} {following}" for word, following in zip(own, own[1:], strict=False)]
    names += [f"f{count}:{' '.join(plain[:count])}" for count in (1, 2, 3)]
    names += [f"l1:{' '.join(plain[-1:])}", f"n:{min(len(plain), 12)}", f"bef:{fragment.before}"]
    names.append(f"end:{_get_mark(text, fragment.end)}")
    in_sentence = [j for j, other in enumerate(fragments) if other.sentence == fragment.sentence]
    first, last = fragments[in_sentence[0]], fragments[in_sentence[-1]]
    sentence = _split_words(text[first.start : last.end])
    names += [f"send:{_get_mark(text, last.end)}", f"sf:{' '.join(sentence[:2])}"]
    names += [f"s:{word}" for word in sentence]
    names += [f"sn:{min(len(in_sentence), 6)}", f"spos:{min(i - in_sentence[0], 4)}"]
    if i:
        names += [f"pf:{' '.join(words[i - 1][:2])}", f"pl:{' '.join(words[i - 1][-1:])}"]
        names += [f"p:{word}" for word in words[i - 1]]
    else:
        names.append("first")
    if i + 1 < len(fragments):
        names += [f"nf:{' '.join(words[i + 1][:2])}", f"nb:{fragments[i + 1].before}"]
    else:
        names.append("last")
    names += [f"tot:{min(len(fragments), 10)}", f"nl:{min(text.count(chr(10)), 4)}"]
    names += _list_form_features(text, fragment)
    if answer.rstrip().endswith("?"):
        names += ["agent:?", *(f"aq:{word}" for word in plain[:2])]
    return sorted({zlib.crc32(name.encode()) & (HASH_BUCKETS - 1) for name in names})


def _list_form_features(text: str, fragment: Fragment) -> list[str]:
    own = text[fragment.start : fragment.end]
    tests = {
        "has:digit": any(map(str.isdecimal, own)),
        "has:ident": IDENTIFIER_PATTERN.search(own),
        "has:name": NAME_PATTERN.search(own[1:]),
        "has:quote": '"' in own or "“" in own,
        "in:quote": text.count('"', 0, fragment.start) % 2,
        "block": fragment.is_block,
    }
    return [name for name, is_true in tests.items() if is_true]


def _get_mark(text: str, end: int) -> str:
    return "w" if text[end - 1].isalnum() else text[end - 1]
