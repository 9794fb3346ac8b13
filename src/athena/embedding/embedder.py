"""What search needs from a model that turns text into vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    # numpy costs 60 ms to import: a process that embeds nothing must not pay for it.
    import numpy as np
    from numpy.typing import NDArray


class Embedder(Protocol):
    """Turn texts into vectors of unit length; safe to call from several threads."""

    @property
    def name(self) -> str:
        """Say which model made a vector; vectors of different names do not compare."""

    @property
    def dimensions(self) -> int:
        """Say how long a vector is."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts as the rows of a matrix, in their order; blocks."""

    def load(self) -> None:
        """Make ready now rather than at the first text; raise `Unavailable` when that cannot be."""


class TokenStates(NamedTuple):
    """One text as the model reads it, token by token, with the marks at its start and end."""

    ids: NDArray[np.int64]
    # Where each token stands in the text: (start, end) in characters, equal for the marks.
    offsets: list[tuple[int, int]]
    # The last layer's state of each token, in its context: n x d, not of unit length.
    states: NDArray[np.float32]


class Excerpt(NamedTuple):
    """A passage to read: what it says, who says it when, and what stands before and after it."""

    text: str
    header: str = ""
    before: str = ""
    after: str = ""


class PassageEncoding(NamedTuple):
    """What a passage leaves behind."""

    vector: NDArray[np.float32]  # of unit length: the mean of its own tokens, read in their surroundings
    signs: bytes  # each token of header and text as SIGNS bits; none where the passage was read with neighbours


class QuestionEncoding(NamedTuple):
    """A question as it is compared with passages."""

    vector: NDArray[np.float32]
    token_vectors: NDArray[np.float32]  # n x SIGNS, of unit length
    token_offsets: list[tuple[int, int]]  # where each token stands in the question


SIGN_BITS = 128


class TokenEmbedder(Embedder, Protocol):
    """An embedder that also shows its tokens, so that a question can be compared word by word."""

    def encode_passages(self, excerpts: Sequence[Excerpt]) -> list[PassageEncoding]:
        """Read passages; blocks."""

    def encode_question(self, question: str) -> QuestionEncoding:
        """Read a question; blocks."""
