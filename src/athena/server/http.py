"""The HTTP registry: every route from the catalog, none written by hand for an operation."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from athena.core import tokens
from athena.core.catalog import AnyOperation, Catalog
from athena.core.page import Page
from athena.core.threads import start
from athena.core.types import DEEPEST, plain, too_deep
from athena.core.version import __version__
from athena.errors import AthenaError, InvalidInput, NotFound
from athena.operations import finding
from athena.server import openapi, registry
from athena.server.admission import Calls
from athena.server.guard import Malformed, NoSuchMethod, NotJson
from athena.server.openapi import LONGEST_KEY, LONGEST_NAME

LARGE = 256 << 10  # bytes of a body that is read on another thread
KEPT = 1_000  # answers that are kept
LINES = 500  # of a stream, sent together
JSON = "application/json"
NDJSON = "application/x-ndjson"

Open = Callable[[str | None, str | None], Any]  # project and idempotency key to a caller
Ready = Callable[[], Awaitable[dict[str, Any]]]


class Registry:
    """The routes of one catalog. `caller` makes the context of a call, `ready` asks the store how it is."""

    def __init__(
        self,
        catalog: Catalog,
        caller: Open,
        ready: Ready,
        facts: dict[str, Any],
        *,
        stopping: Callable[[], bool],
        at_once: int,
    ) -> None:
        self.calls = Calls(catalog, stopping=stopping, at_once=at_once)
        self.metrics = self.calls.metrics
        self._caller = caller
        self._ready = ready
        self._facts = facts
        self._asking = asyncio.Lock()
        self._kept: dict[str, tuple[bytes, str]] = {}
        self._well = (0.0, False)

    @property
    def catalog(self) -> Catalog:
        return self.calls.catalog

    def routes(self) -> list[Route]:
        return [
            Route("/tools/discover", self._discover),
            Route("/tools/list", self._list),
            Route("/tools/search", self._search),
            Route("/tools/{name}", self._tool),
            Route("/tools/{name}/execute", self._execute, methods=["POST"]),
            Route("/health", self._health),
            Route("/info", self._info),
            Route("/metrics", self._metrics),
            Route("/openapi.json", self._openapi),
        ]

    async def _discover(self, request: Request) -> Response:
        return self._constant(request, "discover", lambda: registry.discover(self.catalog))

    async def _list(self, request: Request) -> Response:
        category = request.query_params.get("category")
        return self._constant(request, f"list {category}", lambda: registry.listed(self.catalog, category))

    async def _search(self, request: Request) -> Response:
        query, limit = request.query_params.get("q", ""), request.query_params.get("limit", "10")
        if not query.strip():
            raise InvalidInput("q is missing", hint="/tools/search?q=tag+a+memory")
        if len(query) > 2_000:
            raise InvalidInput("q is too long", hint="a few words will do")
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= 100):
            raise InvalidInput(f"limit must be a number from 1 to 100, not {limit!r:.40}")
        category = request.query_params.get("category")
        return _json(await registry.search(self._calling(request), query, int(limit), category))

    async def _tool(self, request: Request) -> Response:
        name = request.path_params["name"]
        own = name.startswith("skills.") and name not in self.catalog
        if own and (skill := await finding.skill(self._calling(request), name)) is not None:
            return _json(registry.skill(skill))
        operation = self._operation(request)
        return self._constant(request, f"tool {operation.name}", lambda: registry.tool(operation))

    async def _openapi(self, request: Request) -> Response:
        return self._constant(request, "openapi", lambda: openapi.document(self.catalog))

    async def _info(self, request: Request) -> Response:
        return _json({"name": "athena", "version": __version__, "tools": len(self.catalog)} | self._facts)

    async def _health(self, request: Request) -> Response:
        """Answer at once: the store is asked again only after a second."""
        async with self._asking:
            asked, well = self._well
            if time.monotonic() - asked > 1.0:
                try:
                    async with asyncio.timeout(5.0):
                        well = (await self._ready())["status"] != "error"
                except (AthenaError, TimeoutError):
                    well = False
                self._well = (time.monotonic(), well)
        return _json({"live": True, "ready": well}, 200 if well else 503)

    async def _metrics(self, request: Request) -> Response:
        figures: dict[str, tuple[str, float]] = {}
        try:
            stats = await self._ready()
            figures["memories"] = ("Memories in the server's own project and in `user`.", stats["count"])
            figures["store_bytes"] = ("Size of the store.", stats["bytes"])
        except AthenaError:
            pass
        return Response(self.metrics.text(figures), media_type="text/plain; version=0.0.4")

    def _constant(self, request: Request, key: str, make: Callable[[], Any]) -> Response:
        """Answer with what changes only with the catalog; a client that has it is told so."""
        key = f"{self.catalog.version} {key}"
        if key not in self._kept:
            if len(self._kept) > KEPT:
                self._kept.clear()  # of catalogs that are no more
            body = json.dumps(make(), ensure_ascii=False, separators=(",", ":")).encode()
            self._kept[key] = body, f'"{hashlib.sha256(body).hexdigest()[:24]}"'
        body, tag = self._kept[key]
        headers = {"etag": tag, "cache-control": "private, no-cache"}
        known = request.headers.get("if-none-match", "")
        if known.strip() == "*" or tag in (part.strip().removeprefix("W/") for part in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=JSON, headers=headers)

    def _operation(self, request: Request) -> AnyOperation:
        return self.catalog.find(request.path_params["name"])

    def _calling(self, request: Request) -> Any:
        """Return the caller that the headers name."""
        return self._caller(named_project(request), _header(request, "Idempotency-Key", LONGEST_KEY))

    async def _execute(self, request: Request) -> Response:
        operation = self._operation(request)
        try:
            raw = await request.body()
        except ClientDisconnect:
            raise Malformed("the body broke off") from None
        arguments = _arguments(request, raw) if len(raw) < LARGE else await start(_arguments, request, raw)
        caller = self._calling(request)
        began = time.perf_counter()
        result = await self.calls.make(operation, arguments, caller)
        took = time.perf_counter() - began
        if isinstance(result, list | tuple) and _wants_lines(request.headers.get("accept", "")):
            self.metrics.moved(operation.name, "http", tokens.estimate(raw.decode()), tokens.measure(result))
            headers = {"athena-total": str(result.total)} if isinstance(result, Page) else {}
            return StreamingResponse(_lines(result), media_type=NDJSON, headers=headers)
        answer: dict[str, Any] = {"success": True, "data": plain(result), "elapsed_ms": round(took * 1000, 2)}
        if isinstance(result, Page):
            answer["total"] = result.total
        body = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
        self.metrics.moved(operation.name, "http", tokens.estimate(raw.decode()), tokens.estimate(body))
        return Response(body.encode(), media_type=JSON)


def named_project(request: Request) -> str | None:
    """Return the project that a request names, if it does."""
    named = _header(request, "X-Athena-Project", LONGEST_NAME)
    return None if named is None else unquote(named, errors="replace")


def _header(request: Request, name: str, most: int) -> str | None:
    value: str | None = request.headers.get(name)
    if value is not None and not (value.strip() and len(value) <= most and value.isascii() and value.isprintable()):
        raise Malformed(f"{name} must have 1 to {most} printable ASCII characters", hint="percent-encode all others")
    return value


async def _lines(items: Any) -> AsyncIterator[bytes]:
    """Write a list as a line for each item, some lines at a time."""
    for at in range(0, len(items), LINES):
        lines = [json.dumps(plain(item), ensure_ascii=False, separators=(",", ":")) for item in items[at : at + LINES]]
        yield ("\n".join(lines) + "\n").encode()


def _wants_lines(accept: str) -> bool:
    kinds = [part.replace(" ", "").lower() for part in accept.split(",")]
    return any(kind.startswith(NDJSON) and not kind.endswith((";q=0", ";q=0.0")) for kind in kinds)


def _arguments(request: Request, raw: bytes) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise NotJson("the body must be JSON", hint="send Content-Type: application/json")
    if not raw.strip():
        raise Malformed("the body is empty", hint='for no arguments, send "{}"')
    try:
        made = json.loads(raw.decode(), parse_constant=_no_constant, object_pairs_hook=_once)
    except UnicodeDecodeError:
        raise Malformed("the body is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the body is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(made, dict):
        raise Malformed("the body must be a JSON object", hint='for no arguments, send "{}"')
    if raw.count(b"[") + raw.count(b"{") > DEEPEST and too_deep(made):
        raise Malformed(f"the body is nested more than {DEEPEST} levels deep")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object; whoever reads the same key twice may take the first or the last, so neither is taken."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key stands there twice")
    return made


def _json(value: Any, status: int = 200) -> Response:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(body, status, media_type=JSON)


class Application:
    """The routes as one ASGI application. Errors are raised, and written down by the guard."""

    def __init__(self, routes: list[Route], lifespan: Callable[[Any], AbstractAsyncContextManager[None]]) -> None:
        self._router = Router(routes, redirect_slashes=False, lifespan=lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # makes the router raise what it would otherwise write in its own words
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            if error.status_code == 405:
                refused = NoSuchMethod(f"{scope['method']} is not allowed here", hint=METHODS)
                refused.allow = (error.headers or {}).get("Allow", refused.allow)
                raise refused from None
            raise NotFound("there is no such route", hint="GET /tools/discover lists what there is") from None


METHODS = "execute is a POST, all else is a GET"
