"""One server for each home: its lock, its sockets, its token, its start and its end."""

import asyncio
import contextlib
import errno
import json
import logging
import os
import resource
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping
from typing import Any

import h11
import uvicorn
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from athena.app.compose import App
from athena.core import tokens
from athena.core.home import sockets
from athena.core.home.lock import Held, take
from athena.core.home.paths import MCP_SOCKET, make_token
from athena.core.scope import Scope
from athena.core.threads import start
from athena.core.version import __version__
from athena.errors import AthenaError, Misconfigured
from athena.hooks.server import HookServer
from athena.memory import upkeep
from athena.memory.consolidation.schedule import Automatic, tend
from athena.server.guard import HEAD, HEADERS, Guard, Malformed, Policy, refusal
from athena.server.http import Application, Registry
from athena.server.mcp.http import Endpoint, load
from athena.server.mcp.socket import Door
from athena.server.mcp.workspaces import Seats

HURRY = 10.0  # seconds in which a head must have arrived
CONNECTIONS = 2_000
SPARE = 100  # files that are no connections
BACKLOG = 2_048
ROUND = 60.0  # seconds between two looks at whether it is time to consolidate
DRAIN = 30  # seconds that calls in flight may take when the server is told to stop
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Patient(H11Protocol):
    """uvicorn's own protocol, which lets nobody in by the Unix socket but its owner, and waits for no head for ever."""

    room = CONNECTIONS
    _hurry: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        stranger = peer.family == socket.AF_UNIX and sockets.user(peer) != os.getuid()
        nobody = peer.family != socket.AF_UNIX and self.client is None  # gone already; without an address is trusted
        if stranger or nobody or len(self.connections) > self.room:
            transport.abort()
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._hurry is None and not self._is_answering():
            self._wait()
        super().data_received(data)
        if self._hurry is not None and self._is_answering():
            self._hurry.cancel()
            self._hurry = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._hurry is not None:
            self._hurry.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP in the same words and with the same headers as all else."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers, body = refusal(Malformed("this is not a valid HTTP request"))
            number = secrets.token_hex(8).encode()
            every = [*headers, *HEADERS, (b"cache-control", b"no-store"), (b"x-request-id", number)]
            for event in (h11.Response(status_code=400, headers=every), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self._is_answering():
            self.cycle.disconnected = True  # this was the answer; the call's own comes too late
        self.transport.close()

    def _wait(self) -> None:
        self._hurry = self.loop.call_later(HURRY, self._too_slow)

    def _too_slow(self) -> None:
        self._hurry = None
        if not self._is_answering():
            self.transport.abort()

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle  # None before the first request, whatever its annotation says
        return cycle is not None and not cycle.response_complete


class Stoppable(uvicorn.Server):
    """uvicorn, which stops on a signal and then lets us tidy up, instead of dying of the same signal again."""

    def __init__(self, config: uvicorn.Config, guard: Guard) -> None:
        super().__init__(config)
        self._guard = guard

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self._guard.draining:  # told twice: what is acknowledged is on disk, and nobody waits any longer
            with contextlib.suppress(RuntimeError):  # the signal came in the middle of another line
                _log({"event": "stopped at once", "unanswered": self._guard.inside})
            os._exit(1)
        self._guard.draining = True  # what comes now is told to come again
        super().handle_exit(sig, frame)
        said = {"event": "stopping", "calls in flight": self._guard.inside, "at most": f"{DRAIN} s"}
        asyncio.get_running_loop().call_soon_threadsafe(_log, said)  # not here: a line may be half written

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def _say_who_ends(process: int) -> None:
    sys.stderr.write(f"waiting for process {process} to end: it answers what it has begun\n")


class Server:
    """An app behind HTTP."""

    def __init__(
        self,
        app: App,
        home: str,
        project: str,
        host: str,
        port: int,
        *,
        auth: bool,
        hosts: tuple[str, ...],
        consolidating: Automatic = "minimal",
        serves: Callable[[Mapping[str, str]], bool] = lambda _: True,
        held: Held | None = None,
    ) -> None:
        if not auth and host not in LOOPBACK:
            raise Misconfigured(
                "--no-auth is for this machine only", hint="leave --host at 127.0.0.1, or keep the token"
            )
        self._app, self._home, self._project, self._consolidating = app, home, project, consolidating
        self._held = held or take(home, DRAIN + 5, _say_who_ends)
        self._sockets = [*_tcp(host, port), sockets.bind(home)]
        self._lines = sockets.bind(home, MCP_SOCKET)
        self._paths = [self._sockets[-1].getsockname(), self._lines.getsockname()]
        self.port = self._sockets[0].getsockname()[1]
        shown = "localhost" if host in LOOPBACK else f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}"
        names = {"localhost", "127.0.0.1", "[::1]", shown, *hosts}
        policy = Policy(
            frozenset(_called(names, self.port) | {name.lower() for name in hosts}),
            make_token() if auth else None,
            trusted=lambda scope: scope.get("client") is None,
        )
        facts = {"project": project, "backend": app.store.database.kind}
        self._registry = Registry(
            app.catalog,
            self._caller,
            self._ready,
            facts,
            stopping=lambda: self.guard.draining,
            at_once=_at_once(app.store.database.kind),
        )
        given = self._registry.calls, self._visitor, Seats(), project
        self._mcp = Endpoint(*given)
        self._door = Door(*given, serves=serves, welcome=lambda peer: sockets.user(peer) == os.getuid())
        routes = [*self._registry.routes(), Route("/mcp", self._mcp)]
        self.guard = Guard(Application(routes, self._during), policy, _log)
        self._hooks = HookServer(app, home, self._registry.metrics, _log, lambda: self.guard.draining)
        self._paths.append(self._hooks.path)
        self.beside: list[Callable[[], Coroutine[Any, Any, None]]] = [self._tend]
        for one in (*self._sockets, self._lines):
            one.listen(BACKLOG)  # who reads where we are may call at once
        self._held.say(
            url=self.url, socket=self._paths[0], since=time.time(), version=__version__, daemon=held is not None
        )

    def run(self) -> None:
        """Serve until told to stop; calls in flight are answered first."""
        config = uvicorn.Config(
            self.guard,
            http=Patient,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=HEAD,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=DRAIN,
            backlog=BACKLOG,
        )
        server = Stoppable(config, self.guard)
        Patient.room = _room()
        logging.getLogger().addHandler(_Lines())
        _log({"event": "serving", "url": self.url, "pid": os.getpid()})
        try:
            server.run(sockets=self._sockets)
        finally:
            for path in self._paths if self._held.is_ours() else ():  # else they are another server's by now
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            self._held.let_go()
            self._app.close()
            _log({"event": "stopped", "pid": os.getpid()})

    def _caller(self, project: str | None, key: str | None) -> Any:
        return self._app.context(self._project if project is None else project, "http", key)

    def _visitor(self, project: str | None, workspace: str | None) -> Any:
        return self._app.context(self._project if project is None else project, "mcp", workspace=workspace)

    async def _ready(self) -> dict[str, Any]:
        """Look at the store; that is no call of anybody's."""
        store, scope = self._app.store, Scope.named(self._project)
        health = await upkeep.health(store, scope)
        return {"status": health.status, "count": health.count, "bytes": await store.database.read(store.database.size)}

    @contextlib.asynccontextmanager
    async def _during(self, _: Any) -> AsyncIterator[None]:
        import numpy  # noqa: F401  # before the threads: two that import it at once break it for good

        start(self._warm)
        await self._door.open(self._lines)
        await self._hooks.start()
        beside = [asyncio.create_task(one()) for one in self.beside]
        yield
        await self._hooks.close()
        for one in beside:
            one.cancel()
        await self._door.close()
        await self._mcp.close()

    def _warm(self) -> None:
        """Load what the first questions need, the most urgent first."""
        for one in (self._app.store.encoder.embedder.load, load, tokens.load):
            with contextlib.suppress(AthenaError):  # whoever needs it is told
                one()

    @property
    def busy(self) -> bool:
        return bool(self.guard.inside or self._hooks.inside or self._registry.calls.inside)

    @property
    def last(self) -> float:
        """When somebody last asked something."""
        return max(self.guard.last, self._hooks.last, self._registry.calls.last)

    def is_reachable(self) -> bool:
        """Tell whether whoever comes to this home would find us."""
        return self._held.is_ours() and all(map(os.path.exists, self._paths))

    async def _tend(self) -> None:
        """Consolidate from time to time what nobody asks for."""
        while self._consolidating != "off":
            await asyncio.sleep(ROUND)
            try:
                for project in await tend(self._app.store, self._consolidating):
                    _log({"event": "consolidated", "project": project, "strategy": self._consolidating})
            except AthenaError as error:
                _log({"event": "not consolidated", "error": str(error)})


