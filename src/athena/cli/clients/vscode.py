"""VS Code: an MCP server in `mcp.json`, by its own command where there is one."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from athena.cli.clients.client import ENTRY_NAME, Client
from athena.cli.clients.setup import Entry, FileEdit, SetupStep, SetupTarget
from athena.cli.clients.wording import CommandStep


def _vscode_folder(place: SetupTarget) -> Path:
    """Return the folder of a user's own settings."""
    if sys.platform == "darwin":
        return place.user_home / "Library" / "Application Support" / "Code" / "User"
    return Path(place.environ.get("XDG_CONFIG_HOME") or place.user_home / ".config") / "Code" / "User"


def _vscode_steps(place: SetupTarget) -> Sequence[SetupStep]:
    made = {"type": "stdio", "command": place.mcp_path, "args": []}
    path = place.project / ".vscode" if place.project else _vscode_folder(place)
    edit = FileEdit(path / "mcp.json", [Entry(("servers", ENTRY_NAME), made)])
    program = None if place.project else place.find_program("code")
    if program is None:
        return [edit]
    return [CommandStep(place, [[program, "--add-mcp", json.dumps({"name": ENTRY_NAME, **made})]], [], edit)]


VSCODE = Client(
    "vscode",
    "VS Code",
    "the MCP server",
    lambda place: place.find_program("code") is not None or _vscode_folder(place).is_dir(),
    _vscode_steps,
    'run "MCP: List Servers" and start athena; it asks whether you trust it',
)
