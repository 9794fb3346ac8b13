"""The guard before every route: it checks the sender, limits the body, and sets a deadline.

A web page must not reach this server, whatever it makes a browser send. So the guard first refuses requests that a
browser sent for another site, by Host, Origin or Sec-Fetch-Site. All other requests need the token.
"""

import asyncio
import hmac
import json
import secrets
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException

from athena.core.redaction.personal import mask_private
from athena.errors import AthenaError, Denied, InvalidInput, NotFound, Unauthenticated, Unavailable

AsgiScope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[AsgiScope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 16 << 20
MAX_HEAD_BYTES = 16 << 10
BODY_TIMEOUT_S = 20.0
STOP_POLL_INTERVAL_S = 0.5
REQUEST_TIMEOUT_S = 660.0  # longer than a program, or a tool of a server, may take
MAX_PENDING_REQUESTS = 4_000  # a backlog of about a minute; a call that would wait too long is refused before
BACKLOG_RETRY_AFTER_S = 10
MAX_BUFFERED_BYTES = 256 << 20  # bodies of all requests in progress
PUBLIC_PATHS = ("/health",)
STOPPING_MESSAGE = "the server is stopping"
SINGLE_VALUE_HEADERS = {"host", "origin", "sec-fetch-site", "authorization", "content-length", "content-type"}
SINGLE_VALUE_HEADERS |= {"idempotency-key", "x-athena-project"}
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class MalformedRequest(InvalidInput):
    """The HTTP request itself is wrong."""

    code, http = "malformed", 400


class RequestTooLarge(AthenaError):
    """The request is too large."""

    code, http = "too_large", 413


class UnsupportedMediaType(AthenaError):
    """The body is not JSON."""

    code, http = "not_json", 415


class BodyTimeout(AthenaError):
    """The body did not arrive in time."""

    code, http = "too_slow", 408


class MethodNotAllowed(AthenaError):
    """The route has another method."""

    code, http = "method_not_allowed", 405
    allow = "GET, HEAD"


@dataclass
class AccessPolicy:
    """The rules that admit a request."""

    hosts: frozenset[str]  # values of the Host header, with the port
    token: str | None  # None admits everybody
    is_trusted: Callable[[AsgiScope], bool] = lambda scope: False  # such as the owner at the Unix socket
    is_page_path: Callable[[str], bool] = lambda path: False  # the page asks for its own session there
    find_missing_page: Callable[[AsgiScope], Awaitable[AsgiApp | None]] | None = None  # for a person at a wrong address
    proxy_hosts: frozenset[str] = frozenset()  # names under which a proxy may add TLS
    origins: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.origins = frozenset(f"http://{host}" for host in self.hosts)
        self.origins |= {f"https://{host}" for host in self.proxy_hosts}


def is_owner(scope: AsgiScope) -> bool:
    """Return whether a request came over the Unix socket, which only the owner can use."""
    return scope.get("client") is None


def list_allowed_hosts(names: set[str], port: int) -> set[str]:
    """Return the allowed values of the Host header: with the port, which may be missing if it is 80."""
    return {f"{name}:{port}".lower() for name in names} | ({name.lower() for name in names} if port == 80 else set())


class Guard:
    """The outermost ASGI layer: a request that passes has a known sender, a bounded body and a deadline."""

    def __init__(self, app: AsgiApp, policy: AccessPolicy, log: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._app = app
        self.policy = policy
        self._log = log
        self.active_count = 0
        self.buffered_bytes = 0
        self.last_active_at = time.monotonic()
        self.is_draining = False

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await _refuse_websocket(receive, send)
        response = GuardedResponse(send, secrets.token_hex(8))
        scope["request_id"] = response.request_id
        scope["app"] = self._app  # makes Starlette's router raise HTTPException instead of answering in its own words
        began = time.perf_counter()
        self.active_count += 1
        body: _BoundedBody | None = None
        try:
            headers = self._check_request(scope)
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                body = _BoundedBody(receive, headers, self)
                await self._app(scope, body, response)
        except Unauthenticated as error:
            await self._refuse_address(scope, receive, response, error)
        except AthenaError as error:
            await response.send_error(error)
        except HTTPException as error:
            await self._refuse_address(scope, receive, response, _to_athena_error(error, scope["method"]))
        except TimeoutError:
            await response.send_error(
                Unavailable("this took too long", hint="it may still be done; repeat it with the same key")
            )
        except asyncio.CancelledError:
            if response.status or not self.is_draining:
                raise
            await response.send_error(
                Unavailable(STOPPING_MESSAGE, hint="it may still be done; repeat it with the same key")
            )
        except _ResponseAborted:
            raise
        except Exception as error:  # noqa: BLE001  # a bug of ours; the caller gets an id to report
            self._print_traceback(response, error)
            await response.send_error(AthenaError(f"something went wrong here (request {response.request_id})"))
        finally:
            self.active_count -= 1
            self.last_active_at = time.monotonic()
            if body is not None:
                self.buffered_bytes -= body.received_bytes
            self._log_request(scope, response, time.perf_counter() - began)
        return None

    async def _refuse_address(
        self, scope: AsgiScope, receive: Receive, response: "GuardedResponse", error: AthenaError
    ) -> None:
        """Answer a request without a route or a token: a page for the browser of a person, else the error."""
        find_page = self.policy.find_missing_page
        is_browser = scope["method"] == "GET" and "text/html" in _parse_headers(scope).get("accept", "")
        page = await find_page(scope) if find_page is not None and is_browser and not response.status else None
        if page is None:
            return await response.send_error(error)
        return await page(scope, receive, response)

    def _check_request(self, scope: AsgiScope) -> dict[str, str]:
        """Return the headers of a request that may pass."""
        headers = _parse_headers(scope)
        self._check_site(scope, headers)
        self._check_token(scope, headers)
        if self.is_draining:
            raise Unavailable(STOPPING_MESSAGE, hint="try again in a moment")
        if self.active_count > MAX_PENDING_REQUESTS:
            error = Unavailable("too many requests are waiting", hint="try again in a moment")
            error.retry_after_s = BACKLOG_RETRY_AFTER_S
            raise error
        scope["head"] = headers
        return headers

    def _check_site(self, scope: AsgiScope, headers: dict[str, str]) -> None:
        # no browser uses a Unix socket, so any Host is fine there
        if headers.get("host", "").lower() not in self.policy.hosts and not self.policy.is_trusted(scope):
            raise Denied(
                "this server does not answer for that Host",
                hint="use http://localhost and its port, or start it with: athena serve --allow-host NAME",
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in self.policy.origins:
            raise Denied("requests from web pages are refused")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Denied("requests from other sites are refused")

    def _check_token(self, scope: AsgiScope, headers: dict[str, str]) -> None:
        if self.policy.token is None or scope["path"] in PUBLIC_PATHS or self.policy.is_trusted(scope):
            return
        if self.policy.is_page_path(scope["path"]):
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        is_equal = hmac.compare_digest(token.strip().encode(), self.policy.token.encode())
        if scheme.lower() == "bearer" and is_equal:
            return
        raise Unauthenticated(
            "a token is needed" if not token else "this token is wrong",
            hint="send it as Authorization: Bearer ...; `athena token` prints it",
        )

    def _log_request(self, scope: AsgiScope, response: "GuardedResponse", elapsed_s: float) -> None:
        if self._log is not None:
            self._log(
                {
                    "request": response.request_id,
                    "method": scope["method"],
                    "path": self._mask_token(scope["path"][:200]),
                    "status": response.status,
                    "ms": round(elapsed_s * 1000, 1),
                }
            )

    def _mask_token(self, path: str) -> str:
        return path.replace(self.policy.token, "...") if self.policy.token else path

    def _print_traceback(self, response: "GuardedResponse", error: Exception) -> None:
        lines = mask_private("".join(traceback.format_exception(error)))
        print(json.dumps({"request": response.request_id, "error": lines}), file=sys.stderr, flush=True)


class GuardedResponse:
    """Wraps `send`: adds the security headers to every response, and remembers its status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            names = {name for name, _ in headers}  # the page has a policy of its own
            defaults = ((b"cache-control", b"no-store"), *SECURITY_HEADERS)
            headers += [header for header in defaults if header[0] not in names]
            message["headers"] = [*headers, (b"x-request-id", self.request_id.encode())]
        await self._send(message)

    async def send_error(self, error: AthenaError) -> None:
        """Send an error; if a response has begun, raise, so that the connection is closed."""
        if self.status:
            raise _ResponseAborted
        headers, body = format_error_response(error)
        await self({"type": "http.response.start", "status": error.http, "headers": headers})
        await self({"type": "http.response.body", "body": body})


def format_error_response(error: AthenaError) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the headers and the body of an error response."""
    body = json.dumps({"success": False, "error": error.to_json()}, separators=(",", ":")).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.http == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    if error.retry:
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    if isinstance(error, RequestTooLarge | BodyTimeout | MalformedRequest | UnsupportedMediaType):
        headers.append((b"connection", b"close"))  # the rest of the body is not read
    return headers, body


class _ResponseAborted(Exception):
    """The response failed after it had begun; the server must close the connection."""


class _BoundedBody:
    """Wraps `receive`: limits the size of the body and the time in which it must arrive."""

    def __init__(self, receive: Receive, headers: dict[str, str], guard: Guard) -> None:
        self._receive = receive
        self._guard = guard
        self.received_bytes = 0
        self._deadline = time.monotonic() + BODY_TIMEOUT_S
        self._is_complete = False
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise MalformedRequest("Content-Length is not a number")
        if len(length) > 18 or int(length) > MAX_BODY_BYTES:
            raise RequestTooLarge(f"a request may have {MAX_BODY_BYTES >> 20} MB", hint="send several smaller ones")

    async def __call__(self) -> Message:
        if self._is_complete:
            return await self._receive()  # waits for the disconnect message
        message = await self._receive_message()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self.received_bytes += size
            self._guard.buffered_bytes += size
            self._is_complete = not message.get("more_body", False)
            if self._guard.buffered_bytes > MAX_BUFFERED_BYTES:
                raise Unavailable("too much is being sent at once", hint="try again in a moment")
            if self.received_bytes > MAX_BODY_BYTES:
                raise RequestTooLarge(f"a request may have {MAX_BODY_BYTES >> 20} MB", hint="send several smaller ones")
        return message

    async def _receive_message(self) -> Message:
        """Return the next part of the body; stop at the deadline, and when the server stops."""
        while (remaining_s := self._deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(min(remaining_s, STOP_POLL_INTERVAL_S)):
                    return await self._receive()
            except TimeoutError:
                if self._guard.is_draining:
                    raise Unavailable(STOPPING_MESSAGE, hint="try again in a moment") from None
        raise BodyTimeout(f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s")


def _to_athena_error(error: HTTPException, method: str) -> AthenaError:
    """Translate the router's error for an unknown route or a wrong method."""
    if error.status_code != 405:
        return NotFound("there is no such route", hint="GET /tools/discover lists what there is")
    refusal = MethodNotAllowed(f"{method} is not allowed here", hint="execute is a POST, all else is a GET")
    refusal.allow = (error.headers or {}).get("Allow", refusal.allow)
    return refusal


def _parse_headers(scope: AsgiScope) -> dict[str, str]:
    """Return the headers; those that decide on access may occur only once."""
    if (
        len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(n) + len(v) for n, v in scope["headers"])
        > MAX_HEAD_BYTES
    ):
        raise MalformedRequest(f"address and headers may have {MAX_HEAD_BYTES >> 10} kB")
    headers: dict[str, str] = {}
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
        raise MalformedRequest("there are two ways to tell where the body ends")
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1")
        if name in headers and name in SINGLE_VALUE_HEADERS:
            raise MalformedRequest(f"there are two {name} headers")
        headers[name] = value.decode("latin-1")
    return headers


async def _refuse_websocket(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1008})
