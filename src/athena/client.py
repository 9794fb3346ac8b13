"""AthenaClient: call every operation over HTTP, with the standard library only.

    with AthenaClient("http://localhost:3000") as client:
        client.remember(content="Deploys run on Fridays", tags=["deploy"])
        client.recall(query="when do we deploy?", limit=3)

Threads can share a client. It keeps connections open, and retries failed requests: writes carry an idempotency key,
so that none happens twice. A call ends within `timeout` seconds, retries included; a program, a skill and a tool of a
server have their own time on top of that. Errors are those of `athena.errors`.
"""

import io
import json
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit
from weakref import WeakSet

from athena import errors
from athena.core.home.paths import current_project, read_token
from athena.core.operation_methods import AsyncOperationMethods, OperationMethods, drop_defaults
from athena.core.threads import run_in_thread
from athena.core.unknown_names import describe_unknown_method, explain_all_arguments, explain_arguments
from athena.errors import AthenaError, InvalidInput, NotFound, Unavailable

if TYPE_CHECKING:
    from athena.results import Hit

MAX_RETRIES = 4
RETRY_DELAY_S = 0.1  # doubled for each further attempt, with jitter
RECALL_BATCH_SIZE = 500
LARGE_BODY_BYTES = 1 << 20  # a server may refuse such a body before it has read it
MAX_ANSWER_BYTES = 1 << 30  # a server's texts have at most 100 million characters, each of at most six bytes in JSON
READ_CHUNK_BYTES = 1 << 20
DEFAULT_PROGRAM_S = 30.0
MAX_PROGRAM_S = 600.0  # also of a skill, and of a tool of a server
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
NOT_ATHENA_HINT = "is it an Athena server?"
_ERRORS_BY_CODE = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AthenaError)
}
# For errors of the HTTP layer, whose codes are not in athena.errors, and for answers of a proxy.
_ERRORS_BY_STATUS: dict[int, type[AthenaError]] = {
    **dict.fromkeys((400, 405, 414, 415, 422, 431), InvalidInput),
    **{kind.http: kind for kind in (errors.Unauthenticated, errors.Denied, NotFound, errors.Conflict)},
    **dict.fromkeys((413, 429), errors.LimitExceeded),
    **dict.fromkeys((408, 502, 503, 504), Unavailable),
}


