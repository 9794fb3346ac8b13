"""Read DOCX, PPTX, XLSX and EPUB: zip files of XML. No entry is ever written to a disk."""

from __future__ import annotations

import datetime
import io
import posixpath
import re
import zipfile
import zlib
from collections.abc import Iterator
from urllib.parse import unquote
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from .blocks import Blocks, Refused
from .markup import add_html
from .records import MAX_COLUMNS, add_rows

MAX_ENTRIES = 20_000
MAX_UNPACKED_BYTES = 100_000_000  # of all entries that are read
MAX_XML_DEPTH = 400
MAX_ROWS = 200_000
WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
SLIDES = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
SHEETS = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
LINKS = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
PACKAGE = "{http://www.idpf.org/2007/opf}"
BUILT_IN_DATE_FORMATS = {*range(14, 23), *range(45, 48)}
EPOCH = datetime.datetime(1899, 12, 30)  # day 0 of a spreadsheet


class Archive:
    """A zip file whose entries are read within a limit."""

    def __init__(self, data: bytes) -> None:
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
            self.names = [info.filename for info in self._zip.infolist()]
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, UnicodeDecodeError):
            raise Refused("a broken zip file") from None
        if len(self.names) > MAX_ENTRIES:
            raise Refused(f"a zip file with more than {MAX_ENTRIES:,} entries")
        self._bytes_left = MAX_UNPACKED_BYTES

    def read_entry(self, name: str) -> bytes:
        try:
            with self._zip.open(name) as stream:
                data = stream.read(self._bytes_left + 1)
        except KeyError:
            raise Refused(f"it lacks {name[:100]}") from None
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError, EOFError, OSError):
            raise Refused("a broken or encrypted zip file") from None
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise Refused(f"it unpacks to more than {MAX_UNPACKED_BYTES // 1_000_000} MB")
        return data

    def read_xml(self, name: str) -> Element:
        return parse_xml(self.read_entry(name))


def parse_xml(data: bytes) -> Element:
    """Parse XML; refuse a document type, with which entities are defined that grow without bound or name files."""
    parser = expat.ParserCreate(namespace_separator="}")
    builder = TreeBuilder()
    depth = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_XML_DEPTH:
            raise Refused("its XML is nested too deep")
        builder.start(_qualify(tag), {_qualify(name): value for name, value in attributes.items()})

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(_qualify(tag))

    def refuse(*_: object) -> None:
        raise Refused("its XML has a document type")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, builder.data
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
        return builder.close()
    except (expat.ExpatError, AssertionError, ValueError, LookupError):
        raise Refused("its XML is broken") from None


def _qualify(name: str) -> str:
    return "{" + name if "}" in name else name


def _read_links(archive: Archive, path: str) -> dict[str, str]:
    """Return where the links of a part lead, by their ids."""
    folder, name = posixpath.split(path)
    links_path = f"{folder}/_rels/{name}.rels"
    if links_path not in archive.names:
        return {}
    links = {link.get("Id", ""): link.get("Target", "") for link in archive.read_xml(links_path)}
    return {key: posixpath.normpath(posixpath.join("/", folder, target))[1:] for key, target in links.items()}


# --- DOCX -------------------------------------------------------------------------------------------------------------


def read_docx(data: bytes, blocks: Blocks) -> None:
    archive = Archive(data)
    levels, titles = _read_heading_styles(archive)
    body = archive.read_xml("word/document.xml").find(f"{WORD}body")
    used_styles = {style.get(f"{WORD}val", "") for style in body.iter(f"{WORD}pStyle")} if body is not None else set()
    if titles & used_styles:  # it is above all headings
        levels = {name: level + 1 for name, level in levels.items()} | dict.fromkeys(titles, 1)
    for part in body if body is not None else ():
        _add_word_part(part, levels, blocks)
    for name in ("word/footnotes.xml", "word/endnotes.xml"):
        if name in archive.names:
            for paragraph in archive.read_xml(name).iter(f"{WORD}p"):
                blocks.add_text(_join_word_text(paragraph))


