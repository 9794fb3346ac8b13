"""Athena: long-term memory for AI agents."""

from typing import TYPE_CHECKING, Any

from athena.version import __version__

if TYPE_CHECKING:
    from athena.client import AthenaClient
    from athena.connect import open  # noqa: A004  # `athena.open` is the public name

__all__ = ["AthenaClient", "__version__", "open"]


def __getattr__(name: str) -> Any:
    """Load the public names when they are asked for: importing `athena.api` should cost next to nothing."""
    if name == "open":
        from athena import connect

        return connect.open
    if name == "AthenaClient":
        from athena.client import AthenaClient

        return AthenaClient
    raise AttributeError(f"module 'athena' has no attribute {name!r}")
