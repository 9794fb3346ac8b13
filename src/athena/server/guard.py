"""What stands before every route: who may ask, what, how much, and how fast.

A web page must not reach us, whatever it makes a browser send: so a request that a browser sent for another site is
refused by its Host, its Origin or its Sec-Fetch-Site before anything else is looked at. All others need the token.
"""

import asyncio
import hmac
import json
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from athena.errors import AthenaError, Denied, InvalidInput, Unauthenticated, Unavailable

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY = 16 << 20  # bytes of a request
HEAD = 16 << 10  # bytes of its address and headers
ARRIVES = 20.0  # seconds in which a body must have arrived
GLANCE = 0.5  # seconds between two looks at whether the server is to stop
ANSWERED = 120.0  # seconds in which a request must be answered
WAITING = 1_000  # requests that may wait for their turn
HELD = 256 << 20  # bytes of all requests that are being read or answered
OPEN = ("/health",)
STOPPING = "the server is stopping"
ONCE = {"host", "origin", "sec-fetch-site", "authorization", "content-length", "content-type"}
ONCE |= {"idempotency-key", "x-athena-project"}
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Malformed(InvalidInput):
    """The request itself is wrong, whatever it asks for."""

    code, http = "malformed", 400


class TooLarge(AthenaError):
    """More than a request may hold."""

    code, http = "too_large", 413


class NotJson(AthenaError):
    """The body is of another kind."""

    code, http = "not_json", 415


class TooSlow(AthenaError):
    """The body did not arrive in time."""

    code, http = "too_slow", 408


class NoSuchMethod(AthenaError):
    """The route has another method."""

    code, http = "method_not_allowed", 405
    allow = "GET, HEAD"


@dataclass
class Policy:
    """Who may ask."""

    hosts: frozenset[str]  # as a browser writes them, with the port
    token: str | None  # None lets everybody in
    trusted: Callable[[Scope], bool] = lambda scope: False  # e.g. the owner, by a socket of their own
    origins: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.origins = frozenset(f"http://{host}" for host in self.hosts)


class Guard:
    """The outermost layer. What passes has a known sender, a bounded body and a deadline."""

    def __init__(self, app: Asgi, policy: Policy, log: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._app = app
        self.policy = policy
        self._log = log
        self._inside = 0
        self.held = 0
        self.last = time.monotonic()
        self.draining = False

    @property
    def inside(self) -> int:
        return self._inside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await _close(receive, send)
        answer = Answer(send, secrets.token_hex(8))
        scope["request_id"] = answer.number
        began = time.perf_counter()
        self._inside += 1
        try:
            await self._pass(scope, receive, answer)
        except AthenaError as error:
            await answer.fail(error)
        except TimeoutError:
            await answer.fail(
                Unavailable("this took too long", hint="it may still be done; repeat it with the same key")
            )
        except asyncio.CancelledError:
            if answer.status or not self.draining:
                raise
            await answer.fail(Unavailable(STOPPING, hint="it may still be done; repeat it with the same key"))
        except _Gone:
            raise
        except Exception as error:  # noqa: BLE001  # a bug of ours; the caller gets a number to report
            self._report(scope, answer, error)
            await answer.fail(AthenaError(f"something went wrong here (request {answer.number})"))
        finally:
            self._inside -= 1
            self.last = time.monotonic()
            self._note(scope, answer, time.perf_counter() - began)
        return None

    async def _pass(self, scope: Scope, receive: Receive, answer: "Answer") -> None:
        headers = _headers(scope)
        self._check_site(scope, headers)
        self._check_token(scope, headers)
        if self.draining:
            raise Unavailable(STOPPING, hint="try again in a moment")
        if self._inside > WAITING:
            raise Unavailable("too many requests are waiting", hint="try again in a moment")
        scope["head"] = headers
        async with asyncio.timeout(ANSWERED):
            body = _Body(receive, headers, self)
            try:
                await self._app(scope, body, answer)
            finally:
                self.held -= body.taken

    def _check_site(self, scope: Scope, headers: dict[str, str]) -> None:
        # No browser comes by a Unix socket, so any name will do there.
        if headers.get("host", "").lower() not in self.policy.hosts and not self.policy.trusted(scope):
            raise Denied("this server does not answer for that Host", hint="use http://localhost and its port")
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in self.policy.origins:
            raise Denied("requests from web pages are refused")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Denied("requests from other sites are refused")

    def _check_token(self, scope: Scope, headers: dict[str, str]) -> None:
        if self.policy.token is None or scope["path"] in OPEN or self.policy.trusted(scope):
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self.policy.token.encode())
        if kind.lower() == "bearer" and right:
            return
        raise Unauthenticated(
            "a token is needed" if not given else "this token is wrong",
            hint="send it as Authorization: Bearer ...; `athena token` prints it",
        )

    def _note(self, scope: Scope, answer: "Answer", took: float) -> None:
        if self._log is not None:
            self._log(
                {
                    "request": answer.number,
                    "method": scope["method"],
                    "path": self._masked(scope["path"][:200]),
                    "status": answer.status,
                    "ms": round(took * 1000, 1),
                }
            )

    def _masked(self, path: str) -> str:
        return path.replace(self.policy.token, "...") if self.policy.token else path

    def _report(self, scope: Scope, answer: "Answer", error: Exception) -> None:
        import traceback  # only when there is something to print

        lines = traceback.format_exception(error)
        print(json.dumps({"request": answer.number, "error": "".join(lines)}), file=sys.stderr, flush=True)


