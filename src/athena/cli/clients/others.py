"""Windsurf: an MCP server in `mcp_config.json`, for all projects together."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from athena.cli.clients import toml_edit
from athena.cli.clients.setup import (
    ENTRY_NAME,
    Client,
    CommandStep,
    Entry,
    FileEdit,
    SetupStep,
    SetupTarget,
    create_hook_entries,
    create_server_entry,
)

CODEX_EVENTS = {
    "SessionStart": "session-start",
    "UserPromptSubmit": "user-prompt-submit",
    "PostToolUse": "post-tool-use",
    "PreCompact": "pre-compact",
    "PostCompact": "post-compact",
    "Stop": "stop",
}


def _codex_folder(place: SetupTarget) -> Path:
    if place.project is not None:
        return place.project / ".codex"
    return Path(place.environ.get("CODEX_HOME") or place.user_home / ".codex")


def _codex_steps(place: SetupTarget) -> Sequence[SetupStep]:
    folder = _codex_folder(place)
    table = FileEdit(
        folder / "config.toml", [Entry(("mcp_servers", ENTRY_NAME), {"command": place.mcp_path})], toml_edit
    )
    program = place.find_program("codex") if place.project is None else None  # its own command knows no projects
    if program is None:
        first: SetupStep = table
    else:
        add = [[program, "mcp", "add", ENTRY_NAME, "--", place.mcp_path]]
        first = CommandStep(place, add, [[program, "mcp", "remove", ENTRY_NAME]], table)
    return [first, FileEdit(folder / "hooks.json", create_hook_entries(place, CODEX_EVENTS, seconds=10))]


CODEX = Client(
    "codex",
    "Codex",
    "the MCP server and session hooks",
    lambda place: place.find_program("codex") is not None or _codex_folder(place).is_dir(),
    _codex_steps,
    "start codex and agree to the hooks in /hooks: it runs none that was not looked at",
    hooks=True,
    runs_user_hooks=True,
)


def _cursor_edit(place: SetupTarget) -> FileEdit:
    # It starts servers in a folder of its own, and says only here which one is open.
    entry = Entry(("mcpServers", ENTRY_NAME), create_server_entry(place, folder="${workspaceFolder}"))
    return FileEdit(place.base_folder / ".cursor" / "mcp.json", [entry])


CURSOR = Client(
    "cursor",
    "Cursor",
    "the MCP server",
    lambda place: place.find_program("cursor") is not None or (place.user_home / ".cursor").is_dir(),
    lambda place: [_cursor_edit(place)],
    "look for athena in Cursor's settings, under Tools & MCP",
)


GEMINI_EVENTS = {
    "SessionStart": "session-start",
    "BeforeAgent": "user-prompt-submit",
    "AfterTool": "post-tool-use",
    "AfterAgent": "stop",
    "SessionEnd": "session-end",
}


def _gemini_edit(place: SetupTarget) -> FileEdit:
    entries = [Entry(("mcpServers", ENTRY_NAME), create_server_entry(place))]
    entries += create_hook_entries(
        place, GEMINI_EVENTS, seconds=10, unit=1_000, named=True
    )  # it counts in milliseconds
    return FileEdit(place.base_folder / ".gemini" / "settings.json", entries)


GEMINI = Client(
    "gemini",
    "Gemini CLI",
    "the MCP server and session hooks",
    lambda place: place.find_program("gemini") is not None or (place.user_home / ".gemini").is_dir(),
    lambda place: [_gemini_edit(place)],
    "start gemini; /mcp and /hooks list what it has",
    hooks=True,
    runs_user_hooks=True,
)


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


def _windsurf_folder(place: SetupTarget) -> Path:
    return place.user_home / ".codeium" / "windsurf"


WINDSURF = Client(
    "windsurf",
    "Windsurf",
    "the MCP server",
    lambda place: place.find_program("windsurf") is not None or _windsurf_folder(place).is_dir(),
    lambda place: [
        FileEdit(
            _windsurf_folder(place) / "mcp_config.json", [Entry(("mcpServers", ENTRY_NAME), create_server_entry(place))]
        )
    ],
    "refresh the list of MCP servers in Cascade",
    per_project=False,
)
