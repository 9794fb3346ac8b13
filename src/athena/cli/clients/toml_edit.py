"""Changing a TOML file of somebody else's: one table of ours goes in and out, every other byte stays."""

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from typing import Any

from athena.errors import Conflict, InvalidInput

TRAILING_COMMENTS_PATTERN = re.compile(r"(?:^[ \t\r]*(?:#[^\n]*)?(?:\n|\Z))*\Z", re.MULTILINE)
VALUE_PATTERN = r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\[[^\[\]]*\])"""  # a string, or a list of them
BLANK_LINE_PATTERN = re.compile(r"(?<=\n)\r?\n\Z")  # the line that we put before a table
TABLE_HEADER_PATTERN = re.compile(r"^[ \t]*\[", re.MULTILINE)


def parse(text: str) -> dict[str, Any]:
    """Return what a text says; one that is no TOML is refused."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"it is not valid TOML ({error})") from None


def set_value(text: str, path: Sequence[str], value: Any) -> str:
    """Return a text with a table of ours at its end, or in the place of the one there; or with a word in it."""
    if len(path) == 3:
        return _replace_value(text, path, value)
    before = parse(text)
    holder = before.get(path[0], {})
    if isinstance(holder, dict) and holder.get(path[1]) == value:
        return text
    rest = _remove_table(text, path)
    gap = "" if not rest.strip() else "\n" if rest.endswith("\n") else "\n\n"
    lines = [f"{name} = {json.dumps(item, ensure_ascii=False)}" for name, item in value.items()]
    ours = gap + f"[{path[0]}.{path[1]}]\n" + "\n".join(lines) + "\n"
    made = rest + (ours.replace("\n", "\r\n") if "\r\n" in rest else ours)
    _check_result(made, _merge_table(parse(rest), path, value))
    return made


def remove_value(text: str, path: Sequence[str], ours: Callable[[Any], bool], keep: Any = None) -> str:
    """Return a text without a table and those inside of it, if it is ours."""
    holder = parse(text).get(path[0])
    return _remove_table(text, path) if isinstance(holder, dict) and ours(holder.get(path[1])) else text


def _replace_value(text: str, path: Sequence[str], value: Any) -> str:
    """Return a text with another string or list in a table that is there."""
    table = parse(text)[path[0]][path[1]]
    if table.get(path[2]) == value:
        return text
    match = _table_pattern(path).search(text)
    line = re.compile(rf"^([ \t]*{re.escape(path[2])}[ \t]*=[ \t]*){VALUE_PATTERN}", re.MULTILINE)
    found = line.search(text, match.end()) if match else None
    made = text[: found.end(1)] + json.dumps(value, ensure_ascii=False) + text[found.end() :] if found else text
    _check_result(made, _merge_table(parse(text), path[:2], table | {path[2]: value}))
    return made


def _table_pattern(path: Sequence[str]) -> re.Pattern[str]:
    """Return how the beginning of a table is written, or of one inside of it."""
    one, two = (rf"(?:{re.escape(name)}|\"{re.escape(name)}\")" for name in path[:2])
    return re.compile(rf"^[ \t]*\[\s*{one}\s*\.\s*{two}\s*(?:\.[^\]\n]*)?\][^\n]*(?:\n|\Z)", re.MULTILINE)


def restore_value(text: str, path: Sequence[str], known: str) -> str:
    """Return a text with a table and those inside of it as another text has them, in the place of ours."""
    old = [known[start:end] for start, end in _find_spans(known, path)]
    new, made = _find_spans(text, path), text
    if len(old) != len(new):  # somebody has put another one in, or taken one out
        old = ["\n\n".join(one.strip("\n") for one in old) + "\n", *[""] * (len(new) - 1)]
    for (start, end), one in reversed(list(zip(new, old, strict=True))):
        made = made[:start] + one + made[end:]
    _check_result(made, _merge_table(parse(text), path, parse(known)[path[0]][path[1]]))
    return made


def _find_spans(text: str, path: Sequence[str]) -> list[tuple[int, int]]:
    """Find where a table and those inside of it are written."""
    found = []
    for match in _table_pattern(path).finditer(text):
        following = TABLE_HEADER_PATTERN.search(text, match.end())
        end = following.start() if following else len(text)
        after = TRAILING_COMMENTS_PATTERN.search(text, match.end(), end)
        found.append((match.start(), after.start() if after else end))  # what is said about the next one stays
    return found


def _remove_table(text: str, path: Sequence[str]) -> str:
    before = parse(text)
    holder = before.get(path[0])
    if not isinstance(holder, dict) or path[1] not in holder:
        return text
    made = text
    for start, end in reversed(_find_spans(text, path)):
        made = BLANK_LINE_PATTERN.sub("", made[:start]) + made[end:]
    left = {key: item for key, item in holder.items() if key != path[1]}
    rest = {key: item for key, item in before.items() if key != path[0]}
    _check_result(made, rest | ({path[0]: left} if left else {}), rest | {path[0]: left})
    return made


def _merge_table(before: dict[str, Any], path: Sequence[str], value: dict[str, Any]) -> dict[str, Any]:
    return before | {path[0]: before.get(path[0], {}) | {path[1]: value}}


def _check_result(made: str, *wanted: dict[str, Any]) -> None:
    """Refuse a result that does not say what it should: the file is written in a way that we do not know."""
    try:
        good = tomllib.loads(made) in wanted
    except tomllib.TOMLDecodeError:
        good = False
    if not good:
        raise Conflict("our part of it cannot be told from the rest", hint="change it by hand; see docs/clients")
