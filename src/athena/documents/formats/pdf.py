"""Read PDF with pypdfium2: the lines of each page, with headings from the outline or the size of the letters."""

from __future__ import annotations

import re
from collections import Counter
from ctypes import c_double
from typing import Any, NamedTuple

from .blocks import MAX_TITLE_CHARS, Blocks, Refused

MAX_PAGES = 10_000
MAX_OUTLINE_ENTRIES = 5_000
MAX_OUTLINE_DEPTH = 8
HEADING_SIZE_FACTOR = 1.15  # that the letters of a heading are larger than those of the text
MAX_HEADING_WORDS = 14
FULL_LINE_SHARE = 0.75  # of the longest line, from which on a paragraph goes on in the next line
MIN_REPEATED_PAGES = 3  # on which a line at an edge is a running title and no text
HYPHEN_PATTERN = re.compile("[\ufffe\x02\xad]")


class Line(NamedTuple):
    text: str
    size: float


def read_pdf(data: bytes, blocks: Blocks) -> None:
    import pypdfium2  # inside the jail alone: it is native code

    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        is_locked = "assword" in str(error)
        raise Refused("it needs a password" if is_locked else "a broken PDF") from None
    if len(document) > MAX_PAGES:
        raise Refused(f"it has more than {MAX_PAGES:,} pages")
    pages = [_read_lines(document, number) for number in range(len(document))]
    if not any(pages):
        raise Refused("it has no text; perhaps its pages are pictures")
    running = _find_running_lines(pages)
    outline = _read_outline(document)
    levels = {} if outline else _rank_heading_sizes(pages)
    for number, lines in enumerate(pages):
        blocks.add_page(number + 1)
        _add_page(
            [line for line in lines if _make_key(line.text) not in running], outline.get(number, {}), levels, blocks
        )


def _read_lines(document: Any, number: int) -> list[Line]:
    """Return the lines of a page; a page that is broken has none."""
    import pypdfium2
    import pypdfium2.raw as pdfium

    try:
        page = document[number]
        text_page = page.get_textpage()
    except pypdfium2.PdfiumError:
        return []
    text = text_page.get_text_range()
    lines: list[Line] = []
    position = 0
    # Characters outside of the first plane are two for pdfium.
    for raw in text.split("\r\n"):
        first = position + len(raw) - len(raw.lstrip())
        size = _get_letter_height(pdfium, text_page.raw, first)
        if raw.strip():
            lines.append(Line(raw.strip(), size))
        position += len(raw.encode("utf-16-le", "surrogatepass")) // 2 + 2
    text_page.close()
    page.close()
    return lines


def _get_letter_height(pdfium: Any, text_page: Any, index: int) -> float:
    """Return the size of a letter as it is shown: of its font, times that of the matrix; 0 if unknown."""
    box = [c_double() for _ in range(4)]
    size = float(pdfium.FPDFText_GetFontSize(text_page, index))
    if size > 1.5:
        return round(size, 1)
    if not pdfium.FPDFText_GetCharBox(text_page, index, *box):
        return 0.0
    return round(box[3].value - box[2].value, 1)


def _read_outline(document: Any) -> dict[int, dict[str, tuple[int, str]]]:
    """Return the bookmarks of each page by the key of their title."""
    outline: dict[int, dict[str, tuple[int, str]]] = {}
    try:
        for count, bookmark in enumerate(document.get_toc(max_depth=MAX_OUTLINE_DEPTH)):
            if count >= MAX_OUTLINE_ENTRIES:
                break
            destination = bookmark.get_dest()
            page = destination.get_index() if destination is not None else None
            title = bookmark.get_title().strip()[:MAX_TITLE_CHARS]
            if page is not None and title:
                outline.setdefault(page, {})[_make_key(title)] = (bookmark.level + 1, title)
    except Exception:  # noqa: BLE001  # a broken outline; the text is still there
        return {}
    return outline


def _rank_heading_sizes(pages: list[list[Line]]) -> dict[float, int]:
    """Return the levels of the letter sizes that only headings have."""
    chars: Counter[float] = Counter()
    for lines in pages:
        for line in lines:
            chars[line.size] += len(line.text)
    body = chars.most_common(1)[0][0]
    larger = sorted((size for size in chars if body and size >= body * HEADING_SIZE_FACTOR), reverse=True)
    return {size: min(level, 6) for level, size in enumerate(larger, 1)}


def _find_running_lines(pages: list[list[Line]]) -> set[str]:
    """Return the keys of lines that begin or end most pages: running titles and page numbers."""
    edges = Counter(key for lines in pages for key in {_make_key(line.text) for line in (*lines[:2], *lines[-2:])})
    least = max(MIN_REPEATED_PAGES, len(pages) // 2 + 1)
    return {key for key, count in edges.items() if count >= least}


def _make_key(text: str) -> str:
    """Return a line without what differs from page to page."""
    return re.sub(r"[\W\d]+", " ", text).strip().casefold() or "#"


def _add_page(
    lines: list[Line], bookmarks: dict[str, tuple[int, str]], levels: dict[float, int], blocks: Blocks
) -> None:
    longest = max((len(line.text) for line in lines), default=0)
    unseen = {key: value for key, value in bookmarks.items() if all(_make_key(line.text) != key for line in lines)}
    for level, title in unseen.values():
        blocks.add_heading(level, title)
    paragraph = ""
    for line in lines:
        level, title = bookmarks.get(_make_key(line.text), (0, ""))
        if not level and line.size in levels and len(line.text.split()) <= MAX_HEADING_WORDS:
            level, title = levels[line.size], line.text
        if level:
            blocks.add_text(paragraph)
            paragraph = ""
            blocks.add_heading(level, title)
            continue
        text = line.text
        if HYPHEN_PATTERN.search(paragraph[-1:]):
            paragraph = paragraph[:-1] + text
        else:
            paragraph = f"{paragraph} {text}" if paragraph else text
        if len(text) < longest * FULL_LINE_SHARE:
            blocks.add_text(HYPHEN_PATTERN.sub("", paragraph))
            paragraph = ""
    blocks.add_text(HYPHEN_PATTERN.sub("", paragraph))
