"""Compare definitions of tools without regard to an order that means nothing, and say where two of them differ."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from athena.core import stubs
from athena.core.foreign_operation import ForeignOperation
from athena.gateway import sanitize

SCHEMA_FIELDS = ("inputSchema", "outputSchema")
# By JSON Schema the order of these lists means nothing; servers often build them from sets.
UNORDERED_KEYWORDS = frozenset(("required", "type", "enum", "examples"))
UNORDERED_SCHEMA_KEYWORDS = frozenset(("anyOf", "oneOf", "allOf"))
SCHEMA_MAP_KEYWORDS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
# fmt: off
SCHEMA_KEYWORDS = frozenset((
    "items", "prefixItems", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties",
    "contains", "propertyNames", "not", "if", "then", "else",
))
# fmt: on
TYPE_NAMES = ("string", "integer", "number", "boolean", "array", "object", "null")
MAX_NORMALIZED_DEPTH = 64  # deeper parts are compared as they are
MAX_PATH_SEGMENT_CHARS = 60
MAX_PATH_CHARS = 200
MAX_PATHS = 50  # of a tool
MAX_SHOWN_CHARS = 2_000  # of a value
CONTEXT_CHARS = 40  # on both sides of what differs in a long text
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "absent"})()
# what joins the items of a set to one text: ",".join({...}) or str({...})
_JOINED_ITEMS_PATTERN = re.compile(r"((?:frozenset\()?[\[({]?)(.*?)([\])}]?\)?)", re.DOTALL)


class Difference(NamedTuple):
    """One place in which a definition is not as it was approved."""

    path: tuple[str, ...]
    before: Any  # ABSENT if there was nothing
    after: Any

    @property
    def approved_path(self) -> str:
        """The path as far as the approved definition has it: a model must not read names that nobody approved."""
        return format_path(self.path[:-1] if self.before is ABSENT and len(self.path) > 1 else self.path)


def is_same(approved: Mapping[str, Any], offered: Mapping[str, Any]) -> bool:
    """Return whether two definitions differ at most in an order that means nothing."""
    if _serialize(approved) == _serialize(offered):  # mostly so, and much faster
        return True
    return _serialize(_normalize_definition(approved)) == _serialize(_normalize_definition(offered))


def find_differences(approved: Mapping[str, Any], offered: Mapping[str, Any]) -> list[Difference]:
    """Return each place in which a definition differs from the approved one."""
    return list(_compare_values(_normalize_definition(approved), _normalize_definition(offered), ()))


def list_approved_paths(approved: Mapping[str, Any], offered: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where a definition differs, without a word that nobody approved."""
    differences = find_differences(approved, offered)
    return tuple(dict.fromkeys(difference.approved_path for difference in differences[:MAX_PATHS]))


def format_differences(approved: Mapping[str, Any], offered: Mapping[str, Any], max_count: int) -> list[str]:
    """Return lines for a person: each path with the value before and after, hidden characters escaped."""
    differences = find_differences(approved, offered)
    lines: list[str] = []
    for difference in differences[:max_count]:
        before, after = _excerpt_values(difference.before, difference.after)
        lines.append(f"{format_path(difference.path)}:")
        lines += [f"  - {before}"] if difference.before is not ABSENT else []
        lines += [f"  + {after}"] if difference.after is not ABSENT else []
    more = len(differences) - max_count
    return [*lines, f"... and {more} more differences"] if more > 0 else lines


def format_as_read(operation: ForeignOperation) -> Iterator[str]:
    """Yield the lines of a tool as a model reads it: its stub, then the texts that only its schemas have."""
    stub = stubs.render_operation(operation)
    yield from stub.splitlines()
    words, shown = set(re.findall(r"\w+", stub)), {""}
    for title, schema in (("", operation.definition.arguments), ("returns", operation.definition.result)):
        for path, text in _iter_schema_texts(schema, title):
            if text in words or text in shown:
                continue
            # the first test is fast: a server may have thousands of texts
            if text not in stub or re.search(rf"(?<!\w){re.escape(text)}(?!\w)", stub) is None:
                shown.add(text)
                yield f"{path.removeprefix('.')}: {text}"


