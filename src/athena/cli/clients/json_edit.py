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


def put(text: str, path: Sequence[str | int], value: Any) -> str:
    """Return a text with a value at the end of a path, in the place of the one that is there.

    A number is a place in a list; the one behind the last is at its end.
    """
    if not text.strip():
        text = "{}\n"
    holder = read(text)
    for at, name in enumerate(path[:-1]):
        inside = _member(holder, name)
        if inside is None:
            for missing in reversed(path[at + 1 :]):
                value = {missing: value}
            return _insert(text, holder, name, value)
        holder = inside.part
        wanted = list if isinstance(path[at + 1], int) else dict
        if not isinstance(holder.value, wanted):
            where = ".".join(str(name) for name in path[: at + 1])
            raise InvalidInput(f"{where} is not {'a list' if wanted is list else 'an object'}")
    there = _member(holder, path[-1])
    if there is None:
        return _insert(text, holder, path[-1], value)
    if there.part.value == value:
        return text
    if "\n" in text[there.part.start : there.part.end]:
        written = _lines(text, _dump(value, _margin(text, there.start), _step(text)))
    else:
        written = json.dumps(value, ensure_ascii=False)
    return _swap(text, there.part, written)


def take(text: str, path: Sequence[str | int], ours: Callable[[Any], bool], keep: Any = None) -> str:
    """Return a text without the value at the end of a path, if it is ours, and without what held nothing else.

    What is in `keep` stays, even if it is empty.
    """
    if not text.strip() or (isinstance(path[-1], str) and lookup(keep, path) is not None):
        return text
    there = _find(read(text), path)
    return _prune(text, path, keep) if there is not None and ours(there.part.value) else text


def restore(text: str, path: Sequence[str], known: str) -> str:
    """Return a text with the value at the end of a path as another text has it, word for word."""
    old, new = _find(read(known), path), _find(read(text), path)
    assert old is not None
    if new is None:
        return put(text, path, old.part.value)
    return _swap(text, new.part, known[old.part.start : old.part.end])


def _prune(text: str, path: Sequence[str | int], keep: Any) -> str:
    """Remove what is at a path, then what is around it and left empty, as far as nobody wants to keep it."""
    whole, above = read(text), path[:-1]
    holder = _find(whole, above).part if above else whole  # type: ignore[union-attr]  # it was found before
    gone = _member(holder, path[-1])
    assert gone is not None
    text = _remove(text, holder, gone)
    if above and len(holder.parts) == 1 and lookup(keep, above) is None:
        return _prune(text, above, keep)
    return text


def _find(whole: Part, path: Sequence[str | int]) -> Member | None:
    found, holder = None, whole
    for name in path:
        found = _member(holder, name)
        if found is None:
            return None
        holder = found.part
    return found


def _member(holder: Part, name: str | int) -> Member | None:
    if isinstance(name, int):
        return holder.parts[name] if isinstance(holder.value, list) and name < len(holder.parts) else None
    return next((one for one in holder.parts if one.key == name), None)


def lookup(value: Any, path: Sequence[str | int]) -> Any:
    """Return what stands at the end of a path, or nothing."""
    for name in path:
        if isinstance(name, int):
            value = value[name] if isinstance(value, list) and name < len(value) else None
        else:
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


def _swap(text: str, part: Part, written: str) -> str:
    return text[: part.start] + written + text[part.end :]


def _insert(text: str, holder: Part, key: str | int, value: Any) -> str:
    """Put a member at the end of an object or a list, written as its neighbours are."""
    named = f"{json.dumps(key)}: " if isinstance(key, str) else ""
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
