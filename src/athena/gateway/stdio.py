"""Talking with a server that is a program of this machine: lines of JSON through pipes, none too long to hold."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from athena.gateway.child import PIPE_READ_BYTES, ServerProcess
from athena.gateway.monitor import MAX_MESSAGE_BYTES, ConnectionMonitor

PARSE_ERROR_CODE = -32700
RESPONSE_ID_PATTERN = re.compile(rb'"id"\s*:\s*(\d{1,15})\b')
# All of our environment that a server inherits; the rest may hold secrets that are none of its business.
# fmt: off
INHERITED_VARIABLES = frozenset((
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
))
# fmt: on


def build_environment(ours: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in ours.items() if name in INHERITED_VARIABLES or name.startswith("LC_")}
    return kept | dict(given)


@asynccontextmanager
async def open_stdio_streams(
    words: Sequence[str], environment: Mapping[str, str], folder: str, watch: ConnectionMonitor
) -> AsyncGenerator[Any]:
    """Start the program and yield what the SDK reads from and writes to."""
    import anyio  # with the SDK, at the first connection

    child = ServerProcess(words, environment, folder)
    into, read = anyio.create_memory_object_stream[Any](0)
    write, outof = anyio.create_memory_object_stream[Any](0)
    tasks: list[asyncio.Task[None]] = []
    try:
        stdin, stdout, stderr = await child.open_streams()
        tasks = [
            asyncio.create_task(_receive_messages(stdout, into, watch)),
            asyncio.create_task(_send_messages(stdin, outof, watch)),
            asyncio.create_task(_read_stderr(stderr, watch)),
        ]
        yield read, write
    finally:
        watch.ended.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        child.close()
        for stream in (into, read, write, outof):
            stream.close()


async def _receive_messages(pipe: Any, into: Any, watch: ConnectionMonitor) -> None:
    """Pass on the messages that somebody waits for."""
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCNotification, JSONRPCRequest, jsonrpc_message_adapter

    try:
        async for line in _read_lines(pipe, watch):
            if not watch.accept_message(line):
                return
            if not line.strip():
                continue
            if line.lstrip()[:1] != b"{":
                watch.record_unparsed_line(line)
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line.decode("utf-8", "replace"), by_name=False)
            except ValueError:
                watch.record_unparsed_line(line)
                if (message := create_parse_error(line)) is None:
                    continue
            if isinstance(message, JSONRPCNotification):
                watch.record_notification(message.method)
                continue
            if isinstance(message, JSONRPCRequest) and not watch.accept_request():
                return
            with suppress(Exception):  # closed: it is over
                await into.send(SessionMessage(message))
    finally:
        watch.ended.set()
        into.close()


def create_parse_error(line: bytes) -> Any:
    """Return an error in place of an answer that cannot be read, so that nobody waits for it in vain."""
    from mcp_types import ErrorData, JSONRPCError

    number = RESPONSE_ID_PATTERN.search(line[:200])
    if number is None or not re.search(rb'"(result|error)"', line[:400]):
        return None
    error = ErrorData(code=PARSE_ERROR_CODE, message="it cannot be read")
    return JSONRPCError(jsonrpc="2.0", id=int(number[1]), error=error)


async def _read_lines(pipe: Any, watch: ConnectionMonitor) -> AsyncIterator[bytes]:
    pending = bytearray()
    while chunk := await pipe.read(PIPE_READ_BYTES):
        *whole, last = chunk.split(b"\n")
        for part in whole:
            pending += part
            yield bytes(pending)
            pending.clear()
        pending += last
        if len(pending) > MAX_MESSAGE_BYTES:
            watch.violation = f"it answered with more than {MAX_MESSAGE_BYTES >> 20} MB at once"
            return


async def _send_messages(pipe: Any, outof: Any, watch: ConnectionMonitor) -> None:
    try:
        async for message in outof:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            pipe.write(text.encode() + b"\n")
            await pipe.drain()
    except OSError:
        watch.ended.set()  # it has left


async def _read_stderr(pipe: Any, watch: ConnectionMonitor) -> None:
    """Keep the last of what the server says to people."""
    while (chunk := await pipe.read(PIPE_READ_BYTES)) and watch.record_stderr(chunk):
        pass
