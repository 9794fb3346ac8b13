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
from starlette.routing import Route, Router
from uvicorn.protocols.http.h11_impl import H11Protocol

from athena.app.compose import App
from athena.core.home import sockets
from athena.core.home.lock import ServerLock, acquire_server_lock
from athena.core.home.paths import MCP_SOCKET, ensure_token
from athena.core.threads import start_in_thread
from athena.core.values import Scope
from athena.core.version import __version__
from athena.errors import AthenaError, Misconfigured
from athena.hooks.server import HookServer
from athena.memory import upkeep
from athena.memory.consolidation.run import AutomaticStrategy, consolidate_due_projects
from athena.server.guard import (
    MAX_HEAD_BYTES,
    SECURITY_HEADERS,
    AccessPolicy,
    Guard,
    MalformedRequest,
    format_error_response,
)
from athena.server.http import HttpApi
from athena.server.mcp.http import McpEndpoint, import_mcp_server
from athena.server.mcp.socket import McpSocketServer
from athena.server.mcp.workspaces import WorkspacePool

HEAD_TIMEOUT_S = 10.0  # seconds in which a head must have arrived
MAX_CONNECTIONS = 2_000
RESERVED_FILES_COUNT = 100  # files that are no connections
LISTEN_BACKLOG = 2_048
CONSOLIDATION_CHECK_S = 60.0  # seconds between two looks at whether it is time to consolidate
DRAIN_TIMEOUT_S = 30  # seconds that calls in flight may take when the server is told to stop
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")


class GuardedProtocol(H11Protocol):
    """uvicorn's own protocol, which lets nobody in by the Unix socket but its owner, and waits for no head for ever."""

    max_connections = MAX_CONNECTIONS
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        stranger = peer.family == socket.AF_UNIX and sockets.get_peer_uid(peer) != os.getuid()
        nobody = peer.family != socket.AF_UNIX and self.client is None  # gone already; without an address is trusted
        if stranger or nobody or len(self.connections) > self.max_connections:
            transport.abort()
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and not self._is_answering():
            self._start_head_timer()
        super().data_received(data)
        if self._head_timer is not None and self._is_answering():
            self._head_timer.cancel()
            self._head_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP in the same words and with the same headers as all else."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers, body = format_error_response(MalformedRequest("this is not a valid HTTP request"))
            number = secrets.token_hex(8).encode()
            every = [*headers, *SECURITY_HEADERS, (b"cache-control", b"no-store"), (b"x-request-id", number)]
            for event in (h11.Response(status_code=400, headers=every), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self._is_answering():
            self.cycle.disconnected = True  # this was the answer; the call's own comes too late
        self.transport.close()

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._abort_slow_request)

    def _abort_slow_request(self) -> None:
        self._head_timer = None
        if not self._is_answering():
            self.transport.abort()

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle  # None before the first request, whatever its annotation says
        return cycle is not None and not cycle.response_complete


class GracefulServer(uvicorn.Server):
    """uvicorn, which stops on a signal and then lets us tidy up, instead of dying of the same signal again."""

    def __init__(self, config: uvicorn.Config, guard: Guard) -> None:
        super().__init__(config)
        self._guard = guard

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self._guard.is_draining:  # told twice: what is acknowledged is on disk, and nobody waits any longer
            with contextlib.suppress(RuntimeError):  # the signal came in the middle of another line
                _write_log_line({"event": "stopped at once", "unanswered": self._guard.active_count})
            os._exit(1)
        self._guard.is_draining = True  # what comes now is told to come again
        super().handle_exit(sig, frame)
        said = {"event": "stopping", "calls in flight": self._guard.active_count, "at most": f"{DRAIN_TIMEOUT_S} s"}
        asyncio.get_running_loop().call_soon_threadsafe(_write_log_line, said)  # not here: a line may be half written

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def _report_waiting_for(process: int) -> None:
    sys.stderr.write(f"waiting for process {process} to end: it answers what it has begun\n")


