"""How far tools stand out by what the model read of them: their own text, and what people say when they want them."""

from typing import TYPE_CHECKING, Any, NamedTuple

from athena.discovery.entry import Entry
from athena.discovery.phrases import find_phrases
from athena.discovery.vectors import ToolVectors, to_model_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXT_WEIGHT = 0.1  # what a standard deviation counts by a tool's own text; the best by words has 1
PHRASE_WEIGHT = 0.15  # and by the two likest things that people say
NO_PHRASE_WEIGHT = 0.18  # instead by its text again, where nobody knows what people say


class ToolTexts(NamedTuple):
    """What the model reads of some tools."""

    texts_by_key: dict[str, str]
    own_indexes: list[int]  # the place of each tool's text
    phrase_indexes: list[list[int]]  # those of what people say; as many for each tool, -1 where there are fewer


def collect_texts(entries: tuple[Entry, ...], meaning: ToolVectors) -> ToolTexts:
    keyed: dict[str, str] = {}
    places: dict[str, int] = {}

    def add_text(text: str) -> int:
        if text not in places:  # two tools may read alike
            places[text] = len(keyed)
            keyed[meaning.compute_key(text)] = text
        return places[text]

    own = [add_text(to_model_text(entry)) for entry in entries]
    phrases = [[add_text(one) for one in find_phrases(entry)] for entry in entries]
    most = max(2, *map(len, phrases), 0)
    return ToolTexts(keyed, own, [some + [-1] * (most - len(some)) for some in phrases])


def score_similarities(likeness: "NDArray[Any]", texts: ToolTexts) -> "NDArray[Any]":
    """Return what each tool gets for its likeness to a request."""
    import numpy as np

    by_text = _to_z_scores(likeness[texts.own_indexes])
    known = np.nan_to_num(np.append(likeness, np.nan), nan=-np.inf)  # the last is where -1 points
    second, first = np.partition(known[texts.phrase_indexes], -2, axis=1)[:, -2:].T
    with np.errstate(invalid="ignore"):
        best = np.where(np.isfinite(second), (first + second) / 2, first)
    best[~np.isfinite(best)] = np.nan
    by_said = np.where(np.isnan(best), NO_PHRASE_WEIGHT * by_text, PHRASE_WEIGHT * _to_z_scores(best))
    found: NDArray[Any] = TEXT_WEIGHT * by_text + by_said
    return found


def _to_z_scores(values: "NDArray[Any]") -> "NDArray[Any]":
    """Return how far each stands out from those that are known; one that is not does not."""
    import numpy as np

    known = values[~np.isnan(values)]
    if len(known) < 2:
        return np.zeros_like(values)
    found: NDArray[Any] = np.nan_to_num((values - known.mean()) / max(float(known.std()), 1e-6))
    return found
