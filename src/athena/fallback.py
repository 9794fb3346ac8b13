"""The name by which hook clients in users' data folders import the fallback."""

from athena.hooks.fallback import main

__all__ = ["main"]
