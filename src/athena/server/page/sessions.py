"""Who is at the page: links that open it once, and the sessions that they become."""

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

LINK_LIFETIME_S = 600.0
SESSION_LIFETIME_S = 7 * 86_400.0
SESSION_IDLE_S = 86_400.0
MAX_LINKS = 20
MAX_SESSIONS = 50
MAX_UNDOS = 20  # of one session
SECRET_BYTES = 32

V = TypeVar("V")


class PageLink(NamedTuple):
    """An invitation to the page, good for one use."""

    project: str
    is_read_only: bool
    expires_at: float


class Notice(NamedTuple):
    """What the last action did, shown once on the next page."""

    text: str
    undo_key: str = ""  # names the changes that Undo takes back


@dataclass
class PageSession:
    """A browser that a person let in; its forms carry `form_token`, which no view shows.

    Cookies go to every port of a host: other servers of this machine may get the session's. The token is in the storage
    of the page's own origin.
    """

    expires_at: float
    is_read_only: bool
    used_at: float
    form_token: str = field(default_factory=lambda: secrets.token_urlsafe(SECRET_BYTES))
    notice: Notice | None = None
    undo_offers: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)  # project and changes by key

    def tell(self, text: str, project: str = "", changes: tuple[int, ...] = ()) -> None:
        """Show a notice on the next page; it offers to undo the changes with these numbers."""
        key = ""
        if changes:
            key = secrets.token_urlsafe(12)
            self.undo_offers[key] = (project, changes)
            _drop_oldest(self.undo_offers, MAX_UNDOS)
        self.notice = Notice(text, key)

    def take_notice(self) -> Notice | None:
        notice, self.notice = self.notice, None
        return notice


class PageSessions:
    """Links and sessions of one server, by the hash of their secret; they end with the process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._links: dict[str, PageLink] = {}
        self._sessions: dict[str, PageSession] = {}

    def create_link(self, project: str, *, is_read_only: bool = False) -> str:
        """Return the key of a new link."""
        key = secrets.token_urlsafe(SECRET_BYTES)
        self._links[_hash(key)] = PageLink(project, is_read_only, self._clock() + LINK_LIFETIME_S)
        _drop_oldest(self._links, MAX_LINKS)
        return key

    def open_session(self, key: str) -> tuple[str, PageLink, PageSession] | None:
        """Use up a link; return a new session and its secret, or None if the link is unknown, used or old."""
        link, now = self._links.pop(_hash(key), None), self._clock()
        if link is None or link.expires_at < now:
            return None
        secret = secrets.token_urlsafe(SECRET_BYTES)
        session = self._sessions[_hash(secret)] = PageSession(now + SESSION_LIFETIME_S, link.is_read_only, now)
        _drop_oldest(self._sessions, MAX_SESSIONS)
        return secret, link, session

    def find_session(self, secret: str) -> PageSession | None:
        session, now = self._sessions.get(_hash(secret)), self._clock()
        if session is None or session.expires_at < now or session.used_at + SESSION_IDLE_S < now:
            self._sessions.pop(_hash(secret), None)
            return None
        session.used_at = now
        return session

    def end_session(self, secret: str) -> None:
        self._sessions.pop(_hash(secret), None)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _drop_oldest(values: dict[str, V], most: int) -> None:
    for key in list(values)[: max(0, len(values) - most)]:
        del values[key]


def find_cookie(headers: Mapping[str, str], name: str) -> str:
    """Return the value of a cookie; empty if there is none or more than one of the name."""
    pairs = [part.strip().partition("=") for part in headers.get("cookie", "").split(";")]
    values = [value for key, _, value in pairs if key == name]
    return values[0] if len(values) == 1 else ""
