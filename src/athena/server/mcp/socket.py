"""MCP on a Unix socket: a line that says who comes, then JSON-RPC, a message a line, one SDK server a connection."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from athena.core.threads import start
from athena.errors import AthenaError, Conflict, InvalidInput, Unavailable
from athena.server.admission import Calls
from athena.server.mcp.http import load
from athena.server.mcp.text import failure
from athena.server.mcp.tools import SURFACES
from athena.server.mcp.workspaces import Seats

if TYPE_CHECKING:  # the SDK takes most of a second to import
    from athena.server.mcp.server import Open, Visit

LONGEST = 16 << 20  # bytes of a message
LONGEST_HELLO = 64 << 10
HURRY = 10.0  # seconds in which the first line must have arrived
CONNECTIONS = 200
AT_ONCE = 256  # requests of one connection that are not answered yet
ENDING = 10.0  # seconds that calls in flight may take when the server stops
CHUNK = 64 << 10
PARSE_ERROR, INVALID_REQUEST, BUSY = -32700, -32600, -32000


class Door:
    """Lets connections in. `serves` tells from what a caller's environment says whether they mean this store."""

    def __init__(
        self,
        calls: Calls,
        caller: "Open",
        seats: Seats,
        project: str,
        *,
        serves: Callable[[Mapping[str, str]], bool] = lambda _: True,
        welcome: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        self._calls, self._caller, self._seats, self._project = calls, caller, seats, project
        self._serves, self._welcome = serves, welcome
        self._inside: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self, listening: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._come, sock=listening, limit=LONGEST_HELLO)

    async def close(self) -> None:
        """Let nobody in any more, and those who are inside go when their calls are answered."""
        if self._server is not None:
            self._server.close()
        for connection in self._inside:
            connection.end()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ENDING)
        for task in self._tasks:
            task.cancel()

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            if self._welcome(writer.get_extra_info("socket")):
                with suppress(ConnectionError, asyncio.CancelledError):
                    await self.serve(reader, writer)
        finally:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Greet whoever is there, and answer until they go."""
        try:
            visit = await self._greeted(reader)
        except AthenaError as error:
            writer.write(_line({"error": failure(error), "code": error.code}))
            with suppress(TimeoutError):
                async with asyncio.timeout(HURRY):
                    await writer.drain()
            return
        assert visit.workspace is not None
        connection = Connection(self._calls, self._caller, visit, reader, writer)
        self._inside.add(connection)
        try:
            writer.write(_line({"workspace": visit.workspace}))
            await connection.run()
        finally:
            self._inside.discard(connection)
            self._seats.leave(visit.project or self._project, visit.workspace)

    async def _greeted(self, reader: asyncio.StreamReader) -> "Visit":
        if len(self._inside) >= CONNECTIONS or self._calls.stopping():
            raise Unavailable("too many connections, or the server is stopping", hint="try again in a moment")
        try:
            async with asyncio.timeout(HURRY):
                said = json.loads(await reader.readuntil())
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, RecursionError):
            raise InvalidInput("the first line must be a JSON object", hint='e.g. {"tools": "default"}') from None
        if not isinstance(said, dict):
            raise InvalidInput("the first line must be a JSON object", hint='e.g. {"tools": "default"}')
        tools, project = said.get("tools", "default"), said.get("project")
        store = said.get("store", {})
        if not isinstance(tools, str) or tools not in SURFACES:
            raise InvalidInput(f"there are no tools {tools!r:.40}", hint=f"there are {', '.join(SURFACES)}")
        if not (project is None or (isinstance(project, str) and 0 < len(project.strip()) <= 1_000)):
            raise InvalidInput("project must be text of 1 to 1,000 characters")
        if not (isinstance(store, dict) and all(isinstance(value, str) for value in store.values())):
            raise InvalidInput("store must be an object of texts")
        if not self._serves(store):
            raise Conflict("this server has another store", hint="ATHENA_DB_PATH or ATHENA_DATABASE_URL differ")
        await start(load)
        from athena.server.mcp.server import Visit

        wanted = said.get("workspace")
        seat = self._seats.take(project or self._project, wanted if isinstance(wanted, str) else None)
        return Visit(tools, project, seat)


class Connection:
    """One client: reads its messages, hands them to the SDK, writes the answers."""

    def __init__(
        self,
        calls: Calls,
        caller: "Open",
        visit: "Visit",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._calls, self._caller, self._visit = calls, caller, visit
        self._reader, self._writer = reader, writer
        self._waiting: set[Any] = set()  # ids of requests that are not answered yet
        self._over = asyncio.Event()
        self._idle = asyncio.Event()

    def end(self) -> None:
        """Go as soon as all that was asked is answered."""
        self._over.set()

    async def run(self) -> None:
        import anyio

        from athena.server.mcp.server import Surface

        server = Surface(self._calls, self._caller, lambda _: self._visit).server()
        read_end: Any
        write_end: Any
        asked, read_end = anyio.create_memory_object_stream[Any](0)
        write_end, answered = anyio.create_memory_object_stream[Any](0)
        async with anyio.create_task_group() as group:
            group.start_soon(self._write, answered)
            group.start_soon(self._read, asked)
            await server.run(read_end, write_end, server.create_initialization_options())

    async def _read(self, asked: Any) -> None:
        """Hand on what arrives, until it ends or the server stops."""
        import anyio

        async with asked:
            reading = asyncio.ensure_future(self._hand_on(asked))
            stopping = asyncio.ensure_future(self._stop())
            try:
                await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
                reading.cancel()
            with suppress(
                asyncio.CancelledError, ConnectionError, anyio.ClosedResourceError, anyio.BrokenResourceError
            ):
                await reading

    async def _stop(self) -> None:
        await self._over.wait()
        while self._waiting:
            self._idle.clear()
            await self._idle.wait()

    async def _hand_on(self, asked: Any) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import JSONRPCNotification, JSONRPCRequest, jsonrpc_message_adapter
        from pydantic import ValidationError

        async for line in _lines(self._reader):
            if line is None:
                await self._refuse(None, PARSE_ERROR, f"a message may have {LONGEST >> 20} MB")
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except (ValidationError, RecursionError, ValueError) as error:
                await self._refuse(*_what_is_wrong(line, error))
                continue
            if isinstance(message, JSONRPCNotification) and b'"id"' in line and "id" in json.loads(line):
                await self._refuse(None, INVALID_REQUEST, "an id is a text or a whole number")  # it waits for an answer
                continue
            if isinstance(message, JSONRPCRequest):
                if len(self._waiting) >= AT_ONCE or message.id in self._waiting:
                    words = "this id is in use" if message.id in self._waiting else "too many requests at once"
                    await self._refuse(message.id, BUSY, f"{words}; wait for the answers")
                    continue
                self._waiting.add(message.id)
            elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
                self._answered((message.params or {}).get("requestId"))
            await asked.send(SessionMessage(message))
            await self._writer.drain()

    async def _write(self, answered: Any) -> None:
        async with answered:
            async for one in answered:
                message = one.message
                text = message.model_dump_json(by_alias=True, exclude_unset=True)
                if hasattr(message, "result") or hasattr(message, "error"):
                    self._answered(message.id)
                self._writer.write(text.encode() + b"\n")
                with suppress(ConnectionError):
                    await self._writer.drain()

    def _answered(self, number: Any) -> None:
        with suppress(TypeError):
            self._waiting.discard(number)
        if not self._waiting:
            self._idle.set()

    async def _refuse(self, number: Any, code: int, words: str) -> None:
        """Say no, and read on when that was heard: what is said of a bad line is longer than the line."""
        self._writer.write(_line({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": words}}))
        await self._writer.drain()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes | None]:
    """Cut what arrives into lines; None stands for one that is too long."""
    kept = bytearray()
    skipping = False
    while chunk := await reader.read(CHUNK):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            kept += end
            if skipping or len(kept) > LONGEST:
                yield None
            elif kept.strip():
                yield bytes(kept)
            kept, skipping = bytearray(), False
        kept += rest
        if len(kept) > LONGEST:
            kept, skipping = bytearray(), True


def _what_is_wrong(line: bytes, error: Exception) -> tuple[Any, int, str]:
    """Tell what is no JSON from what is no JSON-RPC, of which the id may be known."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None, PARSE_ERROR, "this line is not valid JSON"
    number = found.get("id") if isinstance(found, dict) else None
    known = number if isinstance(number, str | int) and not isinstance(number, bool) else None
    return known, INVALID_REQUEST, "this line is not a JSON-RPC message"


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
