"""The HTTP server of a data folder: lock, sockets, token, start and stop."""

import asyncio
import contextlib
import errno
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping
from functools import partial
from typing import Any

import uvicorn
from starlette.routing import Route, Router

from athena.app.backups import back_up_if_due
from athena.app.compose import App, is_same_store, open_app
from athena.app.settings import Settings
from athena.core import memory_limit
from athena.core.home import sockets
from athena.core.home.lock import ServerLock, acquire_server_lock
from athena.core.home.paths import MCP_SOCKET, ensure_token
from athena.core.redaction.personal import mask_private
from athena.core.threads import run_long_in_thread, start_in_thread
from athena.core.values import Scope
from athena.core.version import __version__
from athena.errors import AthenaError, Misconfigured
from athena.hooks.server import HookServer
from athena.memory import upkeep
from athena.memory.consolidation.run import AutomaticStrategy, consolidate_due_projects
from athena.memory.index import reembed_in_background
from athena.server.calls import CallerCheck, CallServer
from athena.server.guard import MAX_HEAD_BYTES, AccessPolicy, Guard, is_owner, list_allowed_hosts
from athena.server.http import HttpApi
from athena.server.log import start_log, write_log_line
from athena.server.mcp.http import McpEndpoint, import_mcp_server
from athena.server.mcp.socket import McpSocketServer
from athena.server.mcp.workspaces import WorkspacePool
from athena.server.page.views import create_site
from athena.server.protocol import MAX_CONNECTIONS, GuardedProtocol
from athena.server.readers import ReaderPool
from athena.storage import usage
from athena.storage.backups import Backup

RESERVED_FILES_COUNT = 100  # file descriptors that are not for connections
LISTEN_BACKLOG = 2_048
CONSOLIDATION_CHECK_S = 60.0
MEMORY_CHECK_S = 5.0
MAX_KEPT_MEMORY_S = 60.0  # how long a server that is always busy keeps freed memory
BACKUP_CHECK_S = 60.0
MCP_IMPORT_DELAY_S = 3.0  # it takes half a second of CPU and 32 MB: only where MCP clients have called before
DRAIN_TIMEOUT_S = 30  # for calls in flight when the server stops
KEEP_ALIVE_TIMEOUT_S = 30
PATTERNS_TEXT = "mysql -u root -p x; the password is x, token=x, call +1 555 0100"  # most patterns are compiled for it
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")


