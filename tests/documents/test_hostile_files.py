"""Hostile files: bombs, broken and tricky ones. None escapes, none exceeds its limits, and the rest is read."""

import io
import os
import random
import resource
import socket
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from document_tools import WORD_NS, build_docx, build_epub, build_pdf, build_pptx, build_xlsx, build_zip

from athena import api
from athena.app.compose import App
from athena.documents import parsing
from conftest import rounds, sample

CANARY = "canary-5d81f0"
FULL_COUNT = 500
SCALE = rounds(1, 10)
TEXT_SUFFIXES = (".txt", ".md", ".html", ".csv", ".json", ".jsonl", ".ipynb", ".eml", ".mbox", ".py", ".rst", ".xml")
ZIPPED_SUFFIXES = (".docx", ".pptx", ".xlsx", ".epub")
Build = Callable[[random.Random], bytes]


def bomb_zip(name: str, size_mb: int) -> bytes:
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(name, "w", force_zip64=True) as stream,
    ):
        stream.write(f"<w:document {WORD_NS}><w:body><w:p><w:r><w:t>".encode())
        for _ in range(size_mb):
            stream.write(b" " * 1_000_000)
        stream.write(b"</w:t></w:r></w:p></w:body></w:document>")
    return buffer.getvalue()


def laughs(_: random.Random) -> bytes:
    entities = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 12))
    xml = f'<!DOCTYPE x [<!ENTITY a0 "{CANARY}">{entities}]><w:document {WORD_NS}><w:body>&a11;</w:body></w:document>'
    return build_zip({"word/document.xml": xml})


def external_entity(_: random.Random) -> bytes:
    xml = f'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><w:document {WORD_NS}>&f;</w:document>'
    return build_zip({"word/document.xml": xml})


def deep_xml(_: random.Random) -> bytes:
    return build_zip({"word/document.xml": f"<w:document {WORD_NS}>" + "<w:p>" * 200_000})


def path_tricks(_: random.Random) -> bytes:
    names = ("../../../../tmp/escaped.txt", "/etc/cron.d/escaped", "..\\..\\escaped.txt", "word/document.xml")
    return build_zip(dict.fromkeys(names, f"<w:document {WORD_NS}/>"))


def linked_epub(_: random.Random) -> bytes:
    return build_epub({"one.xhtml": "<p>It began.</p>"}).replace(b"one.xhtml", b"../../etc")


def many_entries(_: random.Random) -> bytes:
    return build_zip({f"{i}": "" for i in range(25_000)})


def huge_sheet(_: random.Random) -> bytes:
    return build_xlsx({"S": [["a", "b"]]}).replace(b"A1", b"ZZ1")


def flate_pdf(size_mb: int) -> bytes:
    """Return a PDF with a page whose content unpacks to spaces of this size, or to operators."""
    packer = zlib.compressobj(1)
    packed = b"".join(packer.compress(b"q " * 500_000) for _ in range(size_mb)) + packer.flush()
    plain = build_pdf([[(10, "x")]])
    start, end = plain.index(b"<< /Length"), plain.index(b"endstream") + 9
    stream = b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(packed), packed)
    return plain[:start] + stream + plain[end:]


def looping_pdf(_: random.Random) -> bytes:
    return build_pdf([[(10, "x")]]).replace(b"/Kids [4 0 R]", b"/Kids [2 0 R]")


def counting_pdf(_: random.Random) -> bytes:
    return build_pdf([[(10, "x")]]).replace(b"/Count 1 ", b"/Count 99999999 ")


def looping_outline(_: random.Random) -> bytes:
    return build_pdf([[(10, "x")]], [("A", 0), ("B", 0)]).replace(b"/Next", b"/First 5 0 R /Next")


def mutate(build: Callable[[], bytes]) -> Build:
    """Return a builder that changes, cuts or repeats parts of a good file."""

    def build_broken(rng: random.Random) -> bytes:
        data = bytearray(build())
        for _ in range(rng.randint(1, 40)):
            at = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    del data[at : at + rng.randint(1, 200)]
                case 2:
                    data[at:at] = data[max(0, at - 300) : at] * rng.randint(1, 3)
                case 3:
                    data[at:at] = rng.randbytes(rng.randint(1, 50))
            if len(data) < 10:
                data += b"PK\x03\x04 %PDF-1.4"
        return bytes(data)

    return build_broken


