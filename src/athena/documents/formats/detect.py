"""Decide by name and first bytes which reader a file needs."""

from __future__ import annotations

import os
from collections.abc import Callable

from . import markup, office, pdf, records
from .blocks import Blocks, Refused

Reader = Callable[[bytes, Blocks], None]

CODE_SUFFIXES = frozenset(
    """.py .pyi .js .mjs .cjs .jsx .ts .tsx .java .kt .kts .scala .go .rs .c .h .cc .cpp .cxx .hpp .hh .m .mm .cs .fs
    .swift .rb .php .pl .pm .lua .r .jl .dart .ex .exs .erl .hs .ml .mli .clj .cljs .groovy .sql .sh .bash .zsh .fish
    .ps1 .vim .el .lisp .scm .zig .nim .v .vhdl .proto .graphql .css .scss .less .vue .svelte .tf .gradle
    .cmake""".split()  # noqa: SIM905  # a list of strings would take a page
)
CODE_READERS: dict[str, Reader] = dict.fromkeys(CODE_SUFFIXES, markup.read_code)
READERS: dict[str, Reader] = CODE_READERS | {
    ".md": markup.read_markdown,
    ".markdown": markup.read_markdown,
    ".mdx": markup.read_markdown,
    ".html": markup.read_html,
    ".htm": markup.read_html,
    ".xhtml": markup.read_html,
    ".csv": records.read_csv,
    ".tsv": records.read_csv,
    ".json": records.read_json,
    ".jsonl": records.read_json_lines,
    ".ndjson": records.read_json_lines,
    ".ipynb": records.read_notebook,
    ".eml": records.read_mail,
    ".mbox": records.read_mailbox,
    ".mbx": records.read_mailbox,
    ".docx": office.read_docx,
    ".docm": office.read_docx,
    ".pptx": office.read_pptx,
    ".pptm": office.read_pptx,
    ".xlsx": office.read_xlsx,
    ".xlsm": office.read_xlsx,
    ".epub": office.read_epub,
    ".pdf": pdf.read_pdf,
}
ZIPPED_SUFFIXES = (".docx", ".docm", ".pptx", ".pptm", ".xlsx", ".xlsm", ".epub")
PDF_MARK, ZIP_MARK, OLE_MARK = b"%PDF-", b"PK\x03\x04", b"\xd0\xcf\x11\xe0"


def get_suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def is_native(name: str, head: bytes) -> bool:
    """Return whether the reader of a file is native code, which a hostile file may take over."""
    return get_suffix(name) == ".pdf" or PDF_MARK in head


def is_binary(name: str, head: bytes) -> bool:
    """Return whether a file needs more than a reader of text."""
    return is_native(name, head) or head.startswith(ZIP_MARK) or get_suffix(name) in ZIPPED_SUFFIXES


def read_document(name: str, data: bytes) -> Blocks:
    """Return the blocks of a file; raise Refused with the reason why it cannot be read."""
    blocks = Blocks()
    suffix = get_suffix(name)
    if PDF_MARK in data[:1_024]:
        suffix = ".pdf"
    elif suffix == ".pdf":
        raise Refused("not a PDF")
    elif data.startswith(OLE_MARK):
        raise Refused("an Office file of before 2007; save it in the present format")
    elif data.startswith(ZIP_MARK) and suffix not in ZIPPED_SUFFIXES:
        raise Refused("an archive; unpack it first")
    elif suffix in ZIPPED_SUFFIXES and not data.startswith(ZIP_MARK):
        raise Refused(f"not a {suffix[1:].upper()} file")
    if not data.strip():
        raise Refused("empty")
    READERS.get(suffix, markup.read_text)(data, blocks)
    if not blocks.chars:
        raise Refused("empty")
    return blocks
