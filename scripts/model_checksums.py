"""Write the checksums of a model's files; Athena loads no file that does not match.

    python scripts/model_checksums.py

writes those of the adapters, after scripts/train_adapters.py; scripts/build_model.py writes those of the model.
"""

import hashlib
from pathlib import Path

from athena.discovery.vectors import ADAPTER_FILE
from athena.embedding.minilm import CHECKSUMS_FILE
from athena.memory.sessions.supersede import CHANGES_FILE


def write_checksums(folder: Path, pattern: str = "*") -> str:
    """Write the checksum of every such file in a folder, and return the text."""
    names = sorted(path.name for path in folder.glob(pattern) if path.name != CHECKSUMS_FILE)
    text = "".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    (folder / CHECKSUMS_FILE).write_text(text)
    return text


if __name__ == "__main__":
    for file in (CHANGES_FILE, ADAPTER_FILE):
        print(write_checksums(file.parent, "*.npz"), end="")
