"""Read tables, JSON, notebooks and e-mail."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from itertools import pairwise
from typing import Any

from .blocks import Blocks, Refused, decode_text
from .markup import add_html, add_markdown, add_paragraphs

MAX_CELL_CHARS = 100_000
MAX_COLUMNS = 1_000
MAX_JSON_DEPTH = 60
MAX_OUTPUT_CHARS = 2_000  # of a notebook's cell
MAX_MAIL_PARTS = 1_000
CSV_DELIMITERS = ",;\t|"


# --- tables -----------------------------------------------------------------------------------------------------------


def read_csv(data: bytes, blocks: Blocks) -> None:
    """Add each row as `column: value` lines, with the names of the first row."""
    csv.field_size_limit(MAX_CELL_CHARS)
    text = decode_text(data)
    try:
        dialect: Any = csv.Sniffer().sniff(text[:65_536], CSV_DELIMITERS)
    except csv.Error:
        dialect = csv.excel
    try:
        add_rows(csv.reader(io.StringIO(text), dialect), blocks)
    except csv.Error as error:
        raise Refused(f"not a table: {error}") from None


def add_rows(rows: Iterator[list[str]], blocks: Blocks) -> None:
    """Add the rows of a table; the first that is not empty has the names of the columns."""
    names: list[str] | None = None
    for row in rows:
        if not any(cell.strip() for cell in row):
            continue
        if len(row) > MAX_COLUMNS:
            raise Refused(f"a row has more than {MAX_COLUMNS:,} columns")
        if names is None:
            names = [cell.strip() for cell in row]
            if len(names) == 1 or all(_is_number(name) for name in names if name):
                names = []
            else:
                blocks.add_text(" | ".join(names))
                continue
        blocks.add_text("\n".join(_format_cells(names, row)))


def _format_cells(names: list[str], row: list[str]) -> Iterator[str]:
    if not names:
        yield " | ".join(cell.strip() for cell in row)
        return
    for number, cell in enumerate(row):
        if cell.strip():
            name = names[number] if number < len(names) else ""
            yield f"{name}: {cell.strip()}" if name else cell.strip()


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?[\d.,]+%?", text) is not None


# --- JSON -------------------------------------------------------------------------------------------------------------


def read_json(data: bytes, blocks: Blocks) -> None:
    """Add each item of a list, or each field of an object, as lines of `path: value`."""
    text = decode_text(data)
    try:
        value = json.loads(text)
    except RecursionError:
        raise Refused("its values are nested too deep") from None
    except ValueError:  # with comments, or cut off: as text it still answers questions
        return add_paragraphs(text, blocks)
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, dict | list):
                blocks.add_heading(1, key)
                _add_items(item, key, blocks)
            else:
                blocks.add_text(f"{key}: {_format_scalar(item)}")
    else:
        _add_items(value, "", blocks)
    return None


def _add_items(value: Any, path: str, blocks: Blocks) -> None:
    for item in value if isinstance(value, list) else [value]:
        blocks.add_text("\n".join(_flatten(item, path if not isinstance(item, dict) else "", MAX_JSON_DEPTH)))


def _flatten(value: Any, path: str, depth: int) -> Iterator[str]:
    if not depth:
        raise Refused("its values are nested too deep")
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flatten(item, f"{path}.{key}" if path else key, depth - 1)
    elif isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        yield f"{path}: {', '.join(map(_format_scalar, value))}" if path else ", ".join(map(_format_scalar, value))
    elif isinstance(value, list):
        for item in value:
            yield from _flatten(item, path, depth - 1)
    elif value is not None and value != "":
        yield f"{path}: {_format_scalar(value)}" if path else _format_scalar(value)


def _format_scalar(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def read_json_lines(data: bytes, blocks: Blocks) -> None:
    """Add each line as one record; a line that is no JSON stays text."""
    for line in decode_text(data).splitlines():
        try:
            value = json.loads(line)
        except RecursionError:
            raise Refused("its values are nested too deep") from None
        except ValueError:
            blocks.add_text(line)
        else:
            blocks.add_text("\n".join(_flatten(value, "", MAX_JSON_DEPTH)))


def read_notebook(data: bytes, blocks: Blocks) -> None:
    """Add the cells of a notebook: Markdown, code, and the beginning of what code printed."""
    try:
        notebook = json.loads(decode_text(data))
        cells = notebook["cells"]
        for cell in cells:
            source = _join_lines(cell.get("source", ""))
            if cell.get("cell_type") == "code":
                blocks.add_code(source)
                for shown in cell.get("outputs", []):
                    text = _join_lines(shown.get("text") or shown.get("data", {}).get("text/plain") or "")
                    blocks.add_text(text[:MAX_OUTPUT_CHARS])
            elif cell.get("cell_type") == "markdown":
                add_markdown(source, blocks)
            else:
                add_paragraphs(source, blocks)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise Refused("not a notebook") from None


def _join_lines(value: Any) -> str:
    return "".join(value) if isinstance(value, list) else str(value)


# --- e-mail -----------------------------------------------------------------------------------------------------------


def read_mail(data: bytes, blocks: Blocks) -> None:
    message = message_from_bytes(data, policy=policy.default)
    if not message.keys():
        raise Refused("not an e-mail")
    _add_message(message, blocks)


def read_mailbox(data: bytes, blocks: Blocks) -> None:
    """Add each message of an mbox file."""
    if not data.startswith(b"From "):
        raise Refused("not a mailbox")
    starts = [0, *(match.start() + 1 for match in re.finditer(rb"\nFrom [^\n]{1,200}\d", data)), len(data)]
    for start, end in pairwise(starts):
        _, _, body = data[start:end].partition(b"\n")
        _add_message(message_from_bytes(re.sub(rb"(?m)^>(>*From )", rb"\1", body), policy=policy.default), blocks)


def _add_message(message: EmailMessage, blocks: Blocks) -> None:
    blocks.add_heading(1, _get_header(message, "subject") or "(no subject)")
    facts = [(name, _get_header(message, name.lower())) for name in ("From", "To", "Cc", "Date")]
    attachments: list[str] = []
    bodies: dict[str, list[str]] = {"plain": [], "html": []}
    for number, part in enumerate(message.walk()):
        if number > MAX_MAIL_PARTS:
            raise Refused(f"it has more than {MAX_MAIL_PARTS:,} parts")
        if part.is_multipart():
            continue
        if part.get_content_disposition() == "attachment" or part.get_filename():
            attachments.append(str(part.get_filename() or part.get_content_type()))
        elif part.get_content_maintype() == "text":
            bodies.setdefault(part.get_content_subtype(), []).append(_decode_part(part))
    facts.append(("Attachments", ", ".join(attachments)))
    blocks.add_text("\n".join(f"{name}: {value}" for name, value in facts if value))
    if any(text.strip() for text in bodies["plain"]):
        for text in bodies["plain"]:
            add_paragraphs(text, blocks)
    else:
        for text in bodies["html"]:
            add_html(text, blocks, 1)


def _get_header(message: EmailMessage, name: str) -> str:
    try:
        return " ".join(str(message.get(name, "")).split())
    except (ValueError, LookupError, TypeError, AttributeError):  # the parser of headers fails on some broken ones
        return ""


def _decode_part(part: Any) -> str:
    data = part.get_payload(decode=True) or b""
    charset = part.get_content_charset() or "utf-8"
    try:
        return str(data.decode(charset, "replace"))
    except LookupError:
        return str(data.decode("utf-8", "replace"))
