"""Edit a JSON text in place: set or remove one value, and keep every other byte.

Comments and trailing commas, which some clients allow, are accepted and kept.
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
    """A value in a text with its span, and the members of an object or a list."""

    start: int
    end: int
    value: Any
    members: list["JsonMember"] = field(default_factory=list)


@dataclass
class JsonMember:
    """A member of an object or a list: where it starts, with its key, and where the comma after it is."""

    start: int
    key: str | None
    node: JsonNode
    comma: int | None = None


def parse_nodes(text: str) -> JsonNode:
    """Parse a text into nodes with their spans; raise InvalidInput if it is not a JSON object."""
    root = _parse_value(text, _skip_trivia(text, 0), 0)
    if (end := _skip_trivia(text, root.end)) != len(text):
        raise _syntax_error(text, end)
    if not isinstance(root.value, dict):
        raise InvalidInput("it holds no JSON object")
    return root


def parse(text: str) -> Any:
    """Return the values of a JSON text."""
    return parse_nodes(text).value


def set_value(text: str, path: Sequence[str | int], value: Any) -> str:
    """Set the value at a path, and create missing objects on the way.

    A number in the path is an index of a list; the length of the list appends.
    """
    if not text.strip():
        text = "{}\n"
    holder = parse_nodes(text)
    for i, name in enumerate(path[:-1]):
        member = _get_member(holder, name)
        if member is None:
            for missing in reversed(path[i + 1 :]):
                value = {missing: value}
            return _insert_member(text, holder, name, value)
        holder = member.node
        container = list if isinstance(path[i + 1], int) else dict
        if not isinstance(holder.value, container):
            dotted = ".".join(str(name) for name in path[: i + 1])
            raise InvalidInput(f"{dotted} is not {'a list' if container is list else 'an object'}")
    existing = _get_member(holder, path[-1])
    if existing is None:
        return _insert_member(text, holder, path[-1], value)
    if existing.node.value == value:
        return text
    if "\n" in text[existing.node.start : existing.node.end]:
        indented = _dump_indented(value, _line_indent(text, existing.start), _detect_indent(text))
        new_text = _match_line_endings(text, indented)
    else:
        new_text = json.dumps(value, ensure_ascii=False)
    return _replace_node(text, existing.node, new_text)


def remove_value(text: str, path: Sequence[str | int], ours: Callable[[Any], bool], keep: Any = None) -> str:
    """Remove the value at a path if `ours` accepts it, and objects and lists that it leaves empty.

    What `keep` contains stays, even if it is empty.
    """
    if not text.strip() or (isinstance(path[-1], str) and get_value(keep, path) is not None):
        return text
    member = _find_member(parse_nodes(text), path)
    return _remove_with_parents(text, path, keep) if member is not None and ours(member.node.value) else text


def restore_value(text: str, path: Sequence[str], original: str) -> str:
    """Write the value at a path exactly as the original text has it."""
    old, new = _find_member(parse_nodes(original), path), _find_member(parse_nodes(text), path)
    assert old is not None
    if new is None:
        return set_value(text, path, old.node.value)
    return _replace_node(text, new.node, original[old.node.start : old.node.end])


def _remove_with_parents(text: str, path: Sequence[str | int], keep: Any) -> str:
    """Remove the value at a path, then the parents that it leaves empty and that `keep` does not contain."""
    root, parent_path = parse_nodes(text), path[:-1]
    holder = _find_member(root, parent_path).node if parent_path else root  # type: ignore[union-attr]  # it exists
    member = _get_member(holder, path[-1])
    assert member is not None
    text = _remove_member(text, holder, member)
    if parent_path and len(holder.members) == 1 and get_value(keep, parent_path) is None:
        return _remove_with_parents(text, parent_path, keep)
    return text


def _find_member(root: JsonNode, path: Sequence[str | int]) -> JsonMember | None:
    member, holder = None, root
    for name in path:
        member = _get_member(holder, name)
        if member is None:
            return None
        holder = member.node
    return member


def _get_member(holder: JsonNode, name: str | int) -> JsonMember | None:
    if isinstance(name, int):
        return holder.members[name] if isinstance(holder.value, list) and name < len(holder.members) else None
    return next((member for member in holder.members if member.key == name), None)


def get_value(value: Any, path: Sequence[str | int]) -> Any:
    """Return the value at a path, or None."""
    for name in path:
        if isinstance(name, int):
            value = value[name] if isinstance(value, list) and name < len(value) else None
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


# --- reading ----------------------------------------------------------------------------------------------------------


def _skip_trivia(text: str, at: int) -> int:
    """Return the offset after spaces and comments."""
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
    """Parse an object or a list."""
    is_object = text[start] == "{"
    closing = "}" if is_object else "]"
    node = JsonNode(start, start, {} if is_object else [])
    at = _skip_trivia(text, start + 1)
    while text[at : at + 1] != closing:
        begin, key = at, None
        if node.members and node.members[-1].comma is None:
            raise _syntax_error(text, at)
        if is_object:
            if text[at : at + 1] != '"':
                raise _syntax_error(text, at)
            key, at = _parse_string(text, at)
            if key in node.value:
                raise InvalidInput(f"it has {key!r} twice")
            at = _skip_trivia(text, at)
            if text[at : at + 1] != ":":
                raise _syntax_error(text, at)
            at = _skip_trivia(text, at + 1)
        child = _parse_value(text, at, depth + 1)
        member = JsonMember(begin, key, child)
        at = _skip_trivia(text, child.end)
        if text[at : at + 1] == ",":
            member.comma = at
            at = _skip_trivia(text, at + 1)
        node.members.append(member)
        if key is None:
            node.value.append(child.value)
        else:
            node.value[key] = child.value
    node.end = at + 1
    return node


# --- writing ----------------------------------------------------------------------------------------------------------


def _replace_node(text: str, node: JsonNode, new_text: str) -> str:
    return text[: node.start] + new_text + text[node.end :]


def _insert_member(text: str, holder: JsonNode, key: str | int, value: Any) -> str:
    """Append a member to an object or a list, formatted like its neighbours."""
    prefix = f"{json.dumps(key)}: " if isinstance(key, str) else ""
    close = holder.end - 1
    indent = _line_indent(text, holder.start)
    if not holder.members:
        unit = _detect_indent(text)
        new_text = f"\n{indent}{unit}{prefix}{_dump_indented(value, indent + unit, unit)}\n{indent}"
        return (
            text[: holder.start + 1]
            + text[holder.start + 1 : close].rstrip()
            + _match_line_endings(text, new_text)
            + text[close:]
        )
    last = holder.members[-1]
    gap = text[_whitespace_start(text, holder, last) : last.start]
    tail = len(text[:close].rstrip())  # after a comment, if one is there
    comment = text[(last.node.end if last.comma is None else last.comma + 1) : tail].strip()
    if "\n" in gap or comment:
        margin = _line_indent(text, last.start)
        unit = (
            margin[len(indent) :] if margin.startswith(indent) and len(margin) > len(indent) else _detect_indent(text)
        )
        gap = f"\n{margin}" if "\n" in gap else f"\n{indent}{unit}"
        new_text = gap + prefix + _dump_indented(value, gap.rpartition("\n")[2], unit)
    else:
        new_text = (gap or " ") + prefix + json.dumps(value, ensure_ascii=False)
    new_text = _match_line_endings(text, new_text)
    if last.comma is None:
        return text[: last.node.end] + "," + text[last.node.end : tail] + new_text + text[tail:]
    return text[:tail] + new_text + "," + text[tail:]


def _whitespace_start(text: str, holder: JsonNode, member: JsonMember) -> int:
    """Return the offset of the whitespace before a member."""
    at = member.start
    while at > holder.start + 1 and text[at - 1] in " \t\r\n":
        at -= 1
    return at


def _remove_member(text: str, holder: JsonNode, member: JsonMember) -> str:
    start = _whitespace_start(text, holder, member)
    index = holder.members.index(member)
    if member.comma is not None:
        result = text[:start] + text[member.comma + 1 :]
    else:
        previous_comma = holder.members[index - 1].comma if index else None
        result = text[:start] + text[member.node.end :]
        if previous_comma is not None:
            result = result[:previous_comma] + result[previous_comma + 1 :]
    if len(holder.members) == 1:
        close = result.index(text[holder.end - 1], start)
        if not result[holder.start + 1 : close].strip():
            result = result[: holder.start + 1] + result[close:]
    return result


def _line_indent(text: str, at: int) -> str:
    """Return the indentation of the line at an offset."""
    match = INDENT_PATTERN.match(text, text.rfind("\n", 0, at) + 1)
    assert match is not None
    return match[0]


def _match_line_endings(text: str, new_text: str) -> str:
    """Give new text the line endings of the file."""
    return new_text.replace("\n", "\r\n") if "\r\n" in text else new_text


def _detect_indent(text: str) -> str:
    """Return the unit of indentation of a file."""
    match = re.search(r"\n([ \t]+)\S", text)
    return match[1] if match else "  "


def _dump_indented(value: Any, margin: str, step: str = "") -> str:
    return json.dumps(value, ensure_ascii=False, indent=step or "  ").replace("\n", "\n" + margin)
