"""The HTTP routes: list, search, describe and execute the operations of the catalog."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from athena.core import tokens
from athena.core.catalog import Catalog
from athena.core.threads import start_in_thread
from athena.core.types import MAX_JSON_DEPTH, MAX_JSON_VALUES, has_too_many_values, is_too_deep, to_json
from athena.core.values import Page
from athena.core.version import __version__
from athena.errors import AthenaError, InvalidInput
from athena.operations import tools
from athena.server import openapi
from athena.server.admission import CallDispatcher, dump_json
from athena.server.guard import MalformedRequest, RequestTooLarge, UnsupportedMediaType
from athena.server.openapi import MAX_IDEMPOTENCY_KEY_CHARS, MAX_PROJECT_HEADER_CHARS

LARGE_BODY_BYTES = 256 << 10  # larger bodies are parsed on another thread
MAX_CACHED_RESPONSES = 1_000
MAX_SEARCH_CHARS = 2_000
STREAM_BATCH_LINES = 500
HEALTH_CACHE_S = 1.0
HEALTH_TIMEOUT_S = 5.0
JSON_MEDIA_TYPE = "application/json"
NDJSON_MEDIA_TYPE = "application/x-ndjson"

ContextFactory = Callable[[str | None, str | None], Any]  # project and idempotency key to a context
HealthProbe = Callable[[], Awaitable[dict[str, Any]]]


class HttpApi:
    """The routes of one catalog; `facts` are shown at /info."""

    def __init__(
        self,
        catalog: Catalog,
        create_context: ContextFactory,
        probe_health: HealthProbe,
        facts: dict[str, Any],
        *,
        is_stopping: Callable[[], bool],
        max_concurrent: int,
    ) -> None:
        self.dispatcher = CallDispatcher(catalog, is_stopping=is_stopping, max_concurrent=max_concurrent)
        self.metrics = self.dispatcher.metrics
        self._create_context = create_context
        self._probe_health = probe_health
        self._facts = facts
        self._health_lock = asyncio.Lock()
        self._response_cache: dict[str, tuple[bytes, str]] = {}
        self._last_health = (0.0, False)

    def create_routes(self) -> list[Route]:
        return [
            Route("/tools/discover", self._discover_tools),
            Route("/tools/list", self._list_tools),
            Route("/tools/search", self._search_tools),
            Route("/tools/{name}", self._get_tool),
            Route("/tools/{name}/execute", self._execute_tool, methods=["POST"]),
            Route("/health", self._get_health),
            Route("/info", self._get_info),
            Route("/metrics", self._get_metrics),
            Route("/openapi.json", self._get_openapi),
        ]

    async def _discover_tools(self, request: Request) -> Response:
        category, detail = request.query_params.get("category"), request.query_params.get("detail", "summary")
        if detail not in ("summary", "names"):
            raise InvalidInput(f"detail must be summary or names, not {detail!r:.40}")
        names_only = detail == "names"
        return self._respond_cached(
            request,
            f"discover {detail} {category}",
            lambda catalog: openapi.describe_catalog(catalog, category, names_only=names_only),
        )

    async def _list_tools(self, request: Request) -> Response:
        category = request.query_params.get("category")
        return self._respond_cached(request, f"list {category}", lambda catalog: openapi.list_tools(catalog, category))

    async def _search_tools(self, request: Request) -> Response:
        query, limit = request.query_params.get("q", ""), request.query_params.get("limit", "10")
        if not query.strip():
            raise InvalidInput("q is missing", hint="/tools/search?q=tag+a+memory")
        if len(query) > MAX_SEARCH_CHARS:
            raise InvalidInput("q is too long", hint="a few words will do")
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= 100):
            raise InvalidInput(f"limit must be a number from 1 to 100, not {limit!r:.40}")
        category = request.query_params.get("category")
        return _create_json_response(
            await openapi.search_tools(self._get_context(request), query, int(limit), category)
        )

    async def _get_tool(self, request: Request) -> Response:
        name = request.path_params["name"]
        catalog = self.dispatcher.load_catalog()
        if name.startswith("skills.") and name not in catalog:
            skill = await tools.find_skill(self._get_context(request), name)
            if skill is not None:
                return _create_json_response(openapi.describe_skill(skill))
        operation = catalog.get_operation(name)
        return self._respond_cached(request, f"tool {operation.name}", lambda _: openapi.describe_operation(operation))

    async def _get_openapi(self, request: Request) -> Response:
        return self._respond_cached(request, "openapi", openapi.create_document)

    async def _get_info(self, request: Request) -> Response:
        return _create_json_response(
            {"name": "athena", "version": __version__, "tools": len(self.dispatcher.load_catalog())} | self._facts
        )

    async def _get_health(self, request: Request) -> Response:
        """Answer at once: the store is checked at most once in HEALTH_CACHE_S."""
        async with self._health_lock:
            checked_at, is_ready = self._last_health
            if time.monotonic() - checked_at > HEALTH_CACHE_S:
                try:
                    async with asyncio.timeout(HEALTH_TIMEOUT_S):
                        is_ready = (await self._probe_health())["status"] != "error"
                except (AthenaError, TimeoutError):
                    is_ready = False
                self._last_health = (time.monotonic(), is_ready)
        return _create_json_response({"live": True, "ready": is_ready}, 200 if is_ready else 503)

    async def _get_metrics(self, request: Request) -> Response:
        gauges: dict[str, tuple[str, float]] = {}
        try:
            stats = await self._probe_health()
            gauges["memories"] = ("Memories in the server's own project and in `user`.", stats["count"])
            gauges["store_bytes"] = ("Size of the store.", stats["bytes"])
        except AthenaError:
            pass
        return Response(self.metrics.format_text(gauges), media_type="text/plain; version=0.0.4")

    def _respond_cached(self, request: Request, key: str, describe: Callable[[Catalog], Any]) -> Response:
        """Answer with a description that changes only with the catalog; send 304 to a client that has it."""
        catalog = self.dispatcher.load_catalog()
        key = f"{catalog.version} {key}"
        if key not in self._response_cache:
            if len(self._response_cache) > MAX_CACHED_RESPONSES:
                self._response_cache.clear()  # most are of earlier versions
            body = json.dumps(describe(catalog), ensure_ascii=False, separators=(",", ":")).encode()
            self._response_cache[key] = body, f'"{hashlib.sha256(body).hexdigest()[:24]}"'
        body, tag = self._response_cache[key]
        headers = {"etag": tag, "cache-control": "private, no-cache"}
        known_tags = request.headers.get("if-none-match", "")
        if known_tags.strip() == "*" or tag in (part.strip().removeprefix("W/") for part in known_tags.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=JSON_MEDIA_TYPE, headers=headers)

    def _get_context(self, request: Request) -> Any:
        """Return the context of a call, with the project and the idempotency key of the headers."""
        return self._create_context(
            get_project_header(request), _get_header(request, "Idempotency-Key", MAX_IDEMPOTENCY_KEY_CHARS)
        )

    async def _execute_tool(self, request: Request) -> Response:
        operation = self.dispatcher.load_catalog().get_operation(request.path_params["name"])
        try:
            raw = await request.body()
        except ClientDisconnect:
            raise MalformedRequest("the body broke off") from None
        arguments = (
            _parse_arguments(request, raw)
            if len(raw) < LARGE_BODY_BYTES
            else await start_in_thread(_parse_arguments, request, raw)
        )
        context = self._get_context(request)
        began = time.perf_counter()
        result = await self.dispatcher.dispatch(operation, arguments, context)
        elapsed_s = time.perf_counter() - began
        sent = tokens.count_tokens(raw.decode())
        if isinstance(result, list | tuple) and _accepts_ndjson(request.headers.get("accept", "")):
            returned = await self.dispatcher.write_answer(result, lambda _: tokens.estimate_json_tokens(result))
            self.metrics.count_tokens(operation.name, "http", sent, returned)
            headers = {"athena-total": str(result.total)} if isinstance(result, Page) else {}
            headers |= {"athena-weaker": str(result.weaker)} if isinstance(result, Page) and result.weaker else {}
            return StreamingResponse(self._stream_lines(result), media_type=NDJSON_MEDIA_TYPE, headers=headers)

        def write_body(is_long: bool) -> tuple[bytes, int]:
            payload = {"success": True, "data": to_json(result), "elapsed_ms": round(elapsed_s * 1000, 2)}
            if isinstance(result, Page):
                payload["total"] = result.total
                payload |= {"weaker": result.weaker} if result.weaker else {}
            body = dump_json(payload, in_pieces=is_long)
            return body, tokens.estimate_json_tokens(payload)  # the texts in it have been counted before

        body, returned = await self.dispatcher.write_answer(result, write_body)
        self.metrics.count_tokens(operation.name, "http", sent, returned)
        return Response(body, media_type=JSON_MEDIA_TYPE)

    async def _stream_lines(self, items: Any) -> AsyncIterator[bytes]:
        """Yield a list as JSON lines, some lines at a time."""
        for at in range(0, len(items), STREAM_BATCH_LINES):
            batch = items[at : at + STREAM_BATCH_LINES]
            yield await self.dispatcher.write_answer(batch, partial(_write_lines, batch))


def get_project_header(request: Request) -> str | None:
    """Return the project of the X-Athena-Project header, if there is one."""
    value = _get_header(request, "X-Athena-Project", MAX_PROJECT_HEADER_CHARS)
    return None if value is None else unquote(value, errors="replace")


def _get_header(request: Request, name: str, max_chars: int) -> str | None:
    value: str | None = request.headers.get(name)
    if value is not None and not (
        value.strip() and len(value) <= max_chars and value.isascii() and value.isprintable()
    ):
        raise MalformedRequest(
            f"{name} must have 1 to {max_chars} printable ASCII characters", hint="percent-encode all others"
        )
    return value


def _write_lines(items: Any, is_long: bool) -> bytes:
    return b"".join([dump_json(to_json(item), in_pieces=is_long) + b"\n" for item in items])


def _accepts_ndjson(accept: str) -> bool:
    ranges = [part.replace(" ", "").lower() for part in accept.split(",")]
    return any(part.startswith(NDJSON_MEDIA_TYPE) and not part.endswith((";q=0", ";q=0.0")) for part in ranges)


def _parse_arguments(request: Request, raw: bytes) -> dict[str, Any]:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON_MEDIA_TYPE:
        raise UnsupportedMediaType("the body must be JSON", hint="send Content-Type: application/json")
    if not raw.strip():
        raise MalformedRequest("the body is empty", hint='for no arguments, send "{}"')
    check_value_count(raw)
    try:
        arguments = json.loads(raw.decode(), parse_constant=_reject_constant, object_pairs_hook=_reject_duplicate_keys)
    except UnicodeDecodeError:
        raise MalformedRequest("the body is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"the body is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(arguments, dict):
        raise MalformedRequest("the body must be a JSON object", hint='for no arguments, send "{}"')
    if raw.count(b"[") + raw.count(b"{") > MAX_JSON_DEPTH and is_too_deep(arguments):
        raise MalformedRequest(f"the body is nested more than {MAX_JSON_DEPTH} levels deep")
    return arguments


def check_value_count(raw: bytes) -> None:
    """Raise if a body has more values than the server parses."""
    if has_too_many_values(raw):
        raise RequestTooLarge(
            f"a request may have {MAX_JSON_VALUES:,} values", hint="send several requests with fewer items"
        )


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; refuse one with a key twice, since parsers differ in which value they take."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("duplicate key")
    return values


def _create_json_response(value: Any, status: int = 200) -> Response:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(body, status, media_type=JSON_MEDIA_TYPE)