class AthenaServer:
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
        consolidating: AutomaticStrategy = "minimal",
        serves: Callable[[Mapping[str, str]], bool] = lambda _: True,
        held: ServerLock | None = None,
    ) -> None:
        if not auth and host not in LOOPBACK_HOSTS:
            raise Misconfigured(
                "--no-auth is for this machine only", hint="leave --host at 127.0.0.1, or keep the token"
            )
        self._app, self._home, self._project, self._consolidate_strategy = app, home, project, consolidating
        self._lock = held or acquire_server_lock(home, DRAIN_TIMEOUT_S + 5, _report_waiting_for)
        self._sockets = [*_bind_tcp(host, port), sockets.bind_socket(home)]
        self._mcp_listener = sockets.bind_socket(home, MCP_SOCKET)
        self._socket_paths = [self._sockets[-1].getsockname(), self._mcp_listener.getsockname()]
        self.port = self._sockets[0].getsockname()[1]
        shown = "localhost" if host in LOOPBACK_HOSTS else f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}"
        names = {"localhost", "127.0.0.1", "[::1]", shown, *hosts}
        policy = AccessPolicy(
            frozenset(_list_allowed_hosts(names, self.port) | {name.lower() for name in hosts}),
            ensure_token() if auth else None,
            is_trusted=lambda scope: scope.get("client") is None,
        )
        facts = {"project": project, "backend": app.store.database.engine}
        self._http_api = HttpApi(
            app.catalog,
            self._create_http_context,
            self._read_health,
            facts,
            is_stopping=lambda: self.guard.is_draining,
            max_concurrent=_get_call_limit(app.store.database.engine),
        )
        given = self._http_api.dispatcher, self._create_mcp_context, WorkspacePool(), project
        self._mcp_endpoint = McpEndpoint(*given)
        self._mcp_socket_server = McpSocketServer(
            *given, serves=serves, welcome=lambda peer: sockets.get_peer_uid(peer) == os.getuid()
        )
        routes = [*self._http_api.create_routes(), Route("/mcp", self._mcp_endpoint)]
        router = Router(routes, redirect_slashes=False, lifespan=self._run_lifespan)
        self.guard = Guard(router, policy, _write_log_line)
        self._hook_server = HookServer(
            app, home, self._http_api.metrics, _write_log_line, lambda: self.guard.is_draining
        )
        self._socket_paths.append(self._hook_server.path)
        self.background_tasks: list[Callable[[], Coroutine[Any, Any, None]]] = [self._consolidate_periodically]
        for one in (*self._sockets, self._mcp_listener):
            one.listen(LISTEN_BACKLOG)  # who reads where we are may call at once
        self._lock.write_info(
            url=self.url, socket=self._socket_paths[0], since=time.time(), version=__version__, daemon=held is not None
        )

    def run(self) -> None:
        """Serve until told to stop; calls in flight are answered first."""
        config = uvicorn.Config(
            self.guard,
            http=GuardedProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=DRAIN_TIMEOUT_S,
            backlog=LISTEN_BACKLOG,
        )
        server = GracefulServer(config, self.guard)
        GuardedProtocol.max_connections = _raise_connection_limit()
        logging.getLogger().addHandler(_JsonLogHandler())
        _write_log_line({"event": "serving", "url": self.url, "pid": os.getpid()})
        try:
            server.run(sockets=self._sockets)
        finally:
            for path in (
                self._socket_paths if self._lock.is_still_held() else ()
            ):  # else they are another server's by now
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            self._lock.release()
            self._app.close()
            _write_log_line({"event": "stopped", "pid": os.getpid()})

    def _create_http_context(self, project: str | None, key: str | None) -> Any:
        return self._app.create_context(self._project if project is None else project, "http", key)

    def _create_mcp_context(self, project: str | None, workspace: str | None) -> Any:
        return self._app.create_context(self._project if project is None else project, "mcp", workspace=workspace)

    async def _read_health(self) -> dict[str, Any]:
        """Look at the store; that is no call of anybody's."""
        store, scope = self._app.store, Scope.from_name(self._project)
        health = await upkeep.check_health(store, scope)
        return {
            "status": health.status,
            "count": health.count,
            "bytes": await store.database.read(store.database.measure_size),
        }

    @contextlib.asynccontextmanager
    async def _run_lifespan(self, _: Any) -> AsyncIterator[None]:
        import numpy  # noqa: F401  # before the threads: two that import it at once break it for good

        start_in_thread(self._warm_up)
        await self._mcp_socket_server.start(self._mcp_listener)
        await self._hook_server.start()
        beside = [asyncio.create_task(one()) for one in self.background_tasks]
        yield
        await self._hook_server.close()
        for one in beside:
            one.cancel()
        await self._mcp_socket_server.close()
        await self._mcp_endpoint.close()

    def _warm_up(self) -> None:
        """Load what the first questions need, the most urgent first."""
        for load in (self._app.store.encoder.embedder.load, import_mcp_server):
            with contextlib.suppress(AthenaError):  # the first call that needs it reports the error
                load()

    @property
    def is_busy(self) -> bool:
        return bool(
            self.guard.active_count or self._hook_server.active_events or self._http_api.dispatcher.active_count
        )

    @property
    def last_active_at(self) -> float:
        """When somebody last asked something."""
        return max(self.guard.last_active_at, self._hook_server.last_active, self._http_api.dispatcher.last_active_at)

    def is_reachable(self) -> bool:
        """Tell whether whoever comes to this home would find us."""
        return self._lock.is_still_held() and all(map(os.path.exists, self._socket_paths))

    async def _consolidate_periodically(self) -> None:
        """Consolidate from time to time what nobody asks for."""
        while self._consolidate_strategy != "off":
            await asyncio.sleep(CONSOLIDATION_CHECK_S)
            try:
                for project in await consolidate_due_projects(self._app.store, self._consolidate_strategy):
                    _write_log_line(
                        {"event": "consolidated", "project": project, "strategy": self._consolidate_strategy}
                    )
            except AthenaError as error:
                _write_log_line({"event": "not consolidated", "error": str(error)})


