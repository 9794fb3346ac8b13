"""Read plain text, Markdown, source code and HTML."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from .blocks import Blocks, Refused, decode_text, normalize_lines

ATX_PATTERN = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*")
UNDERLINE_PATTERN = re.compile(r"(=+|-+|~+|\^+)[ \t]*")
UNDERLINE_LEVELS = {"=": 1, "-": 2, "~": 3, "^": 4}
FENCE_PATTERN = re.compile(r" {0,3}(`{3,}|~{3,})")
FRONT_MATTER_PATTERN = re.compile(r"---[ \t]*\n(.*?)\n---[ \t]*(?:\n|\Z)", re.DOTALL)
DEFINITION_PATTERN = re.compile(
    r"""(?P<indent>[ \t]*)
        (?:(?:export|default|public|private|protected|internal|static|final|abstract|sealed|async|pub(?:\([a-z]+\))?
            |unsafe|extern|inline|override|open|data|declare|virtual)[ \t]+)*
        (?P<title>(?:class|def|func|function|fn|struct|impl|trait|interface|enum|module|namespace|object|record|protocol
            |procedure|sub|package)[ \t*&]+[\w:.<>$]+)""",
    re.VERBOSE,
)
MAX_HEADING_LINE_CHARS = 200
TAB_WIDTH = 4
HIDDEN_TAGS = {"script", "style", "noscript", "template", "svg", "nav", "iframe", "object", "select", "button", "head"}
BLOCK_TAGS = frozenset(
    """address article aside blockquote body br dd details dialog div dl dt fieldset figcaption figure footer form h1 h2
    h3 h4 h5 h6 header hgroup hr html li main ol p pre section summary table tbody td tfoot th thead title tr
    ul""".split()  # noqa: SIM905
)
VOID_TAGS = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
MAX_TAG_DEPTH = 500


def read_text(data: bytes, blocks: Blocks) -> None:
    add_paragraphs(decode_text(data), blocks)


def add_paragraphs(text: str, blocks: Blocks) -> None:
    """Add the paragraphs of a plain text; a line that is underlined as in reStructuredText is a heading."""
    for paragraph in re.split(r"\n[ \t]*\n", normalize_lines(text)):
        lines = paragraph.strip("\n").split("\n")
        level = _find_underline_level(lines[0], lines[1]) if len(lines) > 1 else 0
        if level:
            blocks.add_heading(level, lines[0])
            lines = lines[2:]
        blocks.add_text("\n".join(lines))


def _find_underline_level(title: str, underline: str) -> int:
    """Return the level of a heading, or 0 if the second line does not underline the first."""
    match = UNDERLINE_PATTERN.fullmatch(underline)
    title = title.strip()
    is_heading = match and len(match.group(1)) >= max(3, len(title) - 2) and 0 < len(title) <= MAX_HEADING_LINE_CHARS
    return UNDERLINE_LEVELS[underline[0]] if is_heading and re.search(r"\w", title) else 0


def read_markdown(data: bytes, blocks: Blocks) -> None:
    add_markdown(decode_text(data), blocks)


def add_markdown(text: str, blocks: Blocks) -> None:
    """Add headings, fenced code and paragraphs; their Markdown stays as it is."""
    text = normalize_lines(text)
    if match := FRONT_MATTER_PATTERN.match(text):
        blocks.add_text(match.group(1))
        text = text[match.end() :]
    paragraph: list[str] = []
    fence = ""

    def end_paragraph() -> None:
        (blocks.add_code if fence else blocks.add_text)("\n".join(paragraph))
        paragraph.clear()

    for line in text.split("\n"):
        mark = FENCE_PATTERN.match(line)
        if fence:
            paragraph.append(line)
            if mark and mark.group(1).startswith(fence) and not line[mark.end() :].strip():
                end_paragraph()
                fence = ""
        elif mark:
            end_paragraph()
            paragraph.append(line)
            fence = mark.group(1)
        elif not line.strip():
            end_paragraph()
        elif heading := ATX_PATTERN.fullmatch(line):
            end_paragraph()
            blocks.add_heading(len(heading.group(1)), heading.group(2) or "")
        elif len(paragraph) == 1 and (level := _find_underline_level(paragraph[0], line)) in (1, 2):
            blocks.add_heading(level, paragraph.pop())
        else:
            paragraph.append(line)
    end_paragraph()


def read_code(data: bytes, blocks: Blocks) -> None:
    """Add source code: definitions are headings, by their indentation; a definition's lines are one block."""
    lines: list[str] = []

    def end_block() -> None:
        blocks.add_code("\n".join(lines))
        lines.clear()

    for line in normalize_lines(decode_text(data)).split("\n"):
        match = DEFINITION_PATTERN.match(line) if len(line) < 1_000 else None
        if match:
            first_line = len(lines)
            while first_line and _is_introduction(lines[first_line - 1]):
                first_line -= 1
            introduction, lines[first_line:] = lines[first_line:], []
            end_block()
            indent = len(match.group("indent").expandtabs(TAB_WIDTH))
            blocks.add_heading(1 + indent // TAB_WIDTH, match.group("title").rstrip(":."))
            lines += introduction
        lines.append(line)
        if not line.strip() and len(lines) > 1:
            end_block()
    end_block()


def _is_introduction(line: str) -> bool:
    """Return whether a line belongs to the definition after it: a comment, a decorator, an attribute."""
    return line.strip().startswith(("#", "//", "/*", "*", "@", "--", '"""'))


def read_html(data: bytes, blocks: Blocks) -> None:
    add_html(_decode_html(data), blocks)


def _decode_html(data: bytes) -> str:
    """Decode a page by its mark, else by the character set that it names, else as UTF-8."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return decode_text(data)
    named = re.search(rb"<meta[^>]{0,200}charset=[\"']?([\w-]{1,40})|encoding=[\"']([\w-]{1,40})", data[:2_048])
    if named:
        name = (named.group(1) or named.group(2)).decode("ascii")
        try:
            return data.decode("windows-1252" if name.lower() in ("iso-8859-1", "latin1") else name, "replace")
        except (LookupError, ValueError):
            pass
    return decode_text(data)


def add_html(text: str, blocks: Blocks, level: int = 0) -> None:
    """Add what a page shows; headings are `level` deeper than they say."""
    reader = _PageReader(blocks, level)
    reader.feed(text)
    reader.close()
    reader.end_block()


class _PageReader(HTMLParser):
    def __init__(self, blocks: Blocks, level: int) -> None:
        super().__init__(convert_charrefs=True)
        self._blocks, self._level = blocks, level
        self._parts: list[str] = []
        self._open: list[str] = []
        self._hidden = 0  # how many of the open tags hide their content
        self._cells = -1  # cells of the open table row; -1 outside of one

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID_TAGS:
            if tag in BLOCK_TAGS and not self._hidden:
                self._parts.append("\n") if tag == "br" else self.end_block()
            return
        if len(self._open) >= MAX_TAG_DEPTH:
            raise Refused("its tags are nested too deep")
        if tag in ("td", "th") and self._cells >= 0:
            self._parts.append(" | " if self._cells else "")
            self._cells += 1
        elif tag in BLOCK_TAGS and not self._hidden and not (self._cells >= 0 and tag in ("p", "div")):
            self.end_block()
        if tag == "tr":
            self._cells = 0
        elif tag == "li" and not self._hidden:
            self._parts.append("- ")
        self._open.append(tag)
        self._hidden += tag in HIDDEN_TAGS

    def handle_endtag(self, tag: str) -> None:
        if tag not in self._open:
            return
        while self._open:
            last = self._open.pop()
            self._hidden -= last in HIDDEN_TAGS
            if last == tag:
                break
        if self._hidden:
            return
        if re.fullmatch("h[1-6]", tag):
            title, self._parts = "".join(self._parts), []
            self._blocks.add_heading(int(tag[1]) + self._level, title)
        elif tag in ("tr", "table"):
            self._cells = -1
            self.end_block()
        elif tag in BLOCK_TAGS and self._cells < 0:
            self.end_block(is_code=tag == "pre")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._parts.append(data if "pre" in self._open else re.sub(r"[ \t\r\n]+", " ", data))

    def end_block(self, *, is_code: bool = False) -> None:
        text, self._parts = "".join(self._parts), []
        if is_code:
            self._blocks.add_code(text)
        else:
            self._blocks.add_text("\n".join(line.strip() for line in text.split("\n")).strip())
