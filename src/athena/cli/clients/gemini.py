"""Gemini CLI: an MCP server and hooks, both in its `settings.json`."""

from athena.cli.clients.client import ENTRY_NAME, Client, create_hook_entries, create_server_entry
from athena.cli.clients.setup import Entry, FileEdit, SetupTarget

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
