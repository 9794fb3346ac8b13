"""MCP on a Unix socket: a line that says who comes, then JSON-RPC, a message a line, one SDK server a connection."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from athena.core.threads import start_in_thread
from athena.errors import AthenaError, Conflict, InvalidInput, Unavailable
from athena.server.admission import CallDispatcher
from athena.server.mcp.http import import_mcp_server
from athena.server.mcp.text import format_error
from athena.server.mcp.tools import TOOL_SURFACES
from athena.server.mcp.workspaces import WorkspacePool

if TYPE_CHECKING:  # the SDK takes most of a second to import
    from athena.server.mcp.server import McpCallerFactory, McpPeer

MAX_MESSAGE_BYTES = 16 << 20  # bytes of a message
MAX_HELLO_BYTES = 64 << 10
HELLO_TIMEOUT_S = 10.0  # seconds in which the first line must have arrived
MAX_MCP_CONNECTIONS = 200
MAX_REQUESTS_PER_CONNECTION = 256  # requests of one connection that are not answered yet
SHUTDOWN_TIMEOUT_S = 10.0  # seconds that calls in flight may take when the server stops
CHUNK_BYTES = 64 << 10
PARSE_ERROR, INVALID_REQUEST, SERVER_BUSY = -32700, -32600, -32000


class McpSocketServer:
    """Lets connections in. `serves` tells from what a caller's environment says whether they mean this store."""

    def __init__(
        self,
        calls: CallDispatcher,
        caller: "McpCallerFactory",
        seats: WorkspacePool,
        project: str,
        *,
        serves: Callable[[Mapping[str, str]], bool] = lambda _: True,
        welcome: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        self._dispatcher, self._caller_factory, self._workspaces, self._project = calls, caller, seats, project
        self._is_same_store, self._is_allowed_peer = serves, welcome
        self._connections: set[McpConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._accept_connection, sock=listening, limit=MAX_HELLO_BYTES)

    async def close(self) -> None:
        """Let nobody in any more, and those who are inside go when their calls are answered."""
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
        """Greet whoever is there, and answer until they go."""
        try:
            visit = await self._read_hello(reader)
        except AthenaError as error:
            writer.write(_encode_line({"error": format_error(error), "code": error.code}))
            with suppress(TimeoutError):
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    await writer.drain()
            return
        assert visit.workspace is not None
        connection = McpConnection(self._dispatcher, self._caller_factory, visit, reader, writer)
        self._connections.add(connection)
        try:
            writer.write(_encode_line({"workspace": visit.workspace}))
            await connection.run()
        finally:
            self._connections.discard(connection)
            self._workspaces.release(visit.project or self._project, visit.workspace)

    async def _read_hello(self, reader: asyncio.StreamReader) -> "McpPeer":
        if len(self._connections) >= MAX_MCP_CONNECTIONS or self._dispatcher.is_stopping():
            raise Unavailable("too many connections, or the server is stopping", hint="try again in a moment")
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                said = json.loads(await reader.readuntil())
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, RecursionError):
            raise InvalidInput("the first line must be a JSON object", hint='e.g. {"tools": "default"}') from None
        if not isinstance(said, dict):
            raise InvalidInput("the first line must be a JSON object", hint='e.g. {"tools": "default"}')
        tools, project = said.get("tools", "default"), said.get("project")
        store = said.get("store", {})
        if not isinstance(tools, str) or tools not in TOOL_SURFACES:
            raise InvalidInput(f"there are no tools {tools!r:.40}", hint=f"there are {', '.join(TOOL_SURFACES)}")
        if not (project is None or (isinstance(project, str) and 0 < len(project.strip()) <= 1_000)):
            raise InvalidInput("project must be text of 1 to 1,000 characters")
        if not (isinstance(store, dict) and all(isinstance(value, str) for value in store.values())):
            raise InvalidInput("store must be an object of texts")
        if not self._is_same_store(store):
            raise Conflict("this server has another store", hint="ATHENA_DB_PATH or ATHENA_DATABASE_URL differ")
        await start_in_thread(import_mcp_server)
        from athena.server.mcp.server import McpPeer

        wanted = said.get("workspace")
        seat = self._workspaces.acquire(project or self._project, wanted if isinstance(wanted, str) else None)
        return McpPeer(tools, project, seat)


