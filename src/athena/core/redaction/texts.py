"""Change the texts inside of values of any type: JSON values, results of operations, the literals of a program."""

import base64
import html
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from itertools import product
from typing import Any
from urllib.parse import quote, quote_plus

from athena.core.types import to_json
from athena.core.values import Page

MIN_SECRET_CHARS = 6  # that is looked for in what tools return
MIN_NUMBER = 1_000_000  # a smaller number is no phone, card or id
COMMENT_PREFIX, NUMBER_PREFIX = "#", "0"  # of what is no text in a program
TextKey = tuple[str, str]  # the name of the field that holds a text, and the text
MAX_WHOLE_FLOAT = 1e16  # beyond that, a float does not hold each digit
_PLAIN_TYPES = (type(None), bool, bytes)


def iter_texts(value: Any, *, every_number: bool = False) -> Iterator[TextKey]:
    """Yield every text inside of a value with the name of its field; long whole numbers are texts, too."""
    pending: list[TextKey | tuple[str, Any]] = [("", value)]
    while pending:
        name, value = pending.pop()
        if isinstance(value, str):
            yield name, str(value)
        elif isinstance(value, _PLAIN_TYPES):
            continue
        elif isinstance(value, int | float):
            if every_number or (abs(value) >= MIN_NUMBER and _is_whole(value)):
                yield name, _write_number(value)
        elif fields := getattr(type(value), "__dataclass_fields__", None):
            pending += [(field, getattr(value, field)) for field in fields]
        elif isinstance(value, Mapping):
            for key, item in value.items():
                pending += [("", key), (key if isinstance(key, str) else "", item)]
        elif hasattr(value, "_fields"):
            pending += zip(value._fields, value, strict=True)
        else:
            pending += [(name, item) for item in value]


def _is_whole(value: int | float) -> bool:
    return isinstance(value, int) or (value.is_integer() and abs(value) < MAX_WHOLE_FLOAT)


def _write_number(value: int | float) -> str:
    """Return the digits of a number: spreadsheets give phones, cards and ids as floats."""
    return str(int(value)) if _is_whole(value) else repr(value)


def replace_texts(value: Any, texts: Mapping[TextKey, str], name: str = "") -> Any:
    """Return a value with other texts, of the same type; the same object if none of its texts changes."""
    if isinstance(value, str):
        changed = texts.get((name, str(value)), value)
        return value if changed == value else changed
    if isinstance(value, _PLAIN_TYPES):
        return value
    if isinstance(value, int | float):
        return texts.get((name, _write_number(value)), value)
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


# --- secrets ----------------------------------------------------------------------------------------------------------


