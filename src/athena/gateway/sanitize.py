"""Clean the texts and schemas of servers before anybody reads them: no hidden or reordering characters, bounded."""

import re
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from athena.core import text as texts

MAX_SUMMARY_CHARS = 140
MAX_DETAILS_CHARS = 1_500
MAX_PARAMETER_HELP_CHARS = 300
MAX_SCHEMA_DEPTH = 12
MAX_SCHEMA_NODES = 2_000
MAX_PARAMETER_NAME_CHARS = 100
MAX_ALTERNATIVES = 50
MAX_ENUM_VALUES = 500
MAX_TYPE_NAMES = 10
MAX_VALUE_CHARS = 2_000
# the keywords that argument checks and signatures need; the others are dropped
# fmt: off
SCHEMA_KEYWORDS = frozenset((
    "type", "properties", "required", "items", "enum", "const", "anyOf", "oneOf", "default", "description",
    "additionalProperties", "$ref", "$defs", "definitions", "format", "minimum", "maximum", "minLength",
    "maxLength", "minItems", "maxItems",
))
# fmt: on
LONG_GAP_PATTERN = re.compile(r"(?<=\S) {40,}")  # code to the right of a gap would be overlooked
LINE_SEPARATORS = "\n\t\u2028\u2029"  # invisible, but allowed in texts
# hides what a call has sent in what its server says; the identity where there is no call
hide_words: ContextVar[Callable[[str], str]] = ContextVar("hide_words", default=str)
_SCHEMA_MAP_KEYWORDS = ("properties", "$defs", "definitions")
_INVALID = object()
_SCALAR_TYPES = (str, int, float, bool, type(None))
# the type of a keyword's value, where it is a single value
_KEYWORD_TYPES: dict[str, Any] = {
    **dict.fromkeys(("type", "$ref", "format"), str),
    **dict.fromkeys(("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"), int | float),
    **dict.fromkeys(("const", "default"), object),
    "additionalProperties": bool,
}


def sanitize_text(text: Any, max_chars: int) -> str:
    """Escape invisible characters and cut the text; return an empty one for other types."""
    if not isinstance(text, str):
        return ""
    visible = texts.escape_invisible(text[: 4 * max_chars], LINE_SEPARATORS)
    visible = visible.replace('"""', "'''").strip()
    return visible if len(visible) <= max_chars else f"{visible[: max_chars - 3].rstrip()}..."


def sanitize_line(text: Any, max_chars: int) -> str:
    """Sanitize a text and put it on one line."""
    return " ".join(sanitize_text(text, max_chars).split())


def split_description(description: Any) -> tuple[str, str]:
    """Split a description into a one-line summary and the rest."""
    whole = sanitize_text(description, MAX_DETAILS_CHARS + MAX_SUMMARY_CHARS)
    first, _, rest = whole.partition("\n")
    sentence = re.match(r"(.{8,}?[.!?])(?:\s|$)", first)
    summary = sentence[1] if sentence and len(sentence[1]) <= MAX_SUMMARY_CHARS else first
    if len(summary) > MAX_SUMMARY_CHARS:
        return sanitize_line(summary, MAX_SUMMARY_CHARS), whole
    return sanitize_line(summary, MAX_SUMMARY_CHARS), (first[len(summary) :].strip() + "\n" + rest).strip()


def escape_hidden(text: str) -> str:
    """Replace invisible characters and line breaks by their code points, so that a text cannot imitate our output."""
    return texts.escape_invisible(text)


def format_line(line: str) -> str:
    """Return a line of code as a person sees all of it: hidden characters as escapes, long gaps as their length."""
    visible = escape_hidden(line.expandtabs(8))
    return LONG_GAP_PATTERN.sub(lambda gap: f" <{len(gap[0])} spaces> ", visible)


def has_hidden_text(value: Any) -> bool:
    """Return whether a definition contains invisible characters anywhere."""
    if isinstance(value, str):
        return texts.escape_invisible(value, LINE_SEPARATORS) != value
    if isinstance(value, dict):
        return any(has_hidden_text(key) or has_hidden_text(item) for key, item in value.items())
    return isinstance(value, list) and any(map(has_hidden_text, value))


def sanitize_schema(schema: Any) -> dict[str, Any]:
    """Return the useful keywords of a schema, with sanitized texts and within our limits."""
    return _SchemaPruner().prune(schema, MAX_SCHEMA_DEPTH)


class _SchemaPruner:
    def __init__(self) -> None:
        self._nodes_left = MAX_SCHEMA_NODES

    def prune(self, schema: Any, depth_left: int) -> dict[str, Any]:
        self._nodes_left -= 1
        if not isinstance(schema, dict) or depth_left <= 0 or self._nodes_left <= 0:
            return {}
        pruned = {
            key: self._prune_value(key, value, depth_left) for key, value in schema.items() if key in SCHEMA_KEYWORDS
        }
        return {key: value for key, value in pruned.items() if value is not _INVALID}

    def _prune_value(self, key: str, value: Any, depth_left: int) -> Any:
        """Return the value of a keyword, pruned; _INVALID if it has the wrong type or cannot be shown."""
        if key == "description":
            return sanitize_line(value, MAX_PARAMETER_HELP_CHARS)
        if key in _SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
            return {
                name: self.prune(schema, depth_left - 1)
                for name, schema in value.items()
                if self._nodes_left > 0 and _is_valid_name(name)
            }
        if key in ("anyOf", "oneOf") and isinstance(value, list):
            if not 0 < len(value) <= MAX_ALTERNATIVES:
                return _INVALID
            return [self.prune(schema, depth_left - 1) for schema in value]
        if key in ("items", "additionalProperties") and isinstance(value, dict):
            return self.prune(value, depth_left - 1)
        if key == "enum" and isinstance(value, list):
            return _check_values(value, _SCALAR_TYPES, MAX_ENUM_VALUES)
        if key == "type" and isinstance(value, list):
            return _check_values(value, str, MAX_TYPE_NAMES)
        if key == "required" and isinstance(value, list):
            return [name for name in value[:MAX_SCHEMA_NODES] if _is_valid_name(name)]
        has_type = isinstance(value, _KEYWORD_TYPES.get(key, ()))
        return value if has_type and len(repr(value)) <= MAX_VALUE_CHARS and _is_visible(value) else _INVALID


def _check_values(values: list[Any], types: Any, max_count: int) -> Any:
    """Return all values, or _INVALID if one cannot be shown: without it we would refuse arguments that are allowed."""
    is_valid = 0 < len(values) <= max_count and all(isinstance(value, types) and _is_visible(value) for value in values)
    return values if is_valid else _INVALID


def _is_valid_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= MAX_PARAMETER_NAME_CHARS and _is_visible(name)


def _is_visible(value: Any) -> bool:
    """Return whether a value has no invisible characters; it cannot be cleaned, since it is sent to the server."""
    if isinstance(value, dict):
        return all(_is_visible(key) and _is_visible(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_visible, value))
    return not isinstance(value, str) or texts.escape_invisible(value) == value
