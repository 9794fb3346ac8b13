"""Athena: long-term memory for AI agents."""

from __future__ import annotations

from athena.core.version import __version__

TYPE_CHECKING = False  # importing typing is too slow for `athena mcp`
if TYPE_CHECKING:
    from typing import Any

    from athena.api import open  # noqa: A004  # `athena.open` is the public name
    from athena.client import AthenaClient

__all__ = ["AthenaClient", "__version__", "open"]


def __getattr__(name: str) -> Any:
    """Import the public names at their first use, so that `import athena` stays cheap."""
    if name == "open":
        from athena import api

        return api.open
    if name == "AthenaClient":
        from athena.client import AthenaClient

        return AthenaClient
    raise AttributeError(f"module 'athena' has no attribute {name!r}")
