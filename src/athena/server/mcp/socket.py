"""MCP on a Unix socket: a hello line, then JSON-RPC messages, one a line; each connection has an SDK server."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from athena.core.threads import start_in_thread
from athena.core.types import MAX_JSON_VALUES, has_too_many_values
from athena.errors import AthenaError, Conflict, InvalidInput, Unavailable
from athena.server.admission import CallDispatcher
from athena.server.mcp.http import TOO_MANY_PARAMS, has_too_many_params, import_mcp_server
from athena.server.mcp.text import format_error
from athena.server.mcp.tools import TOOL_SURFACES
from athena.server.mcp.workspaces import McpPeer, WorkspacePool

if TYPE_CHECKING:  # the SDK takes most of a second to import
    from athena.server.mcp.server import McpContextFactory

MAX_MESSAGE_BYTES = 16 << 20
MAX_HELLO_BYTES = 64 << 10
HELLO_TIMEOUT_S = 10.0
MAX_MCP_CONNECTIONS = 200
MAX_REQUESTS_PER_CONNECTION = 256  # not answered yet
SHUTDOWN_TIMEOUT_S = 10.0  # for calls in flight
CHUNK_BYTES = 64 << 10
PARSE_ERROR, INVALID_REQUEST, SERVER_BUSY = -32700, -32600, -32000


class McpSocketServer:
    """Accepts connections. `is_same_store` checks the environment of a client against this server's store."""

    def __init__(
        self,
        dispatcher: CallDispatcher,
        create_context: "McpContextFactory",
        workspaces: WorkspacePool,
        project: str,
        *,
        is_same_store: Callable[[Mapping[str, str]], bool] = lambda _: True,
        is_allowed_peer: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        self._dispatcher, self._create_context = dispatcher, create_context
        self._workspaces, self._project = workspaces, project
        self._is_same_store, self._is_allowed_peer = is_same_store, is_allowed_peer
        self._connections: set[McpConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._accept_connection, sock=listener, limit=MAX_HELLO_BYTES)

    async def close(self) -> None:
        """Accept no more connections, and close the open ones when their calls are answered."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.request_close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SHUTDOWN_TIMEOUT_S)
        for task in self._tasks:
            task.cancel()

    async def _accept_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            if self._is_allowed_peer(writer.get_extra_info("socket")):
                with suppress(ConnectionError, asyncio.CancelledError):
                    await self.serve_connection(reader, writer)
        finally:
            writer.close()

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read the hello line, and answer requests until the client disconnects."""
        try:
            peer = await self._read_hello(reader)
        except AthenaError as error:
            writer.write(_encode_line({"error": format_error(error), "code": error.code}))
            with suppress(TimeoutError):
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    await writer.drain()
            return
        assert peer.workspace is not None
        connection = McpConnection(self._dispatcher, self._create_context, peer, reader, writer)
        self._connections.add(connection)
        try:
            writer.write(_encode_line({"workspace": peer.workspace}))
            await connection.run()
        finally:
            self._connections.discard(connection)
            self._workspaces.release(peer.project or self._project, peer.workspace)

    async def _read_hello(self, reader: asyncio.StreamReader) -> McpPeer:
        if len(self._connections) >= MAX_MCP_CONNECTIONS or self._dispatcher.is_stopping():
            raise Unavailable("too many connections, or the server is stopping", hint="try again in a moment")
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = json.loads(await reader.readuntil())
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, RecursionError):
            raise InvalidInput("the first line must be a JSON object", hint='e.g. {"tools": "default"}') from None
        if not isinstance(hello, dict):
            raise InvalidInput("the first line must be a JSON object", hint='e.g. {"tools": "default"}')
        tools, project = hello.get("tools", "default"), hello.get("project")
        store = hello.get("store", {})
        if not isinstance(tools, str) or tools not in TOOL_SURFACES:
            raise InvalidInput(f"there are no tools {tools!r:.40}", hint=f"there are {', '.join(TOOL_SURFACES)}")
        if not (project is None or (isinstance(project, str) and 0 < len(project.strip()) <= 1_000)):
            raise InvalidInput("project must be text of 1 to 1,000 characters")
        if not (isinstance(store, dict) and all(isinstance(value, str) for value in store.values())):
            raise InvalidInput("store must be an object of texts")
        if not self._is_same_store(store):
            raise Conflict(
                "this server has another store, or settings of the client that started it",
                hint="variables differ: ATHENA_DB_PATH, DATABASE_URL, PRIVACY, EMBEDDING_, SANDBOX_ or DOCUMENTS_",
            )
        await start_in_thread(import_mcp_server)
        wanted = hello.get("workspace")
        workspace = self._workspaces.acquire(project or self._project, wanted if isinstance(wanted, str) else None)
        return McpPeer(tools, project, workspace)


