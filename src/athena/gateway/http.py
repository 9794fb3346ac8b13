"""The Streamable HTTP transport of a server, with limits on its responses."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from athena.gateway.config import LOOPBACK_HOSTS
from athena.gateway.monitor import (
    LIST_CHANGED,
    MAX_MESSAGE_BYTES,
    MAX_MESSAGE_VALUES,
    MAX_MESSAGES,
    VALUE_MARKERS,
    ConnectionMonitor,
)

LIST_CHANGED_BYTES = LIST_CHANGED.encode()


@asynccontextmanager
async def open_http_streams(
    url: str, headers: Mapping[str, str], timeout_s: float, monitor: ConnectionMonitor, auth: Any = None
) -> AsyncGenerator[Any]:
    """Yield the streams that the SDK reads from and writes to."""
    import httpx2  # slow to import, like the SDK
    from mcp.client.streamable_http import streamable_http_client

    class LimitedStream(httpx2.AsyncByteStream):
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = events = values = 0
            last = b""
            async for chunk in self._inner:
                if LIST_CHANGED_BYTES in last + chunk:
                    monitor.change_count += 1
                last = chunk[-len(LIST_CHANGED_BYTES) :]
                size, events = size + len(chunk), events + chunk.count(b"\ndata:")
                values += sum(map(chunk.count, VALUE_MARKERS))
                if size > MAX_MESSAGE_BYTES:
                    monitor.violation = f"it answered with more than {MAX_MESSAGE_BYTES >> 20} MB at once"
                elif values > MAX_MESSAGE_VALUES:
                    monitor.violation = f"it answered with more than {MAX_MESSAGE_VALUES:,} values at once"
                elif events > MAX_MESSAGES:
                    monitor.violation = f"it sent more than {MAX_MESSAGES:,} messages that nobody had asked for"
                if monitor.violation:
                    monitor.ended.set()
                    raise httpx2.ReadError(monitor.violation)
                yield chunk

        async def aclose(self) -> None:
            await self._inner.aclose()

    class LimitedTransport(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if request.method == "GET" and "last-event-id" not in request.headers and _is_event_stream(request):
                return httpx2.Response(405)  # we use nothing that a server sends unasked
            if not _is_allowed_url(request.url, origin):
                raise httpx2.UnsupportedProtocol(f"the server sent us to {request.url.scheme}://{request.url.host}")
            if request.method == "POST" and b'"method"' not in request.content and not monitor.accept_request():
                monitor.ended.set()  # a message without a method answers a request of the server: it sent too many
                raise httpx2.WriteError(monitor.violation)
            request.headers["accept-encoding"] = "identity"  # no compression: a small body must not become a large one
            response = await super().handle_async_request(request)
            if response.status_code >= 300:
                monitor.http_status = response.status_code
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                await response.aclose()
                monitor.violation = "it answered in a form that was not asked for"
                monitor.ended.set()
                raise httpx2.ReadError(monitor.violation)
            response.stream = LimitedStream(response.stream)
            return response

    origin = httpx2.URL(url)
    client = httpx2.AsyncClient(
        headers=dict(headers),
        timeout=httpx2.Timeout(timeout_s),
        transport=LimitedTransport(),
        auth=auth,
        trust_env=False,
    )
    async with (
        client,
        streamable_http_client(
            url, http_client=client, terminate_on_close=False, max_sse_event_size=MAX_MESSAGE_BYTES
        ) as (read_stream, write_stream),
    ):
        try:
            yield CheckedStream(read_stream, monitor), write_stream
        finally:
            monitor.ended.set()


class CheckedStream:
    """The messages of a server; the first that breaks a limit ends them."""

    def __init__(self, inner: Any, monitor: ConnectionMonitor) -> None:
        self._inner, self._monitor = inner, monitor

    @property
    def last_context(self) -> Any:
        return self._inner.last_context

    async def __aenter__(self) -> "CheckedStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> "CheckedStream":
        return self

    async def __anext__(self) -> Any:
        item = await self._inner.__anext__()
        if self._monitor.accept_fields(getattr(item, "message", None)):
            return item
        self._monitor.ended.set()
        raise StopAsyncIteration


def _is_allowed_url(url: Any, origin: Any) -> bool:
    """Return whether a request may go to a URL: the configured origin, or any https host, which logins need."""
    if (url.scheme, url.host, url.port) == (origin.scheme, origin.host, origin.port):
        return True
    return url.scheme == "https" or (url.host in LOOPBACK_HOSTS and origin.host in LOOPBACK_HOSTS)


def _is_event_stream(request: Any) -> bool:
    """Return whether a GET opens the stream for a server's own messages; other GETs belong to a login."""
    return "text/event-stream" in request.headers.get("accept", "")
