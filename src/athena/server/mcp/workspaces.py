"""Assign a workspace to each MCP connection or session, under a name that no other ever gets."""

import time
from collections.abc import Callable
from typing import NamedTuple

from athena.storage.workspaces import create_connection_name, is_connection_name

MAX_TRACKED_SESSIONS = 1_000  # clients can invent as many ids as they like
MAX_SESSION_ID_CHARS = 200
SESSION_IDLE_TIMEOUT_S = 1_800.0


class McpPeer(NamedTuple):
    """The client of a connection or session."""

    surface: str = "default"  # a key of TOOL_SURFACES
    project: str | None = None
    workspace: str | None = None


class WorkspacePool:
    """The workspaces in use. HTTP sessions do not say when they end, so an idle one loses its workspace."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # project and workspace to the time of the last use; None until it is released
        self._last_used: dict[tuple[str, str], float | None] = {}
        self._sessions: dict[tuple[str, str], str] = {}  # session id and project to workspace

    def acquire(self, project: str, wanted: str | None = None) -> str:
        """Reserve a workspace and return its name; a client that connects again gets the one that it had (`wanted`)."""
        is_free = wanted and is_connection_name(wanted) and (project, wanted) not in self._last_used
        name = wanted if wanted and is_free else create_connection_name()
        self._last_used[project, name] = None
        return name

    def release(self, project: str, name: str) -> None:
        self._last_used.pop((project, name), None)

    def get_for_session(self, session: str, project: str) -> str:
        """Return the workspace of a session, the same at each call."""
        now, session = self._clock(), session[:MAX_SESSION_ID_CHARS]
        for key, used in list(self._last_used.items()):
            if used is not None and used < now - SESSION_IDLE_TIMEOUT_S:
                del self._last_used[key]
        name = self._sessions.get((session, project), "")
        if (project, name) not in self._last_used:
            tracked = sorted((used, key) for key, used in self._last_used.items() if used is not None)
            for _, key in tracked[: max(0, len(tracked) + 1 - MAX_TRACKED_SESSIONS)]:
                del self._last_used[key]  # the one that was idle for longest
            name = create_connection_name()
            ended = [key for key, other in self._sessions.items() if (key[1], other) not in self._last_used]
            for key in ended:
                del self._sessions[key]
            self._sessions[session, project] = name
        self._last_used[project, name] = now
        return name