class SecretForms:
    """Secrets in the forms in which a server may answer with them, each with the token that takes its place."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """`secrets`: the token of each."""
        self.secrets = secrets
        self._plain = [(form, token) for secret, token in secrets.items() for form in list_plain_forms(secret)]
        self._base64 = [(form, token) for secret, token in secrets.items() for form in list_base64_forms(secret)]
        for forms in (self._plain, self._base64):
            forms.sort(key=lambda pair: -len(pair[0]))  # a short one may be part of a long one

    def hide_in(self, value: Any) -> Any:
        """Return a value with tokens in place of the secrets.

        All texts are searched as one, for one form after the other: a search for all forms at once would stop every
        other thread for seconds.
        """
        if not self.secrets:
            return value
        keys = list(dict.fromkeys(iter_texts(value, every_number=True)))
        # no text holds the mark; it stands for what is found, since a form may be part of the token of another secret
        mark, end = "".join(chr(byte % 8) for byte in os.urandom(20)), chr(8)
        text, tokens = f"{mark}{end}".join(text for _, text in keys), list[str]()

        def mark_number(number: int) -> str:  # without digits, which may be a secret
            return mark + "".join(chr(int(digit)) for digit in f"{number:o}") + end

        for form, token in self._plain:
            if form in text:
                text = text.replace(form, mark_number(len(tokens)))
                tokens.append(token)
        unbroken = _remove_gaps(text)
        for form, token in self._base64:
            if form in unbroken:
                text = _replace_across_gaps(text, form, mark_number(len(tokens)))
                tokens.append(token)
        if not tokens:
            return value
        for number, token in enumerate(tokens):
            text = text.replace(mark_number(number), token)
        changed = zip(keys, text.split(f"{mark}{end}"), strict=True)
        return replace_texts(value, {key: hidden for key, hidden in changed if hidden != key[1]})

    def is_in_file(self, data: str) -> bool:
        """Return whether a file, as base64, holds a secret of a length that is no coincidence."""
        if not self.secrets:
            return False
        content = base64.b64decode(data).replace(b"\0", b"").decode("latin-1")  # without the zeros of UTF-16
        views = ((data, self._plain), (content, self._plain), (_remove_gaps(content), self._base64))
        forms = ((view, form.encode("utf-8", "surrogatepass")) for view, pairs in views for form, _ in pairs)
        return any(len(form) >= MIN_SECRET_CHARS and form.decode("latin-1") in view for view, form in forms)


def _replace_across_gaps(text: str, form: str, replacement: str) -> str:
    """Replace a form that gaps may break anywhere.

    The text is read run by run: one pattern for the whole form would stop all threads for as long as the gaps are.
    """
    unbroken = io.StringIO()
    for start, end in _iter_runs(text):
        unbroken.write(text[start:end])
    content = unbroken.getvalue()
    letters, at = list[int](), content.find(form)  # the first and the last letter of each place in the content
    while at >= 0:
        letters += (at, at + len(form) - 1)
        at = content.find(form, at + len(form))
    places, read = list[int](), 0  # the same in the text
    for start, end in _iter_runs(text):
        while len(places) < len(letters) and letters[len(places)] < read + end - start:
            places.append(start + letters[len(places)] - read)
        read += end - start
    pieces, done = list[str](), 0
    for first, last in zip(places[::2], places[1::2], strict=True):
        pieces += (text[done:first], replacement)
        done = last + 1
    return "".join((*pieces, text[done:]))


def _iter_runs(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each part of a text without gaps starts and ends."""
    start = 0
    for gap in _GAP_PATTERN.finditer(text):
        yield start, gap.start()
        start = gap.end()
    yield start, len(text)


def _remove_gaps(text: str) -> str:
    for gap in ("\\r", "\\n", "\r", "\n", "\t", " "):
        text = text.replace(gap, "")
    return text


def list_plain_forms(secret: str) -> set[str]:
    """Return a secret as it is, and as JSON, JSON in JSON, URLs, HTML and hex of common libraries write it."""
    data = secret.encode("utf-8", "surrogatepass")
    forms = {secret, data.hex(), data.hex().upper()}
    for apostrophe, quotation in product(("'", "&#x27;", "&#39;", "&#039;", "&apos;"), ('"', "&quot;", "&#34;")):
        forms.add(html.escape(secret, quote=False).replace("'", apostrophe).replace('"', quotation))
    for write, safe in product((quote, quote_plus), ("", "/", "!*'()", "/!*'()", "/!*'();,?:@&=+$#")):
        quoted = write(data, safe=safe)
        forms |= {quoted, re.sub("%..", lambda match: match[0].lower(), quoted)}
    written = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    texts = written | {text.replace("/", "\\/") for text in written}
    for chars, quotation in product(("'", "[<>&]", "[<>&']", "[<>&'+`]"), ("", r'|\\"')):
        escape = partial(re.sub, chars + quotation, lambda match: f"\\u{ord(match[0][-1]):04x}")
        texts |= set(map(escape, written))
    texts |= {re.sub(r"\\u\w{4}", lambda match: f"\\u{match[0][2:].upper()}", text) for text in texts}
    forms |= texts | {json.dumps(text, ensure_ascii=is_ascii)[1:-1] for text in texts for is_ascii in (True, False)}
    return {form for form in forms | {repr(secret)[1:-1]} if len(form) >= len(secret)}


def list_base64_forms(secret: str) -> set[str]:
    """Return a secret as base64 writes it, also inside of a longer text."""
    data = secret.encode("utf-8", "surrogatepass")
    forms = {base64.b64encode(data).decode(), base64.b64encode(data).decode().rstrip("=")}
    for offset, first in enumerate((0, 2, 3)):  # what stands before it in a longer text shifts its letters
        encoded = base64.b64encode(bytes(offset) + data).decode()
        forms.add(encoded[first : (len(data) + offset) * 8 // 6])  # letters that no neighbour changes
    return {text for form in forms for text in (form, form.translate(_URL_SAFE)) if len(form) >= len(secret)}


_GAP_PATTERN = re.compile(r"[ \t\r\n]+|\\[rn]")  # where base64 is broken into lines
_URL_SAFE = str.maketrans("+/", "-_")