class Answer:
    """The way back, with the headers that every answer has."""

    def __init__(self, send: Send, number: str) -> None:
        self._send = send
        self.number = number
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = list(message.get("headers", ()))
            if not any(name == b"cache-control" for name, _ in given):
                given.append((b"cache-control", b"no-store"))
            message["headers"] = [*given, *HEADERS, (b"x-request-id", self.number.encode())]
        await self._send(message)

    async def fail(self, error: AthenaError) -> None:
        """Send an error, unless an answer has begun."""
        if self.status:
            raise _Gone
        headers, body = refusal(error)
        await self({"type": "http.response.start", "status": error.http, "headers": headers})
        await self({"type": "http.response.body", "body": body})


def refusal(error: AthenaError) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Write an error as headers and a body."""
    body = json.dumps({"success": False, "error": error.to_json()}, separators=(",", ":")).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.http == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, NoSuchMethod):
        headers.append((b"allow", error.allow.encode()))
    if error.retry:
        headers.append((b"retry-after", b"1"))
    if isinstance(error, TooLarge | TooSlow | Malformed | NotJson):
        headers.append((b"connection", b"close"))  # what is still to come of the body is not read
    return headers, body


class _Gone(Exception):
    """The answer broke off in the middle; only closing the connection tells that."""


class _Body:
    """A body that is counted and timed while it arrives."""

    def __init__(self, receive: Receive, headers: dict[str, str], guard: Guard) -> None:
        self._receive = receive
        self._guard = guard
        self.taken = 0
        self._deadline = time.monotonic() + ARRIVES
        self._whole = False
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise Malformed("Content-Length is not a number")
        if len(length) > 18 or int(length) > BODY:
            raise TooLarge(f"a request may have {BODY >> 20} MB", hint="send several smaller ones")

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()  # waits for the end of the connection
        message = await self._arrived()
        if message["type"] == "http.request":
            more = len(message.get("body", b""))
            self.taken += more
            self._guard.held += more
            self._whole = not message.get("more_body", False)
            if self._guard.held > HELD:
                raise Unavailable("too much is being sent at once", hint="try again in a moment")
            if self.taken > BODY:
                raise TooLarge(f"a request may have {BODY >> 20} MB", hint="send several smaller ones")
        return message

    async def _arrived(self) -> Message:
        """Wait for the next piece, but not past the deadline, and not while the server is told to stop."""
        while (left := self._deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(min(left, GLANCE)):
                    return await self._receive()
            except TimeoutError:
                if self._guard.draining:
                    raise Unavailable(STOPPING, hint="try again in a moment") from None
        raise TooSlow(f"the body did not arrive within {ARRIVES:.0f} s")


def _headers(scope: Scope) -> dict[str, str]:
    """Read the headers; those that decide who asks may stand there once."""
    if len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(n) + len(v) for n, v in scope["headers"]) > HEAD:
        raise Malformed(f"address and headers may have {HEAD >> 10} kB")
    found: dict[str, str] = {}
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
        raise Malformed("there are two ways to tell where the body ends")
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1")
        if name in found and name in ONCE:
            raise Malformed(f"there are two {name} headers")
        found[name] = value.decode("latin-1")
    return found


async def _close(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1008})
