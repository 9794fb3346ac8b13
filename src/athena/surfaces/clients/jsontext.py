"""Changing a JSON file of somebody else's: only our own words go in and out, every other byte stays.

Comments and commas at the end, which some clients allow, are read over and kept.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from athena.errors import InvalidInput

SPACE = re.compile(r"[ \t]*")
FILLER = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
DEEPEST = 100
_STRINGS = json.JSONDecoder()


@dataclass
class Part:
    """A value in a text: where it stands, and where those inside of it do."""

    start: int
    end: int
    value: Any
    parts: list["Member"] = field(default_factory=list)


@dataclass
class Member:
    """A part of an object or a list, from its key on, and where the comma after it stands."""

    start: int
    key: str | None
    part: Part
    comma: int | None = None


def read(text: str) -> Part:
    """Find the parts of a text; one that is no JSON object is refused."""
    found = _value(text, _over(text, 0), 0)
    if (end := _over(text, found.end)) != len(text):
        raise _broken(text, end)
    if not isinstance(found.value, dict):
        raise InvalidInput("it holds no JSON object")
    return found


def parse(text: str) -> Any:
    """Return what a text says."""
    return read(text).value


def put(text: str, path: Sequence[str], value: Any, ours: Callable[[Any], bool] | None = None) -> str:
    """Return a text with a member at the end of a path, in the place of the one that is there.

    With `ours` the path leads to a list, which gets the value in the place of its element that is ours.
    """
    if not text.strip():
        text = "{}\n"
    holder = read(text)
    way = list(path) if ours else list(path[:-1])
    for at, name in enumerate(way):
        inside = [one for one in holder.parts if one.key == name]
        if not inside:
            value = [value] if ours else value
            for missing in reversed(path[at + 1 :]):
                value = {missing: value}
            return _insert(text, holder, name, value)
        holder = inside[-1].part
        wanted = list if ours and at + 1 == len(path) else dict
        if not isinstance(holder.value, wanted):
            raise InvalidInput(f"{'.'.join(path[: at + 1])} is not {'a list' if wanted is list else 'an object'}")
    there = [one for one in holder.parts if (ours(one.part.value) if ours else one.key == path[-1])]
    if not there:
        return _insert(text, holder, None if ours else path[-1], value)
    if there[0].part.value == value and len(there) == 1:
        return text
    one = there[0]
    return text[: one.part.start] + _dump(value, _margin(text, one.start)) + text[one.part.end :]


def take(text: str, path: Sequence[str], ours: Callable[[Any], bool], keep: Any = None) -> str:
    """Return a text without what is ours at the end of a path, and without what held nothing else.

    At the end of the path stands a value that is ours, or a list with elements that are. What is
    in `keep` stays, even if it is empty.
    """
    if not text.strip():
        return text
    holders = [read(text)]
    for name in path:
        inside = [one for one in holders[-1].parts if one.key == name]
        if not inside:
            return text
        holders.append(inside[-1].part)
    last = holders[-1]
    if isinstance(last.value, list):
        gone = [one for one in last.parts if ours(one.part.value)]
        if not gone:
            return text
        text = _remove(text, last, gone[0])
        if len(gone) > 1:
            return take(text, path, ours, keep)
        left = len(last.parts) - 1
    else:
        if not ours(last.value):
            return text
        left = 0
    return text if left or lookup(keep, path) is not None else _prune(text, path, keep)


def _prune(text: str, path: Sequence[str], keep: Any) -> str:
    """Remove the member at a path, then those around it that are left empty, as far as nobody wants to keep them."""
    holders = [read(text)]
    for name in path[:-1]:
        holders.append(next(one.part for one in holders[-1].parts if one.key == name))
    gone = [one for one in holders[-1].parts if one.key == path[-1]]
    text = _remove(text, holders[-1], gone[-1])
    above = path[:-1]
    if above and len(holders[-1].parts) == 1 and lookup(keep, above) is None:
        return _prune(text, above, keep)
    return text


def lookup(value: Any, path: Sequence[str]) -> Any:
    """Return what stands at the end of a path, or nothing."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


# --- reading ----------------------------------------------------------------------------------------------------------


def _over(text: str, at: int) -> int:
    """Return where the next thing is, after spaces and comments."""
    match = FILLER.match(text, at)
    assert match is not None
    return match.end()


def _broken(text: str, at: int) -> InvalidInput:
    return InvalidInput(f"it is not valid JSON (line {text.count(chr(10), 0, at) + 1})")


