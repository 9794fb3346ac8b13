"""The route /mcp: Streamable HTTP of the SDK behind our guard, imported at the first request."""

import asyncio
import math
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from athena.core.threads import start_in_thread
from athena.core.types import MAX_FIELDS, VALUE_MARKS, has_too_many_fields
from athena.gateway import server_connection
from athena.server.admission import CallDispatcher
from athena.server.guard import MAX_BODY_BYTES, MalformedRequest, MethodNotAllowed, RequestTooLarge
from athena.server.http import check_value_count, get_project_header
from athena.server.mcp.tools import TOOL_SURFACES
from athena.server.mcp.workspaces import McpPeer, WorkspacePool

if TYPE_CHECKING:  # the SDK takes most of a second to import
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from athena.server.mcp.server import McpContextFactory, McpHandlers

MAX_SESSIONS = 1_000
MAX_BUSY_SESSIONS = 2_000  # with those that answer or are ending
SESSION_TIMEOUT_S = 1_800.0
TOO_MANY_PARAMS = f"a message may have {MAX_FIELDS:,} values beside its arguments"


class McpEndpoint:
    """An ASGI application. The guard checks Host, Origin and token, so the SDK's own check is off."""

    def __init__(
        self, dispatcher: CallDispatcher, create_context: "McpContextFactory", workspaces: WorkspacePool, project: str
    ) -> None:
        self._dispatcher, self._create_context = dispatcher, create_context
        self._workspaces, self._project = workspaces, project
        self._manager_lock = asyncio.Lock()
        self._manager: StreamableHTTPSessionManager | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop_event = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("POST", "DELETE"):  # a GET would open a stream for messages that we never send
            refusal = MethodNotAllowed("this is a POST", hint="no stream is offered; an answer comes with its request")
            refusal.allow = "POST, DELETE"
            raise refusal
        request = Request(scope)
        get_project_header(request)
        get_tool_surface(request)
        manager = self._manager or await self._get_manager()
        try:
            body: bytes | None = await Request(scope, receive).body()
        except ClientDisconnect:
            raise MalformedRequest("the body broke off") from None
        check_value_count(body or b"")
        check_param_count(body or b"")

        async def receive_again() -> Message:
            nonlocal body
            part, body = body, None
            return await receive() if part is None else {"type": "http.request", "body": part, "more_body": False}

        if "mcp-session-id" not in request.headers:
            await _make_room(manager)
        await manager.handle_request(scope, receive_again, send)

    async def close(self) -> None:
        """End all sessions."""
        self._stop_event.set()
        if self._task is not None:
            await self._task

    async def _get_manager(self) -> "StreamableHTTPSessionManager":
        async with self._manager_lock:
            if self._manager is None:
                await start_in_thread(import_mcp_server)
                ready = asyncio.Event()
                self._task = asyncio.create_task(self._run_manager(ready))
                await ready.wait()
            assert self._manager is not None
            return self._manager

    async def _run_manager(self, ready: asyncio.Event) -> None:
        """Run the session manager: the task that enters its context must also leave it."""
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
        from mcp.server.transport_security import TransportSecuritySettings
        from sse_starlette.sse import AppStatus

        AppStatus.enable_automatic_graceful_drain = False  # calls in flight are answered before the server stops
        manager = StreamableHTTPSessionManager(
            import_mcp_server()(self._dispatcher, self._create_context, self._get_peer).create_server(),
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            max_request_body_size=MAX_BODY_BYTES,
            session_idle_timeout=SESSION_TIMEOUT_S,
            max_sessions=MAX_BUSY_SESSIONS,
        )
        async with manager.run():
            self._manager = manager
            ready.set()
            await self._stop_event.wait()

    def _get_peer(self, ctx: Any) -> McpPeer:
        request: Request = ctx.request
        project = get_project_header(request)
        session = request.headers.get("mcp-session-id")
        workspace = self._workspaces.get_for_session(session, project or self._project) if session else None
        return McpPeer(get_tool_surface(request), project, workspace)


async def _make_room(manager: "StreamableHTTPSessionManager") -> None:
    """Where there are too many sessions, end the one that is idle longest, or a client could shut all others out."""
    sessions = [session for session in manager._server_instances.values() if not session.is_terminated]
    idle = {
        session: scope.deadline for session in sessions if (scope := session.idle_scope) and scope.deadline < math.inf
    }
    if len(sessions) >= MAX_SESSIONS and idle:
        await min(idle, key=idle.__getitem__).terminate()


def has_too_many_params(params: Any) -> bool:
    """Return whether a message has more values beside its arguments than the SDK compares in a moment."""
    typed = {name: value for name, value in params.items() if name != "arguments"} if isinstance(params, dict) else []
    return has_too_many_fields(typed)


def check_param_count(body: bytes) -> None:
    """Raise if the message in a body has too many values beside its arguments."""
    if sum(map(body.count, VALUE_MARKS)) <= MAX_FIELDS:
        return
    from pydantic_core import from_json  # comes with the SDK, which reads the body in the same way

    try:
        message = from_json(body)
    except ValueError:
        return  # the SDK says why
    if isinstance(message, dict) and has_too_many_params(message.get("params")):
        raise RequestTooLarge(TOO_MANY_PARAMS)


def get_tool_surface(request: Request) -> str:
    """Return the tool surface that a request names."""
    surface = request.query_params.get("tools", "default")
    if surface not in TOOL_SURFACES:
        raise MalformedRequest(f"there are no tools {surface!r:.40}", hint=f"/mcp?tools= {', '.join(TOOL_SURFACES)}")
    return surface


def import_mcp_server() -> "type[McpHandlers]":
    """Import the SDK and our module that uses it; return that module's class."""
    server_connection.import_mcp_sdk()
    from athena.server.mcp.server import McpHandlers

    return McpHandlers
