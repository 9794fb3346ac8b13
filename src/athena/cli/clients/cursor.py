"""Cursor: an MCP server in `mcp.json`."""

from athena.cli.clients.client import NAME, Client, server
from athena.cli.clients.setup import Edited, Entry, Place


def _edit(place: Place) -> Edited:
    # It starts servers in a folder of its own, and says only here which one is open.
    entry = Entry(("mcpServers", NAME), server(place, folder="${workspaceFolder}"))
    return Edited(place.folder / ".cursor" / "mcp.json", [entry])


CURSOR = Client(
    "cursor",
    "Cursor",
    "the MCP server",
    lambda place: place.program("cursor") is not None or (place.user / ".cursor").is_dir(),
    lambda place: [_edit(place)],
    "look for athena in Cursor's settings, under Tools & MCP",
)
