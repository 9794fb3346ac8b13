"""Pictures, sounds and other binary data of tools: their type by their content, and the handle of each."""

import binascii
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from athena.core.hashing import hash_text

AttachmentKind = Literal["image", "audio", "resource"]
HANDLES_PREFIX = "handles/"  # the folder of a workspace that only Athena writes
UNKNOWN_EXTENSION = "bin"
MIME_TYPES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "ogg": "audio/ogg",
    "flac": "audio/flac",
    "pdf": "application/pdf",
    "zip": "application/zip",
    UNKNOWN_EXTENSION: "application/octet-stream",
}
# A server may claim any type; a client that is handed a false picture may fail for good. Beginnings, and bytes 8 to 12.
SIGNATURES: tuple[tuple[tuple[bytes, ...], bytes, str], ...] = (
    ((b"\x89PNG\r\n\x1a\n",), b"", "png"),
    ((b"\xff\xd8\xff",), b"", "jpg"),
    ((b"GIF87a", b"GIF89a"), b"", "gif"),
    ((b"RIFF",), b"WEBP", "webp"),
    ((b"RIFF",), b"WAVE", "wav"),
    ((b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"), b"", "mp3"),
    ((b"OggS",), b"", "ogg"),
    ((b"fLaC",), b"", "flac"),
    ((b"%PDF-",), b"", "pdf"),
    ((b"PK\x03\x04",), b"", "zip"),
)
PATH_PATTERN = rf"{HANDLES_PREFIX}[0-9a-f]{{16}}\.(\w+)"
MAX_SEARCHED_VALUES = 10_000


class Attachment(NamedTuple):
    """Binary data that a tool returned, and the handle that stands for it in the result."""

    handle: dict[str, Any]
    data: str  # as base64


def create_attachment(kind: AttachmentKind, data: str, **facts: Any) -> Attachment:
    """Return binary data with its handle: type, size, and the path that it has once it is stored."""
    data = "".join(data.split())  # some servers break it into lines
    try:
        content = binascii.a2b_base64(data, strict_mode=True)
    except (ValueError, binascii.Error):
        mime_type = MIME_TYPES[UNKNOWN_EXTENSION]
        return Attachment({"type": kind, **facts, "mimeType": mime_type, "note": "its data cannot be read"}, "")
    extension = _detect_extension(content)
    path = f"{HANDLES_PREFIX}{hash_text(data)[:16]}.{extension}"
    handle = {"type": kind, **facts, "mimeType": MIME_TYPES[extension], "bytes": len(content), "path": path}
    return Attachment(handle, data)


def _detect_extension(content: bytes) -> str:
    for beginnings, marker, extension in SIGNATURES:
        if content.startswith(beginnings) and content[8:12].startswith(marker):
            return extension
    return UNKNOWN_EXTENSION


def get_mime_type(path: str) -> str | None:
    """Return the type of a stored attachment by its path; None for any other file."""
    match = re.fullmatch(PATH_PATTERN, path)
    return MIME_TYPES.get(match[1]) if match else None


def find_paths(value: Any) -> list[str]:
    """Return the paths of the attachments whose handles a value contains, each once, in order."""
    return list(dict.fromkeys(_walk_handles(value)))


def _walk_handles(value: Any) -> Iterator[str]:
    pending = [value]
    for _ in range(MAX_SEARCHED_VALUES):
        if not pending:
            return
        value = pending.pop()
        if isinstance(value, list):
            pending += reversed(value)
        elif isinstance(value, dict):
            path = value.get("path")
            if value.get("type") in ("image", "audio", "resource") and isinstance(path, str) and get_mime_type(path):
                yield path
            pending += reversed(value.values())
