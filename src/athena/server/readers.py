"""Reader processes of `athena serve --workers`: they answer searches beside the server's own process.

The server keeps its sockets, all writes and all background work. It hands a search over once the call may begin, so
every write that was acknowledged before is in the store that the reader then looks at. A reader keeps nothing that the
server needs: where one ends, hangs or cannot answer, the server makes the call itself and starts another.
"""

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from athena.app.compose import App, open_app
from athena.app.settings import Settings
from athena.core import memory_limit
from athena.core.catalog import AnyOperation, invoke
from athena.core.home.daemon import PACKAGE_ROOT
from athena.core.operation import Caller
from athena.core.threads import run_sync, start_in_thread
from athena.core.version import __version__
from athena.errors import AthenaError, Conflict, Denied, InvalidInput, LimitExceeded, Misconfigured, NotFound
from athena.operations.context import Context
from athena.server.log import write_log_line

READER_SCRIPT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from athena.server.readers import main; main()"
# They need the store alone, nothing in the memory of the server. Other reads cost hardly more than handing them over.
SEARCHES = {"recall", "recall_events", "search_graph"}
MAX_CALLS_PER_CHANNEL = 2  # one that is answered, and one that the reader finds at once when it has answered it
CHANNELS = {"sqlite": 1, "postgres": 4}  # of a reader, each with a thread: calls to a database server mostly wait
LENGTH_BYTES = 4
LARGE_ANSWER_BYTES = 1 << 20  # read on another thread
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0  # a reader that takes longer hangs; another one takes its place
END_TIMEOUT_S = 5.0
MIN_RESTART_DELAY_S, MAX_RESTART_DELAY_S = 0.5, 60.0
UPKEEP_INTERVAL_S = 10.0
MIN_UPKEEP_CPU_S = 0.1  # a reader that did less since then has no memory to give back


class ReaderLost(Exception):
    """The reader has ended, or does not answer."""


