"""What the server that runs says of the servers behind it: its environment and its connections are its own."""

import os
from typing import Any

from athena.client import AthenaClient
from athena.core.home import lock
from athena.errors import AthenaError

SERVER_STATUS_TIMEOUT_S = 5.0  # seconds


def fetch_server_problems(home: str) -> dict[str, str]:
    """Return what is wrong with each server there, where another process serves this home."""
    facts = lock.find_server(home)
    if facts is None or facts["pid"] == os.getpid():
        return {}
    found = [] if not facts.get("url") else _fetch_servers(str(facts["url"]))
    return {one["name"]: f"in process {facts['pid']}: {one['detail']}" for one in found if one["status"] == "failing"}


def _fetch_servers(url: str) -> list[dict[str, Any]]:
    try:
        with AthenaClient(url, timeout=SERVER_STATUS_TIMEOUT_S) as client:
            found = client.call_tool("list_servers")
    except AthenaError:
        return []  # how it is itself is said elsewhere
    return found if isinstance(found, list) else []