class AthenaClient(OperationMethods):
    """Calls the operations of a server: each operation is a method.

    Without a token, the client uses ATHENA_TOKEN or, for a server on this machine, the token in the data folder.
    """

    @explain_arguments
    def __init__(
        self,
        url: str = "http://localhost:3000",
        token: str | None = None,
        project: str | None = None,
        timeout: float = 30,
    ) -> None:
        self._idle_connections: list[HTTPConnection] = []
        self._guard = threading.Lock()
        self._closed = False
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            self._is_https, self._host, self._port = parts.scheme == "https", parts.hostname or "", parts.port
        except (TypeError, ValueError):
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not self._host or parts.username is not None:
            raise InvalidInput("url is no address of a server", hint="http://localhost:3000, for example")
        if not timeout > 0:
            raise InvalidInput(f"timeout must be more than 0 seconds, not {timeout!r:.40}")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.project = current_project() if project is None else project
        self.timeout = timeout
        self._path = _quote_text(parts.path.rstrip("/"), "url", safe="/%")
        self._project_header = _quote_text(self.project, "project", safe="/:")
        if not self.project.strip():
            raise InvalidInput("project is empty", hint="leave it out for the current one")
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            raise InvalidInput("token is no token", hint="`athena token` prints it")
        self._token = token and token.strip()
        _clients.add(self)

    def __enter__(self) -> "AthenaClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.close()

    def close(self) -> None:
        """Close all idle connections. Calls in progress still get their answer."""
        with self._guard:
            self._closed = True
            idle, self._idle_connections = self._idle_connections, []
        for connection in idle:
            connection.close()

    def _reset_after_fork(self) -> None:
        """In a forked child: drop the connections, which the parent goes on using."""
        self._guard = threading.Lock()
        idle, self._idle_connections = self._idle_connections, []
        for connection in idle:
            connection.close()  # closes our descriptor, not the parent's

    def discover_tools(self, category: str | None = None, detail: str | None = None) -> dict[str, Any]:
        """List all operations by category, in few words; with `detail="names"` only their names."""
        return self._get_json("/tools/discover", {"category": category, "detail": detail})

    def list_tools(self, category: str | None = None) -> list[dict[str, Any]]:
        return self._get_tool_list("/tools/list", {"category": category})

    def search_tools(self, query: str, limit: int = 10) -> list[dict[str, Any]]:
        """Find operations by what they do."""
        return self._get_tool_list("/tools/search", {"q": query, "limit": limit})

    def get_tool(self, name: str) -> dict[str, Any]:
        """Describe an operation in full."""
        tool = self._get_json(f"/tools/{_quote_text(name, 'name')}")
        if "parameters" not in tool:
            raise NotFound(f"there is no operation {name!r:.100}", hint="search_tools() finds one by what it does")
        return tool

    def info(self) -> dict[str, Any]:
        return self._get_json("/info")

    def call_tool(self, name: str, /, **arguments: Any) -> Any:
        """Call any operation by its name."""
        return self._send_call(name, arguments)["data"]

    def call_operation(self, name: str, arguments: dict[str, Any], /) -> Any:
        """Call an operation with the arguments of its method."""
        for parameter in ("memory_id", "other_id"):
            if isinstance(value := arguments.get(parameter), dict) and "hash" in value:
                raise InvalidInput(f"{name}: {parameter} is a whole memory; give its hash: memory['hash']")
        return self._send_call(name, drop_defaults(getattr(OperationMethods, name).__wrapped__, arguments))["data"]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(describe_unknown_method(type(self), name))

    def recall_iter(
        self, query: str, k: int | None = None, batch: int = RECALL_BATCH_SIZE, *, limit: int | None = None, **more: Any
    ) -> "Iterator[Hit]":
        """Yield all memories ranked by a question, or the first `k` (or `limit`), best first, fetched in batches."""
        k = limit if k is None else k
        if batch < 1:
            raise InvalidInput(f"batch must be at least 1, not {batch}")
        seen: set[int] = set()  # a memory stored meanwhile may shift another into the next batch
        offset = 0
        while k is None or len(seen) < k:
            answer = self._send_call("recall", {"min_score": 0, **more, "query": query, "k": batch, "offset": offset})
            for memory in answer["data"]:
                if memory["id"] not in seen and (k is None or len(seen) < k):
                    seen.add(memory["id"])
                    yield memory
            offset += batch
            if len(answer["data"]) < batch or offset >= answer.get("total", offset):
                return

    def _send_call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        path = f"/tools/{_quote_text(name, 'name')}/execute"
        try:
            body = json.dumps(arguments, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"{name}: the arguments cannot be written as JSON: {error}") from None
        # the same key for every attempt, so that a write whose answer was lost does not happen twice
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"client-{os.urandom(12).hex()}"}
        headers["X-Athena-Project"] = self._project_header
        answer = self._request_with_retries("POST", path, headers, body, compute_extra_s(name, arguments))
        if "data" not in answer:
            raise Unavailable(f"{self.url} answered without data", hint=NOT_ATHENA_HINT, retry=False)
        return answer

    def _get_json(self, path: str, query: dict[str, Any] | None = None) -> dict[str, Any]:
        parameters = {name: value for name, value in (query or {}).items() if value is not None}
        query_string = urlencode(parameters, errors="replace")
        return self._request_with_retries("GET", path + (f"?{query_string}" if query_string else ""), {}, None)

    def _get_tool_list(self, path: str, query: dict[str, Any]) -> list[dict[str, Any]]:
        tools = self._get_json(path, query).get("tools")
        if not isinstance(tools, list):
            raise Unavailable(f"{self.url} answered without a list", hint=NOT_ATHENA_HINT, retry=False)
        return tools

    def _request_with_retries(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None, extra_s: float = 0
    ) -> dict[str, Any]:
        deadline = time.monotonic() + self.timeout + extra_s
        attempt = 0
        while True:
            retry_after_s = 0.0
            delay_s = RETRY_DELAY_S * 2**attempt * (0.5 + random.random())
            try:
                status, retry_after_s, answer = self._request_once(method, path, headers, body, deadline)
                return _parse_response(status, answer)
            except AthenaError as error:
                if not error.retry:
                    raise
                failure: Exception = error
                delay_s = max(delay_s, retry_after_s)
            except (OSError, HTTPException) as error:
                failure = error
            attempt += 1
            if attempt > MAX_RETRIES or self._closed or time.monotonic() + delay_s >= deadline:
                break
            time.sleep(delay_s)
        if isinstance(failure, AthenaError):
            raise failure
        if isinstance(failure, TimeoutError):
            raise Unavailable(
                f"{self.url} did not answer within {self.timeout + extra_s:g} s",
                hint=f"ask for less, or wait longer: AthenaClient(timeout={self.timeout * 4:g})",
            ) from failure
        raise Unavailable(
            f"{self.url} does not answer: {str(failure)[:200] or type(failure).__name__}",
            hint="is the server running? start it with: athena serve",
        ) from failure

    def _request_once(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None, deadline: float
    ) -> tuple[int, float, bytes]:
        """Send one request; return the status, the seconds of Retry-After, and the body."""
        connection = self._take_connection()
        was_open = connection.sock is not None
        try:
            try:
                response = self._send_request(connection, method, path, headers, body, deadline)
            except TimeoutError:
                raise
            except (OSError, HTTPException):
                if not was_open:
                    raise
                connection.close()  # the server has closed an idle connection: try once on a new one
                response = self._send_request(connection, method, path, headers, body, deadline)
            with response:
                answer = _read_answer(response)
        except BaseException:
            connection.close()
            raise
        self._release_connection(connection, response)
        retry_after = response.headers.get("Retry-After", "")
        seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
        return response.status, seconds, answer

    def _send_request(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes | None,
        deadline: float,
    ) -> HTTPResponse:
        connection.timeout = _seconds_left(deadline)
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        headers = {"Accept": "application/json", **headers}
        if token := self._token or self._read_local_token():
            headers["Authorization"] = f"Bearer {token}"
        try:
            connection.request(method, self._path + path, body, headers)
        except ConnectionError:
            # a server that refuses a large body closes the connection early; its answer may still be readable
            if connection.sock is None or len(body or b"") < LARGE_BODY_BYTES:
                raise
        connection.response_class = partial(_DeadlineResponse, deadline)  # type: ignore[assignment]
        return connection.getresponse()

    def _read_local_token(self) -> str | None:
        """Return `ATHENA_TOKEN` or, for a server on this machine only, the token in the data folder."""
        if self._host in LOOPBACK_HOSTS or os.environ.get("ATHENA_TOKEN"):
            return read_token()
        return None

    def _take_connection(self) -> HTTPConnection:
        with self._guard:
            if self._closed:
                raise Unavailable("the client is closed", hint="make a new one", retry=False)
            if self._idle_connections:
                return self._idle_connections.pop()
        connection_type = HTTPSConnection if self._is_https else HTTPConnection
        return connection_type(self._host, self._port)

    def _release_connection(self, connection: HTTPConnection, response: HTTPResponse) -> None:
        with self._guard:
            if not response.will_close and not self._closed:
                self._idle_connections.append(connection)
                return
        connection.close()


