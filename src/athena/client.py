"""AthenaClient: every operation over HTTP, with the standard library only.

    with AthenaClient("http://localhost:3000") as client:
        client.remember(content="Deploys run on Fridays", tags=["deploy"])
        client.recall(query="when do we deploy?", k=3)

It is safe to share between threads, keeps its connections open, and repeats what may be repeated: reads always,
writes because each carries an idempotency key. A call ends within `timeout` seconds, however often it was tried; a
program has its own time on top of that. Errors are those of `athena.errors`.
"""

import io
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from weakref import WeakSet

from athena import errors
from athena.core.home.paths import current_project, read_token
from athena.errors import AthenaError, InvalidInput, NotFound, Unavailable

MAX_RETRIES = 4
RETRY_DELAY_S = 0.1  # seconds before the first repetition; then twice as long each time, more or less
RECALL_BATCH_SIZE = 500  # memories fetched at a time by `recall_iter`
LARGE_BODY_BYTES = 1 << 20  # bytes of a request that a server may refuse before it has read them
PROGRAM_OPERATIONS = ("execute_code", "run_skill")
PROGRAM_TIMEOUT_S = 60.0  # seconds that a program has at most
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
NOT_ATHENA_HINT = "is it an Athena server?"
_ERRORS_BY_CODE = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AthenaError)
}
# What a status means where its code is one of the server's own, or where something in between has answered.
_ERRORS_BY_STATUS: dict[int, type[AthenaError]] = {
    **dict.fromkeys((400, 405, 414, 415, 422, 431), InvalidInput),
    **{kind.http: kind for kind in (errors.Unauthenticated, errors.Denied, NotFound, errors.Conflict)},
    **dict.fromkeys((413, 429), errors.LimitExceeded),
    **dict.fromkeys((408, 502, 503, 504), Unavailable),
}


