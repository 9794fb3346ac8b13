"""Windsurf: an MCP server in `mcp_config.json`, for all projects together."""

from pathlib import Path

from athena.cli.clients.client import ENTRY_NAME, Client, create_server_entry
from athena.cli.clients.setup import Entry, FileEdit, SetupTarget


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
