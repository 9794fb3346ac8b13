"""Talking with a server that is a program of this machine: lines of JSON through pipes, none too long to hold."""

import asyncio
import fcntl
import os
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from athena.gateway.monitor import MAX_MESSAGE_BYTES, ConnectionMonitor

SUPERVISOR_PATH = str(Path(__file__).with_name("supervisor.py"))
PIPE_READ_BYTES = 64 << 10
REAP_DELAY_S = 4.0  # seconds after which a minder has ended for sure

_unreaped_pids: set[int] = set()  # minders that have still to be waited for, or they stay in the table of processes


class ServerProcess:
    """A minder with the server that it has started. Not `subprocess`, which would wait for it."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
        reap_exited()
        pipes = [_create_pipe() for _ in range(4)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1], pipes[3][0]]
        self._pipe_ends = [pipes[0][1], pipes[1][0], pipes[2][0], pipes[3][1]]
        command = [sys.executable, "-I", "-S", "-B", SUPERVISOR_PATH, folder, *words]
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                command,
                dict(environment),
                file_actions=[(os.POSIX_SPAWN_DUP2, one, place) for place, one in enumerate(theirs)],
                setpgroup=0,
            )
        except BaseException:
            for one in self._pipe_ends:
                os.close(one)
            raise
        finally:
            for one in theirs:
                os.close(one)
        self._transports: list[asyncio.BaseTransport] = []
        _unreaped_pids.add(self.pid)

    async def open_streams(self) -> tuple[asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamReader]:
        """Return its standard input, output and error."""
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(loop=loop), os.fdopen(self._pipe_ends[0], "wb", 0)
        )
        self._transports.append(transport)
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
        return writer, await self._open_reader(self._pipe_ends[1]), await self._open_reader(self._pipe_ends[2])

    async def _open_reader(self, pipe: int) -> asyncio.StreamReader:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(PIPE_READ_BYTES, loop)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop), os.fdopen(pipe, "rb", 0)
        )
        self._transports.append(transport)
        return reader

    def close(self) -> None:
        """Close every pipe: the minder notices, and ends the server."""
        os.close(self._pipe_ends[3])
        asyncio.get_running_loop().call_later(REAP_DELAY_S, reap_exited)
        for transport in self._transports:
            if transport.is_closing():  # the server has left already
                continue
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
            else:
                transport.close()


def reap_exited() -> None:
    """Wait for those that have ended."""
    for pid in list(_unreaped_pids):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _unreaped_pids.discard(pid)


def _create_pipe() -> tuple[int, int]:
    """Make a pipe whose ends are none of the first few files, which the child has its own of."""
    reading, writing = os.pipe()
    try:
        return fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, 16), fcntl.fcntl(writing, fcntl.F_DUPFD_CLOEXEC, 16)
    finally:
        os.close(reading)
        os.close(writing)


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
