"""Edit a TOML text in place: add or remove one table, and keep every other byte."""

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from typing import Any

from athena.errors import Conflict, InvalidInput

TRAILING_COMMENTS_PATTERN = re.compile(r"(?:^[ \t\r]*(?:#[^\n]*)?(?:\n|\Z))*\Z", re.MULTILINE)
VALUE_PATTERN = r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\[[^\[\]]*\])"""  # a string, or a list of them
BLANK_LINE_PATTERN = re.compile(r"(?<=\n)\r?\n\Z")  # the line before our table
TABLE_HEADER_PATTERN = re.compile(r"^[ \t]*\[", re.MULTILINE)


def parse(text: str) -> dict[str, Any]:
    """Return the values of a TOML text; raise InvalidInput if it is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"it is not valid TOML ({error})") from None


def set_value(text: str, path: Sequence[str], value: Any) -> str:
    """Set the table at a path of two names, at the end of the text, or the value at a path of three names."""
    if len(path) == 3:
        return _replace_value(text, path, value)
    parent = parse(text).get(path[0], {})
    if isinstance(parent, dict) and parent.get(path[1]) == value:
        return text
    rest = _remove_table(text, path)
    gap = "" if not rest.strip() else "\n" if rest.endswith("\n") else "\n\n"
    lines = [f"{name} = {json.dumps(item, ensure_ascii=False)}" for name, item in value.items()]
    table = gap + f"[{path[0]}.{path[1]}]\n" + "\n".join(lines) + "\n"
    result = rest + (table.replace("\n", "\r\n") if "\r\n" in rest else table)
    _check_result(result, _merge_table(parse(rest), path, value))
    return result


def remove_value(text: str, path: Sequence[str], ours: Callable[[Any], bool], keep: Any = None) -> str:
    """Remove a table with its subtables if `ours` accepts it; `keep` is not used, as no empty parent stays in TOML."""
    parent = parse(text).get(path[0])
    return _remove_table(text, path) if isinstance(parent, dict) and ours(parent.get(path[1])) else text


def _replace_value(text: str, path: Sequence[str], value: Any) -> str:
    """Replace a string or a list in an existing table."""
    table = parse(text)[path[0]][path[1]]
    if table.get(path[2]) == value:
        return text
    match = _table_pattern(path).search(text)
    line = re.compile(rf"^([ \t]*{re.escape(path[2])}[ \t]*=[ \t]*){VALUE_PATTERN}", re.MULTILINE)
    old = line.search(text, match.end()) if match else None
    result = text[: old.end(1)] + json.dumps(value, ensure_ascii=False) + text[old.end() :] if old else text
    _check_result(result, _merge_table(parse(text), path[:2], table | {path[2]: value}))
    return result


def _table_pattern(path: Sequence[str]) -> re.Pattern[str]:
    """Match the header of a table or of one of its subtables."""
    first, second = (rf"(?:{re.escape(name)}|\"{re.escape(name)}\")" for name in path[:2])
    return re.compile(rf"^[ \t]*\[\s*{first}\s*\.\s*{second}\s*(?:\.[^\]\n]*)?\][^\n]*(?:\n|\Z)", re.MULTILINE)


def restore_value(text: str, path: Sequence[str], original: str) -> str:
    """Write a table and its subtables exactly as the original text has them."""
    old = [original[start:end] for start, end in _find_spans(original, path)]
    spans, result = _find_spans(text, path), text
    if len(old) != len(spans):  # the user has added or removed a subtable
        old = ["\n\n".join(table.strip("\n") for table in old) + "\n", *[""] * (len(spans) - 1)]
    for (start, end), table in reversed(list(zip(spans, old, strict=True))):
        result = result[:start] + table + result[end:]
    _check_result(result, _merge_table(parse(text), path, parse(original)[path[0]][path[1]]))
    return result


def _find_spans(text: str, path: Sequence[str]) -> list[tuple[int, int]]:
    """Return the spans of a table and its subtables."""
    spans = []
    for match in _table_pattern(path).finditer(text):
        following = TABLE_HEADER_PATTERN.search(text, match.end())
        end = following.start() if following else len(text)
        comments = TRAILING_COMMENTS_PATTERN.search(text, match.end(), end)  # they belong to the next table
        spans.append((match.start(), comments.start() if comments else end))
    return spans


def _remove_table(text: str, path: Sequence[str]) -> str:
    before = parse(text)
    parent = before.get(path[0])
    if not isinstance(parent, dict) or path[1] not in parent:
        return text
    result = text
    for start, end in reversed(_find_spans(text, path)):
        result = BLANK_LINE_PATTERN.sub("", result[:start]) + result[end:]
    siblings = {key: item for key, item in parent.items() if key != path[1]}
    rest = {key: item for key, item in before.items() if key != path[0]}
    _check_result(result, rest | ({path[0]: siblings} if siblings else {}), rest | {path[0]: siblings})
    return result


def _merge_table(before: dict[str, Any], path: Sequence[str], value: dict[str, Any]) -> dict[str, Any]:
    return before | {path[0]: before.get(path[0], {}) | {path[1]: value}}


def _check_result(result: str, *expected: dict[str, Any]) -> None:
    """Raise Conflict if a result does not have the expected values: the file is written in a way we cannot edit."""
    try:
        is_expected = tomllib.loads(result) in expected
    except tomllib.TOMLDecodeError:
        is_expected = False
    if not is_expected:
        raise Conflict("our part of it cannot be told from the rest", hint="change it by hand; see docs/clients")