def _read_heading_styles(archive: Archive) -> tuple[dict[str, int], set[str]]:
    """Return the levels of headings by style, and the styles of titles; ids depend on the language, names do not."""
    levels: dict[str, int] = {}
    titles: set[str] = set()
    if "word/styles.xml" not in archive.names:
        return levels, titles
    for style in archive.read_xml("word/styles.xml").iter(f"{WORD}style"):
        name = style.find(f"{WORD}name")
        text = (name.get(f"{WORD}val") or "").lower() if name is not None else ""
        if match := re.fullmatch(r"heading (\d)", text):
            levels[style.get(f"{WORD}styleId", "")] = int(match.group(1))
        elif text == "title":
            titles.add(style.get(f"{WORD}styleId", ""))
    return levels, titles


def _add_word_part(part: Element, levels: dict[str, int], blocks: Blocks) -> None:
    if part.tag == f"{WORD}tbl":
        for row in part.iter(f"{WORD}tr"):
            cells = [" ".join(map(_join_word_text, cell.iter(f"{WORD}p"))) for cell in row.findall(f"{WORD}tc")]
            blocks.add_text(" | ".join(cells))
    elif part.tag == f"{WORD}p":
        text = _join_word_text(part)
        style = part.find(f"{WORD}pPr/{WORD}pStyle")
        outline = part.find(f"{WORD}pPr/{WORD}outlineLvl")
        level = levels.get(style.get(f"{WORD}val", ""), 0) if style is not None else 0
        if not level and outline is not None and outline.get(f"{WORD}val", "9").isdigit():
            level = (int(outline.get(f"{WORD}val", "9")) + 1) % 10
        blocks.add_heading(level, text) if level else blocks.add_text(text)
    else:  # a content control
        for inner in part.findall(f"{WORD}sdtContent/*"):
            _add_word_part(inner, levels, blocks)


def _join_word_text(paragraph: Element) -> str:
    marks = {f"{WORD}tab": "\t", f"{WORD}br": "\n", f"{WORD}cr": "\n"}
    texts = [
        item.text or "" if item.tag == f"{WORD}t" else marks[item.tag]
        for item in paragraph.iter()
        if item.tag == f"{WORD}t" or item.tag in marks
    ]
    return "".join(texts)


# --- PPTX -------------------------------------------------------------------------------------------------------------


def read_pptx(data: bytes, blocks: Blocks) -> None:
    """Add each slide as a page: its title, its texts, its notes."""
    archive = Archive(data)
    links = _read_links(archive, "ppt/presentation.xml")
    slides = archive.read_xml("ppt/presentation.xml").iter(f"{SLIDES}sldId")
    paths = [links.get(slide.get(f"{LINKS}id", ""), "") for slide in slides]
    for number, path in enumerate((path for path in paths if path in archive.names), 1):
        blocks.add_page(number)
        for shape in archive.read_xml(path).iter(f"{SLIDES}sp"):
            kind = shape.find(f"{SLIDES}nvSpPr/{SLIDES}nvPr/{SLIDES}ph")
            text = _join_slide_text(shape)
            if kind is not None and kind.get("type") in ("title", "ctrTitle"):
                blocks.add_heading(1, text)
            else:
                blocks.add_text(text)
        for notes in _read_links(archive, path).values():
            if "notesSlides/" in notes and notes in archive.names:
                blocks.add_text("\n".join(map(_join_slide_text, archive.read_xml(notes).iter(f"{SLIDES}sp"))))


def _join_slide_text(shape: Element) -> str:
    paragraphs = shape.iter(f"{DRAWING}p")
    return "\n".join("".join(text.text or "" for text in part.iter(f"{DRAWING}t")) for part in paragraphs).strip()


# --- XLSX -------------------------------------------------------------------------------------------------------------