class AsyncAthenaClient(AsyncOperationMethods):
    """`AthenaClient` for asynchronous code: the same methods as coroutines. Requests run on threads.

    async with AsyncAthenaClient("http://localhost:3000") as client:
        await client.remember(content="Deploys run on Fridays")
    """

    @explain_arguments
    def __init__(
        self,
        url: str = "http://localhost:3000",
        token: str | None = None,
        project: str | None = None,
        timeout: float = 30,
    ) -> None:
        self._client = AthenaClient(url, token, project, timeout)

    async def __aenter__(self) -> "AsyncAthenaClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all idle connections. Calls in progress still get their answer."""
        await run_in_thread(self._client.close)

    async def discover_tools(self, category: str | None = None, detail: str | None = None) -> dict[str, Any]:
        """List all operations by category, in few words; with `detail="names"` only their names."""
        return await run_in_thread(self._client.discover_tools, category, detail)

    async def list_tools(self, category: str | None = None) -> list[dict[str, Any]]:
        return await run_in_thread(self._client.list_tools, category)

    async def search_tools(self, query: str, limit: int = 10) -> list[dict[str, Any]]:
        """Find operations by what they do."""
        return await run_in_thread(self._client.search_tools, query, limit)

    async def get_tool(self, name: str) -> dict[str, Any]:
        """Describe an operation in full."""
        return await run_in_thread(self._client.get_tool, name)

    async def info(self) -> dict[str, Any]:
        return await run_in_thread(self._client.info)

    async def call_tool(self, name: str, /, **arguments: Any) -> Any:
        """Call any operation by its name."""
        return await run_in_thread(partial(self._client.call_tool, name, **arguments))

    async def call_operation(self, name: str, arguments: dict[str, Any], /) -> Any:
        """Call an operation with the arguments of its method."""
        return await run_in_thread(self._client.call_operation, name, arguments)

    async def recall_iter(self, query: str, k: int | None = None, **more: Any) -> "AsyncIterator[Hit]":
        """Yield all memories ranked by a question, or the first `k` (or `limit`), best first, fetched in batches."""
        hits = self._client.recall_iter(query, k, **more)
        while (hit := await run_in_thread(next, hits, None)) is not None:
            yield hit

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(describe_unknown_method(type(self), name))


