"""Write small files of every format that ingestion reads."""

import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

Line = tuple[int, str]  # the size of the letters and the text

WORD_NS = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
SHEET_NS = (
    'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
)
SLIDE_NS = (
    'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
)
RELS_NS = 'xmlns="http://schemas.openxmlformats.org/package/2006/relationships"'


def build_pdf(pages: Sequence[Sequence[Line]], outline: Sequence[tuple[str, int]] = ()) -> bytes:
    """Return a PDF with these lines on its pages; `outline` has bookmarks with the index of their page."""
    objects: list[bytes] = [b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>", b""]
    kids: list[int] = []
    for lines in pages:
        y, steps = 790.0, []
        for size, text in lines:
            plain = text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
            steps.append(f"BT /F1 {size} Tf 50 {y:.0f} Td ({plain}) Tj ET")
            y -= size * 1.4
        content = "\n".join(steps).encode("cp1252", "replace")
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
        resources = b"<< /Font << /F1 1 0 R >> >>"
        page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R /Resources %s >>"
        objects.append(page % (len(objects), resources))
        kids.append(len(objects))
    objects[1] = b"<< /Type /Pages /Count %d /Kids [%s] >>" % (len(kids), b" ".join(b"%d 0 R" % kid for kid in kids))
    catalog = b"<< /Type /Catalog /Pages 2 0 R"
    if outline:
        root, first = len(objects) + 1, len(objects) + 2
        last = first + len(outline) - 1
        objects.append(b"<< /Type /Outlines /First %d 0 R /Last %d 0 R /Count %d >>" % (first, last, len(outline)))
        for number, (title, page_index) in enumerate(outline):
            links = b"/Next %d 0 R " % (first + number + 1) if first + number < last else b""
            entry = b"<< /Title (%s) /Parent %d 0 R %s/Dest [%d 0 R /Fit] >>"
            objects.append(entry % (title.encode("cp1252"), root, links, kids[page_index]))
        catalog += b" /Outlines %d 0 R" % root
    objects.append(catalog + b" >>")
    data, offsets = bytearray(b"%PDF-1.4\n"), []
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    start = len(data)
    data += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    data += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    trailer = b"trailer << /Size %d /Root %d 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    return bytes(data) + trailer % (len(objects) + 1, len(objects), start)


def build_zip(entries: Mapping[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def build_docx(paragraphs: Iterable[tuple[str, str]]) -> bytes:
    """Return a DOCX; each paragraph has a style (`Title`, `Heading1`, `Heading2` or empty) and a text."""
    body = "".join(
        f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr><w:r><w:t>{escape(text)}</w:t></w:r></w:p>'
        for style, text in paragraphs
    )
    styles = "".join(
        f'<w:style w:styleId="Heading{level}"><w:name w:val="heading {level}"/></w:style>' for level in (1, 2)
    )
    styles += '<w:style w:styleId="Title"><w:name w:val="Title"/></w:style>'
    table = "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>left</w:t></w:r></w:p></w:tc><w:tc><w:p/></w:tc></w:tr></w:tbl>"
    return build_zip(
        {
            "word/styles.xml": f"<w:styles {WORD_NS}>{styles}</w:styles>",
            "word/document.xml": f"<w:document {WORD_NS}><w:body>{body}{table}</w:body></w:document>",
        }
    )


def build_xlsx(sheets: Mapping[str, Sequence[Sequence[str | float]]]) -> bytes:
    """Return an XLSX; floats are dates."""
    entries: dict[str, str] = {}
    names = links = ""
    shared: list[str] = []
    for number, (name, rows) in enumerate(sheets.items(), 1):
        names += f'<sheet name="{escape(name)}" sheetId="{number}" r:id="rId{number}"/>'
        links += f'<Relationship Id="rId{number}" Target="worksheets/sheet{number}.xml"/>'
        lines = ""
        for row_number, row in enumerate(rows, 1):
            cells = ""
            for column, value in enumerate(row):
                reference = f"{chr(65 + column)}{row_number}"
                if isinstance(value, float):
                    cells += f'<c r="{reference}" s="1"><v>{value}</v></c>'
                elif value:
                    cells += f'<c r="{reference}" t="s"><v>{len(shared)}</v></c>'
                    shared.append(value)
            lines += f'<row r="{row_number}">{cells}</row>'
        entries[f"xl/worksheets/sheet{number}.xml"] = (
            f"<worksheet {SHEET_NS}><sheetData>{lines}</sheetData></worksheet>"
        )
    texts = "".join(f"<si><t>{escape(text)}</t></si>" for text in shared)
    formats = '<cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs>'
    return build_zip(
        entries
        | {
            "xl/workbook.xml": f"<workbook {SHEET_NS}><sheets>{names}</sheets></workbook>",
            "xl/_rels/workbook.xml.rels": f"<Relationships {RELS_NS}>{links}</Relationships>",
            "xl/sharedStrings.xml": f"<sst {SHEET_NS}>{texts}</sst>",
            "xl/styles.xml": f"<styleSheet {SHEET_NS}>{formats}</styleSheet>",
        }
    )


def build_pptx(slides: Sequence[tuple[str, str]]) -> bytes:
    """Return a PPTX; each slide has a title and a text."""
    entries: dict[str, str] = {}
    ids = links = ""
    for number, (title, text) in enumerate(slides, 1):
        ids += f'<p:sldId id="{255 + number}" r:id="rId{number}"/>'
        links += f'<Relationship Id="rId{number}" Target="slides/slide{number}.xml"/>'
        shapes = "".join(
            f"<p:sp><p:nvSpPr><p:nvPr>{kind}</p:nvPr></p:nvSpPr><p:txBody><a:p><a:r><a:t>{escape(content)}</a:t></a:r>"
            "</a:p></p:txBody></p:sp>"
            for kind, content in (('<p:ph type="title"/>', title), ("", text))
        )
        entries[f"ppt/slides/slide{number}.xml"] = (
            f"<p:sld {SLIDE_NS}><p:cSld><p:spTree>{shapes}</p:spTree></p:cSld></p:sld>"
        )
    return build_zip(
        entries
        | {
            "ppt/presentation.xml": f"<p:presentation {SLIDE_NS}><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>",
            "ppt/_rels/presentation.xml.rels": f"<Relationships {RELS_NS}>{links}</Relationships>",
        }
    )


def build_epub(chapters: Mapping[str, str]) -> bytes:
    """Return an EPUB with these files as chapters, in this order."""
    items = "".join(f'<item id="c{number}" href="{name}"/>' for number, name in enumerate(chapters))
    spine = "".join(f'<itemref idref="c{number}"/>' for number in range(len(chapters)))
    return build_zip(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>',
            "OEBPS/book.opf": f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest>'
            f"<spine>{spine}</spine></package>",
            **{f"OEBPS/{name}": content for name, content in chapters.items()},
        }
    )


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below a folder and return it."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder
