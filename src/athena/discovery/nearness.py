"""How far tools stand out by what the model read of them: their own text, and what people say when they want them."""

from typing import TYPE_CHECKING, Any, NamedTuple

from athena.discovery.entry import Entry
from athena.discovery.phrases import said
from athena.discovery.vectors import Meaning, text_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXT = 0.1  # what a standard deviation counts by a tool's own text; the best by words has 1
SAID = 0.15  # and by the two likest things that people say
UNSAID = 0.18  # instead by its text again, where nobody knows what people say


class Texts(NamedTuple):
    """What the model reads of some tools."""

    keyed: dict[str, str]
    own: list[int]  # the place of each tool's text
    said: list[list[int]]  # those of what people say; as many for each tool, -1 where there are fewer


def texts_of(entries: tuple[Entry, ...], meaning: Meaning) -> Texts:
    keyed: dict[str, str] = {}
    places: dict[str, int] = {}

    def place(text: str) -> int:
        if text not in places:  # two tools may read alike
            places[text] = len(keyed)
            keyed[meaning.key(text)] = text
        return places[text]

    own = [place(text_of(entry)) for entry in entries]
    phrases = [[place(one) for one in said(entry)] for entry in entries]
    most = max(2, *map(len, phrases), 0)
    return Texts(keyed, own, [some + [-1] * (most - len(some)) for some in phrases])


def nearness(likeness: "NDArray[Any]", texts: Texts) -> "NDArray[Any]":
    """Return what each tool gets for its likeness to a request."""
    import numpy as np

    by_text = _deviations(likeness[texts.own])
    known = np.nan_to_num(np.append(likeness, np.nan), nan=-np.inf)  # the last is where -1 points
    second, first = np.partition(known[texts.said], -2, axis=1)[:, -2:].T
    with np.errstate(invalid="ignore"):
        best = np.where(np.isfinite(second), (first + second) / 2, first)
    best[~np.isfinite(best)] = np.nan
    by_said = np.where(np.isnan(best), UNSAID * by_text, SAID * _deviations(best))
    found: NDArray[Any] = TEXT * by_text + by_said
    return found


def _deviations(values: "NDArray[Any]") -> "NDArray[Any]":
    """Return how far each stands out from those that are known; one that is not does not."""
    import numpy as np

    known = values[~np.isnan(values)]
    if len(known) < 2:
        return np.zeros_like(values)
    found: NDArray[Any] = np.nan_to_num((values - known.mean()) / max(float(known.std()), 1e-6))
    return found
