"""Change the texts inside of values of any type: JSON values, results of operations, the literals of a program."""

import base64
import html
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any
from urllib.parse import quote, quote_plus

from athena.core.types import to_json
from athena.core.values import Page

MIN_NUMBER = 1_000_000  # a smaller number is no phone, card or id
COMMENT_PREFIX, NUMBER_PREFIX = "#", "0"  # of what is no text in a program
TextKey = tuple[str, str]  # the name of the field that holds a text, and the text
MAX_WHOLE_FLOAT = 1e16  # beyond that, a float does not hold each digit
_PLAIN_TYPES = (type(None), bool, bytes)


def iter_texts(value: Any, name: str = "") -> Iterator[TextKey]:
    """Yield every text inside of a value with the name of its field; long whole numbers are texts, too."""
    pending: list[TextKey | tuple[str, Any]] = [(name, value)]
    while pending:
        name, value = pending.pop()
        if isinstance(value, str):
            yield name, str(value)
        elif isinstance(value, _PLAIN_TYPES):
            continue
        elif isinstance(value, int | float):
            if (text := _write_number(value)) is not None:
                yield name, text
        elif fields := getattr(type(value), "__dataclass_fields__", None):
            pending += [(field, getattr(value, field)) for field in fields]
        elif isinstance(value, Mapping):
            for key, item in value.items():
                pending += [("", key), (key if isinstance(key, str) else "", item)]
        elif hasattr(value, "_fields"):
            pending += zip(value._fields, value, strict=True)
        else:
            pending += [(name, item) for item in value]


def _write_number(value: int | float) -> str | None:
    """Return the digits of a number that may be a phone, a card or an id: spreadsheets give them as floats."""
    if isinstance(value, float) and not (value.is_integer() and abs(value) < MAX_WHOLE_FLOAT):
        return None
    return str(int(value)) if abs(value) >= MIN_NUMBER else None


def replace_texts(value: Any, texts: Mapping[TextKey, str], name: str = "") -> Any:
    """Return a value with other texts, of the same type; the same object if none of its texts changes."""
    if isinstance(value, str):
        changed = texts.get((name, str(value)), value)
        return value if changed == value else changed
    if isinstance(value, _PLAIN_TYPES):
        return value
    if isinstance(value, int | float):
        text = _write_number(value)
        return value if text is None else texts.get((name, text), value)
    if fields := getattr(type(value), "__dataclass_fields__", None):
        items = {field: replace_texts(getattr(value, field), texts, field) for field in fields}
        if all(item is getattr(value, field) for field, item in items.items()):
            return value
        changed_value = copy(value)
        for field, item in items.items():
            object.__setattr__(changed_value, field, item)
        return changed_value
    if isinstance(value, Mapping):
        pairs = [
            (replace_texts(key, texts), replace_texts(item, texts, key if isinstance(key, str) else ""))
            for key, item in value.items()
        ]
        return dict(pairs)
    if hasattr(value, "_fields"):
        return type(value)(
            *(replace_texts(item, texts, field) for field, item in zip(value._fields, value, strict=True))
        )
    if isinstance(value, Page):
        return Page([replace_texts(item, texts, name) for item in value], value.total, value.weaker)
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(replace_texts(item, texts, name) for item in value)
    return replace_texts(to_json(value), texts, name)


# --- programs ---------------------------------------------------------------------------------------------------------


def find_literals(source: str) -> list[tuple[int, int, str]] | None:
    """Return start, end and prefix of each string literal of a program; `#` of comments, `0` of numbers.

    None if the program cannot be read.
    """
    import tokenize  # only for programs where privacy is on

    starts = [0]
    for line in io.StringIO(source):
        starts.append(starts[-1] + len(line))
    literals: list[tuple[int, int, str]] = []
    middle = getattr(tokenize, "FSTRING_MIDDLE", None)  # since Python 3.12
    prefixes = {tokenize.COMMENT: COMMENT_PREFIX, tokenize.NUMBER: NUMBER_PREFIX, middle: "f"}
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.STRING or token.type in prefixes:
                start = starts[token.start[0] - 1] + token.start[1]
                end = starts[token.end[0] - 1] + token.end[1]
                prefix = re.match(r"[A-Za-z]*", token.string)
                literals.append((start, end, prefixes.get(token.type, prefix[0].lower() if prefix else "")))
    except (tokenize.TokenError, SyntaxError):
        return None
    return literals


def replace_in_literals(source: str, pattern: re.Pattern[str], get_value: Callable[[str], str | None]) -> str:
    """Replace matches inside of string literals by values, escaped so that the literal means the value."""
    literals = find_literals(source) or []
    pieces, done = [], 0
    for match in pattern.finditer(source):
        literal = next((entry for entry in literals if entry[0] <= match.start() and match.end() <= entry[1]), None)
        value = None if literal is None else get_value(match[0])
        if literal is None or value is None:
            continue
        escaped = _escape_for_literal(value, literal[2])
        if escaped is not None:
            pieces += [source[done : match.start()], escaped]
            done = match.end()
    return "".join([*pieces, source[done:]])


def _escape_for_literal(value: str, prefix: str) -> str | None:
    """Return a value as it stands in a literal with this prefix; None if it cannot stand there."""
    if prefix == COMMENT_PREFIX:
        return None  # nobody runs it
    if "b" in prefix or "r" in prefix:
        return value if value.isprintable() and not set("\\'\"") & set(value) and value.isascii() else None
    escaped = json.dumps(value, ensure_ascii=False)[1:-1].replace("'", "\\'")
    return escaped.replace("{", "{{").replace("}", "}}") if "f" in prefix else escaped


def list_encodings(secret: str) -> set[str]:
    """Return a secret as it is, and as JSON, URLs, HTML, base64 and hex write it, also inside of a longer text."""
    data = secret.encode("utf-8", "surrogatepass")
    forms = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], html.escape(secret)}
    forms |= {html.escape(secret, quote=False), data.hex(), data.hex().upper(), repr(secret)[1:-1]}
    for safe in ("", "/"):
        quoted = quote(data, safe=safe)
        forms |= {quoted, quote_plus(data, safe=safe), re.sub("%..", lambda match: match[0].lower(), quoted)}
    for offset, first in enumerate((0, 2, 3)):  # what stands before it in a longer text shifts its letters
        encoded = base64.b64encode(bytes(offset) + data).decode()
        whole = encoded[first : (len(data) + offset) * 8 // 6]  # letters that no neighbour changes
        forms |= {whole, whole.translate(_URL_SAFE)}
        if offset == 0:
            forms |= {
                encoded,
                encoded.translate(_URL_SAFE),
                encoded.rstrip("="),
                encoded.translate(_URL_SAFE).rstrip("="),
            }
    return {form for form in forms if len(form) >= len(secret)}


_URL_SAFE = str.maketrans("+/", "-_")
