"""MCP, by the official SDK: operations as tools, files of workspaces as resources, one prompt.

The SDK takes most of a second to import, so this module is imported with the first connection, never at start.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from athena.core.catalog import AnyOperation
from athena.core.text import storable
from athena.core.version import __version__
from athena.errors import AthenaError, NotFound
from athena.server.admission import Calls
from athena.server.mcp import text as mcp_text
from athena.server.mcp import tools as mcp_tools

Context = ServerRequestContext[Any, Any]
Open = Callable[[str | None, str | None], Any]  # project and workspace to a caller

PAGE = 100  # tools or resources of one answer
FIRST, TICK = 0.5, 1.0  # seconds until a call is said to go on, and from then on
FRESH = 3_600_000  # milliseconds for which what never changes may be kept
FILES = "athena://workspace/"
NO_RESOURCE = -32002  # the code that this error had until 2025-11-25
KINDS = {"json": "application/json", "csv": "text/csv", "md": "text/markdown", "html": "text/html"}
PROMPT = "use_athena"
_running: set[asyncio.Task[Any]] = set()  # also those whose caller has gone, until they have ended
_log = logging.getLogger("athena.mcp")


class Visit(NamedTuple):
    """Who is at the other end."""

    tools: str = "default"  # the surface
    project: str | None = None
    workspace: str | None = None


class Surface:
    """Answers the requests of one connection, or of all that come over HTTP: `visit` tells whose."""

    def __init__(self, calls: Calls, caller: Open, visit: Callable[[Context], Visit], page: int = PAGE) -> None:
        self._calls, self._caller, self._visit, self._page = calls, caller, visit, page

    def server(self) -> Server[Any]:
        return Server(
            "athena",
            version=__version__,
            title="Athena",
            instructions=mcp_tools.INSTRUCTIONS,
            cache_hints={"prompts/list": CacheHint(FRESH, "public"), "server/discover": CacheHint(FRESH, "public")},
            get_tool_input_schema=lambda name: None,  # no argument of ours travels as a header
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_templates,
            on_read_resource=self.read_resource,
            on_list_prompts=self.list_prompts,
            on_get_prompt=self.get_prompt,
        )

    # --- tools --------------------------------------------------------------------------------------------------------

    async def list_tools(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        surface = self._visit(ctx).tools
        offered = mcp_tools.chosen(self._calls.catalog, surface)
        by_name = {mcp_tools.called(one): one for one in offered}
        some, following = _page(list(by_name), params, self._page)
        tools = [types.Tool.model_validate(mcp_tools.definition(by_name[name], surface)) for name in some]
        steady = surface != "all"  # connected servers come and go there
        return types.ListToolsResult(
            tools=tools,
            next_cursor=following,
            ttl_ms=FRESH if steady else 0,
            cache_scope="public" if steady else "private",
        )

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        visit, arguments = self._visit(ctx), params.arguments or {}
        operation = self._offered(visit.tools, params.name)
        more = mcp_tools.ADDED.get(operation.name, {}) if visit.tools != "all" else {}
        note = ""
        try:
            result = await self._made(ctx, operation, more | arguments, visit)
            if more.keys() - arguments.keys() and not result:  # a date may be what it is about, and not when it was
                result = await self._made(ctx, operation, arguments, visit)
                note = mcp_tools.ANY_TIME if result else ""
        except AthenaError as error:
            return _said(mcp_text.failure(error), failed=True)
        return _said(note + mcp_text.written(operation, arguments, result), failed=mcp_text.is_failure(result))

    def _offered(self, surface: str, name: str) -> AnyOperation:
        for one in mcp_tools.chosen(self._calls.catalog, surface):
            if mcp_tools.called(one) == name:
                return one
        near = "it is an operation: call it in a program, with execute_code"
        if name not in self._calls.catalog:
            near = "search_tools finds what there is"
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {name:.80}; {near}", {"hint": near})

    async def _made(self, ctx: Context, operation: AnyOperation, arguments: Mapping[str, Any], visit: Visit) -> Any:
        """Make a call, and tell from time to time that it goes on.

        It has a task of its own: the SDK cancels what awaits for as long as it awaits, but a program that is
        stopped has a few things to write down.
        """
        if operation.approval:  # only a program can wait for a person
            arguments = {"code": f"{operation.path}(**{dict(arguments)!r})"}
            operation = self._calls.catalog.find("execute_code")
        caller = self._caller(visit.project, visit.workspace)
        task = asyncio.create_task(self._calls.make(operation, arguments, caller))
        _running.add(task)
        task.add_done_callback(_ended)
        began = time.monotonic()
        total = arguments.get("timeout_s", 30.0) if operation.name == "execute_code" else None
        total = total if isinstance(total, int | float) else None
        try:
            wait = FIRST
            while not (await asyncio.wait({task}, timeout=wait))[0]:
                gone = round(time.monotonic() - began, 1)
                await ctx.session.report_progress(gone, total, f"{operation.name}: {gone:.0f} s")
                wait = TICK
        except asyncio.CancelledError:
            task.cancel()
            raise
        try:
            return task.result()
        except AthenaError:
            raise
        except Exception:  # noqa: BLE001  # a bug of ours; the caller gets a number to report
            number = secrets.token_hex(4)
            _log.exception("call %s of %s", number, operation.name)
            raise AthenaError(f"something went wrong here (call {number})") from None

    # --- resources ----------------------------------------------------------------------------------------------------

    async def list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        visit = self._visit(ctx)
        found: dict[str, types.Resource] = {}
        for workspace in dict.fromkeys((visit.workspace or "default", "default")):
            for file in await self._asked("list_files", visit, workspace=workspace):
                uri = f"{FILES}{quote(workspace, safe='')}/{quote(file.path)}"
                found[uri] = types.Resource(uri=uri, name=file.path, mime_type=_kind(file.path), size=file.size)
        some, following = _page(list(found), params, self._page)
        return types.ListResourcesResult(resources=[found[uri] for uri in some], next_cursor=following)

    async def list_templates(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            uri_template=FILES + "{workspace}/{+path}",
            name="file",
            description="A file that programs keep: workspace.write(path=..., content=...) writes it.",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template], ttl_ms=FRESH, cache_scope="public")

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        workspace, _, path = params.uri.removeprefix(FILES).partition("/")
        try:
            if not (params.uri.startswith(FILES) and path):
                raise NotFound("there is no such resource", hint="resources/list says which there are")
            workspace, path = unquote(workspace), unquote(path)
            text = await self._asked("read_file", self._visit(ctx), workspace=workspace, path=path, raw=True)
        except AthenaError as error:
            code = types.INVALID_PARAMS if ctx.protocol_version >= "2026" else NO_RESOURCE
            raise MCPError(code, str(error), {"uri": params.uri, "hint": error.hint}) from None
        content = types.TextResourceContents(uri=params.uri, mime_type=_kind(path), text=text)
        return types.ReadResourceResult(contents=[content])

    async def _asked(self, name: str, visit: Visit, **arguments: Any) -> Any:
        caller = self._caller(visit.project, visit.workspace)
        return await self._calls.make(self._calls.catalog.find(name), arguments, caller)

    # --- prompts ------------------------------------------------------------------------------------------------------

    async def list_prompts(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        task = types.PromptArgument(name="task", description="What is to be done.", required=False)
        about = "Do a task with Athena: recall first, write a program for the work, remember what was learned."
        return types.ListPromptsResult(prompts=[types.Prompt(name=PROMPT, description=about, arguments=[task])])

    async def get_prompt(self, ctx: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        if params.name != PROMPT:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name:.80}", {"hint": f"there is {PROMPT}"})
        task = (params.arguments or {}).get("task", "").strip() or "what I ask for next"
        text = f"{mcp_tools.INSTRUCTIONS}\n\nDo this now: {task}\n\nFirst `recall` what is known about it. {STEPS}"
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description="How to work with Athena", messages=[message])


STEPS = (
    "Then `search_tools` for what it takes, and do all of it in as few programs as you can, each ending in a short "
    "answer. At the end `remember` what the next session should know."
)


def _page(names: list[str], params: types.PaginatedRequestParams | None, size: int) -> tuple[list[str], str | None]:
    """Return the names of one page, and the cursor of the next: the last name, so that what comes or goes meanwhile
    moves nothing."""
    cursor = None if params is None else params.cursor
    if cursor is not None and cursor not in names:
        raise MCPError(types.INVALID_PARAMS, "this cursor leads nowhere", {"hint": "begin again without a cursor"})
    start = 0 if cursor is None else names.index(cursor) + 1
    some = names[start : start + size]
    return some, some[-1] if start + size < len(names) else None


def _said(text: str, *, failed: bool) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=storable(text))], is_error=failed)


def _kind(path: str) -> str:
    return KINDS.get(path.lower().rpartition(".")[2], "text/plain")


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # looked at, since whoever asked may have gone
