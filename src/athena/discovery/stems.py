"""Cutting the texts of tools and requests into stems."""

import threading
from functools import cache
from typing import Any

from athena.discovery.entry import to_valid_utf8

_tokenizer_lock = threading.RLock()


def stem_text(text: str) -> list[str]:
    """Return the stems of a text, in their order."""
    from athena.storage import terms

    with _tokenizer_lock:
        return terms.stem_text(_get_tokenizer(), to_valid_utf8(text))


def stem_content_words(text: str) -> list[str]:
    """Return the distinct stems of a text, without its stop words."""
    from athena.storage import terms

    with _tokenizer_lock:
        found = terms.parse_query_terms(_get_tokenizer(), to_valid_utf8(text))
    return [term.stem for term in found if term.word.casefold() not in terms.STOP_WORDS]


@cache
def _get_tokenizer() -> Any:
    import apsw

    from athena.storage import terms

    return terms.create_tokenizer(apsw.Connection(":memory:"))
