"""Waiting for what others do: long enough for any machine, since what happens at once costs no time."""

import time
from collections.abc import Callable
from typing import Any

LONG = 60.0  # seconds


def until(happened: Callable[[], Any], seconds: float = LONG) -> Any:
    """Wait for something that another thread or process does."""
    deadline = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


def sometimes(works: Callable[[], Any], tries: int = 5) -> bool:
    """Tell whether something is so in one of a few tries: what takes too long by itself does so each time."""
    return any(works() for _ in range(tries))


def held(signals: str = "signals") -> str:
    """Return the beginning of a program that says that it has begun, and goes on when it is told, both by a file."""
    return f"""
import time
workspace.write(path="begun", content="x", workspace="{signals}")
while not workspace.list(prefix="go", workspace="{signals}"):
    time.sleep(0.02)
"""