class McpConnection:
    """One client: reads its messages, hands them to the SDK, writes the answers."""

    def __init__(
        self,
        calls: CallDispatcher,
        caller: "McpCallerFactory",
        visit: "McpPeer",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._dispatcher, self._caller_factory, self._peer = calls, caller, visit
        self._reader, self._writer = reader, writer
        self._pending_ids: set[Any] = set()  # ids of requests that are not answered yet
        self._close_requested = asyncio.Event()
        self._all_answered = asyncio.Event()

    def request_close(self) -> None:
        """Go as soon as all that was asked is answered."""
        self._close_requested.set()

    async def run(self) -> None:
        import anyio

        from athena.server.mcp.server import McpHandlers

        server = McpHandlers(self._dispatcher, self._caller_factory, lambda _: self._peer).create_server()
        read_end: Any
        write_end: Any
        asked, read_end = anyio.create_memory_object_stream[Any](0)
        write_end, answered = anyio.create_memory_object_stream[Any](0)
        async with anyio.create_task_group() as group:
            group.start_soon(self._write_messages, answered)
            group.start_soon(self._read_messages, asked)
            await server.run(read_end, write_end, server.create_initialization_options())

    async def _read_messages(self, asked: Any) -> None:
        """Hand on what arrives, until it ends or the server stops."""
        import anyio

        async with asked:
            reading = asyncio.ensure_future(self._forward_messages(asked))
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

    async def _forward_messages(self, asked: Any) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import JSONRPCNotification, JSONRPCRequest, jsonrpc_message_adapter
        from pydantic import ValidationError

        async for line in _split_lines(self._reader):
            if line is None:
                await self._send_error(None, PARSE_ERROR, f"a message may have {MAX_MESSAGE_BYTES >> 20} MB")
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except (ValidationError, RecursionError, ValueError) as error:
                await self._send_error(*_classify_error(line, error))
                continue
            if isinstance(message, JSONRPCNotification) and b'"id"' in line and "id" in json.loads(line):
                await self._send_error(
                    None, INVALID_REQUEST, "an id is a text or a whole number"
                )  # it waits for an answer
                continue
            if isinstance(message, JSONRPCRequest):
                if len(self._pending_ids) >= MAX_REQUESTS_PER_CONNECTION or message.id in self._pending_ids:
                    words = "this id is in use" if message.id in self._pending_ids else "too many requests at once"
                    await self._send_error(message.id, SERVER_BUSY, f"{words}; wait for the answers")
                    continue
                self._pending_ids.add(message.id)
            elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
                self._mark_answered((message.params or {}).get("requestId"))
            await asked.send(SessionMessage(message))
            await self._writer.drain()

    async def _write_messages(self, answered: Any) -> None:
        async with answered:
            async for one in answered:
                message = one.message
                text = message.model_dump_json(by_alias=True, exclude_unset=True)
                if hasattr(message, "result") or hasattr(message, "error"):
                    self._mark_answered(message.id)
                self._writer.write(text.encode() + b"\n")
                with suppress(ConnectionError):
                    await self._writer.drain()

    def _mark_answered(self, number: Any) -> None:
        with suppress(TypeError):
            self._pending_ids.discard(number)
        if not self._pending_ids:
            self._all_answered.set()

    async def _send_error(self, number: Any, code: int, words: str) -> None:
        """Say no, and read on when that was heard: what is said of a bad line is longer than the line."""
        self._writer.write(_encode_line({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": words}}))
        await self._writer.drain()


async def _split_lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes | None]:
    """Cut what arrives into lines; None stands for one that is too long."""
    kept = bytearray()
    skipping = False
    while chunk := await reader.read(CHUNK_BYTES):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            kept += end
            if skipping or len(kept) > MAX_MESSAGE_BYTES:
                yield None
            elif kept.strip():
                yield bytes(kept)
            kept, skipping = bytearray(), False
        kept += rest
        if len(kept) > MAX_MESSAGE_BYTES:
            kept, skipping = bytearray(), True


def _classify_error(line: bytes, error: Exception) -> tuple[Any, int, str]:
    """Tell what is no JSON from what is no JSON-RPC, of which the id may be known."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None, PARSE_ERROR, "this line is not valid JSON"
    number = found.get("id") if isinstance(found, dict) else None
    known = number if isinstance(number, str | int) and not isinstance(number, bool) else None
    return known, INVALID_REQUEST, "this line is not a JSON-RPC message"


def _encode_line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
