"""A server's process and the pipes to it."""

import asyncio
import fcntl
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

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
