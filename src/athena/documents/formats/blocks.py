"""What a reader of a format produces: headings, texts, code and pages, in order and within a limit."""

from __future__ import annotations

import re

MAX_FILE_BYTES = 200_000_000
MAX_TEXT_CHARS = 20_000_000  # of one document
MAX_BLOCKS = 300_000
MAX_TITLE_CHARS = 200
HEADING, TEXT, CODE, PAGE = "heading", "text", "code", "page"
LINE_END_PATTERN = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")

Block = list[str | int]


class Refused(Exception):
    """A document cannot be read; the message says why."""


class Blocks:
    """The blocks of one document: `[heading, level, title]`, `[text, text]`, `[code, text]`, `[page, number]`."""

    def __init__(self) -> None:
        self.items: list[Block] = []
        self.chars = 0

    def add_heading(self, level: int, title: str) -> None:
        title = " ".join(title.split())
        if title:
            self._add([HEADING, max(1, min(level, 9)), self._count(title)[:MAX_TITLE_CHARS]])

    def add_text(self, text: str) -> None:
        if text.strip():
            self._add([TEXT, self._count(normalize_lines(text).strip("\n").rstrip())])

    def add_code(self, text: str) -> None:
        if text.strip():
            self._add([CODE, self._count(normalize_lines(text).strip("\n").rstrip())])

    def add_page(self, number: int) -> None:
        self._add([PAGE, number])

    def _add(self, block: Block) -> None:
        if len(self.items) >= MAX_BLOCKS:
            raise Refused(f"it has more than {MAX_BLOCKS:,} parts")
        self.items.append(block)

    def _count(self, text: str) -> str:
        self.chars += len(text)
        if self.chars > MAX_TEXT_CHARS:
            raise Refused(f"it has more than {MAX_TEXT_CHARS // 1_000_000} million characters of text")
        return text


def normalize_lines(text: str) -> str:
    """Return a text with `\\n` as its only line end."""
    return LINE_END_PATTERN.sub("\n", text)


def decode_text(data: bytes) -> str:
    """Decode UTF-8, or UTF-16 with its mark; raise Refused for everything else."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    elif b"\0" in data[:8_192]:
        raise Refused("not text")
    else:
        encoding = "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        raise Refused("not UTF-8 text") from None