class GracefulServer(uvicorn.Server):
    """uvicorn, but after a signal it returns, instead of raising the signal again, so that we can clean up."""

    def __init__(self, config: uvicorn.Config, guard: Guard) -> None:
        super().__init__(config)
        self._guard = guard

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self._guard.is_draining:  # the second signal: exit now; acknowledged writes are on disk
            with contextlib.suppress(RuntimeError):  # the signal interrupted the writing of another line
                write_log_line({"event": "stopped at once", "unanswered": self._guard.active_count})
            os._exit(1)
        self._guard.is_draining = True  # new requests are refused from now on
        super().handle_exit(sig, frame)
        line = {"event": "stopping", "calls in flight": self._guard.active_count, "at most": f"{DRAIN_TIMEOUT_S} s"}
        # not here: the signal may have interrupted the writing of another line
        asyncio.get_running_loop().call_soon_threadsafe(write_log_line, line)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        before = {signum: signal.signal(signum, self.handle_exit) for signum in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


def _report_waiting_for(pid: int) -> None:
    sys.stderr.write(f"waiting for process {pid} to end: it answers what it has begun\n")


def open_server(
    settings: Settings,
    home: str,
    project: str,
    host: str,
    port: int,
    *,
    auth: bool,
    hosts: tuple[str, ...] = (),
    lock: ServerLock | None = None,
    workers: int = 1,
) -> "AthenaServer":
    """Open the store that the settings name, and the server in front of it; `workers` processes search."""
    memory_limit.limit_heaps()
    app = open_app(settings)
    try:
        return AthenaServer(
            app,
            home,
            project,
            host,
            port,
            auth=auth,
            hosts=hosts,
            consolidate_strategy=settings.consolidate,
            back_up=partial(back_up_if_due, app.store.database, settings) if settings.backup_every_hours else None,
            is_same_store=partial(is_same_store, settings, is_daemon=lock is not None),
            find_difference=CallerCheck(settings).find_difference,
            lock=lock,
            readers=ReaderPool(app, settings, workers - 1) if workers > 1 else None,
        )
    except BaseException:
        app.close()
        raise


class AthenaServer:
    """An app behind HTTP, MCP and the sockets of its data folder; `lock` is set in a daemon, which has it already."""

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
        consolidate_strategy: AutomaticStrategy = "minimal",
        back_up: Callable[[], Backup | None] | None = None,
        is_same_store: Callable[[Mapping[str, str]], bool] = lambda _: True,
        find_difference: Callable[[Mapping[str, str]], str] = lambda _: "",
        lock: ServerLock | None = None,
        readers: ReaderPool | None = None,
    ) -> None:
        if not auth and host not in LOOPBACK_HOSTS:
            raise Misconfigured(
                "--no-auth is for this machine only", hint="leave --host at 127.0.0.1, or keep the token"
            )
        self._app, self._home, self._project, self._consolidate_strategy = app, home, project, consolidate_strategy
        self._back_up = back_up
        self._lock = lock or acquire_server_lock(home, DRAIN_TIMEOUT_S + 5, _report_waiting_for)
        self._sockets = [*_bind_tcp(host, port), sockets.bind_socket(home)]
        self._mcp_listener = sockets.bind_socket(home, MCP_SOCKET)
        self._socket_paths = [self._sockets[-1].getsockname(), self._mcp_listener.getsockname()]
        self.port = self._sockets[0].getsockname()[1]
        url_host = "localhost" if host in LOOPBACK_HOSTS else f"[{host}]" if ":" in host else host
        self.location = app.store.database.describe_location()
        self.url = f"http://{url_host}:{self.port}"
        # browsers send the cookies of localhost to every port: the page has a host that few others use
        self.page_url = self.url if url_host != "localhost" or host == "::1" else f"http://127.0.0.1:{self.port}"
        names = {"localhost", "127.0.0.1", "[::1]", url_host, *hosts}
        policy = AccessPolicy(
            frozenset(list_allowed_hosts(names, self.port) | {name.lower() for name in hosts}),
            ensure_token() if auth else None,
            is_trusted=is_owner,
            is_page_path=lambda path: self.site.is_page_path(path),
            find_missing_page=lambda scope: self.site.show_missing(scope),
            proxy_hosts=frozenset(name.lower() for name in hosts),
        )
        facts = {"project": project, "backend": app.store.database.engine}
        self._http_api = HttpApi(
            app.catalog,
            self._create_http_context,
            self._read_health,
            facts,
            is_stopping=self._is_draining,
            max_concurrent=get_call_limit(app.store.database.engine),
        )
        self._readers = readers
        if readers is not None:
            self._http_api.dispatcher.call_operation = readers.call
            readers.change_limit = self._http_api.dispatcher.change_read_limit
        mcp_arguments = self._http_api.dispatcher, self._create_mcp_context, WorkspacePool(), project
        self._mcp_endpoint = McpEndpoint(*mcp_arguments)
        self._mcp_socket_server = McpSocketServer(
            *mcp_arguments,
            is_same_store=is_same_store,
            is_allowed_peer=lambda peer: sockets.get_peer_uid(peer) == os.getuid(),
        )
        self.site = create_site(app, self._http_api.dispatcher, project, f"athena_{self.port}", is_owner)
        routes = [*self._http_api.create_routes(), Route("/mcp", self._mcp_endpoint), *self.site.create_routes()]
        router = Router(routes, redirect_slashes=False, lifespan=self._run_lifespan)
        self._write_log = partial(write_log_line, rules=app.guard.fixed_rules)
        self.guard = Guard(router, policy, self._write_log)
        self._hook_server = HookServer(
            app, home, self._http_api.metrics, self._write_log, self._is_draining, is_daemon=lock is not None
        )
        self._call_server = CallServer(app, home, self._http_api.dispatcher, find_difference, self._write_log)
        self._socket_paths += [self._hook_server.path, self._call_server.path]
        app.finder.stays_open = True
        self.background_tasks: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._warm_up,
            self._consolidate_periodically,
            self._give_back_memory,
            self._back_up_periodically,
        ]
        for listener in (*self._sockets, self._mcp_listener):
            listener.listen(LISTEN_BACKLOG)  # before write_info: a client that reads it may connect at once
        urls = {"url": self.url, "page_url": self.page_url, "socket": self._socket_paths[0]}
        self._lock.write_info(**urls, since=time.time(), version=__version__, daemon=lock is not None)

    def run(self) -> None:
        """Serve until a signal; answer the calls in flight before returning."""
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
            timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
            timeout_graceful_shutdown=DRAIN_TIMEOUT_S,
            backlog=LISTEN_BACKLOG,
        )
        server = GracefulServer(config, self.guard)
        GuardedProtocol.max_connections = _raise_connection_limit()
        start_log(self._write_log)
        write_log_line({"event": "serving", "url": self.url, "pid": os.getpid()})
        try:
            server.run(sockets=self._sockets)
        finally:
            if self._lock.is_still_held():  # else the sockets belong to another server
                for path in self._socket_paths:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
            self._lock.release()
            self._app.close()
            write_log_line({"event": "stopped", "pid": os.getpid()})

    def _create_http_context(self, project: str | None, key: str | None) -> Any:
        return self._app.create_context(self._project if project is None else project, "http", key)

    def _create_mcp_context(self, project: str | None, workspace: str | None) -> Any:
        return self._app.create_context(self._project if project is None else project, "mcp", workspace=workspace)

    async def _read_health(self) -> dict[str, Any]:
        """Check the store, without recording a call."""
        store, scope = self._app.store, Scope.from_name(self._project)
        health = await upkeep.check_health(store, scope)
        return {
            "status": health.status,
            "count": health.count,
            "bytes": await store.database.read(store.database.measure_size),
        }

    @contextlib.asynccontextmanager
    async def _run_lifespan(self, _: Any) -> AsyncIterator[None]:
        import numpy  # noqa: F401  # before the threads: two concurrent imports break it for good

        await self._mcp_socket_server.start(self._mcp_listener)
        await self._hook_server.start()
        await self._call_server.start()
        if self._readers is not None:
            self._readers.start()
        tasks = [asyncio.create_task(run_task()) for run_task in self.background_tasks]
        yield
        await self._call_server.close()
        await self._hook_server.close()
        for task in tasks:
            task.cancel()
        await self._mcp_socket_server.close()
        await self._mcp_endpoint.close()
        if self._readers is not None:
            await self._readers.close()

    async def _warm_up(self) -> None:
        """Load the parts that the first calls need, the most urgent first."""
        with contextlib.suppress(AthenaError):  # the first call that needs it reports the error
            await start_in_thread(self._app.store.encoder.embedder.load)
            await start_in_thread(self._app.warm_up_finder)
        await start_in_thread(self._load_program_parts)
        reembed_in_background(self._app.store)
        await asyncio.sleep(MCP_IMPORT_DELAY_S)
        with contextlib.suppress(AthenaError):
            if await self._app.store.database.read(partial(usage.has_calls, surface="mcp")):
                await start_in_thread(import_mcp_server)

    def _load_program_parts(self) -> None:
        """Load what the first program needs: it would do so on the event loop, and all other calls would wait."""
        mask_private(PATTERNS_TEXT)
        _ = self._app.programs  # imports the sandbox

    @property
    def is_busy(self) -> bool:
        return bool(
            self.guard.active_count or self._hook_server.active_events or self._http_api.dispatcher.active_count
        )

    @property
    def last_active_at(self) -> float:
        """The time of the last call, by time.monotonic."""
        return max(self.guard.last_active_at, self._hook_server.last_active, self._http_api.dispatcher.last_active_at)

    def is_reachable(self) -> bool:
        """Return whether clients of this data folder would reach this server."""
        return self._lock.is_still_held() and all(map(os.path.exists, self._socket_paths))

    async def _give_back_memory(self) -> None:
        """Give freed memory back when no call has come for a while, and now and then under load."""
        given_back_at = time.monotonic()
        while True:
            await asyncio.sleep(MEMORY_CHECK_S)
            is_released = await start_in_thread(self._app.store.encoder.release_unused)
            is_released |= await start_in_thread(self._app.store.database.release_unused)
            now, last_active_at = time.monotonic(), self.last_active_at
            is_idle = last_active_at > given_back_at and not self.is_busy and now - last_active_at > MEMORY_CHECK_S
            is_overdue = last_active_at > given_back_at and now - given_back_at > MAX_KEPT_MEMORY_S
            if is_released or is_idle or is_overdue:
                given_back_at = now
                await start_in_thread(memory_limit.give_back_memory)

    async def _consolidate_periodically(self) -> None:
        """Consolidate the projects that are due, once in a while."""
        while self._consolidate_strategy != "off":
            await asyncio.sleep(CONSOLIDATION_CHECK_S)
            try:
                for project in await consolidate_due_projects(self._app.store, self._consolidate_strategy):
                    strategy = self._consolidate_strategy
                    self._write_log({"event": "consolidated", "project": project, "strategy": strategy})
            except AthenaError as error:
                self._write_log({"event": "not consolidated", "error": str(error)})

    async def _back_up_periodically(self) -> None:
        """Back the store up where the settings say how often; the age of the newest backup decides."""
        while self._back_up is not None:
            try:
                if (backup := await run_long_in_thread(self._back_up)) is not None:
                    write_log_line({"event": "backed up", "path": backup.path, "memories": backup.kept["memories"]})
            except (AthenaError, OSError) as error:
                self._write_log({"event": "not backed up", "error": str(error)})
            await asyncio.sleep(BACKUP_CHECK_S)

    def _is_draining(self) -> bool:
        return self.guard.is_draining


