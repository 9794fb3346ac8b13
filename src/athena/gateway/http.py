"""The Streamable HTTP transport of a server, with limits on its responses."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from athena.gateway.config import LOOPBACK_HOSTS
from athena.gateway.monitor import (
    LIST_CHANGED,
    MAX_MESSAGE_BYTES,
    MAX_MESSAGE_VALUES,
    VALUE_MARKERS,
    ConnectionMonitor,
    HttpExchange,
)

LIST_CHANGED_BYTES = LIST_CHANGED.encode()
EVENT_MARKERS = (b"\ndata:", b"\rdata:")  # each begins an event; inside of JSON there are no line breaks


@asynccontextmanager
async def open_http_streams(
    url: str, headers: Mapping[str, str], timeout_s: float, monitor: ConnectionMonitor, auth: Any = None
) -> AsyncGenerator[Any]:
    """Yield the streams that the SDK reads from and writes to."""
    import httpx2  # slow to import, like the SDK
    from mcp.client.streamable_http import streamable_http_client

    class LimitedStream(httpx2.AsyncByteStream):
        def __init__(self, inner: Any, exchange: HttpExchange) -> None:
            self._inner, self._exchange = inner, exchange

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = values = 0
            last = b""
            async for chunk in self._inner:
                seen = last + chunk
                if LIST_CHANGED_BYTES in seen:
                    monitor.change_count += 1
                events = sum(seen.count(marker) - last.count(marker) for marker in EVENT_MARKERS)
                last = seen[1 - len(LIST_CHANGED_BYTES) :]
                size += len(chunk)
                values += sum(map(chunk.count, VALUE_MARKERS))
                if size > MAX_MESSAGE_BYTES:
                    monitor.violation = f"it answered with more than {MAX_MESSAGE_BYTES >> 20} MB at once"
                elif values > MAX_MESSAGE_VALUES:
                    monitor.violation = f"it answered with more than {MAX_MESSAGE_VALUES:,} values at once"
                if not monitor.accept_messages(events, len(chunk)):
                    monitor.ended.set()
                    raise httpx2.ReadError(monitor.violation)
                if self._exchange.is_over:
                    raise httpx2.ReadError("nobody waits for it any more")
                yield chunk

        async def aclose(self) -> None:
            await self._inner.aclose()

    class LimitedTransport(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            exchange, is_resumption = monitor.exchange, "last-event-id" in request.headers
            if request.method == "GET" and _is_event_stream(request) and (exchange.is_over or not is_resumption):
                return httpx2.Response(405)  # we use nothing that a server sends unasked, or too late
            if not _is_allowed_url(request.url, origin):
                raise httpx2.UnsupportedProtocol(f"the server sent us to {request.url.scheme}://{request.url.host}")
            is_message = request.method == "POST" and b'"method"' in request.content
            if request.method == "POST" and not is_message and not monitor.accept_request():
                monitor.ended.set()  # a message without a method answers a request of the server: it sent too many
                raise httpx2.WriteError(monitor.violation)
            request.headers["accept-encoding"] = "identity"  # no compression: a small body must not become a large one
            response = await super().handle_async_request(request)
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                monitor.violation = "it answered in a form that was not asked for"
            if not monitor.accept_messages(1, 0):
                await response.aclose()
                monitor.ended.set()
                raise httpx2.ReadError(monitor.violation)
            is_login = not is_message and not is_resumption  # it goes on after the call that needed it
            response.stream = LimitedStream(response.stream, HttpExchange() if is_login else exchange)
            if is_message:  # not where a stream is resumed, or a login renewed: that says nothing about the call
                exchange.error_status = response.status_code if response.status_code >= 300 else 0
                exchange.session_expired = await _is_session_expired(request, response)
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


async def _is_session_expired(request: Any, response: Any) -> bool:
    """Return whether a server refused a message because it does not know its session: then it has done nothing.

    Without a session none can expire, and an error with the id of the message says what became of it.
    """
    if response.status_code != 404 or "mcp-session-id" not in request.headers:
        return False
    try:
        answer, message = json.loads(await response.aread()), json.loads(request.content)
    except (ValueError, RecursionError):
        return True
    return not isinstance(answer, dict) or str(answer.get("id")) != str(message.get("id"))
