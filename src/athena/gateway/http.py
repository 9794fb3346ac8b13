"""Talking with a server over HTTP, no answer of which is longer than we can hold."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from athena.gateway.config import LOCAL
from athena.gateway.monitor import LIST_CHANGED, MOST, NODES, UNASKED, VALUES, Watch

CHANGED = LIST_CHANGED.encode()


@asynccontextmanager
async def streams(
    url: str, headers: Mapping[str, str], seconds: float, watch: Watch, auth: Any = None
) -> AsyncGenerator[Any]:
    """Yield what the SDK reads from and writes to."""
    import httpx2  # with the SDK, at the first connection
    from mcp.client.streamable_http import streamable_http_client

    class Counted(httpx2.AsyncByteStream):
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = events = values = 0
            last = b""
            async for chunk in self._inner:
                if CHANGED in last + chunk:
                    watch.changed = True
                last = chunk[-len(CHANGED) :]
                size, events = size + len(chunk), events + chunk.count(b"\ndata:")
                values += sum(map(chunk.count, VALUES))
                if size > MOST:
                    watch.trouble = f"it answered with more than {MOST >> 20} MB at once"
                elif values > NODES:
                    watch.trouble = f"it answered with more than {NODES:,} values at once"
                elif events > UNASKED:
                    watch.trouble = f"it sent more than {UNASKED:,} messages that nobody had asked for"
                if watch.trouble:
                    watch.ended.set()
                    raise httpx2.ReadError(watch.trouble)
                yield chunk

        async def aclose(self) -> None:
            await self._inner.aclose()

    class Guarded(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if request.method == "GET" and "last-event-id" not in request.headers and _is_channel(request):
                return httpx2.Response(405)  # nothing that a server sends unasked is of use here
            if not _allowed(request.url, origin):
                raise httpx2.UnsupportedProtocol(f"the server sent us to {request.url.scheme}://{request.url.host}")
            if request.method == "POST" and b'"method"' not in request.content and not watch.asked():
                watch.ended.set()  # what we send without a method answers something that the server asked
                raise httpx2.WriteError(watch.trouble)
            request.headers["accept-encoding"] = "identity"  # a small answer must not become a large one
            response = await super().handle_async_request(request)
            if response.status_code >= 300:
                watch.status = response.status_code
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                await response.aclose()
                watch.trouble = "it answered in a form that was not asked for"
                watch.ended.set()
                raise httpx2.ReadError(watch.trouble)
            response.stream = Counted(response.stream)
            return response

    origin = httpx2.URL(url)
    limits = httpx2.Timeout(seconds)
    client = httpx2.AsyncClient(headers=dict(headers), timeout=limits, transport=Guarded(), auth=auth, trust_env=False)
    async with (
        client,
        streamable_http_client(url, http_client=client, terminate_on_close=False, max_sse_event_size=MOST) as pair,
    ):
        try:
            yield pair
        finally:
            watch.ended.set()


def _allowed(url: Any, origin: Any) -> bool:
    """Tell whether a request may go there: where a person pointed us, or, to log in, to an encrypted address."""
    if (url.scheme, url.host, url.port) == (origin.scheme, origin.host, origin.port):
        return True
    return url.scheme == "https" or (url.host in LOCAL and origin.host in LOCAL)


def _is_channel(request: Any) -> bool:
    """Tell whether a request opens the channel on which a server may speak first; others belong to logging in."""
    return "text/event-stream" in request.headers.get("accept", "")
