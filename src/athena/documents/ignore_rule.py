"""Translate a line of `.gitignore` into a regular expression whose cost grows slowly with the path.

The files of a repository may be hostile, and a regular expression that backtracks holds up the whole server. So what
stands between two wildcards is matched at its first place and for good, in an atomic group: for wildcards the first
place is as good as any later one. Only the last part, which must reach the end, is tried at several places.
"""

import re
from typing import NamedTuple

MAX_RULE_CHARS = 1_000
STAR = None  # in the parts of a segment: any characters
POSIX_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "lower": "a-z",
    "space": r"\s",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}


class IgnoreRule(NamedTuple):
    regex: re.Pattern[str]  # of the whole path, relative to the folder of the rule
    ignores: bool  # else what an earlier rule ignores is not ignored
    is_for_folders: bool


def compile_rule(line: str) -> IgnoreRule | None:
    """Return the rule of a line; None if it is empty, a comment, too long or no rule that git understands."""
    line = _strip_end(line)
    if not line or line.startswith("#") or len(line) > MAX_RULE_CHARS:
        return None
    ignores = not line.startswith("!")
    pattern = line.removeprefix("!")
    is_for_folders = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    if "/" not in pattern:
        pattern = "**/" + pattern
    try:
        source = _translate_path(pattern.removeprefix("/").split("/"))
    except ValueError:
        return None
    return IgnoreRule(re.compile(source, re.DOTALL), ignores, is_for_folders) if source else None


def _strip_end(line: str) -> str:
    """Return a line without the spaces at its end, unless a backslash stands before them."""
    stripped = line.rstrip(" ")
    backslashes = len(stripped) - len(stripped.rstrip("\\"))
    return stripped + " " if backslashes % 2 and len(stripped) < len(line) else stripped


def _translate_path(segments: list[str]) -> str:
    """Return the expression for a whole path; two or more `*` alone stand for any number of folders."""
    parts: list[list[str]] = [[]]  # what stands between two `**`
    for segment in segments[:-1]:
        if len(segment) > 1 and not segment.strip("*"):
            parts.append([])
        else:
            parts[-1].append(f"(?>{_translate_segment(segment)}/)")
    is_everything_below = len(segments[-1]) > 1 and not segments[-1].strip("*")
    parts[-1].append(".+" if is_everything_below else f"(?>{_translate_segment(segments[-1])})")
    first, *others = ("".join(part) for part in parts)
    if not others:
        return first
    middle = "".join(f"(?>(?:[^/]+/)*?{part})" for part in others[:-1] if part)
    return f"{first}{middle}(?:[^/]+/)*?{others[-1]}"


def _translate_segment(segment: str) -> str:
    """Return the expression for one name of a path; at its end stands a slash or nothing."""
    chunks = [""]  # what stands between two `*`
    for part in _split_segment(segment):
        if part is not STAR:
            chunks[-1] += part
        elif len(chunks) == 1 or chunks[-1]:
            chunks.append("")
    first, *others = chunks
    if not others:
        return first
    middle = "".join(f"(?>[^/]*?{chunk})" for chunk in others[:-1])
    # the last one is sought from the end: the name ends right after it
    return f"{first}{middle}[^/]*{others[-1]}(?=/|$)"


def _split_segment(segment: str) -> list[str | None]:
    """Return the parts of a segment as expressions, and STAR for each `*`."""
    parts: list[str | None] = []
    position = 0
    while position < len(segment):
        char = segment[position]
        position += 1
        if char == "*":
            parts.append(STAR)
        elif char == "?":
            parts.append("[^/]")
        elif char == "[":
            source, position = _translate_class(segment, position)
            parts.append(source)
        else:
            if char == "\\":
                if position == len(segment):
                    raise ValueError("nothing follows the backslash")
                char = segment[position]
                position += 1
            parts.append(re.escape(char))
    return parts


def _translate_class(segment: str, position: int) -> tuple[str, int]:
    """Return the expression for a class such as `[a-z]`, which begins before a position, and where it ends."""
    is_negated = segment[position : position + 1] in ("!", "^")
    position += is_negated
    items: list[str] = []
    start = position
    while position < len(segment) and (segment[position] != "]" or position == start):
        match = re.compile(r"\[:(\w+):\]").match(segment, position)
        if match is not None:
            items.append(POSIX_CLASSES.get(match[1], ""))
            position = match.end()
            continue
        low, position = _read_class_char(segment, position)
        high = low
        if segment[position : position + 1] == "-" and segment[position + 1 : position + 2] not in ("]", ""):
            high, position = _read_class_char(segment, position + 1)
        if low <= high:
            items.append(f"{re.escape(low)}-{re.escape(high)}")
    if position >= len(segment):
        raise ValueError("the class has no end")
    content = "".join(items)
    if not content:
        return ("[^/]" if is_negated else "(?!)"), position + 1
    return f"(?!/)[{'^' if is_negated else ''}{content}]", position + 1


def _read_class_char(segment: str, position: int) -> tuple[str, int]:
    if segment[position] == "\\":
        position += 1
    if position >= len(segment):
        raise ValueError("the class has no end")
    return segment[position], position + 1
