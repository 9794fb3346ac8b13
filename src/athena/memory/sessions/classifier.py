"""Classify the fragments of a turn: is it worth keeping, what kind of clause is it, does a new clause begin with it.

A linear model reads hashed words and the bundled model's token states; a second stage adds what the first one says of
the neighbours. `scripts/train_statements.py` trained both on `data/sessions`; docs/learning.md has their figures.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.memory.sessions.fragment_features import hash_fragments, pool_states
from athena.memory.sessions.fragments import Fragment

if TYPE_CHECKING:
    from athena.embedding.minilm import MiniLM

KINDS = (
    "decision", "rule", "preference", "fact", "correction", "todo", "order", "report", "question", "hypothesis",
    "quote", "smalltalk", "private", "secret", "control",
)  # fmt: skip
WEIGHTS_FILE = Path(__file__).with_name("statements.npz")
MAX_WINDOW_CHARS = 1_100  # of a turn that the model reads at once
MAX_ANSWER_CHARS = 160  # of the answer before it


class Prediction(NamedTuple):
    """What the classifier says of one fragment."""

    keep: float  # probability that a colleague would write it down
    begin: float  # probability that a clause begins with it
    kind: str
    kinds: tuple[float, ...]  # a probability for each of KINDS


def classify_fragments(model: "MiniLM", text: str, fragments: Sequence[Fragment], answer: str) -> list[Prediction]:
    """Classify the fragments of a user's turn; `answer` is what the agent said before."""
    if not fragments:
        return []
    import numpy as np  # slow to load; only learning needs it

    weights = _load_weights()
    first = np.concatenate(list(_pool_windows(model, text, fragments, answer))) @ weights["dense"] + weights["bias"]
    first += np.stack([weights["words"][buckets].sum(axis=0) for buckets in hash_fragments(text, fragments, answer)])
    scores = _to_probabilities(_add_neighbors(first, fragments, weights["neighbors"]))
    return [
        Prediction(float(row[0]), float(row[1]), KINDS[int(row[2:].argmax())], tuple(map(float, row[2:])))
        for row in scores
    ]


@cache
def _load_weights() -> dict[str, Any]:
    import numpy as np  # slow to load; only learning needs it

    with np.load(WEIGHTS_FILE) as file:
        weights = {name: file[name].astype(np.float32) for name in ("dense", "bias", "neighbors")}
        return weights | {"words": file["words"].astype(np.float32) * file["word_scales"]}


def _pool_windows(model: "MiniLM", text: str, fragments: Sequence[Fragment], answer: str) -> Iterator[Any]:
    """Yield the states of the fragments; the model reads a long turn in windows, each after the end of the answer."""
    import numpy as np  # slow to load; only learning needs it

    prefix = f"{answer[-MAX_ANSWER_CHARS:]}\n" if answer else ""
    for window in _split_windows(fragments):
        start = 0 if window[0] is fragments[0] else window[0].start
        (tokens,) = model.embed_tokens([prefix + text[start : start + MAX_WINDOW_CHARS]])
        offsets = np.array(tokens.offsets)
        is_word = offsets[:, 1] > 0
        yield pool_states(tokens.states[is_word], offsets[is_word] - len(prefix) + start, window)


def _split_windows(fragments: Sequence[Fragment]) -> Iterator[Sequence[Fragment]]:
    """Yield the fragments that the model reads together; a window ends with a sentence."""
    first = 0
    for i in range(1, len(fragments)):
        ends_sentence = fragments[i].sentence != fragments[i - 1].sentence
        if ends_sentence and fragments[i].end - fragments[first].start > MAX_WINDOW_CHARS:
            yield fragments[first:i]
            first = i
    yield fragments[first:]


def _add_neighbors(logits: Any, fragments: Sequence[Fragment], weights: Any) -> Any:
    """Add what the fragments one and two away, the sentence and the turn say."""
    import numpy as np  # slow to load; only learning needs it

    own, count = _to_probabilities(logits), len(fragments)
    padded = np.pad(own, ((2, 2), (0, 0)))
    sentences = np.array([fragment.sentence for fragment in fragments])
    by_sentence = np.stack([own[sentences == sentence].mean(axis=0) for sentence in sentences])
    by_turn = np.broadcast_to(own.mean(axis=0), own.shape)
    shifted = (padded[1 : count + 1], padded[3 : count + 3], padded[:count], padded[4 : count + 4])
    views = (own, *shifted, by_sentence, by_turn)
    return logits + sum(view @ weight for view, weight in zip(views, weights, strict=True))


def _to_probabilities(logits: Any) -> Any:
    """Return probabilities: the first two columns each of its own, the others of one choice."""
    import numpy as np  # slow to load; only learning needs it

    kinds = np.exp(logits[:, 2:] - logits[:, 2:].max(axis=1, keepdims=True))
    return np.concatenate([1 / (1 + np.exp(-logits[:, :2])), kinds / kinds.sum(axis=1, keepdims=True)], axis=1)
