"""Install another memory server in its own virtual environment, to compare with."""

import subprocess
import sys
from pathlib import Path

NAME = "mcp-memory-service"
PROGRAM = "import mcp_memory_service.api"
PATIENCE = 180  # seconds


class Unobtainable(Exception):
    """The other server cannot be installed here."""


def install(folder: Path) -> tuple[Path, str]:
    """Install the server below a folder and return its Python and its version."""
    where = folder / "rival"
    python = where / "bin" / "python"
    steps: list[list[str]] = [
        [sys.executable, "-m", "venv", str(where)],
        [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input", NAME],
        [str(python), "-c", PROGRAM],
    ]
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=PATIENCE, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unobtainable(f"{NAME} could not be installed ({type(error).__name__})") from error
        if done.returncode:
            print(done.stderr[-2000:], file=sys.stderr)
            raise Unobtainable(f"{NAME} could not be installed (pip's or its own error, shown when this was run)")
    code = f"from importlib.metadata import version; print(version({NAME!r}))"
    found = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return python, found.stdout.strip()
