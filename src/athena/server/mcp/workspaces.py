"""A workspace for each connection: the lowest number that nobody has, so that their number stays small."""

import time
from collections.abc import Callable

SESSIONS = 1_000  # that are told apart; a client can make up as many names as it likes
LONGEST = 200  # characters of a session's name that count
IDLE = 1_800.0  # seconds after which a session that has not been heard of is taken to have ended


class Seats:
    """Who has which workspace. A session that says nothing when it ends loses its own after a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken: dict[tuple[str, str], float | None] = {}  # project and name to when it was used; None is for good
        self._sessions: dict[tuple[str, str], str] = {}

    def take(self, project: str, wanted: str | None = None) -> str:
        """Return the name of a free workspace: the one that is wanted, if it is free."""
        name = wanted if wanted and _is_ours(wanted) and (project, wanted) not in self._taken else self._free(project)
        self._taken[project, name] = None
        return name

    def leave(self, project: str, name: str) -> None:
        self._taken.pop((project, name), None)

    def of_session(self, session: str, project: str) -> str:
        """Return the workspace of a session, which has the same one each time."""
        now, session = self._clock(), session[:LONGEST]
        for (whose, name), used in list(self._taken.items()):
            if used is not None and used < now - IDLE:
                del self._taken[whose, name]
        name = self._sessions.get((session, project), "")
        if (project, name) not in self._taken:
            waiting = sorted((used, key) for key, used in self._taken.items() if used is not None)
            for _, key in waiting[: max(0, len(waiting) + 1 - SESSIONS)]:
                del self._taken[key]  # the one that was not heard of for the longest
            name = self._free(project)
            gone = [key for key, other in self._sessions.items() if (key[1], other) not in self._taken]
            for key in gone:
                del self._sessions[key]
            self._sessions[session, project] = name
        self._taken[project, name] = now
        return name

    def _free(self, project: str) -> str:
        number = 1
        while (project, f"mcp-{number}") in self._taken:
            number += 1
        return f"mcp-{number}"


def _is_ours(name: str) -> bool:
    return name.startswith("mcp-") and name[4:].isascii() and name[4:].isdigit() and len(name) < 12
