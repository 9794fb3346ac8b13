"""The stdio transport of a server: a child process that exchanges lines of JSON, with limits on its output."""

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
REAP_DELAY_S = 4.0  # longer than a supervisor needs to end its server
MIN_PIPE_FD = 16  # above the descriptors that the child gets
PARSE_ERROR_CODE = -32700  # of JSON-RPC
RESPONSE_ID_PATTERN = re.compile(rb'"id"\s*:\s*(\d{1,15})\b')
# the variables that a server inherits; the others may hold secrets
# fmt: off
INHERITED_VARIABLES = frozenset((
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
))
# fmt: on
FIXED_VARIABLES = {"PYTHONHASHSEED": "0"}  # servers in Python list sets in the same order at each start

_unreaped_pids: set[int] = set()  # supervisors to wait for, or they stay zombies


class ServerProcess:
    """A server's process and its supervisor. Not `subprocess`, which would wait for the supervisor."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], folder: str) -> None:
        reap_exited()
        pipes = [_create_pipe() for _ in range(4)]
        child_ends = [pipes[0][0], pipes[1][1], pipes[2][1], pipes[3][0]]
        self._pipe_ends = [pipes[0][1], pipes[1][0], pipes[2][0], pipes[3][1]]
        command = [sys.executable, "-I", "-S", "-B", SUPERVISOR_PATH, folder, *argv]
        try:
            self.pid = _spawn_in_own_session(command, environ, child_ends)
        except BaseException:
            for end in self._pipe_ends:
                os.close(end)
            raise
        finally:
            for end in child_ends:
                os.close(end)
        self._transports: list[asyncio.BaseTransport] = []
        _unreaped_pids.add(self.pid)

    async def open_streams(self) -> tuple[asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamReader]:
        """Return the server's standard input, output and error."""
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
        """Close every pipe: the supervisor notices it and ends the server."""
        os.close(self._pipe_ends[3])
        asyncio.get_running_loop().call_later(REAP_DELAY_S, reap_exited)
        for transport in self._transports:
            if transport.is_closing():  # the server has exited
                continue
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
            else:
                transport.close()


def _spawn_in_own_session(command: list[str], environ: Mapping[str, str], child_ends: list[int]) -> int:
    """Start the supervisor without our controlling terminal: a server could write there and answer our questions."""
    file_actions = [(os.POSIX_SPAWN_DUP2, end, descriptor) for descriptor, end in enumerate(child_ends)]
    try:
        return os.posix_spawn(command[0], command, dict(environ), file_actions=file_actions, setsid=True)
    except NotImplementedError:  # an old macOS; the supervisor calls setsid itself
        return os.posix_spawn(command[0], command, dict(environ), file_actions=file_actions)


def reap_exited() -> None:
    """Collect the exit status of supervisors that have ended."""
    for pid in list(_unreaped_pids):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _unreaped_pids.discard(pid)


def _create_pipe() -> tuple[int, int]:
    """Create a pipe whose descriptors are above those that the child gets, so that dup2 cannot overwrite one."""
    reading, writing = os.pipe()
    try:
        high_reading, high_writing = (
            fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, MIN_PIPE_FD) for end in (reading, writing)
        )
        return high_reading, high_writing
    finally:
        os.close(reading)
        os.close(writing)


def build_environment(environ: Mapping[str, str], configured: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server: the harmless variables of ours, and those of its entry."""
    inherited = {
        name: value for name, value in environ.items() if name in INHERITED_VARIABLES or name.startswith("LC_")
    }
    return inherited | FIXED_VARIABLES | dict(configured)


@asynccontextmanager
async def open_stdio_streams(
    argv: Sequence[str], environ: Mapping[str, str], folder: str, monitor: ConnectionMonitor
) -> AsyncGenerator[Any]:
    """Start the program and yield the streams that the SDK reads from and writes to."""
    import anyio  # slow to import, like the SDK

    process = ServerProcess(argv, environ, folder)
    received, read_stream = anyio.create_memory_object_stream[Any](0)
    write_stream, to_send = anyio.create_memory_object_stream[Any](0)
    tasks: list[asyncio.Task[None]] = []
    try:
        stdin, stdout, stderr = await process.open_streams()
        tasks = [
            asyncio.create_task(_receive_messages(stdout, received, monitor)),
            asyncio.create_task(_send_messages(stdin, to_send, monitor)),
            asyncio.create_task(_read_stderr(stderr, monitor)),
        ]
        yield read_stream, write_stream
    finally:
        monitor.ended.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        process.close()
        for stream in (received, read_stream, write_stream, to_send):
            stream.close()


async def _receive_messages(pipe: Any, received: Any, monitor: ConnectionMonitor) -> None:
    """Pass responses and requests of the server to the SDK; keep notifications and unreadable lines from it."""
    from mcp.shared.message import SessionMessage  # the SDK is slow to import
    from mcp_types import JSONRPCNotification, JSONRPCRequest, jsonrpc_message_adapter

    try:
        async for line in _read_lines(pipe, monitor):
            if not monitor.accept_message(line):
                return
            if line.lstrip()[:1] != b"{":
                monitor.record_unparsed_line(line)
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line.decode("utf-8", "replace"), by_name=False)
            except ValueError:
                monitor.record_unparsed_line(line)
                if (message := create_parse_error(line)) is None:
                    continue
            if isinstance(message, JSONRPCNotification):
                monitor.record_notification(message.method)
                continue
            if isinstance(message, JSONRPCRequest) and not monitor.accept_request():
                return
            if not monitor.accept_fields(message):
                return
            with suppress(Exception):  # the SDK closed the stream
                await received.send(SessionMessage(message))
    finally:
        monitor.ended.set()
        received.close()


def create_parse_error(line: bytes) -> Any:
    """Return an error response in place of an unreadable one, so that its call ends; None if the line is none."""
    from mcp_types import ErrorData, JSONRPCError  # the SDK is slow to import

    match = RESPONSE_ID_PATTERN.search(line[:200])
    if match is None or not re.search(rb'"(result|error)"', line[:400]):
        return None
    error = ErrorData(code=PARSE_ERROR_CODE, message="it cannot be read")
    return JSONRPCError(jsonrpc="2.0", id=int(match[1]), error=error)


async def _read_lines(pipe: Any, monitor: ConnectionMonitor) -> AsyncIterator[bytes]:
    pending = bytearray()
    while chunk := await pipe.read(PIPE_READ_BYTES):
        *ends, last = chunk.split(b"\n")
        for end in ends:
            pending += end
            yield bytes(pending)
            pending.clear()
        pending += last
        if len(pending) > MAX_MESSAGE_BYTES:
            monitor.violation = f"it answered with more than {MAX_MESSAGE_BYTES >> 20} MB at once"
            return


async def _send_messages(pipe: Any, to_send: Any, monitor: ConnectionMonitor) -> None:
    try:
        async for message in to_send:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            pipe.write(text.encode() + b"\n")
            await pipe.drain()
    except OSError:
        monitor.ended.set()  # the server has exited


async def _read_stderr(pipe: Any, monitor: ConnectionMonitor) -> None:
    """Read standard error, so that the server never blocks on it, until it is too much."""
    while (chunk := await pipe.read(PIPE_READ_BYTES)) and monitor.record_stderr(chunk):
        pass
