"""Codex: an MCP server in its `config.toml`, by its own command where there is one; hooks in `hooks.json`."""

from collections.abc import Sequence
from pathlib import Path

from athena.cli.clients import toml_edit
from athena.cli.clients.client import ENTRY_NAME, Client, create_hook_entries
from athena.cli.clients.setup import Entry, FileEdit, SetupStep, SetupTarget
from athena.cli.clients.wording import CommandStep

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
