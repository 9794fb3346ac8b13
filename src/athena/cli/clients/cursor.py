"""Cursor: an MCP server in `mcp.json`."""

from athena.cli.clients.client import ENTRY_NAME, Client, create_server_entry
from athena.cli.clients.setup import Entry, FileEdit, SetupTarget


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
