"""Gemini CLI: an MCP server and hooks, both in its `settings.json`."""

from athena.cli.clients.client import NAME, Client, hooked, server
from athena.cli.clients.setup import Edited, Entry, Place

EVENTS = {
    "SessionStart": "session-start",
    "BeforeAgent": "user-prompt-submit",
    "AfterTool": "post-tool-use",
    "AfterAgent": "stop",
    "SessionEnd": "session-end",
}


def _edit(place: Place) -> Edited:
    entries = [Entry(("mcpServers", NAME), server(place))]
    entries += hooked(place, EVENTS, seconds=10, unit=1_000, named=True)  # it counts in milliseconds
    return Edited(place.folder / ".gemini" / "settings.json", entries)


GEMINI = Client(
    "gemini",
    "Gemini CLI",
    "the MCP server and session hooks",
    lambda place: place.program("gemini") is not None or (place.user / ".gemini").is_dir(),
    lambda place: [_edit(place)],
    "start gemini; /mcp and /hooks list what it has",
    hooks=True,
    adds_up=True,
)