def _get_call_limit(engine: str) -> int:
    """Return how many operations to run at the same time.

    On SQLite they are work for this process: more than there are cores only get in each other's way (a fifth fewer
    calls a second with 16 on two cores). Those on PostgreSQL mostly wait.
    """
    cores = os.cpu_count() or 1
    return max(2, cores if engine == "sqlite" else 4 * cores)


def _list_allowed_hosts(names: set[str], port: int) -> set[str]:
    """Return what a caller writes as Host: with the port, unless it is the usual one."""
    return {f"{name}:{port}".lower() for name in names} | ({name.lower() for name in names} if port == 80 else set())


def _bind_tcp(host: str, port: int) -> list[socket.socket]:
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


def _raise_connection_limit() -> int:
    """Let this process have many connections, and return how many it can have with some files left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + RESERVED_FILES_COUNT
    enough = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
        soft = enough
    return (
        MAX_CONNECTIONS
        if soft == resource.RLIM_INFINITY
        else max(10, min(MAX_CONNECTIONS, soft - RESERVED_FILES_COUNT))
    )


class _JsonLogHandler(logging.Handler):
    """What uvicorn and asyncio have to say, in the form of our own lines, and none twice in a second."""

    _last_record: tuple[str, float] = ("", 0.0)

    def emit(self, record: logging.LogRecord) -> None:
        if self._last_record[0] == record.msg and record.created < self._last_record[1] + 1:
            return
        self._last_record = str(record.msg), record.created
        facts = {"event": record.name, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            facts["error"] = logging.Formatter().formatException(record.exc_info)
        _write_log_line(facts)


def _write_log_line(facts: dict[str, Any]) -> None:
    print(json.dumps({"at": round(time.time(), 3), **facts}, ensure_ascii=False), file=sys.stderr, flush=True)