def get_call_limit(engine: str) -> int:
    """Return how many operations to run at the same time.

    With SQLite this process does the work: more calls than cores slow each other down (a fifth fewer calls a second
    with 16 on two cores). With PostgreSQL calls mostly wait.
    """
    cores = os.cpu_count() or 1
    return max(2, cores if engine == "sqlite" else 4 * cores)


def _bind_tcp(host: str, port: int) -> list[socket.socket]:
    """Bind the port; for localhost on IPv4 and IPv6, since another program on the other one could pose as us."""
    listeners: list[socket.socket] = []
    for address in ("127.0.0.1", "::1") if host in ("127.0.0.1", "localhost") else (host,):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            # with IPPROTO_TCP given, asyncio sets TCP_NODELAY
            listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address, listeners[0].getsockname()[1] if len(listeners) > 1 else port))
        except OSError as error:
            if address == "::1" and host != "::1" and error.errno != errno.EADDRINUSE:
                listeners.pop().close()  # this machine has no IPv6
                continue
            for bound in listeners:
                bound.close()
            raise Misconfigured(
                f"{host}:{port} cannot be used: {error.strerror}",
                hint=f"choose another: athena serve --port {port + 1}, or set ATHENA_PORT",
            ) from None
    return listeners


def _raise_connection_limit() -> int:
    """Raise the limit of open files, and return how many connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + RESERVED_FILES_COUNT
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < possible:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
        soft = possible
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(10, min(MAX_CONNECTIONS, soft - RESERVED_FILES_COUNT))
