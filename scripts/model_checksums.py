"""Write the checksums of a model's files; Athena loads no file that does not match."""

import hashlib
from pathlib import Path

from athena.embedding.minilm import CHECKSUMS_FILE


def write_checksums(folder: Path) -> str:
    """Write the checksum of every file in a model's folder, and return the text."""
    names = sorted(path.name for path in folder.iterdir() if path.name != CHECKSUMS_FILE)
    text = "".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    (folder / CHECKSUMS_FILE).write_text(text)
    return text