def _value(text: str, at: int, depth: int) -> Part:
    first = text[at : at + 1]
    if depth > DEEPEST:
        raise InvalidInput("it is nested too deeply")
    if first in ("{", "["):
        return _inside(text, at, depth)
    if first == '"':
        value, end = _string(text, at)
        return Part(at, end, value)
    match = SCALAR.match(text, at)
    if match is None:
        raise _broken(text, at)
    return Part(at, match.end(), json.loads(match[0]))


def _string(text: str, at: int) -> tuple[str, int]:
    try:
        value, end = _STRINGS.raw_decode(text, at)
    except ValueError:
        raise _broken(text, at) from None
    return str(value), end


def _inside(text: str, start: int, depth: int) -> Part:
    """Read an object or a list."""
    is_object = text[start] == "{"
    closing = "}" if is_object else "]"
    found = Part(start, start, {} if is_object else [])
    at = _over(text, start + 1)
    while text[at : at + 1] != closing:
        begin, key = at, None
        if found.parts and found.parts[-1].comma is None:
            raise _broken(text, at)
        if is_object:
            if text[at : at + 1] != '"':
                raise _broken(text, at)
            key, at = _string(text, at)
            if key in found.value:
                raise InvalidInput(f"it has {key!r} twice")
            at = _over(text, at)
            if text[at : at + 1] != ":":
                raise _broken(text, at)
            at = _over(text, at + 1)
        part = _value(text, at, depth + 1)
        member = Member(begin, key, part)
        at = _over(text, part.end)
        if text[at : at + 1] == ",":
            member.comma = at
            at = _over(text, at + 1)
        found.parts.append(member)
        if key is None:
            found.value.append(part.value)
        else:
            found.value[key] = part.value
    found.end = at + 1
    return found


# --- writing ----------------------------------------------------------------------------------------------------------


def _insert(text: str, holder: Part, key: str | None, value: Any) -> str:
    """Put a member at the end of an object or a list, written as its neighbours are."""
    named = "" if key is None else f"{json.dumps(key)}: "
    close = holder.end - 1
    around = _margin(text, holder.start)
    if not holder.parts:
        step = _step(text)
        written = f"\n{around}{step}{named}{_dump(value, around + step, step)}\n{around}"
        return text[: holder.start + 1] + text[holder.start + 1 : close].rstrip() + _lines(text, written) + text[close:]
    last = holder.parts[-1]
    gap = text[_after_filler(text, holder, last) : last.start]
    tail = len(text[:close].rstrip())  # after a comment, if one is there
    comment = text[(last.part.end if last.comma is None else last.comma + 1) : tail].strip()
    if "\n" in gap or comment:
        margin = _margin(text, last.start)
        step = margin[len(around) :] if margin.startswith(around) and len(margin) > len(around) else _step(text)
        gap = f"\n{margin}" if "\n" in gap else f"\n{around}{step}"
        written = gap + named + _dump(value, gap.rpartition("\n")[2], step)
    else:
        written = (gap or " ") + named + json.dumps(value, ensure_ascii=False)
    written = _lines(text, written)
    if last.comma is None:
        return text[: last.part.end] + "," + text[last.part.end : tail] + written + text[tail:]
    return text[:tail] + written + "," + text[tail:]


def _after_filler(text: str, holder: Part, member: Member) -> int:
    """Return where the space before a member begins."""
    at = member.start
    while at > holder.start + 1 and text[at - 1] in " \t\r\n":
        at -= 1
    return at


def _remove(text: str, holder: Part, member: Member) -> str:
    start = _after_filler(text, holder, member)
    at = holder.parts.index(member)
    if member.comma is not None:
        left = text[:start] + text[member.comma + 1 :]
    else:
        before = holder.parts[at - 1].comma if at else None
        left = text[:start] + text[member.part.end :]
        if before is not None:
            left = left[:before] + left[before + 1 :]
    if len(holder.parts) == 1:
        close = left.index(text[holder.end - 1], start)
        if not left[holder.start + 1 : close].strip():
            left = left[: holder.start + 1] + left[close:]
    return left


def _margin(text: str, at: int) -> str:
    """Return the space at the beginning of the line of a place."""
    match = SPACE.match(text, text.rfind("\n", 0, at) + 1)
    assert match is not None
    return match[0]


def _lines(text: str, written: str) -> str:
    """Return what we write with lines that end as those around it."""
    return written.replace("\n", "\r\n") if "\r\n" in text else written


def _step(text: str) -> str:
    """Return by how much a file is indented."""
    match = re.search(r"\n([ \t]+)\S", text)
    return match[1] if match else "  "


def _dump(value: Any, margin: str, step: str = "") -> str:
    written = json.dumps(value, ensure_ascii=False, indent=step or "  ")
    return written.replace("\n", "\n" + margin)
