"""A stranger's words, made fit to be shown: what hides, reorders or commands is taken out or made visible."""

import re
from typing import Any

from athena.core import text as texts

SUMMARY = 140  # characters
DETAILS = 1_500
HELP = 300
DEEPEST = 12  # levels of a schema
NODES = 2_000  # of a schema
NAME = 100  # characters of a parameter's
# What a checker or a reader of the signature needs; all else a server says about its parameters is left out.
# fmt: off
KEYWORDS = frozenset((
    "type", "properties", "required", "items", "enum", "const", "anyOf", "oneOf", "default", "description",
    "additionalProperties", "$ref", "$defs", "definitions", "format", "minimum", "maximum", "minLength",
    "maxLength", "minItems", "maxItems",
))
# fmt: on
SPACES = "\n\t\u2028\u2029"  # which part words and lines
_MAPS = ("properties", "$defs", "definitions")
_WRONG = object()
_PLAIN = (str, int, float, bool, type(None))
# What may stand behind a keyword, where that is one value.
_SINGLE: dict[str, Any] = {
    **dict.fromkeys(("type", "$ref", "format"), str),
    **dict.fromkeys(("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"), int | float),
    **dict.fromkeys(("const", "default"), object),
    "additionalProperties": bool,
}


def clean(text: Any, most: int) -> str:
    """Take out what nobody can see, and cut."""
    if not isinstance(text, str):
        return ""
    plain = text[: 4 * most]
    plain = plain.translate(dict.fromkeys(map(ord, texts.unseen(plain, SPACES))))
    plain = plain.replace('"""', "'''").strip()
    return plain if len(plain) <= most else f"{plain[: most - 3].rstrip()}..."


def line(text: Any, most: int) -> str:
    """The same, on one line."""
    return " ".join(clean(text, most).split())


def parts(description: Any) -> tuple[str, str]:
    """Split a description into a summary of one line and what follows it."""
    whole = clean(description, DETAILS + SUMMARY)
    first, _, rest = whole.partition("\n")
    sentence = re.match(r"(.{8,}?[.!?])(?:\s|$)", first)
    head = sentence[1] if sentence and len(sentence[1]) <= SUMMARY else first
    if len(head) > SUMMARY:
        return line(head, SUMMARY), whole
    return line(head, SUMMARY), (first[len(head) :].strip() + "\n" + rest).strip()


def visible(text: str) -> str:
    """Show what hides, or would begin a line that looks like one of ours, as the number of its character."""
    return "".join(f"<U+{ord(char):04X}>" if texts.hidden(char) else char for char in text)


def hides(value: Any) -> bool:
    """Tell whether anything in a definition hides from its reader."""
    if isinstance(value, str):
        return bool(texts.unseen(value, SPACES))
    if isinstance(value, dict):
        return any(hides(key) or hides(item) for key, item in value.items())
    return isinstance(value, list) and any(map(hides, value))


def schema(given: Any) -> dict[str, Any]:
    """Return as much of a schema as is of use, with its words made clean."""
    return _Pruning().schema(given, DEEPEST)


class _Pruning:
    def __init__(self) -> None:
        self._left = NODES

    def schema(self, given: Any, deep: int) -> dict[str, Any]:
        self._left -= 1
        if not isinstance(given, dict) or deep <= 0 or self._left <= 0:
            return {}
        made = {key: self._value(key, value, deep) for key, value in given.items() if key in KEYWORDS}
        return {key: value for key, value in made.items() if value is not _WRONG}

    def _value(self, key: str, value: Any, deep: int) -> Any:
        """Return what stands behind a keyword, if that is of the kind that belongs there."""
        if key == "description":
            return line(value, HELP)
        if key in _MAPS and isinstance(value, dict):
            return {name: self.schema(one, deep - 1) for name, one in value.items() if self._left > 0 and _sane(name)}
        if key in ("anyOf", "oneOf") and isinstance(value, list):
            return [self.schema(one, deep - 1) for one in value] if 0 < len(value) <= 50 else _WRONG
        if key in ("items", "additionalProperties") and isinstance(value, dict):
            return self.schema(value, deep - 1)
        if key == "enum" and isinstance(value, list):
            return _all(value, _PLAIN, 500)
        if key == "type" and isinstance(value, list):
            return _all(value, str, 10)
        if key == "required" and isinstance(value, list):
            return [one for one in value[:NODES] if _sane(one)]
        kinds = _SINGLE.get(key, ())
        return value if isinstance(value, kinds) and len(repr(value)) <= 2_000 and _plain(value) else _WRONG


def _all(values: list[Any], kind: Any, most: int) -> Any:
    """Return the values if all can be shown; with some of them left out, what is allowed would be refused."""
    fit = 0 < len(values) <= most and all(isinstance(one, kind) and _plain(one) for one in values)
    return values if fit else _WRONG


def _sane(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= NAME and _plain(name)


def _plain(value: Any) -> bool:
    """Tell whether a value is on one line with nothing hidden in it: it cannot be cleaned, since it has to be sent."""
    if isinstance(value, dict):
        return all(_plain(key) and _plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_plain, value))
    return not isinstance(value, str) or not texts.unseen(value)
