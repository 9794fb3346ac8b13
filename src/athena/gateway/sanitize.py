"""A stranger's words, made fit to be shown: what hides, reorders or commands is taken out or made visible."""

import re
from typing import Any

from athena.core import text as texts

MAX_SUMMARY_CHARS = 140  # characters
MAX_DETAILS_CHARS = 1_500
MAX_PARAMETER_HELP_CHARS = 300
MAX_SCHEMA_DEPTH = 12  # levels of a schema
MAX_SCHEMA_NODES = 2_000  # of a schema
MAX_PARAMETER_NAME_CHARS = 100  # characters of a parameter's
# What a checker or a reader of the signature needs; all else a server says about its parameters is left out.
# fmt: off
SCHEMA_KEYWORDS = frozenset((
    "type", "properties", "required", "items", "enum", "const", "anyOf", "oneOf", "default", "description",
    "additionalProperties", "$ref", "$defs", "definitions", "format", "minimum", "maximum", "minLength",
    "maxLength", "minItems", "maxItems",
))
# fmt: on
LINE_SEPARATORS = "\n\t\u2028\u2029"  # which part words and lines
_SCHEMA_MAP_KEYWORDS = ("properties", "$defs", "definitions")
_INVALID = object()
_SCALAR_TYPES = (str, int, float, bool, type(None))
# What may stand behind a keyword, where that is one value.
_KEYWORD_TYPES: dict[str, Any] = {
    **dict.fromkeys(("type", "$ref", "format"), str),
    **dict.fromkeys(("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"), int | float),
    **dict.fromkeys(("const", "default"), object),
    "additionalProperties": bool,
}


def sanitize_text(text: Any, most: int) -> str:
    """Take out what nobody can see, and cut."""
    if not isinstance(text, str):
        return ""
    plain = text[: 4 * most]
    plain = plain.translate(dict.fromkeys(map(ord, texts.find_invisible_chars(plain, LINE_SEPARATORS))))
    plain = plain.replace('"""', "'''").strip()
    return plain if len(plain) <= most else f"{plain[: most - 3].rstrip()}..."


def sanitize_line(text: Any, most: int) -> str:
    """The same, on one line."""
    return " ".join(sanitize_text(text, most).split())


def split_description(description: Any) -> tuple[str, str]:
    """Split a description into a summary of one line and what follows it."""
    whole = sanitize_text(description, MAX_DETAILS_CHARS + MAX_SUMMARY_CHARS)
    first, _, rest = whole.partition("\n")
    sentence = re.match(r"(.{8,}?[.!?])(?:\s|$)", first)
    head = sentence[1] if sentence and len(sentence[1]) <= MAX_SUMMARY_CHARS else first
    if len(head) > MAX_SUMMARY_CHARS:
        return sanitize_line(head, MAX_SUMMARY_CHARS), whole
    return sanitize_line(head, MAX_SUMMARY_CHARS), (first[len(head) :].strip() + "\n" + rest).strip()


def escape_hidden(text: str) -> str:
    """Show what hides, or would begin a line that looks like one of ours, as the number of its character."""
    return "".join(f"<U+{ord(char):04X}>" if texts.is_invisible(char) else char for char in text)


def has_hidden_text(value: Any) -> bool:
    """Tell whether anything in a definition hides from its reader."""
    if isinstance(value, str):
        return bool(texts.find_invisible_chars(value, LINE_SEPARATORS))
    if isinstance(value, dict):
        return any(has_hidden_text(key) or has_hidden_text(item) for key, item in value.items())
    return isinstance(value, list) and any(map(has_hidden_text, value))


def sanitize_schema(given: Any) -> dict[str, Any]:
    """Return as much of a schema as is of use, with its words made clean."""
    return _SchemaPruner().prune(given, MAX_SCHEMA_DEPTH)


class _SchemaPruner:
    def __init__(self) -> None:
        self._nodes_left = MAX_SCHEMA_NODES

    def prune(self, given: Any, deep: int) -> dict[str, Any]:
        self._nodes_left -= 1
        if not isinstance(given, dict) or deep <= 0 or self._nodes_left <= 0:
            return {}
        made = {key: self._prune_value(key, value, deep) for key, value in given.items() if key in SCHEMA_KEYWORDS}
        return {key: value for key, value in made.items() if value is not _INVALID}

    def _prune_value(self, key: str, value: Any, deep: int) -> Any:
        """Return what stands behind a keyword, if that is of the kind that belongs there."""
        if key == "description":
            return sanitize_line(value, MAX_PARAMETER_HELP_CHARS)
        if key in _SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
            return {
                name: self.prune(one, deep - 1)
                for name, one in value.items()
                if self._nodes_left > 0 and _is_valid_name(name)
            }
        if key in ("anyOf", "oneOf") and isinstance(value, list):
            return [self.prune(one, deep - 1) for one in value] if 0 < len(value) <= 50 else _INVALID
        if key in ("items", "additionalProperties") and isinstance(value, dict):
            return self.prune(value, deep - 1)
        if key == "enum" and isinstance(value, list):
            return _check_values(value, _SCALAR_TYPES, 500)
        if key == "type" and isinstance(value, list):
            return _check_values(value, str, 10)
        if key == "required" and isinstance(value, list):
            return [one for one in value[:MAX_SCHEMA_NODES] if _is_valid_name(one)]
        kinds = _KEYWORD_TYPES.get(key, ())
        return value if isinstance(value, kinds) and len(repr(value)) <= 2_000 and _is_visible(value) else _INVALID


def _check_values(values: list[Any], kind: Any, most: int) -> Any:
    """Return the values if all can be shown; with some of them left out, what is allowed would be refused."""
    fit = 0 < len(values) <= most and all(isinstance(one, kind) and _is_visible(one) for one in values)
    return values if fit else _INVALID


def _is_valid_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= MAX_PARAMETER_NAME_CHARS and _is_visible(name)


def _is_visible(value: Any) -> bool:
    """Tell whether a value is on one line with nothing hidden in it: it cannot be cleaned, since it has to be sent."""
    if isinstance(value, dict):
        return all(_is_visible(key) and _is_visible(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_visible, value))
    return not isinstance(value, str) or not texts.find_invisible_chars(value)