explain_all_arguments(OperationMethods)
explain_all_arguments(AsyncOperationMethods)


def compute_extra_s(name: str, arguments: dict[str, Any]) -> float:
    """Return how long an operation may take by itself: a program its timeout, a skill or a server's tool the most."""
    if name.rpartition(".")[2] == "execute_code":
        seconds = arguments.get("timeout_s", DEFAULT_PROGRAM_S)
        return min(seconds, MAX_PROGRAM_S) if isinstance(seconds, int | float) else MAX_PROGRAM_S
    return MAX_PROGRAM_S if name == "run_skill" or "." in name else 0


def _quote_text(text: str, name: str, safe: str = "") -> str:
    try:
        return quote(text, safe=safe)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be text, not {text!r:.100}") from None


def _seconds_left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


class _DeadlineReader(io.RawIOBase):
    """Reads a socket until a deadline; a socket timeout alone would start again with every byte."""

    def __init__(self, sock: Any, deadline: float) -> None:
        self._sock, self._raw, self._deadline = sock, sock.makefile("rb", buffering=0), deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_seconds_left(self._deadline))
        return self._raw.readinto(buffer)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._raw.close()
        super().close()


class _DeadlineResponse(HTTPResponse):
    def __init__(self, deadline: float, sock: Any, *more: Any, **named: Any) -> None:
        super().__init__(sock, *more, **named)
        self.fp.close()
        self.fp = io.BufferedReader(_DeadlineReader(sock, deadline))


def _read_answer(response: HTTPResponse) -> bytes:
    pieces, size = [], 0
    while piece := response.read(READ_CHUNK_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise Unavailable(
                f"the answer has more than {MAX_ANSWER_BYTES:,} bytes",
                hint=f"ask for less with a smaller k or limit; {NOT_ATHENA_HINT}",
                retry=False,
            )
    if response.length:  # read(amount) does not raise where the connection ended early
        raise IncompleteRead(b"".join(pieces), response.length)
    return b"".join(pieces)


def _parse_response(status: int, answer: bytes) -> dict[str, Any]:
    try:
        payload = json.loads(answer)
    except (ValueError, RecursionError):
        payload = None
    if 200 <= status < 300:
        if isinstance(payload, dict):
            return payload
        raise Unavailable(f"the server answered {status} with what is no JSON", hint=NOT_ATHENA_HINT, retry=False)
    error = payload.get("error") if isinstance(payload, dict) else None
    if not isinstance(error, dict):
        error = {"hint": NOT_ATHENA_HINT, "retry": status in (502, 503, 504)}
    kind = _ERRORS_BY_CODE.get(str(error.get("code")), _ERRORS_BY_STATUS.get(status, AthenaError))
    hint = error.get("hint")
    raise kind(
        str(error.get("message", f"the server answered {status}")),
        hint=str(hint) if hint else None,
        retry=bool(error.get("retry")),
    )


_clients: WeakSet[AthenaClient] = WeakSet()


def _reset_clients_after_fork() -> None:
    for client in list(_clients):
        client._reset_after_fork()


os.register_at_fork(after_in_child=_reset_clients_after_fork)
