"""Standard output and error of a command: our own colours, and escapes for control characters of others' texts.

Without click, so that a command that a running server answers starts fast.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys

TYPE_CHECKING = False  # importing typing is too slow here
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

STYLE_MARK = f"\x1b{os.urandom(8).hex()}"  # begins our own colours: texts of others cannot know it
COLOUR_CODES = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}


class SafeStream(io.TextIOWrapper):
    """Standard output or error; on a terminal, all control characters but our own colours appear as escapes."""

    def __init__(self, stream: TextIO) -> None:
        encoding = "utf-8" if codecs.lookup(stream.encoding).name == "ascii" else stream.encoding
        super().__init__(stream.buffer, encoding, "backslashreplace", line_buffering=True)
        self.stream = stream

    def write(self, text: str) -> int:
        return super().write(self.escape(text))

    def escape(self, text: str) -> str:
        """Return a text as this stream shows it: without colours where it has none."""
        first, *styled = text.split(STYLE_MARK)
        if not self.isatty():
            return first + "".join(part.partition("m")[2] for part in styled)
        if is_colourless():
            return escape_text(first) + "".join(escape_text(part.partition("m")[2]) for part in styled)
        return "\x1b".join(map(escape_text, text.split(STYLE_MARK)))


def is_colourless() -> bool:
    """Return whether the user or the terminal wants no colours (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def is_plain_terminal(stream: TextIO) -> bool:
    """Return whether a stream takes lines only: it is no terminal, or one that cannot move its cursor."""
    return not stream.isatty() or os.environ.get("TERM") == "dumb"


@contextlib.contextmanager
def use_safe_streams() -> Iterator[None]:
    """Write standard output and error through `SafeStream`."""
    before = sys.stdout, sys.stderr
    if not all(isinstance(stream, io.TextIOWrapper) for stream in before):  # a program that replaced them
        yield
        return
    sys.stdout, sys.stderr = safe_streams = SafeStream(sys.stdout), SafeStream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in safe_streams:
            try:
                stream.detach()
            except OSError:  # the reader has gone; what is left must not fail when the process ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def style_text(text: str, colour: str | None, *, bold: bool = False) -> str:
    """Return a text of ours in a colour."""
    escape = STYLE_MARK if isinstance(sys.stdout, SafeStream) else "\x1b"
    codes = [COLOUR_CODES[colour]] if colour else []
    codes += [1] if bold else []
    return "".join(f"{escape}[{code}m" for code in codes) + f"{text}{escape}[0m"


def escape_text(text: str) -> str:
    """Return a text, control characters as escapes; line ends stay."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    from athena.core.text import escape_control_chars  # few texts have such characters

    return escape_control_chars(text)
