"""Windsurf: an MCP server in `mcp_config.json`, for all projects together."""

from pathlib import Path

from athena.cli.clients.client import NAME, Client, server
from athena.cli.clients.setup import Edited, Entry, Place


def _folder(place: Place) -> Path:
    return place.user / ".codeium" / "windsurf"


WINDSURF = Client(
    "windsurf",
    "Windsurf",
    "the MCP server",
    lambda place: place.program("windsurf") is not None or _folder(place).is_dir(),
    lambda place: [Edited(_folder(place) / "mcp_config.json", [Entry(("mcpServers", NAME), server(place))])],
    "refresh the list of MCP servers in Cascade",
    per_project=False,
)
