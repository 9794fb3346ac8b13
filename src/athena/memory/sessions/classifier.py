"""Classify the fragments of a turn: is it worth keeping, what kind of clause is it, does a new clause begin with it.

The bundled model reads the turn with an adapter of its layers; a linear layer reads its states and hashed words, and a
second one adds what the first says of the neighbours. `scripts/train_adapters.py` trained all of it on
`data/sessions`; docs/learning.md has the figures.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.embedding.adapters import Adapter, load_adapter
from athena.memory.sessions.fragment_features import hash_fragments
from athena.memory.sessions.fragments import Fragment

if TYPE_CHECKING:
    from athena.embedding.embedder import TokenStates
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


class Window(NamedTuple):
    """A part of a turn as the model reads it, after the end of the answer before it."""

    ids: list[int]
    spans: list[tuple[int, int]]  # the tokens of each fragment
    states: Any


class Turn(NamedTuple):
    """A turn of a person, cut into fragments."""

    text: str
    fragments: Sequence[Fragment]
    answer: str  # what the agent said before


def classify_turns(model: "MiniLM", turns: Sequence[Turn]) -> list[list[Prediction]]:
    """Classify the fragments of turns; together, because the model reads many short texts at once faster."""
    adapter = load_adapter(WEIGHTS_FILE)
    windows = read_windows(model, turns, adapter)
    return [_classify(turn, own, adapter.head) for turn, own in zip(turns, windows, strict=True)]


def _classify(turn: Turn, windows: Sequence[Window], weights: dict[str, Any]) -> list[Prediction]:
    if not windows:
        return []
    import numpy as np  # slow to load; only learning needs it

    first = np.concatenate([_pool_states(window) for window in windows]) @ weights["dense"] + weights["bias"]
    first += np.stack([weights["words"][buckets].sum(axis=0) for buckets in hash_fragments(*turn)])
    scores = _to_probabilities(_add_neighbors(first, turn.fragments, weights["neighbors"]))
    return [
        Prediction(float(row[0]), float(row[1]), KINDS[int(row[2:].argmax())], tuple(map(float, row[2:])))
        for row in scores
    ]


def read_windows(model: "MiniLM", turns: Sequence[Turn], adapter: Adapter | None) -> list[list[Window]]:
    """Return what the model reads of each turn; without an adapter, its own states."""
    parts = [(i, window) for i, turn in enumerate(turns) for window in _split_windows(turn.fragments)]
    prefixes = [f"{turn.answer[-MAX_ANSWER_CHARS:]}\n" if turn.answer else "" for turn in turns]
    starts = [0 if window[0] is turns[i].fragments[0] else window[0].start for i, window in parts]
    texts = [
        prefixes[i] + turns[i].text[start : start + MAX_WINDOW_CHARS]
        for (i, _), start in zip(parts, starts, strict=True)
    ]
    read = model.embed_tokens(texts) if adapter is None else model.embed_adapted(texts, adapter.layers)
    windows: list[list[Window]] = [[] for _ in turns]
    for (i, fragments), start, tokens in zip(parts, starts, read, strict=True):
        windows[i].append(_find_fragments(tokens, fragments, start, len(prefixes[i])))
    return windows


def _find_fragments(tokens: "TokenStates", fragments: Sequence[Fragment], start: int, prefix_chars: int) -> Window:
    """Return a window with the tokens of each fragment, or with all of the turn's if a fragment has none."""
    shift = start - prefix_chars
    places = [(first + shift, last + shift) for first, last in tokens.offsets]
    own = [i for i, (first, last) in enumerate(tokens.offsets) if last > first and places[i][1] > start]
    spans = [
        _find_span([i for i in own if places[i][0] < fragment.end and places[i][1] > fragment.start] or own)
        for fragment in fragments
    ]
    return Window([int(number) for number in tokens.ids], spans, tokens.states)


def _find_span(tokens: Sequence[int]) -> tuple[int, int]:
    return (tokens[0], tokens[-1] + 1) if tokens else (0, 1)


def _pool_states(window: Window) -> Any:
    """Return for each fragment the mean state of its tokens, and the state of the whole window."""
    import numpy as np  # slow to load; only learning needs it

    return np.stack([np.r_[window.states[first:last].mean(axis=0), window.states[0]] for first, last in window.spans])


def _split_windows(fragments: Sequence[Fragment]) -> Iterator[Sequence[Fragment]]:
    """Yield the fragments that the model reads together; a window ends with a sentence."""
    if not fragments:
        return
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
