"""`/mcp`: the SDK's Streamable HTTP behind our guard, loaded with the first request."""

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from athena.core.threads import start
from athena.gateway import sdk
from athena.server.admission import Calls
from athena.server.guard import BODY, Malformed, NoSuchMethod
from athena.server.http import named_project
from athena.server.mcp.tools import SURFACES
from athena.server.mcp.workspaces import Seats

if TYPE_CHECKING:  # the SDK takes most of a second to import
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from athena.server.mcp.server import Open, Visit

SESSIONS = 1_000
IDLE = 1_800.0  # seconds


class Endpoint:
    """One ASGI application. Host, Origin and token are the guard's, so the SDK's own check of them is off."""

    def __init__(self, calls: Calls, caller: "Open", seats: Seats, project: str) -> None:
        self._calls, self._caller, self._seats, self._project = calls, caller, seats, project
        self._opening = asyncio.Lock()
        self._manager: StreamableHTTPSessionManager | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("POST", "DELETE"):  # we have nothing to say that nobody asked for
            refused = NoSuchMethod("this is a POST", hint="no stream is offered; an answer comes with its request")
            refused.allow = "POST, DELETE"
            raise refused
        request = Request(scope)
        named_project(request)
        surface(request)
        manager = self._manager or await self._opened()
        await manager.handle_request(scope, receive, send)

    async def close(self) -> None:
        """End all sessions."""
        self._over.set()
        if self._task is not None:
            await self._task

    async def _opened(self) -> "StreamableHTTPSessionManager":
        async with self._opening:
            if self._manager is None:
                await start(load)
                ready = asyncio.Event()
                self._task = asyncio.create_task(self._keep(ready))
                await ready.wait()
            assert self._manager is not None
            return self._manager

    async def _keep(self, ready: asyncio.Event) -> None:
        """Keep the SDK's sessions; it wants to be left by the task that entered it."""
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
        from mcp.server.transport_security import TransportSecuritySettings
        from sse_starlette.sse import AppStatus

        from athena.server.mcp.server import Surface

        AppStatus.enable_automatic_graceful_drain = False  # calls in flight are answered before the server stops
        manager = StreamableHTTPSessionManager(
            Surface(self._calls, self._caller, self._visit).server(),
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            max_request_body_size=BODY,
            session_idle_timeout=IDLE,
            max_sessions=SESSIONS,
        )
        async with manager.run():
            self._manager = manager
            ready.set()
            await self._over.wait()

    def _visit(self, ctx: Any) -> "Visit":
        from athena.server.mcp.server import Visit

        request: Request = ctx.request
        project = named_project(request)
        session = request.headers.get("mcp-session-id")
        workspace = self._seats.of_session(session, project or self._project) if session else None
        return Visit(surface(request), project, workspace)


def surface(request: Request) -> str:
    """Return which tools a request asks for."""
    asked = request.query_params.get("tools", "default")
    if asked not in SURFACES:
        raise Malformed(f"there are no tools {asked!r:.40}", hint=f"/mcp?tools= {', '.join(SURFACES)}")
    return asked


def load() -> None:
    """Import the SDK, and what stands on it."""
    sdk.load()
    from athena.server.mcp import server  # noqa: F401