GOOD: dict[str, Callable[[], bytes]] = {
    ".pdf": lambda: build_pdf([[(20, "Title"), (10, "Text of the page.")]] * 3, [("Title", 0), ("End", 2)]),
    ".docx": lambda: build_docx([("Heading1", "Rules"), ("", "No smoking.")] * 5),
    ".pptx": lambda: build_pptx([("Plan", "Buy lamps.")] * 3),
    ".xlsx": lambda: build_xlsx({"S": [["a", "b"], ["1", "2"], ["x", 45292.0]]}),
    ".epub": lambda: build_epub({"one.xhtml": "<h1>One</h1><p>It began.</p>"}),
}
SINGLE: dict[str, Build] = {
    "bomb.docx": lambda _: bomb_zip("word/document.xml", 100 + 20 * SCALE),
    "laughs.docx": laughs,
    "entity.docx": external_entity,
    "deep.docx": deep_xml,
    "paths.docx": path_tricks,
    "link.epub": linked_epub,
    "entries.docx": many_entries,
    "wide.xlsx": huge_sheet,
    "flate.pdf": lambda _: flate_pdf(30 * SCALE),
    "loop.pdf": looping_pdf,
    "count.pdf": counting_pdf,
    "outline.pdf": looping_outline,
    "nested.json": lambda _: b"[" * (200_000 * SCALE),
    "object.json": lambda _: b'{"a":' * (50_000 * SCALE),
    "number.json": lambda _: b"1" * (100_000 * SCALE),
    "tags.html": lambda _: b"<div>" * (100_000 * SCALE),
    "open.html": lambda _: b"<" * (200_000 * SCALE),
    "comment.html": lambda _: b"<!-" * (50_000 * SCALE),
    "entity.html": lambda _: b"&#" * (100_000 * SCALE),
    "attributes.html": lambda _: b"<p " + b'a="b" ' * (30_000 * SCALE) + b">x</p>",
    "quotes.csv": lambda _: b'"' * (300_000 * SCALE),
    "columns.csv": lambda _: b"," * (300_000 * SCALE),
    "cell.csv": lambda _: b"a,b\n" + b"x" * (500_000 * SCALE),
    "parts.eml": lambda _: (
        b"Subject: x\nContent-Type: multipart/mixed; boundary=a\n\n" + b"--a\n\nx\n" * (2_000 * SCALE)
    ),
    "header.eml": lambda _: b"Subject: " + b"=?utf-8?q?x?= " * (2_000 * SCALE) + b"\n\nx",
    "many.mbox": lambda _: b"From a 1\n\nx\n" * (2_000 * SCALE),
    "line.txt": lambda _: b"x" * (1_000_000 * SCALE),
    "spaces.md": lambda _: b" " * (500_000 * SCALE) + b"x",
    "marks.md": lambda _: b"#" * (500_000 * SCALE),
    "fences.md": lambda _: b"```\n" * (50_000 * SCALE),
    "underline.rst": lambda _: b"=" * (300_000 * SCALE) + b"\n" + b"=" * (300_000 * SCALE),
    "words.py": lambda _: b"public static " * (30_000 * SCALE),
    "zeros.txt": lambda _: bytes(1_000_000),
    "utf16.txt": lambda _: b"\xff\xfe" + b"\x00\xd8" * (10_000 * SCALE),
    "cells.ipynb": lambda _: b'{"cells": [' + b"null," * (10_000 * SCALE) + b"null]}",
    "name\n\x1b[31m.bin": lambda _: b"\0" * 10,
}


def list_cases() -> Iterator[tuple[str, Build]]:
    yield from SINGLE.items()
    number = 0
    while True:
        for suffix, build in GOOD.items():
            yield f"broken{number}{suffix}", mutate(build)
        yield f"noise{number}{TEXT_SUFFIXES[number % 12]}", lambda rng: rng.randbytes(rng.randint(1, 20_000))
        suffix = (".pdf", *ZIPPED_SUFFIXES)[number % 5]
        yield f"random{number}{suffix}", lambda rng: rng.choice([b"%PDF-1.7\n", b"PK\x03\x04"]) + rng.randbytes(2_000)
        number += 1


def write_special_files(folder: Path, outside: Path) -> set[str]:
    """Write what is no plain file, or leads out, and return the names."""
    outside.mkdir()
    (outside / "secret.txt").write_text(CANARY)
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "linked").symlink_to(outside)
    os.mkfifo(folder / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
    with open(folder / "sparse.pdf", "wb") as stream:
        stream.truncate(1_000_000_000)
    return {"link.txt", "linked", "pipe.txt", "socket", "sparse.pdf"}


def test_hostile_files_are_named_and_the_rest_is_read(isolated: App, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    cases = list_cases()
    every = [next(cases) for _ in range(FULL_COUNT - 5)]
    heavy = every[: len(SINGLE)]
    chosen = [*sample(heavy, 12), *sample(every[len(SINGLE) :], 16)]
    names = write_special_files(folder, tmp_path / "outside")
    for number, (name, build) in enumerate(chosen):
        (folder / name).write_bytes(build(random.Random(number)))
        names.add(name)
    (folder / "good.md").write_text("# Lamps\n\nThe blue lamp stands in the hall.")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    result = api.call("ingest_document", path=str(folder))
    skipped = {line.split(": ")[0]: line for line in result["skipped"]}
    read = {document["source"] for document in api.call("list_documents")}
    lost = [name for name in names if str(folder / name) not in {*skipped, *read}]
    assert not lost
    assert all(reason.partition(": ")[2] for reason in result["skipped"])
    assert {"link.txt", "linked", "pipe.txt", "socket", "sparse.pdf"} <= {os.path.basename(path) for path in skipped}
    assert "blue lamp" in api.search("which lamp is in the hall", limit=1)[0].content
    assert not api.search(CANARY, limit=5).total or CANARY not in "".join(hit.content for hit in api.search(CANARY))
    assert not (tmp_path / "escaped.txt").exists()
    assert not Path("/tmp/escaped.txt").exists()
    peak_mb = max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) >> 10
    assert peak_mb <= parsing.MEMORY_MB