class Channel(asyncio.Protocol):
    """The server's end of a connection to a reader, which answers in the order of the calls."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set at once
        self._input = bytearray()
        self.ready: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.lost = asyncio.Event()
        self._waiting = deque([self.ready])

    @property
    def call_count(self) -> int:
        return len(self._waiting)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # of a stream

    def data_received(self, data: bytes) -> None:
        self._input += data
        while len(self._input) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._input[:LENGTH_BYTES], "big")
            if len(self._input) < end:
                return
            answer = self._waiting.popleft()
            if not answer.done():  # else its caller has left
                answer.set_result(bytes(self._input[LENGTH_BYTES:end]))
            del self._input[:end]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(ReaderLost())
        self._waiting.clear()

    def send(self, message: bytes) -> None:
        self._transport.write(_frame(message))

    async def ask(self, request: bytes) -> bytes:
        if self._transport.is_closing():
            raise ReaderLost
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self.send(request)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answer
        except TimeoutError:
            self.close()
            raise ReaderLost from None

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the reader has ended; a process that was forked meanwhile has a copy
            self._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._transport.abort()


class ReaderPool:
    """Keeps readers running and hands calls to them; `change_limit` hears how many more reads may run at once."""

    change_limit: Callable[[int], None]

    def __init__(self, app: App, settings: Settings, count: int) -> None:
        if settings.db_path == ":memory:" and not settings.database_url:
            raise Misconfigured(
                "a store in memory has no other readers", hint="leave out --workers, or name a file: ATHENA_DB_PATH"
            )
        self._app, self._settings, self._count = app, settings, count
        self._channels: list[Channel] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        # what a process knows of names may be some seconds old: where privacy is on, one process answers all calls;
        # another model's endpoint may take longer than a reader that hangs
        if not self._app.guard.is_on and not self._settings.embedding_url:
            self._tasks = [asyncio.create_task(self._keep_reader()) for _ in range(self._count)]

    async def close(self) -> None:
        """End the readers once they have answered; kill those that do not end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def call(self, operation: AnyOperation, arguments: Mapping[str, Any], caller: Caller) -> Any:
        """Let a reader answer a call, or make it here where none is free or this is not for one."""
        channel = self._choose_channel(operation, caller)
        if channel is not None:
            assert isinstance(caller, Context)
            request = pickle.dumps((operation.name, dict(arguments), caller.scope.project, caller.surface))
            with self._app.store.encoder.mark_call(), contextlib.suppress(ReaderLost):
                answer = await channel.ask(request)
                is_large = len(answer) > LARGE_ANSWER_BYTES
                result, error = await start_in_thread(pickle.loads, answer) if is_large else pickle.loads(answer)
                if error is not None:
                    raise error
                if result is not None:
                    return result
        return await operation(caller, **arguments)

    def _choose_channel(self, operation: AnyOperation, caller: Caller) -> Channel | None:
        """Return the channel with the fewest calls; none for a call that needs more than the store and its project."""
        if not self._channels or operation.name not in SEARCHES or operation.is_foreign:
            return None
        if not isinstance(caller, Context) or caller.run_id:  # a key means nothing to a search
            return None
        if not self._app.guard.is_current():  # the settings of privacy have changed: the call is refused
            return None
        channel = min(self._channels, key=lambda each: each.call_count)
        return channel if channel.call_count < MAX_CALLS_PER_CHANNEL else None

    async def _keep_reader(self) -> None:
        """Run a reader, and another one when it ends, a little later each time that it ends soon."""
        delay_s = MIN_RESTART_DELAY_S
        while True:
            began = time.monotonic()
            try:
                await self._run_reader()
            except (OSError, RuntimeError, MemoryError) as error:  # no descriptors, no thread: the server goes on alone
                write_log_line({"event": "reader not started", "error": f"{type(error).__name__}: {error}"})
            is_soon = time.monotonic() - began < MAX_RESTART_DELAY_S
            delay_s = min(2 * delay_s, MAX_RESTART_DELAY_S) if is_soon else MIN_RESTART_DELAY_S
            await asyncio.sleep(delay_s)

    async def _run_reader(self) -> None:
        """Start a reader and wait until it ends."""
        with contextlib.ExitStack() as opened:
            pairs = [socket.socketpair() for _ in range(CHANNELS[self._app.store.database.engine])]
            for pair in pairs:
                for end in pair:
                    opened.enter_context(end)
            theirs = [pair[1].fileno() for pair in pairs]
            # -I: neither the working directory nor the environment may add code
            argv = [sys.executable, "-I", "-c", READER_SCRIPT, PACKAGE_ROOT, __version__, ",".join(map(str, theirs))]
            process = subprocess.Popen(argv, pass_fds=theirs, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # noqa: ASYNC220  # 2 ms
            channels: list[Channel] = []
            try:
                for ours, other in pairs:
                    other.close()
                    connection = await asyncio.get_running_loop().create_connection(Channel, sock=ours)
                    channels.append(connection[1])
                channels[0].send(pickle.dumps(self._settings))
                await self._use_channels(process.pid, channels)
            finally:
                for channel in channels:
                    channel.close()
                await asyncio.shield(start_in_thread(_end_process, process))
                write_log_line({"event": "reader ended", "pid": process.pid, "status": process.returncode})

    async def _use_channels(self, pid: int, channels: list[Channel]) -> None:
        """Offer calls to a reader from when it is ready until it ends."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.gather(*(channel.ready for channel in channels))
        except (ReaderLost, TimeoutError):
            return
        write_log_line({"event": "reader started", "pid": pid})
        self._channels += channels
        # the server makes fewer of the reads itself: it reads requests and writes answers meanwhile
        self.change_limit((MAX_CALLS_PER_CHANNEL - 1) * len(channels))
        try:
            waits = [asyncio.ensure_future(channel.lost.wait()) for channel in channels]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._channels = [channel for channel in self._channels if channel not in channels]
            self.change_limit(-(MAX_CALLS_PER_CHANNEL - 1) * len(channels))


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process whose channels are closed, and kill it if it does not end."""
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# --- the reader's process ---------------------------------------------------------------------------------------------


def main() -> None:
    """Answer the calls of the server that started this process, until it closes the connection or ends."""
    for signum in (signal.SIGINT, signal.SIGTERM):  # the server gets them, too, and then ends this process
        signal.signal(signum, signal.SIG_IGN)
    if sys.argv[1] != __version__:
        sys.exit("another version was installed: the server answers alone until it is started again")
    channels = [socket.socket(fileno=int(number)) for number in sys.argv[2].split(",")]
    memory_limit.limit_heaps()
    try:
        if (settings := _receive(source := channels[0].makefile("rb"))) is not None:
            app = open_app(pickle.loads(settings))
            try:
                _answer_server(app, channels, source)
            finally:
                app.close()  # stores which memories were used, and the records of the calls
    except AthenaError as error:
        write_log_line({"event": "reader failed", "error": str(error)})
    os._exit(0)  # the usual end would abort a thread inside the model


def _answer_server(app: App, channels: list[socket.socket], first_source: BinaryIO) -> None:
    app.store.encoder.embedder.load()
    threading.Thread(target=_look_after, args=(app, channels, os.getppid()), daemon=True).start()
    for channel in channels[1:]:
        threading.Thread(target=_answer_calls, args=(app, channel, channel.makefile("rb")), daemon=True).start()
    _answer_calls(app, channels[0], first_source)


def _answer_calls(app: App, channel: socket.socket, source: BinaryIO) -> None:
    with contextlib.suppress(OSError):  # the server has ended
        channel.sendall(_frame(b""))  # ready
        while (request := _receive(source)) is not None:
            channel.sendall(_frame(_answer(app, request)))


def _answer(app: App, request: bytes) -> bytes:
    """Make a call; return its result and its error, neither if the server has to make it."""
    name, arguments, project, surface = pickle.loads(request)
    try:
        result = run_sync(invoke(app.catalog, name, arguments, app.create_context(project, surface)))
        # where the model fails, the server says so, and tries it itself
        return pickle.dumps((None if app.store.encoder.last_error else result, None), pickle.HIGHEST_PROTOCOL)
    except (Conflict, Denied, InvalidInput, LimitExceeded, NotFound) as error:
        return pickle.dumps((None, error))
    except Exception:  # noqa: BLE001  # of this process's store, or a bug: the server tries it itself, and says so
        return pickle.dumps((None, None))


def _look_after(app: App, channels: list[socket.socket], parent: int) -> None:
    """Give memory back now and then, and end where the server ended and another process holds its connections open."""
    cpu_s = 0.0
    while os.getppid() == parent:
        time.sleep(UPKEEP_INTERVAL_S)
        app.store.encoder.release_unused()
        app.store.database.release_unused()
        if (used_s := time.process_time()) > cpu_s + MIN_UPKEEP_CPU_S:
            memory_limit.give_back_memory()
            cpu_s = used_s
    for channel in channels:
        channel.shutdown(socket.SHUT_RDWR)


def _frame(message: bytes) -> bytes:
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


def _receive(source: BinaryIO) -> bytes | None:
    """Return the next message; None once the server has closed the connection."""
    length = source.read(LENGTH_BYTES)
    message = source.read(int.from_bytes(length, "big"))
    return message if len(length) == LENGTH_BYTES and len(message) == int.from_bytes(length, "big") else None