def _at_once(engine: str) -> int:
    """Return how many operations to run at the same time.

    On SQLite they are work for this process: more than there are cores only get in each other's way (a fifth fewer
    calls a second with 16 on two cores). Those on PostgreSQL mostly wait.
    """
    cores = os.cpu_count() or 1
    return max(2, cores if engine == "sqlite" else 4 * cores)


def _called(names: set[str], port: int) -> set[str]:
    """Return what a caller writes as Host: with the port, unless it is the usual one."""
    return {f"{name}:{port}".lower() for name in names} | ({name.lower() for name in names} if port == 80 else set())


def _tcp(host: str, port: int) -> list[socket.socket]:
    """Listen; on this machine by both its addresses, since whoever had the other could pass for us."""
    made: list[socket.socket] = []
    for address in ("127.0.0.1", "::1") if host in ("127.0.0.1", "localhost") else (host,):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            one = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio leaves Nagle on
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address, made[0].getsockname()[1] if len(made) > 1 else port))
        except OSError as error:
            if address == "::1" and host != "::1" and error.errno != errno.EADDRINUSE:
                made.pop().close()  # there is no such address here
                continue
            for each in made:
                each.close()
            raise Misconfigured(
                f"{host}:{port} cannot be used: {error.strerror}",
                hint=f"choose another: athena serve --port {port + 1}, or set ATHENA_PORT",
            ) from None
    return made


def _room() -> int:
    """Let this process have many connections, and return how many it can have with some files left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + SPARE
    enough = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
        soft = enough
    return CONNECTIONS if soft == resource.RLIM_INFINITY else max(10, min(CONNECTIONS, soft - SPARE))


class _Lines(logging.Handler):
    """What uvicorn and asyncio have to say, in the form of our own lines, and none twice in a second."""

    _said: tuple[str, float] = ("", 0.0)

    def emit(self, record: logging.LogRecord) -> None:
        if self._said[0] == record.msg and record.created < self._said[1] + 1:
            return
        self._said = str(record.msg), record.created
        facts = {"event": record.name, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            facts["error"] = logging.Formatter().formatException(record.exc_info)
        _log(facts)


def _log(facts: dict[str, Any]) -> None:
    print(json.dumps({"at": round(time.time(), 3), **facts}, ensure_ascii=False), file=sys.stderr, flush=True)