def read_xlsx(data: bytes, blocks: Blocks) -> None:
    """Add each sheet: its name as a heading, its rows with the names of its columns."""
    archive = Archive(data)
    links = _read_links(archive, "xl/workbook.xml")
    shared: list[str] = []
    if "xl/sharedStrings.xml" in archive.names:
        items = archive.read_xml("xl/sharedStrings.xml").findall(f"{SHEETS}si")
        shared = ["".join(text.text or "" for text in item.iter(f"{SHEETS}t")) for item in items]
    dates = _read_date_styles(archive)
    for sheet in archive.read_xml("xl/workbook.xml").iter(f"{SHEETS}sheet"):
        path = links.get(sheet.get(f"{LINKS}id", ""), "")
        if path in archive.names:
            blocks.add_heading(1, sheet.get("name", ""))
            add_rows(_iter_sheet_rows(archive.read_xml(path), shared, dates), blocks)


def _read_date_styles(archive: Archive) -> set[int]:
    """Return the numbers of the cell styles that show a number as a date."""
    if "xl/styles.xml" not in archive.names:
        return set()
    styles = archive.read_xml("xl/styles.xml")
    formats = {item.get("numFmtId"): item.get("formatCode", "") for item in styles.iter(f"{SHEETS}numFmt")}
    dates: set[int] = set()
    cell_styles = styles.find(f"{SHEETS}cellXfs")
    for number, style in enumerate(cell_styles if cell_styles is not None else ()):
        code = re.sub(r'"[^"]{0,255}"|\[[^\]]{0,255}\]', "", formats.get(style.get("numFmtId"), ""))
        if style.get("numFmtId", "0") in map(str, BUILT_IN_DATE_FORMATS) or re.search("[ymdh]", code):
            dates.add(number)
    return dates


def _iter_sheet_rows(sheet: Element, shared: list[str], dates: set[int]) -> Iterator[list[str]]:
    for number, row in enumerate(sheet.iter(f"{SHEETS}row")):
        if number >= MAX_ROWS:
            raise Refused(f"a sheet has more than {MAX_ROWS:,} rows")
        cells: list[str] = []
        for cell in row.findall(f"{SHEETS}c"):
            column = _parse_column(cell.get("r", ""))
            if column > MAX_COLUMNS:
                raise Refused(f"a row has more than {MAX_COLUMNS:,} columns")
            cells += [""] * (column - 1 - len(cells))
            cells.append(_read_cell(cell, shared, dates))
        yield cells


def _parse_column(reference: str) -> int:
    """Return the number of the column of a cell such as `AB12`; 0 if the cell does not say."""
    column = 0
    for letter in re.match("[A-Z]{0,3}", reference).group():  # type: ignore[union-attr]  # it matches everything
        column = column * 26 + ord(letter) - 64
    return column


def _read_cell(cell: Element, shared: list[str], dates: set[int]) -> str:
    value = cell.findtext(f"{SHEETS}v") or ""
    kind = cell.get("t", "n")
    if kind == "s":
        return shared[int(value)] if value.isdigit() and int(value) < len(shared) else ""
    if kind == "inlineStr":
        return "".join(text.text or "" for text in cell.iter(f"{SHEETS}t"))
    if kind == "b":
        return {"0": "no", "1": "yes"}.get(value, value)
    style = cell.get("s", "0")
    if kind == "n" and value and style.isdigit() and int(style) in dates:
        try:
            moment = EPOCH + datetime.timedelta(days=float(value))
        except (ValueError, OverflowError):
            return value
        return f"{moment:%Y-%m-%d}" if moment.time() == datetime.time() else f"{moment:%Y-%m-%d %H:%M}"
    return value


# --- EPUB -------------------------------------------------------------------------------------------------------------


def read_epub(data: bytes, blocks: Blocks) -> None:
    """Add the chapters of a book, in reading order."""
    archive = Archive(data)
    root = next(
        archive.read_xml("META-INF/container.xml").iter("{urn:oasis:names:tc:opendocument:xmlns:container}rootfile")
    )
    package_path = root.get("full-path", "")
    package = archive.read_xml(package_path)
    files = {item.get("id"): item.get("href", "") for item in package.iter(f"{PACKAGE}item")}
    for item in package.iter(f"{PACKAGE}itemref"):
        href = files.get(item.get("idref"), "").partition("#")[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(package_path), unquote(href)))
        if href and path in archive.names:
            add_html(archive.read_entry(path).decode("utf-8", "replace"), blocks)
