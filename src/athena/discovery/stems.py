"""Cutting the texts of tools and requests into stems."""

import threading
from functools import cache
from typing import Any

from athena.discovery.entry import legible

_guard = threading.RLock()


def stems(text: str) -> list[str]:
    """Return the stems of a text, in their order."""
    from athena.storage import terms

    with _guard:
        return terms.stems(_tokenizer(), legible(text))


def telling(text: str) -> list[str]:
    """Return the distinct stems of a text, without its stop words."""
    from athena.storage import terms

    with _guard:
        found = terms.terms_of(_tokenizer(), legible(text))
    return [term.stem for term in found if term.word.casefold() not in terms.STOP_WORDS]


@cache
def _tokenizer() -> Any:
    import apsw

    from athena.storage import terms

    return terms.tokenizer(apsw.Connection(":memory:"))
