"""A workspace for each connection: the lowest number that nobody has, so that their number stays small."""

import time
from collections.abc import Callable

MAX_TRACKED_SESSIONS = 1_000  # that are told apart; a client can make up as many names as it likes
MAX_SESSION_ID_CHARS = 200  # characters of a session's name that count
SESSION_IDLE_TIMEOUT_S = 1_800.0  # seconds after which a session that has not been heard of is taken to have ended


class WorkspacePool:
    """Who has which workspace. A session that says nothing when it ends loses its own after a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_used: dict[
            tuple[str, str], float | None
        ] = {}  # project and name to when it was used; None is for good
        self._sessions: dict[tuple[str, str], str] = {}

    def acquire(self, project: str, wanted: str | None = None) -> str:
        """Return the name of a free workspace: the one that is wanted, if it is free."""
        name = (
            wanted
            if wanted and _is_pool_name(wanted) and (project, wanted) not in self._last_used
            else self._find_free_name(project)
        )
        self._last_used[project, name] = None
        return name

    def release(self, project: str, name: str) -> None:
        self._last_used.pop((project, name), None)

    def get_for_session(self, session: str, project: str) -> str:
        """Return the workspace of a session, which has the same one each time."""
        now, session = self._clock(), session[:MAX_SESSION_ID_CHARS]
        for (whose, name), used in list(self._last_used.items()):
            if used is not None and used < now - SESSION_IDLE_TIMEOUT_S:
                del self._last_used[whose, name]
        name = self._sessions.get((session, project), "")
        if (project, name) not in self._last_used:
            waiting = sorted((used, key) for key, used in self._last_used.items() if used is not None)
            for _, key in waiting[: max(0, len(waiting) + 1 - MAX_TRACKED_SESSIONS)]:
                del self._last_used[key]  # the one that was not heard of for the longest
            name = self._find_free_name(project)
            gone = [key for key, other in self._sessions.items() if (key[1], other) not in self._last_used]
            for key in gone:
                del self._sessions[key]
            self._sessions[session, project] = name
        self._last_used[project, name] = now
        return name

    def _find_free_name(self, project: str) -> str:
        number = 1
        while (project, f"mcp-{number}") in self._last_used:
            number += 1
        return f"mcp-{number}"


def _is_pool_name(name: str) -> bool:
    return name.startswith("mcp-") and name[4:].isascii() and name[4:].isdigit() and len(name) < 12
