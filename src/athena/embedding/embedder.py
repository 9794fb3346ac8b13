"""The interface of embedding models, and the encodings that search uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    # numpy costs 60 ms to import: a process that embeds nothing must not pay for it.
    import numpy as np
    from numpy.typing import NDArray


SIGN_BITS = 128


class Embedder(Protocol):
    """Turn texts into vectors of unit length; safe to call from several threads."""

    @property
    def name(self) -> str:
        """The name of the model; vectors of another name can be compared only if that one is compatible."""

    @property
    def compatible_models(self) -> tuple[str, ...]:
        """The names of earlier models whose vectors and token signs can be compared with this one's."""

    @property
    def dimensions(self) -> int:
        """The length of a vector."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts as the rows of a matrix, in their order; blocks."""

    def load(self) -> None:
        """Load the model now, not at the first text; raise `Unavailable` if that fails."""


class TokenStates(NamedTuple):
    """The tokens of a text with their states in the last layer, including the start and end markers."""

    ids: NDArray[np.int64]
    offsets: list[tuple[int, int]]  # (start, end) in characters; empty for the markers
    states: NDArray[np.float32]  # n x d, not of unit length


class Excerpt(NamedTuple):
    """A passage to encode, with a header (speaker, date) and its neighbouring texts."""

    text: str
    header: str = ""
    before: str = ""
    after: str = ""


class PassageEncoding(NamedTuple):
    """The stored encoding of a passage."""

    vector: NDArray[np.float32]  # of unit length: the mean of its own tokens, read in context
    signs: bytes  # SIGN_BITS bits for each token of header and text; empty if encoded with neighbours


class QuestionEncoding(NamedTuple):
    """The encoding of a question, to compare with passages."""

    vector: NDArray[np.float32]
    token_vectors: NDArray[np.float32]  # n x SIGN_BITS, of unit length
    token_offsets: list[tuple[int, int]]  # (start, end) in characters of the question
