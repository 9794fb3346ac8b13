"""Athena: long-term memory for AI agents."""

from __future__ import annotations

from athena.core.version import __version__

TYPE_CHECKING = False  # importing typing is too slow for `athena mcp`
if TYPE_CHECKING:
    from typing import Any

    from athena.api import open  # noqa: A004  # `athena.open` is the public name
    from athena.client import AsyncAthenaClient, AthenaClient

__all__ = ["AsyncAthenaClient", "AthenaClient", "__version__", "open"]
# What people try first; a search for similar names would import too much, since every import of a module asks here.
API_NAMES = {
    name: f"athena.api.{name}"
    for name in ("remember", "recall", "get", "update", "forget", "store", "search", "delete", "health")
}
CLIENT_NAMES = dict.fromkeys(("Client", "Athena", "connect"), "AthenaClient")


def __getattr__(name: str) -> Any:
    """Import the public names at their first use, so that `import athena` stays cheap."""
    if name == "open":
        from athena import api

        return api.open
    if name in ("AthenaClient", "AsyncAthenaClient"):
        from athena import client

        return getattr(client, name)
    meant = API_NAMES.get(name) or CLIENT_NAMES.get(name)
    suggestion = f"; did you mean {meant!r}?" if meant else ""
    raise AttributeError(f"module 'athena' has no attribute {name!r}{suggestion}")
