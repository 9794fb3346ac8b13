"""Every format is read in the jail: its text, its headings, its pages."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from document_tools import build_docx, build_epub, build_pdf, build_pptx, build_xlsx

from athena.documents.formats.blocks import Refused
from athena.documents.parsing import DocumentParser
from athena.programs.sandbox import jail

LONG_LINE = "This line of the text is so long that the paragraph goes on in the line that follows it"


@pytest.fixture(scope="module")
def parser() -> Iterator[DocumentParser]:
    with DocumentParser() as reader:
        yield reader


def read(parser: DocumentParser, folder: Path, name: str, content: bytes | str) -> list[list[Any]]:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    file = os.open(path, os.O_RDONLY)
    try:
        return parser.read_file(name, file)
    finally:
        os.close(file)


def test_pdf_has_pages_and_headings_by_letter_size(parser: DocumentParser, tmp_path: Path) -> None:
    pages = [
        [(20, "Installing"), (14, "macOS"), (10, LONG_LINE), (10, "and ends here.")],
        [(14, "Linux"), (10, "Unpack the archive.")],
    ]
    blocks = read(parser, tmp_path, "guide.pdf", build_pdf(pages))
    assert blocks == [
        ["page", 1],
        ["heading", 1, "Installing"],
        ["heading", 2, "macOS"],
        ["text", f"{LONG_LINE} and ends here."],
        ["page", 2],
        ["heading", 2, "Linux"],
        ["text", "Unpack the archive."],
    ]


def test_pdf_has_headings_of_its_outline(parser: DocumentParser, tmp_path: Path) -> None:
    pages = [[(10, "Setup"), (10, "Turn the key.")], [(10, "Repair"), (10, "Call the shop.")]]
    blocks = read(parser, tmp_path, "guide.pdf", build_pdf(pages, [("Setup", 0), ("Repair", 1)]))
    assert [block for block in blocks if block[0] == "heading"] == [["heading", 1, "Setup"], ["heading", 1, "Repair"]]


def test_pdf_loses_running_titles_and_page_numbers(parser: DocumentParser, tmp_path: Path) -> None:
    pages = [
        [(10, "Handbook of lamps"), (10, f"Fact {name} about lamps."), (10, f"{i} / 5")]
        for i, name in enumerate("abcde")
    ]
    texts = [block[-1] for block in read(parser, tmp_path, "lamps.pdf", build_pdf(pages)) if block[0] == "text"]
    assert texts == [f"Fact {name} about lamps." for name in "abcde"]


def test_pdf_without_text_is_refused(parser: DocumentParser, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="pictures"):
        read(parser, tmp_path, "scan.pdf", build_pdf([[]]))


def test_markdown_has_headings_but_not_in_code(parser: DocumentParser, tmp_path: Path) -> None:
    text = "---\ntitle: T\n---\n# One\n\ntext\n\n```sh\n# no heading\n```\n\nTwo\n---\n\n### Three ###\nmore"
    assert read(parser, tmp_path, "a.md", text) == [
        ["text", "title: T"],
        ["heading", 1, "One"],
        ["text", "text"],
        ["code", "```sh\n# no heading\n```"],
        ["heading", 2, "Two"],
        ["heading", 3, "Three"],
        ["text", "more"],
    ]


def test_html_shows_what_a_browser_shows(parser: DocumentParser, tmp_path: Path) -> None:
    page = """<html><head><title>T</title><style>p {}</style></head><body><nav>menu</nav><h1>Hi <b>there</b></h1>
    <p>One &amp; two<br>three</p><script>alert(1)</script><ul><li>first<li>second</ul>
    <table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table><pre>x\n  y</pre></body></html>"""
    assert read(parser, tmp_path, "a.html", page) == [
        ["heading", 1, "Hi there"],
        ["text", "One & two\nthree"],
        ["text", "- first"],
        ["text", "- second"],
        ["text", "a | b"],
        ["text", "1 | 2"],
        ["code", "x\n  y"],
    ]


def test_html_is_decoded_as_it_says(parser: DocumentParser, tmp_path: Path) -> None:
    page = '<meta charset="iso-8859-1"><p>Müller</p>'.encode("latin-1")
    assert read(parser, tmp_path, "a.html", page) == [["text", "Müller"]]


def test_csv_rows_have_the_names_of_columns(parser: DocumentParser, tmp_path: Path) -> None:
    blocks = read(parser, tmp_path, "a.csv", 'name;town\nAnn;"Bath; Avon"\nBob;\n')
    assert blocks == [["text", "name | town"], ["text", "name: Ann\ntown: Bath; Avon"], ["text", "name: Bob"]]


def test_json_is_flattened(parser: DocumentParser, tmp_path: Path) -> None:
    value = {"name": "shop", "ports": {"web": 80, "admin": [1, 2]}, "users": [{"id": 1}, {"id": 2}]}
    assert read(parser, tmp_path, "a.json", json.dumps(value)) == [
        ["text", "name: shop"],
        ["heading", 1, "ports"],
        ["text", "web: 80\nadmin: 1, 2"],
        ["heading", 1, "users"],
        ["text", "id: 1"],
        ["text", "id: 2"],
    ]
    assert read(parser, tmp_path, "a.jsonl", '{"a": {"b": 1}}\nno json\n') == [["text", "a.b: 1"], ["text", "no json"]]
    assert read(parser, tmp_path, "b.json", "// a comment\n{}") == [["text", "// a comment\n{}"]]


def test_notebook_has_cells_and_what_they_printed(parser: DocumentParser, tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Sales\n", "By month."]},
        {"cell_type": "code", "source": "print(7)", "outputs": [{"text": ["7\n"]}]},
    ]
    assert read(parser, tmp_path, "a.ipynb", json.dumps({"cells": cells})) == [
        ["heading", 1, "Sales"],
        ["text", "By month."],
        ["code", "print(7)"],
        ["text", "7"],
    ]


MAIL = b"""From: Ann <ann@example.org>\r\nTo: bob@example.org\r\nSubject: =?utf-8?q?The_caf=C3=A9?=\r
Date: Mon, 1 Jan 2024 10:00:00 +0000\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=x\r\n\r
--x\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<p>We meet at <b>noon</b>.</p>\r
--x\r\nContent-Type: application/pdf\r\nContent-Disposition: attachment; filename=map.pdf\r\n\r
JVBERi0=\r\n--x--\r\n"""


def test_mail_has_subject_people_text_and_attachments(parser: DocumentParser, tmp_path: Path) -> None:
    blocks = read(parser, tmp_path, "a.eml", MAIL)
    assert blocks[0] == ["heading", 1, "The café"]
    assert "From: Ann <ann@example.org>" in blocks[1][1]
    assert "Attachments: map.pdf" in blocks[1][1]
    assert blocks[2:] == [["text", "We meet at noon."]]
    box = b"From ann Mon Jan  1 2024\n" + MAIL + b"\nFrom bob Tue Jan  2 2024\nSubject: Re\n\n>From here on\n"
    titles = [block[-1] for block in read(parser, tmp_path, "a.mbox", box) if block[0] == "heading"]
    assert titles == ["The café", "Re"]


def test_source_code_has_definitions_as_headings(parser: DocumentParser, tmp_path: Path) -> None:
    source = (
        "import os\n\n# Counts.\nclass Counter:\n    def add(self):\n        return 1\n\nasync def run():\n    pass\n"
    )
    assert read(parser, tmp_path, "a.py", source) == [
        ["code", "import os"],
        ["heading", 1, "class Counter"],
        ["code", "# Counts.\nclass Counter:"],
        ["heading", 2, "def add"],
        ["code", "    def add(self):\n        return 1"],
        ["heading", 1, "def run"],
        ["code", "async def run():\n    pass"],
    ]


def test_office_files(parser: DocumentParser, tmp_path: Path) -> None:
    docx = build_docx([("Heading1", "Rules"), ("", "No smoking."), ("Heading2", "Pets"), ("", "Dogs & cats.")])
    assert read(parser, tmp_path, "a.docx", docx) == [
        ["heading", 1, "Rules"],
        ["text", "No smoking."],
        ["heading", 2, "Pets"],
        ["text", "Dogs & cats."],
        ["text", "left |"],
    ]
    titled = build_docx([("Title", "House"), ("Heading1", "Rules"), ("", "No smoking.")])
    assert read(parser, tmp_path, "b.docx", titled)[:3] == [
        ["heading", 1, "House"],
        ["heading", 2, "Rules"],
        ["text", "No smoking."],
    ]
    pptx = build_pptx([("Plan", "Buy lamps."), ("Cost", "Nine euros.")])
    assert read(parser, tmp_path, "a.pptx", pptx) == [
        ["page", 1],
        ["heading", 1, "Plan"],
        ["text", "Buy lamps."],
        ["page", 2],
        ["heading", 1, "Cost"],
        ["text", "Nine euros."],
    ]
    xlsx = build_xlsx({"Staff": [["name", "since"], ["Ann", 45292.0], ["Bob", ""]]})
    assert read(parser, tmp_path, "a.xlsx", xlsx) == [
        ["heading", 1, "Staff"],
        ["text", "name | since"],
        ["text", "name: Ann\nsince: 2024-01-01"],
        ["text", "name: Bob"],
    ]
    epub = build_epub({"one.xhtml": "<h1>One</h1><p>It began.</p>", "two.xhtml": "<h1>Two</h1><p>It ended.</p>"})
    assert [block[-1] for block in read(parser, tmp_path, "a.epub", epub)] == ["One", "It began.", "Two", "It ended."]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.pdf", b"no pdf", "not a PDF"),
        ("a.docx", b"no zip", "not a DOCX file"),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "before 2007"),
        ("a.zip", b"PK\x03\x04 rest", "unpack it first"),
        ("a.txt", b"\xff\xfebad\xd8", "not UTF-8 text|empty"),
        ("a.txt", b"caf\xe9", "not UTF-8 text"),
        ("a.png", b"\x89PNG\0\0", "not text"),
        ("a.txt", b" \n ", "empty"),
        ("a.txt", b"", "empty"),
        ("a.ipynb", b"[]", "not a notebook"),
        ("a.json", b"[" * 100_000, "nested too deep"),
        ("a.html", b"<div>" * 1_000, "nested too deep"),
    ],
)
def test_refusal_says_why(parser: DocumentParser, tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        read(parser, tmp_path, name, content)


def test_without_a_jail_only_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail, "list_layer_choices", lambda: ())
    with DocumentParser() as unprotected:
        assert read(unprotected, tmp_path, "a.md", "# One\n\ntext") == [["heading", 1, "One"], ["text", "text"]]
        with pytest.raises(Refused, match="no jail"):
            read(unprotected, tmp_path, "a.pdf", build_pdf([[(10, "text")]]))
        with pytest.raises(Refused, match="no jail"):
            read(unprotected, tmp_path, "a.docx", build_docx([("", "text")]))


def test_worker_sees_no_other_file(tmp_path: Path) -> None:
    """A reader that was taken over finds neither files nor the network."""
    (tmp_path / "secret.txt").write_text("canary")
    attack = f"""
import os, socket, json, sys
seen = []
for path in ({str(tmp_path / "secret.txt")!r}, "/etc/passwd", {str(Path.home())!r}):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path).read()
        seen.append(path)
    except OSError:
        pass
for attempt in (lambda: socket.socket(), lambda: os.fork(), lambda: open("/tmp/escaped", "w")):
    try:
        attempt()
        seen.append("allowed")
    except OSError:
        pass
print(json.dumps(seen))
"""
    with DocumentParser() as reader:
        worker = reader._get_worker()
        command = [*worker.process.args]  # type: ignore[misc]
    start = command.index(next(part for part in command if part.endswith("worker.py")))
    script = tmp_path / "attack.py"
    script.write_text(attack)
    command = [*command[: command.index("--")], "--ro", str(script), *command[command.index("--") : start], str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={})
    assert json.loads(done.stdout) == [], done.stderr
