"""Wait for other threads and processes: long enough for any machine, without delay when they are fast."""

import time
from collections.abc import Callable
from typing import Any

LONG = 60.0  # seconds


def wait_until(happened: Callable[[], Any], seconds: float = LONG) -> Any:
    """Wait until another thread or process makes a condition true, and return its value."""
    deadline = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


def succeeds_once(works: Callable[[], Any], tries: int = 5) -> bool:
    """Tell whether a condition holds in one of a few tries: work that is too slow fails each time."""
    return any(works() for _ in range(tries))


def pausing_code(signals: str = "signals") -> str:
    """Return the start of a program that writes a file when it starts and waits for another file to go on."""
    return f"""
import time
workspace.write(path="begun", content="x", workspace="{signals}")
while not workspace.list(prefix="go", workspace="{signals}"):
    time.sleep(0.02)
"""