class AthenaClient:
    """A way to the operations of a server.

    Without a token, ATHENA_TOKEN is used, or, for a server on this machine, the token in the data folder.
    """

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
        """Let go of all connections. Calls that are under way get their answer."""
        with self._guard:
            self._closed = True
            idle, self._idle_connections = self._idle_connections, []
        for connection in idle:
            connection.close()

    def _reset_after_fork(self) -> None:
        """Start anew in a child process: what is said on the parent's connections is the parent's."""
        self._guard = threading.Lock()
        idle, self._idle_connections = self._idle_connections, []
        for connection in idle:
            connection.close()  # ours only: the parent's stay open

    # Finding out what there is.

    def discover_tools(self) -> dict[str, Any]:
        """List all operations by category, in few words."""
        return self._get_json("/tools/discover")

    def list_tools(self, category: str | None = None) -> list[dict[str, Any]]:
        return self._get_tool_list("/tools/list", {"category": category})

    def search_tools(self, query: str, limit: int = 10) -> list[dict[str, Any]]:
        """Find operations by what they do."""
        return self._get_tool_list("/tools/search", {"q": query, "limit": limit})

    def get_tool(self, name: str) -> dict[str, Any]:
        """Describe an operation in full."""
        made = self._get_json(f"/tools/{_quote_text(name, 'name')}")
        if "parameters" not in made:
            raise NotFound(f"there is no operation {name!r:.100}", hint="search_tools() finds one by what it does")
        return made

    def info(self) -> dict[str, Any]:
        return self._get_json("/info")

    # Calling operations.

    def call_tool(self, name: str, /, **arguments: Any) -> Any:
        """Call any operation by its name."""
        return self._call_operation(name, arguments)["data"]

    def _call_for_object(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        return dict(self.call_tool(name, **arguments))

    def _call_for_list(self, name: str, /, **arguments: Any) -> list[dict[str, Any]]:
        return list(self.call_tool(name, **arguments))

    def remember(self, content: str, tags: str | list[str] | None = None, **more: Any) -> dict[str, Any]:
        return self._call_for_object("remember", content=content, tags=tags, **more)

    def remember_batch(self, items: list[Any]) -> list[dict[str, Any]]:
        return self._call_for_list("remember_batch", items=items)

    def recall(self, query: str, k: int = 5, **more: Any) -> list[dict[str, Any]]:
        return self._call_for_list("recall", query=query, k=k, **more)

    def recall_iter(
        self, query: str, k: int | None = None, batch: int = RECALL_BATCH_SIZE, **more: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield all that a question ranks, or the first `k`, best first, fetched a batch at a time."""
        if batch < 1:
            raise InvalidInput(f"batch must be at least 1, not {batch}")
        seen: set[int] = set()  # what is stored meanwhile may push a memory into the next batch
        offset = 0
        while k is None or len(seen) < k:
            answer = self._call_operation("recall", {**more, "query": query, "k": batch, "offset": offset})
            for memory in answer["data"]:
                if memory["id"] not in seen and (k is None or len(seen) < k):
                    seen.add(memory["id"])
                    yield memory
            offset += batch
            if len(answer["data"]) < batch or offset >= answer.get("total", offset):
                return

    def get_memory(self, memory_id: int | str) -> dict[str, Any]:
        return self._call_for_object("get_memory", memory_id=memory_id)

    def update_memory(self, memory_id: int | str, **changes: Any) -> dict[str, Any]:
        return self._call_for_object("update_memory", memory_id=memory_id, **changes)

    def forget(self, memory_id: int | str) -> bool:
        return bool(self.call_tool("forget", memory_id=memory_id))

    def record_event(self, event_type: str, content: str, **more: Any) -> dict[str, Any]:
        return self._call_for_object("record_event", event_type=event_type, content=content, **more)

    def recall_events(self, query: str | None = None, **filters: Any) -> list[dict[str, Any]]:
        return self._call_for_list("recall_events", query=query, **filters)

    def create_entity(self, name: str, entity_type: str, **more: Any) -> dict[str, Any]:
        return self._call_for_object("create_entity", name=name, entity_type=entity_type, **more)

    def search_graph(self, query: str, max_results: int = 10) -> Any:
        return self.call_tool("search_graph", query=query, max_results=max_results)

    def consolidate(self, strategy: str = "balanced", **more: Any) -> dict[str, Any]:
        return self._call_for_object("consolidate", strategy=strategy, **more)

    def execute_code(self, code: str, **more: Any) -> dict[str, Any]:
        return self._call_for_object("execute_code", code=code, **more)

    def health(self) -> dict[str, Any]:
        return self._call_for_object("health")

    # The way there and back.

    def _call_operation(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        path = f"/tools/{_quote_text(name, 'name')}/execute"
        try:
            body = json.dumps(arguments, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"{name}: the arguments cannot be written as JSON: {error}") from None
        # The same key for every attempt, so that a write whose answer was lost is not made twice.
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"client-{os.urandom(12).hex()}"}
        headers["X-Athena-Project"] = self._project_header
        answer = self._request_with_retries(
            "POST", path, headers, body, PROGRAM_TIMEOUT_S if name in PROGRAM_OPERATIONS else 0
        )
        if "data" not in answer:
            raise Unavailable(f"{self.url} answered without data", hint=NOT_ATHENA_HINT, retry=False)
        return answer

    def _get_json(self, path: str, query: dict[str, Any] | None = None) -> dict[str, Any]:
        chosen = {name: value for name, value in (query or {}).items() if value is not None}
        given = urlencode(chosen, errors="replace")
        return self._request_with_retries("GET", path + (f"?{given}" if given else ""), {}, None)

    def _get_tool_list(self, path: str, query: dict[str, Any]) -> list[dict[str, Any]]:
        found = self._get_json(path, query).get("tools")
        if not isinstance(found, list):
            raise Unavailable(f"{self.url} answered without a list", hint=NOT_ATHENA_HINT, retry=False)
        return found

    def _request_with_retries(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None, more: float = 0
    ) -> dict[str, Any]:
        deadline = time.monotonic() + self.timeout + more
        attempt = 0
        while True:
            after = 0.0
            pause = RETRY_DELAY_S * 2**attempt * (0.5 + random.random())
            try:
                status, after, answer = self._request_once(method, path, headers, body, deadline)
                return _parse_response(status, answer)
            except AthenaError as error:
                if not error.retry:
                    raise
                trouble: Exception = error
                pause = max(pause, after)
            except (OSError, HTTPException) as error:
                trouble = error
            attempt += 1
            if attempt > MAX_RETRIES or self._closed or time.monotonic() + pause >= deadline:
                break
            time.sleep(pause)
        if isinstance(trouble, AthenaError):
            raise trouble
        if isinstance(trouble, TimeoutError):
            raise Unavailable(
                f"{self.url} did not answer within {self.timeout + more:g} s",
                hint=f"ask for less, or wait longer: AthenaClient(timeout={self.timeout * 4:g})",
            ) from trouble
        raise Unavailable(
            f"{self.url} does not answer: {str(trouble)[:200] or type(trouble).__name__}",
            hint="is the server running? start it with: athena serve",
        ) from trouble

    def _request_once(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None, deadline: float
    ) -> tuple[int, float, bytes]:
        """Ask once; return the status, the seconds after which to ask again, and the answer."""
        connection = self._take_connection()
        reused = connection.sock is not None
        try:
            try:
                response = self._send_request(connection, method, path, headers, body, deadline)
            except TimeoutError:
                raise
            except (OSError, HTTPException):
                if not reused:
                    raise
                connection.close()  # the server let go of an idle connection: try once on a new one
                response = self._send_request(connection, method, path, headers, body, deadline)
            answer = response.read()
        except BaseException:
            connection.close()
            raise
        self._release_connection(connection, response)
        after = response.headers.get("Retry-After", "")
        return response.status, float(after) if after.isascii() and after.isdigit() else 0.0, answer

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
        made = {"Accept": "application/json", **headers}
        if token := self._token or self._read_local_token():
            made["Authorization"] = f"Bearer {token}"
        try:
            connection.request(method, self._path + path, body, made)
        except ConnectionError:
            # A server that refuses a large body closes the connection early; what it said may still be there.
            if connection.sock is None or len(body or b"") < LARGE_BODY_BYTES:
                raise
        connection.response_class = partial(_DeadlineResponse, deadline)  # type: ignore[assignment]
        return connection.getresponse()

    def _read_local_token(self) -> str | None:
        """Return the token of this machine's server, which is for no other; `ATHENA_TOKEN` is for whom it is set."""
        if self._host in LOOPBACK_HOSTS or os.environ.get("ATHENA_TOKEN"):
            return read_token()
        return None

    def _take_connection(self) -> HTTPConnection:
        with self._guard:
            if self._closed:
                raise Unavailable("the client is closed", hint="make a new one", retry=False)
            if self._idle_connections:
                return self._idle_connections.pop()
        kind = HTTPSConnection if self._is_https else HTTPConnection
        return kind(self._host, self._port)

    def _release_connection(self, connection: HTTPConnection, response: HTTPResponse) -> None:
        with self._guard:
            if not response.will_close and not self._closed:
                self._idle_connections.append(connection)
                return
        connection.close()


def _quote_text(text: str, name: str, safe: str = "") -> str:
    try:
        return quote(text, safe=safe)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be text, not {text!r:.100}") from None


def _seconds_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class _DeadlineReader(io.RawIOBase):
    """What arrives on a socket until a deadline, which a byte now and then must not put off for ever."""

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


def _parse_response(status: int, answer: bytes) -> dict[str, Any]:
    try:
        made = json.loads(answer)
    except (ValueError, RecursionError):
        made = None
    if 200 <= status < 300:
        if isinstance(made, dict):
            return made
        raise Unavailable(f"the server answered {status} with what is no JSON", hint=NOT_ATHENA_HINT, retry=False)
    found = made.get("error") if isinstance(made, dict) else None
    error: dict[str, Any] = (
        found if isinstance(found, dict) else {"hint": NOT_ATHENA_HINT, "retry": status in (502, 503, 504)}
    )
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