def _iter_schema_texts(schema: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield each name and text in a sanitized schema, with the place where it stands."""
    if isinstance(schema, list):
        for part in schema:
            yield from _iter_schema_texts(part, path)
    if not isinstance(schema, Mapping):
        return
    for key, value in schema.items():
        if key in SCHEMA_MAP_KEYWORDS and isinstance(value, Mapping):
            for name, part in value.items():
                yield path, name
                yield from _iter_schema_texts(part, f"{path}.{name}")
        elif key in SCHEMA_KEYWORDS or key in UNORDERED_SCHEMA_KEYWORDS:
            yield from _iter_schema_texts(value, path)
        elif key in ("const", "default", "enum"):
            yield f"{path} ({key})", json.dumps(value, ensure_ascii=False)
        else:  # e.g. a description, or a list of required names
            texts = value if isinstance(value, list) else [value]
            yield from ((path, text) for text in texts if isinstance(text, str) and text not in TYPE_NAMES)


def format_path(path: tuple[str, ...]) -> str:
    segments = [sanitize.sanitize_line(segment, MAX_PATH_SEGMENT_CHARS) or '""' for segment in path]
    return sanitize.sanitize_line(".".join(segments), MAX_PATH_CHARS)


def _serialize(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _normalize_definition(definition: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _normalize_schema(value, MAX_NORMALIZED_DEPTH) if key in SCHEMA_FIELDS else value
        for key, value in definition.items()
    }


def _normalize_schema(schema: Any, depth_left: int) -> Any:
    if depth_left <= 0:
        return schema
    if isinstance(schema, list):  # of `items` and `prefixItems`, whose order counts
        return [_normalize_schema(part, depth_left - 1) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _normalize_keyword(key, value, depth_left - 1) for key, value in schema.items()}


def _normalize_keyword(key: str, value: Any, depth_left: int) -> Any:
    if key == "default":
        return _normalize_default(value, depth_left)
    if isinstance(value, list):
        if key in UNORDERED_KEYWORDS:
            return sorted(value, key=None if all(isinstance(item, str) for item in value) else _serialize)
        if key in UNORDERED_SCHEMA_KEYWORDS:
            return sorted((_normalize_schema(part, depth_left) for part in value), key=_serialize)
    if isinstance(value, dict):
        if key in SCHEMA_MAP_KEYWORDS:
            return {name: _normalize_schema(part, depth_left) for name, part in value.items()}
        if key == "dependentRequired":
            return {name: _normalize_keyword("required", names, depth_left) for name, names in value.items()}
    return _normalize_schema(value, depth_left) if key in SCHEMA_KEYWORDS else value


def _normalize_default(value: Any, depth_left: int) -> Any:
    """Sort the items of a default: of a list at any depth, and of a text that joins items with commas."""
    if depth_left <= 0:
        return value
    if isinstance(value, list):
        return sorted((_normalize_default(item, depth_left - 1) for item in value), key=_serialize)
    if isinstance(value, dict):
        return {key: _normalize_default(item, depth_left - 1) for key, item in value.items()}
    if isinstance(value, str) and "," in value and (match := _JOINED_ITEMS_PATTERN.fullmatch(value)):
        separator = ", " if ", " in value else ","
        return match[1] + separator.join(sorted(match[2].split(separator))) + match[3]
    return value


def _compare_values(old: Any, new: Any, path: tuple[str, ...]) -> Iterator[Difference]:
    if _serialize(old) == _serialize(new):
        return
    if len(path) >= MAX_NORMALIZED_DEPTH:
        yield Difference(path, old, new)
    elif isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key not in old or key not in new:
                yield Difference((*path, key), old.get(key, ABSENT), new.get(key, ABSENT))
            else:
                yield from _compare_values(old[key], new[key], (*path, key))
    elif isinstance(old, list) and isinstance(new, list):
        yield from _compare_lists(old, new, path)
    else:
        yield Difference(path, old, new)


def _compare_lists(old: list[Any], new: list[Any], path: tuple[str, ...]) -> Iterator[Difference]:
    """Compare lists by the items that only one of them has."""
    old_items, new_items = Counter(map(_serialize, old)), Counter(map(_serialize, new))
    removed, added = (
        [json.loads(item) for item in counts.elements()] for counts in (old_items - new_items, new_items - old_items)
    )
    if not removed and not added:  # the same items in an order that counts
        yield Difference(path, old, new)
    elif len(removed) == len(added) == 1:
        index = str([_serialize(item) for item in old].index(_serialize(removed[0])))
        yield from _compare_values(removed[0], added[0], (*path, index))
    else:
        yield Difference(path, removed or ABSENT, added or ABSENT)


def _excerpt_values(before: Any, after: Any) -> tuple[str, str]:
    """Return two values as JSON; of two long texts, the parts that differ with some context."""
    texts = [
        "" if value is ABSENT else json.dumps(value, ensure_ascii=False, sort_keys=True) for value in (before, after)
    ]
    start = end = 0
    if all(len(text) > 4 * CONTEXT_CHARS for text in texts):
        shortest = min(map(len, texts))
        while start < shortest and texts[0][start] == texts[1][start]:
            start += 1
        while end < shortest - start and texts[0][-1 - end] == texts[1][-1 - end]:
            end += 1
    return _excerpt_text(texts[0], start, end), _excerpt_text(texts[1], start, end)


def _excerpt_text(text: str, start: int, end: int) -> str:
    first, last = max(0, start - CONTEXT_CHARS), len(text) - max(0, end - CONTEXT_CHARS)
    shown = sanitize.escape_hidden(("…" if first else "") + text[first:last] + ("…" if last < len(text) else ""))
    return shown if len(shown) <= MAX_SHOWN_CHARS else f"{shown[: MAX_SHOWN_CHARS - 1]}… ({len(shown):,} characters)"
