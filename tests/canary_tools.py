"""Canaries: random words that must not get out, and the search for them in bytes and their common encodings."""

import base64
import codecs
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

MIN_PART_BYTES = 12  # of a base64 text: the first and last group depend on their neighbours


def list_encodings(canary: str) -> dict[str, bytes]:
    """Return the forms in which a canary may be written."""
    plain = canary.encode()
    forms = {
        "plain": plain,
        "upper case": canary.upper().encode(),
        "reversed": plain[::-1],
        "utf-16": canary.encode("utf-16-le"),
        "hex": plain.hex().encode(),
        "HEX": plain.hex().upper().encode(),
        "url": quote(canary, safe="").encode(),
        "every byte as url": "".join(f"%{byte:02x}" for byte in plain).encode(),
        "unicode escapes": "".join(f"\\u{ord(char):04x}" for char in canary).encode(),
        "rot13": codecs.encode(canary, "rot13").encode(),
        "spaced": " ".join(canary).encode(),
        "list of codes": str(list(plain)).strip("[]").encode(),
    }
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + plain)
        forms[f"base64 at {offset}"] = encoded[4 if offset else 0 : len(encoded) - 4]
        forms[f"url-safe base64 at {offset}"] = encoded.translate(bytes.maketrans(b"+/", b"-_"))[
            4 if offset else 0 : len(encoded) - 4
        ]
    assert all(len(form) >= MIN_PART_BYTES for form in forms.values())
    return forms


def find_canaries(data: bytes, canaries: Iterable[str]) -> list[tuple[str, str]]:
    """Return each canary that some bytes hold, with its encoding."""
    return [(canary, name) for canary in canaries for name, form in list_encodings(canary).items() if form in data]


def read_all_files(folder: Path, *, without: frozenset[str] = frozenset()) -> bytes:
    """Return the content of every file below a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in without)
    return b"\n".join(path.read_bytes() for path in paths)
