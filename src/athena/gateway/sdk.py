"""Loading the MCP SDK, which is slow: with the first connection, or beforehand by a server.

Its modules import each other in circles. Two threads that begin with it at once would each find it half loaded, and for
good: so everybody who needs it comes here first.
"""

import threading

_import_lock = threading.Lock()


def import_mcp_sdk() -> None:
    with _import_lock:
        import mcp.client
        import mcp.server.lowlevel  # noqa: F401
