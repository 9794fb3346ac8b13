"""VS Code: an MCP server in `mcp.json`, by its own command where there is one."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from athena.cli.clients.client import NAME, Client
from athena.cli.clients.setup import Edited, Entry, Place, Step
from athena.cli.clients.wording import Words


def _folder(place: Place) -> Path:
    """Return the folder of a user's own settings."""
    if sys.platform == "darwin":
        return place.user / "Library" / "Application Support" / "Code" / "User"
    return Path(place.environment.get("XDG_CONFIG_HOME") or place.user / ".config") / "Code" / "User"


def _steps(place: Place) -> Sequence[Step]:
    made = {"type": "stdio", "command": place.mcp, "args": []}
    path = place.project / ".vscode" if place.project else _folder(place)
    edit = Edited(path / "mcp.json", [Entry(("servers", NAME), made)])
    program = None if place.project else place.program("code")
    if program is None:
        return [edit]
    return [Words(place, [[program, "--add-mcp", json.dumps({"name": NAME, **made})]], [], edit)]


VSCODE = Client(
    "vscode",
    "VS Code",
    "the MCP server",
    lambda place: place.program("code") is not None or _folder(place).is_dir(),
    _steps,
    'run "MCP: List Servers" and start athena; it asks whether you trust it',
)
