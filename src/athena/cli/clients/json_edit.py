"""Changing a JSON file of somebody else's: only our own words go in and out, every other byte stays.

Comments and commas at the end, which some clients allow, are read over and kept.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from athena.errors import InvalidInput

INDENT_PATTERN = re.compile(r"[ \t]*")
TRIVIA_PATTERN = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
SCALAR_PATTERN = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
MAX_DEPTH = 100
_STRING_DECODER = json.JSONDecoder()


@dataclass
class JsonNode:
    """A value in a text: where it stands, and where those inside of it do."""

    start: int
    end: int
    value: Any
    members: list["JsonMember"] = field(default_factory=list)


@dataclass
class JsonMember:
    """A part of an object or a list, from its key on, and where the comma after it stands."""

    start: int
    key: str | None
    node: JsonNode
    comma: int | None = None


def parse_nodes(text: str) -> JsonNode:
    """Find the parts of a text; one that is no JSON object is refused."""
    found = _parse_value(text, _skip_trivia(text, 0), 0)
    if (end := _skip_trivia(text, found.end)) != len(text):
        raise _syntax_error(text, end)
    if not isinstance(found.value, dict):
        raise InvalidInput("it holds no JSON object")
    return found


def parse(text: str) -> Any:
    """Return what a text says."""
    return parse_nodes(text).value


def set_value(text: str, path: Sequence[str | int], value: Any) -> str:
    """Return a text with a value at the end of a path, in the place of the one that is there.

    A number is a place in a list; the one behind the last is at its end.
    """
    if not text.strip():
        text = "{}\n"
    holder = parse_nodes(text)
    for at, name in enumerate(path[:-1]):
        inside = _get_member(holder, name)
        if inside is None:
            for missing in reversed(path[at + 1 :]):
                value = {missing: value}
            return _insert_member(text, holder, name, value)
        holder = inside.node
        wanted = list if isinstance(path[at + 1], int) else dict
        if not isinstance(holder.value, wanted):
            where = ".".join(str(name) for name in path[: at + 1])
            raise InvalidInput(f"{where} is not {'a list' if wanted is list else 'an object'}")
    there = _get_member(holder, path[-1])
    if there is None:
        return _insert_member(text, holder, path[-1], value)
    if there.node.value == value:
        return text
    if "\n" in text[there.node.start : there.node.end]:
        written = _match_line_endings(
            text, _dump_indented(value, _line_indent(text, there.start), _detect_indent(text))
        )
    else:
        written = json.dumps(value, ensure_ascii=False)
    return _replace_node(text, there.node, written)


def remove_value(text: str, path: Sequence[str | int], ours: Callable[[Any], bool], keep: Any = None) -> str:
    """Return a text without the value at the end of a path, if it is ours, and without what held nothing else.

    What is in `keep` stays, even if it is empty.
    """
    if not text.strip() or (isinstance(path[-1], str) and get_value(keep, path) is not None):
        return text
    there = _find_member(parse_nodes(text), path)
    return _remove_with_parents(text, path, keep) if there is not None and ours(there.node.value) else text


def restore_value(text: str, path: Sequence[str], known: str) -> str:
    """Return a text with the value at the end of a path as another text has it, word for word."""
    old, new = _find_member(parse_nodes(known), path), _find_member(parse_nodes(text), path)
    assert old is not None
    if new is None:
        return set_value(text, path, old.node.value)
    return _replace_node(text, new.node, known[old.node.start : old.node.end])


def _remove_with_parents(text: str, path: Sequence[str | int], keep: Any) -> str:
    """Remove what is at a path, then what is around it and left empty, as far as nobody wants to keep it."""
    whole, above = parse_nodes(text), path[:-1]
    holder = _find_member(whole, above).node if above else whole  # type: ignore[union-attr]  # it was found before
    gone = _get_member(holder, path[-1])
    assert gone is not None
    text = _remove_member(text, holder, gone)
    if above and len(holder.members) == 1 and get_value(keep, above) is None:
        return _remove_with_parents(text, above, keep)
    return text


def _find_member(whole: JsonNode, path: Sequence[str | int]) -> JsonMember | None:
    found, holder = None, whole
    for name in path:
        found = _get_member(holder, name)
        if found is None:
            return None
        holder = found.node
    return found


def _get_member(holder: JsonNode, name: str | int) -> JsonMember | None:
    if isinstance(name, int):
        return holder.members[name] if isinstance(holder.value, list) and name < len(holder.members) else None
    return next((one for one in holder.members if one.key == name), None)


def get_value(value: Any, path: Sequence[str | int]) -> Any:
    """Return what stands at the end of a path, or nothing."""
    for name in path:
        if isinstance(name, int):
            value = value[name] if isinstance(value, list) and name < len(value) else None
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


# --- reading ----------------------------------------------------------------------------------------------------------


def _skip_trivia(text: str, at: int) -> int:
    """Return where the next thing is, after spaces and comments."""
    match = TRIVIA_PATTERN.match(text, at)
    assert match is not None
    return match.end()


def _syntax_error(text: str, at: int) -> InvalidInput:
    return InvalidInput(f"it is not valid JSON (line {text.count(chr(10), 0, at) + 1})")


def _parse_value(text: str, at: int, depth: int) -> JsonNode:
    first = text[at : at + 1]
    if depth > MAX_DEPTH:
        raise InvalidInput("it is nested too deeply")
    if first in ("{", "["):
        return _parse_container(text, at, depth)
    if first == '"':
        value, end = _parse_string(text, at)
        return JsonNode(at, end, value)
    match = SCALAR_PATTERN.match(text, at)
    if match is None:
        raise _syntax_error(text, at)
    return JsonNode(at, match.end(), json.loads(match[0]))


def _parse_string(text: str, at: int) -> tuple[str, int]:
    try:
        value, end = _STRING_DECODER.raw_decode(text, at)
    except ValueError:
        raise _syntax_error(text, at) from None
    return str(value), end


def _parse_container(text: str, start: int, depth: int) -> JsonNode:
    """Read an object or a list."""
    is_object = text[start] == "{"
    closing = "}" if is_object else "]"
    found = JsonNode(start, start, {} if is_object else [])
    at = _skip_trivia(text, start + 1)
    while text[at : at + 1] != closing:
        begin, key = at, None
        if found.members and found.members[-1].comma is None:
            raise _syntax_error(text, at)
        if is_object:
            if text[at : at + 1] != '"':
                raise _syntax_error(text, at)
            key, at = _parse_string(text, at)
            if key in found.value:
                raise InvalidInput(f"it has {key!r} twice")
            at = _skip_trivia(text, at)
            if text[at : at + 1] != ":":
                raise _syntax_error(text, at)
            at = _skip_trivia(text, at + 1)
        part = _parse_value(text, at, depth + 1)
        member = JsonMember(begin, key, part)
        at = _skip_trivia(text, part.end)
        if text[at : at + 1] == ",":
            member.comma = at
            at = _skip_trivia(text, at + 1)
        found.members.append(member)
        if key is None:
            found.value.append(part.value)
        else:
            found.value[key] = part.value
    found.end = at + 1
    return found


# --- writing ----------------------------------------------------------------------------------------------------------


def _replace_node(text: str, part: JsonNode, written: str) -> str:
    return text[: part.start] + written + text[part.end :]


def _insert_member(text: str, holder: JsonNode, key: str | int, value: Any) -> str:
    """Put a member at the end of an object or a list, written as its neighbours are."""
    named = f"{json.dumps(key)}: " if isinstance(key, str) else ""
    close = holder.end - 1
    around = _line_indent(text, holder.start)
    if not holder.members:
        step = _detect_indent(text)
        written = f"\n{around}{step}{named}{_dump_indented(value, around + step, step)}\n{around}"
        return (
            text[: holder.start + 1]
            + text[holder.start + 1 : close].rstrip()
            + _match_line_endings(text, written)
            + text[close:]
        )
    last = holder.members[-1]
    gap = text[_whitespace_start(text, holder, last) : last.start]
    tail = len(text[:close].rstrip())  # after a comment, if one is there
    comment = text[(last.node.end if last.comma is None else last.comma + 1) : tail].strip()
    if "\n" in gap or comment:
        margin = _line_indent(text, last.start)
        step = (
            margin[len(around) :] if margin.startswith(around) and len(margin) > len(around) else _detect_indent(text)
        )
        gap = f"\n{margin}" if "\n" in gap else f"\n{around}{step}"
        written = gap + named + _dump_indented(value, gap.rpartition("\n")[2], step)
    else:
        written = (gap or " ") + named + json.dumps(value, ensure_ascii=False)
    written = _match_line_endings(text, written)
    if last.comma is None:
        return text[: last.node.end] + "," + text[last.node.end : tail] + written + text[tail:]
    return text[:tail] + written + "," + text[tail:]


def _whitespace_start(text: str, holder: JsonNode, member: JsonMember) -> int:
    """Return where the space before a member begins."""
    at = member.start
    while at > holder.start + 1 and text[at - 1] in " \t\r\n":
        at -= 1
    return at


def _remove_member(text: str, holder: JsonNode, member: JsonMember) -> str:
    start = _whitespace_start(text, holder, member)
    at = holder.members.index(member)
    if member.comma is not None:
        left = text[:start] + text[member.comma + 1 :]
    else:
        before = holder.members[at - 1].comma if at else None
        left = text[:start] + text[member.node.end :]
        if before is not None:
            left = left[:before] + left[before + 1 :]
    if len(holder.members) == 1:
        close = left.index(text[holder.end - 1], start)
        if not left[holder.start + 1 : close].strip():
            left = left[: holder.start + 1] + left[close:]
    return left


def _line_indent(text: str, at: int) -> str:
    """Return the space at the beginning of the line of a place."""
    match = INDENT_PATTERN.match(text, text.rfind("\n", 0, at) + 1)
    assert match is not None
    return match[0]


def _match_line_endings(text: str, written: str) -> str:
    """Return what we write with lines that end as those around it."""
    return written.replace("\n", "\r\n") if "\r\n" in text else written


def _detect_indent(text: str) -> str:
    """Return by how much a file is indented."""
    match = re.search(r"\n([ \t]+)\S", text)
    return match[1] if match else "  "


def _dump_indented(value: Any, margin: str, step: str = "") -> str:
    written = json.dumps(value, ensure_ascii=False, indent=step or "  ")
    return written.replace("\n", "\n" + margin)