class McpConnection:
    """One client: reads its messages, passes them to the SDK, writes the answers."""

    def __init__(
        self,
        dispatcher: CallDispatcher,
        create_context: "McpContextFactory",
        peer: McpPeer,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._dispatcher, self._create_context, self._peer = dispatcher, create_context, peer
        self._reader, self._writer = reader, writer
        self._pending_ids: set[Any] = set()  # of requests
        self._close_requested = asyncio.Event()
        self._all_answered = asyncio.Event()

    def request_close(self) -> None:
        """Close the connection as soon as all requests are answered."""
        self._close_requested.set()

    async def run(self) -> None:
        import anyio

        handlers = import_mcp_server()
        surface = self._peer.surface
        server = handlers(self._dispatcher, self._create_context, lambda _: self._peer, surface=surface).create_server()
        read_end: Any
        write_end: Any
        requests, read_end = anyio.create_memory_object_stream[Any](0)
        write_end, answers = anyio.create_memory_object_stream[Any](0)
        async with anyio.create_task_group() as group:
            group.start_soon(self._write_messages, answers)
            group.start_soon(self._read_messages, requests)
            await server.run(read_end, write_end, server.create_initialization_options())

    async def _read_messages(self, requests: Any) -> None:
        """Pass on messages until the client disconnects or the server stops."""
        import anyio

        async with requests:
            reading = asyncio.ensure_future(self._forward_messages(requests))
            stopping = asyncio.ensure_future(self._wait_until_drained())
            try:
                await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
                reading.cancel()
            with suppress(
                asyncio.CancelledError, ConnectionError, anyio.ClosedResourceError, anyio.BrokenResourceError
            ):
                await reading

    async def _wait_until_drained(self) -> None:
        await self._close_requested.wait()
        while self._pending_ids:
            self._all_answered.clear()
            await self._all_answered.wait()

    async def _forward_messages(self, requests: Any) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import JSONRPCNotification, JSONRPCRequest, jsonrpc_message_adapter
        from pydantic import ValidationError

        async for line in _split_lines(self._reader):
            if line is None:
                await self._send_error(None, PARSE_ERROR, f"a message may have {MAX_MESSAGE_BYTES >> 20} MB")
                continue
            if has_too_many_values(line):
                await self._send_error(None, PARSE_ERROR, f"a message may have {MAX_JSON_VALUES:,} values")
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except (ValidationError, RecursionError, ValueError) as error:
                await self._send_error(*_classify_error(line, error))
                continue
            if isinstance(message, JSONRPCNotification) and b'"id"' in line and "id" in json.loads(line):
                # a request with an invalid id parses as a notification, but its sender waits for an answer
                await self._send_error(None, INVALID_REQUEST, "an id is a text or a whole number")
                continue
            if has_too_many_params(getattr(message, "params", None)):
                await self._send_error(getattr(message, "id", None), INVALID_REQUEST, TOO_MANY_PARAMS)
                continue
            if isinstance(message, JSONRPCRequest):
                if len(self._pending_ids) >= MAX_REQUESTS_PER_CONNECTION or message.id in self._pending_ids:
                    reason = "this id is in use" if message.id in self._pending_ids else "too many requests at once"
                    await self._send_error(message.id, SERVER_BUSY, f"{reason}; wait for the answers")
                    continue
                self._pending_ids.add(message.id)
            elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
                self._mark_answered((message.params or {}).get("requestId"))
            await requests.send(SessionMessage(message))
            await self._writer.drain()

    async def _write_messages(self, answers: Any) -> None:
        async with answers:
            async for session_message in answers:
                message = session_message.message
                text = message.model_dump_json(by_alias=True, exclude_unset=True)
                if hasattr(message, "result") or hasattr(message, "error"):
                    self._mark_answered(message.id)
                self._writer.write(text.encode() + b"\n")
                with suppress(ConnectionError):
                    await self._writer.drain()

    def _mark_answered(self, request_id: Any) -> None:
        with suppress(TypeError):
            self._pending_ids.discard(request_id)
        if not self._pending_ids:
            self._all_answered.set()

    async def _send_error(self, request_id: Any, code: int, message: str) -> None:
        """Send an error and wait until it is written: the client could fill our memory with bad lines otherwise."""
        error = {"code": code, "message": message}
        self._writer.write(_encode_line({"jsonrpc": "2.0", "id": request_id, "error": error}))
        await self._writer.drain()


async def _split_lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes | None]:
    """Yield the lines that arrive; None stands for one that is too long."""
    line = bytearray()
    is_too_long = False
    while chunk := await reader.read(CHUNK_BYTES):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line += end
            if is_too_long or len(line) > MAX_MESSAGE_BYTES:
                yield None
            elif line.strip():
                yield bytes(line)
            line, is_too_long = bytearray(), False
        line += rest
        if len(line) > MAX_MESSAGE_BYTES:
            line, is_too_long = bytearray(), True


def _classify_error(line: bytes, error: Exception) -> tuple[Any, int, str]:
    """Return id, code and message of the error for a line that is no JSON, or no JSON-RPC."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None, PARSE_ERROR, "this line is not valid JSON"
    raw_id = message.get("id") if isinstance(message, dict) else None
    request_id = raw_id if isinstance(raw_id, str | int) and not isinstance(raw_id, bool) else None
    return request_id, INVALID_REQUEST, "this line is not a JSON-RPC message"


def _encode_line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
