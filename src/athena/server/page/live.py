"""Live updates: tell open pages what has changed, as server-sent events."""

import asyncio
import json
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from athena.core.types import to_json
from athena.errors import AthenaError
from athena.server.page.site import PAGE_HEADERS, PageRequest, PageSite, View

POLL_INTERVAL_S = 0.7
STREAM_LIFETIME_S = 240.0  # the browser connects again; a request may not take longer than REQUEST_TIMEOUT_S
PING_INTERVAL_S = 15.0
FEED_LINGER_S = 5.0  # a feed without readers ends after this
MAX_CHANGES = 200  # that one look brings
OVERLAP = 100  # on PostgreSQL, a change may appear after one with a higher number
KEPT_MESSAGES = 200
MAX_POSITION_CHARS = 40
PAGE_LOAD_S = 5.0  # between drawing a page and its first event: what happened meanwhile is told again


class Feed:
    """The changes of one project, as long as a page shows it; all pages share one look at the store."""

    def __init__(self, site: PageSite, project: str) -> None:
        self._site, self._project = site, project
        self.last_number = 0
        self._name = secrets.token_hex(4)  # positions of another feed mean nothing here
        self._messages: deque[tuple[int, float, str]] = deque(maxlen=KEPT_MESSAGES)  # with number and time
        self._seen: deque[int] = deque(maxlen=2 * (MAX_CHANGES + OVERLAP))
        self._runs: dict[str, str] | None = None
        self._serial = 0
        self._news = asyncio.Event()
        self.readers = 0
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        idle_since = time.monotonic()
        while self.readers or time.monotonic() - idle_since < FEED_LINGER_S:
            if self.readers:
                idle_since = time.monotonic()
            try:
                if message := await self._look():
                    self._serial += 1
                    self._messages.append((self._serial, time.monotonic(), message))
                    self._news.set()
                    self._news = asyncio.Event()
            except AthenaError:  # the store is away for a moment
                pass
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _look(self) -> str:
        """Return a message about what is new since the last look; empty if nothing is."""
        context = self._site.create_context(self._project, None, None)
        known, is_first = self._runs or {}, self._runs is None
        after = max(0, self.last_number - OVERLAP)
        changes = await self._site.find_operation("recent_changes")(context, after=after, limit=MAX_CHANGES)
        runs = await self._site.find_operation("list_runs")(context, limit=20)
        states = {run.run_id: run.status for run in runs}
        new = [change for change in changes if change.number not in self._seen]
        if is_first:
            new = [change for change in new if change.at > time.time() - PAGE_LOAD_S]
        self._seen.extend(change.number for change in changes)
        self.last_number = max([self.last_number, *(change.number for change in changes)])
        changed_runs = [] if is_first else [run for run in runs if known.get(run.run_id) != run.status]
        self._runs = states
        if not (new or changed_runs):
            return ""
        waiting = sum(status == "needs_approval" for status in states.values())
        facts: dict[str, Any] = {"changes": to_json(new[:20]), "count": len(new), "waiting": waiting}
        facts["runs"] = [{"run_id": run.run_id, "status": run.status} for run in changed_runs]
        return json.dumps(facts, ensure_ascii=True)

    async def read(self, after: str) -> AsyncIterator[str]:
        """Yield server-sent events until the stream's time is over or the server stops."""
        position, missed = self._find_position(after)
        ends_at = time.monotonic() + STREAM_LIFETIME_S
        yield f"event: start\nid: {self._name}-{position}\ndata: {json.dumps({'missed': missed})}\n\n"
        pinged_at = time.monotonic()
        while time.monotonic() < ends_at and not self._site.dispatcher.is_stopping():
            news = self._news
            for serial, _, message in [item for item in self._messages if item[0] > position]:
                position = serial
                yield f"event: change\nid: {self._name}-{serial}\ndata: {message}\n\n"
            try:
                await asyncio.wait_for(news.wait(), 1.0)
            except TimeoutError:
                if time.monotonic() - pinged_at > PING_INTERVAL_S:
                    pinged_at = time.monotonic()
                    yield ": here\n\n"

    def _find_position(self, after: str) -> tuple[int, bool]:
        """Return the number after which a reader goes on, and whether something before that may have escaped it."""
        oldest = self._messages[0][0] if self._messages else self._serial + 1
        name, _, number = after.partition("-")
        if name == self._name and number.isascii() and number.isdigit():
            position = min(int(number), self._serial)
            return position, position < oldest - 1
        since = time.monotonic() - PAGE_LOAD_S
        return next((serial - 1 for serial, at, _ in self._messages if at > since), self._serial), bool(after)


class Feeds:
    """The feeds of a site, by project."""

    def __init__(self, site: PageSite) -> None:
        self._site = site
        self._feeds: dict[str, Feed] = {}

    async def stream(self, project: str, after: str) -> AsyncIterator[str]:
        feed = self._feeds.get(project)
        if feed is None or feed.task is None or feed.task.done():
            feed = self._feeds[project] = Feed(self._site, project)
            feed.task = asyncio.create_task(feed.run())
        feed.readers += 1
        try:
            async for event in feed.read(after):
                yield event
        finally:
            feed.readers -= 1
            for name in [name for name, other in self._feeds.items() if other.task is None or other.task.done()]:
                del self._feeds[name]


async def stream_changes(page: PageRequest) -> Response:
    after = page.params.get("after", "")[:MAX_POSITION_CHARS]
    headers = PAGE_HEADERS | {"cache-control": "no-store", "x-accel-buffering": "no"}
    stream = page.site.feeds.stream(page.project, after)
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


VIEWS = (View("GET", "/live", stream_changes),)
