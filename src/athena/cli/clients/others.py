"""Codex, Cursor, Gemini CLI, VS Code and Windsurf: which files and commands set each of them up."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from athena.cli.clients import toml_edit
from athena.cli.clients.setup import (
    ENTRY_NAME,
    Client,
    CommandStep,
    ConfigEntry,
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

GEMINI_EVENTS = {
    "SessionStart": "session-start",
    "BeforeAgent": "user-prompt-submit",
    "AfterTool": "post-tool-use",
    "AfterAgent": "stop",
    "SessionEnd": "session-end",
}


def _codex_folder(target: SetupTarget) -> Path:
    if target.project is not None:
        return target.project / ".codex"
    return Path(target.environ.get("CODEX_HOME") or target.user_home / ".codex")


def _codex_steps(target: SetupTarget) -> Sequence[SetupStep]:
    folder = _codex_folder(target)
    table = FileEdit(
        target.find_file(folder / "config.toml"),
        [ConfigEntry(("mcp_servers", ENTRY_NAME), {"command": target.mcp_path})],
        toml_edit,
    )
    program = target.find_program("codex") if target.project is None else None  # its command has no project scope
    if program is None:
        server_step: SetupStep = table
    else:
        add = [[program, "mcp", "add", ENTRY_NAME, "--", target.mcp_path]]
        server_step = CommandStep(target, add, [[program, "mcp", "remove", ENTRY_NAME]], table)
    return [
        server_step,
        FileEdit(target.find_file(folder / "hooks.json"), create_hook_entries(target, CODEX_EVENTS, timeout=10)),
    ]


CODEX = Client(
    "codex",
    "Codex",
    "the MCP server and session hooks",
    lambda target: target.find_program("codex") is not None or _codex_folder(target).is_dir(),
    _codex_steps,
    "start codex and agree to the hooks in /hooks: it runs none that was not looked at",
    hooks=True,
    runs_user_hooks=True,
)


def _cursor_edit(target: SetupTarget) -> FileEdit:
    # Cursor starts servers in a folder of its own; only this variable names the open one.
    entry = ConfigEntry(("mcpServers", ENTRY_NAME), create_server_entry(target, folder="${workspaceFolder}"))
    return FileEdit(target.find_file(target.base_folder / ".cursor" / "mcp.json"), [entry])


CURSOR = Client(
    "cursor",
    "Cursor",
    "the MCP server",
    lambda target: target.find_program("cursor") is not None or (target.user_home / ".cursor").is_dir(),
    lambda target: [_cursor_edit(target)],
    "look for athena in Cursor's settings, under Tools & MCP",
)


def _gemini_edit(target: SetupTarget) -> FileEdit:
    entries = [ConfigEntry(("mcpServers", ENTRY_NAME), create_server_entry(target))]
    entries += create_hook_entries(target, GEMINI_EVENTS, timeout=10_000, named=True)  # in milliseconds
    return FileEdit(target.find_file(target.base_folder / ".gemini" / "settings.json"), entries)


GEMINI = Client(
    "gemini",
    "Gemini CLI",
    "the MCP server and session hooks",
    lambda target: target.find_program("gemini") is not None or (target.user_home / ".gemini").is_dir(),
    lambda target: [_gemini_edit(target)],
    "start gemini; /mcp and /hooks list what it has",
    hooks=True,
    runs_user_hooks=True,
)


def _vscode_folder(target: SetupTarget) -> Path:
    """Return the folder of the user's settings."""
    if sys.platform == "darwin":
        return target.user_home / "Library" / "Application Support" / "Code" / "User"
    return Path(target.environ.get("XDG_CONFIG_HOME") or target.user_home / ".config") / "Code" / "User"


def _vscode_steps(target: SetupTarget) -> Sequence[SetupStep]:
    server = {"type": "stdio", "command": target.mcp_path, "args": []}
    path = target.project / ".vscode" if target.project else _vscode_folder(target)
    edit = FileEdit(target.find_file(path / "mcp.json"), [ConfigEntry(("servers", ENTRY_NAME), server)])
    program = None if target.project else target.find_program("code")
    if program is None:
        return [edit]
    return [CommandStep(target, [[program, "--add-mcp", json.dumps({"name": ENTRY_NAME, **server})]], [], edit)]


VSCODE = Client(
    "vscode",
    "VS Code",
    "the MCP server",
    lambda target: target.find_program("code") is not None or _vscode_folder(target).is_dir(),
    _vscode_steps,
    'run "MCP: List Servers" and start athena; it asks whether you trust it',
)


def _windsurf_folder(target: SetupTarget) -> Path:
    return target.user_home / ".codeium" / "windsurf"


WINDSURF = Client(
    "windsurf",
    "Windsurf",
    "the MCP server",
    lambda target: target.find_program("windsurf") is not None or _windsurf_folder(target).is_dir(),
    lambda target: [
        FileEdit(
            target.find_file(_windsurf_folder(target) / "mcp_config.json"),
            [ConfigEntry(("mcpServers", ENTRY_NAME), create_server_entry(target))],
        )
    ],
    "refresh the list of MCP servers in Cascade",
    per_project=False,
)
