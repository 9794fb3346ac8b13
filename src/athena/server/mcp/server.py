"""The MCP server, with the official SDK: operations as tools, files of workspaces as resources, one prompt.

The SDK takes most of a second to import, so this module is imported with the first connection, not at start.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from athena.core import attachments
from athena.core.catalog import AnyOperation
from athena.core.operation import Effect
from athena.core.redaction.personal import mask_private
from athena.core.text import escape_invisible, make_storable
from athena.core.values import Scope
from athena.core.version import __version__
from athena.errors import AthenaError, NotFound
from athena.programs import workspace as workspace_files
from athena.programs.values import Result
from athena.programs.workspace import DEFAULT_WORKSPACE, clean_name
from athena.server.admission import CallDispatcher
from athena.server.mcp import text as mcp_text
from athena.server.mcp import tools as mcp_tools
from athena.server.mcp.graph_answers import GRAPH_SURFACES, GRAPH_URI, GraphAnswer, create_graph_answer
from athena.server.mcp.workspaces import McpPeer
from athena.storage.database import Database

McpContext = ServerRequestContext[Any, Any]
McpContextFactory = Callable[[str | None, str | None], Any]  # project and workspace to a context

PAGE_SIZE = 100
FIRST_PROGRESS_S, PROGRESS_INTERVAL_S = 0.5, 1.0
CACHE_TTL_MS = 3_600_000  # of what never changes
FILE_URI_PREFIX = "athena://workspace/"
MAX_CONTENT_BLOCKS = 4  # pictures, sounds and files of one answer; a picture costs a model some 1,500 tokens
MAX_LINKS = 20
MAX_CONTENT_CHARS = 4 << 20  # as base64, together
MAX_EMBEDDED_CHARS = 256 << 10  # of a file that is neither picture nor sound
RESOURCE_NOT_FOUND = -32002  # until protocol version 2025-11-25
MIME_TYPES = {"json": "application/json", "csv": "text/csv", "md": "text/markdown", "html": "text/html"}
PROMPT_NAME = "use_athena"
GRAPH_RESOURCE = types.Resource(
    uri=GRAPH_URI,
    name="knowledge-graph",
    title="Knowledge Graph",
    description="The full knowledge graph with all entities and relations",
    mime_type="application/json",
)
_running_calls: set[asyncio.Task[Any]] = set()  # keeps tasks alive whose client has gone
_log = logging.getLogger("athena.mcp")


class McpHandlers:
    """Handles the requests of one connection, or of all HTTP sessions; `get_peer` returns the client of a request."""

    def __init__(
        self,
        dispatcher: CallDispatcher,
        create_context: McpContextFactory,
        get_peer: Callable[[McpContext], McpPeer],
        page_size: int = PAGE_SIZE,
        surface: str | None = None,  # of the only client there is; HTTP sessions share these handlers
    ) -> None:
        self._dispatcher, self._create_context = dispatcher, create_context
        self._get_peer, self._page_size, self._surface = get_peer, page_size, surface
        self._is_graph_watched = False

    def create_server(self) -> Server[Any]:
        can_watch_graph = self._surface in GRAPH_SURFACES
        return Server(
            "athena",
            version=__version__,
            title="Athena",
            instructions=None if self._surface == "graph" else mcp_tools.INSTRUCTIONS,
            cache_hints={
                "prompts/list": CacheHint(CACHE_TTL_MS, "public"),
                "server/discover": CacheHint(CACHE_TTL_MS, "public"),
            },
            get_tool_input_schema=lambda name: None,  # none of our arguments is sent as a header
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_templates,
            on_read_resource=self.read_resource,
            on_subscribe_resource=self.subscribe_resource if can_watch_graph else None,
            on_unsubscribe_resource=self.unsubscribe_resource if can_watch_graph else None,
            on_list_prompts=self.list_prompts,
            on_get_prompt=self.get_prompt,
        )

    async def list_tools(self, ctx: McpContext, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        surface = self._get_peer(ctx).surface
        offered = mcp_tools.select_tools(self._dispatcher.load_catalog(), surface)
        by_name = {mcp_tools.get_tool_name(operation): operation for operation in offered}
        names, next_cursor = _select_page(list(by_name), params, self._page_size)
        definitions = [mcp_tools.define_tool(by_name[name], surface) for name in names]
        if any(by_name[name].is_foreign for name in names):  # a server may write anything into its descriptions
            context = self._create_context(self._get_peer(ctx).project, None)
            definitions = await context.hide_values(definitions, is_shown=True)
        tools = [types.Tool.model_validate(definition) for definition in definitions]
        is_static = surface != "all"  # which includes the tools of connected servers
        return types.ListToolsResult(
            tools=tools,
            next_cursor=next_cursor,
            ttl_ms=CACHE_TTL_MS if is_static else 0,
            cache_scope="public" if is_static else "private",
        )

    async def call_tool(self, ctx: McpContext, params: types.CallToolRequestParams) -> types.CallToolResult:
        peer, arguments = self._get_peer(ctx), params.arguments or {}
        operation = self._find_tool(peer.surface, params.name)
        arguments = mcp_tools.DEFAULT_ARGUMENTS.get(operation.name, {}) | arguments
        defaults = mcp_tools.FIRST_ARGUMENTS.get(operation.name, {}) if peer.surface != "all" else {}
        note = ""
        try:
            result = await self._run_call(ctx, operation, defaults | arguments, peer)
            # a date in the question may be its subject, not the time of the memory: search again without the filter
            if defaults.keys() - arguments.keys() and not result:
                result = await self._run_call(ctx, operation, arguments, peer)
                note = mcp_tools.ANY_TIME_NOTE if result else ""
        except AthenaError as error:
            return _create_tool_result(mcp_text.format_error(error), failed=True)
        context = self._create_context(peer.project, peer.workspace)
        if mcp_tools.has_graph_answer(operation.name, peer.surface):
            answer = await self._answer_as_graph(ctx, operation, result)
            context.record_answer(operation.name, params.arguments or {}, answer.text)
            return types.CallToolResult(
                content=[types.TextContent(text=answer.text)], structured_content=answer.structured
            )
        text = note + await self._dispatcher.write_answer(
            result, lambda _: mcp_text.format_result(operation, arguments, result)
        )
        context.record_answer(operation.name, params.arguments or {}, text)
        workspace = None if operation.is_foreign else arguments.get("workspace")
        content = await self._create_attachments(peer, workspace, result)
        return _create_tool_result(text, content, failed=mcp_text.is_failed_run(result))

    async def _answer_as_graph(self, ctx: McpContext, operation: AnyOperation, result: Any) -> GraphAnswer:
        if self._is_graph_watched and operation.effect is not Effect.READ:
            await ctx.session.send_resource_updated(GRAPH_URI)
        return await self._write_graph(operation.name, result)

    async def _write_graph(self, operation: str, result: Any) -> GraphAnswer:
        return await self._dispatcher.write_answer(result, lambda _: create_graph_answer(operation, result))

    async def _create_attachments(self, peer: McpPeer, workspace: Any, result: Any) -> list[types.ContentBlock]:
        name = workspace if isinstance(workspace, str) else peer.workspace or DEFAULT_WORKSPACE
        context = self._create_context(peer.project, peer.workspace)
        return await _create_content(result, context.database, context.scope, clean_name(name))

    def _find_tool(self, surface: str, name: str) -> AnyOperation:
        catalog = self._dispatcher.load_catalog()
        for operation in mcp_tools.select_tools(catalog, surface):
            if mcp_tools.get_tool_name(operation) == name:
                return operation
        hint = "it is an operation: call it in a program, with execute_code"
        if surface == "graph":
            hint = "`--tools graph` has the graph alone; without it, execute_code calls every operation"
        elif name not in catalog:
            hint = "search_tools finds what there is"
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {mask_private(name[:80])}; {hint}", {"hint": hint})

    async def _run_call(
        self, ctx: McpContext, operation: AnyOperation, arguments: Mapping[str, Any], peer: McpPeer
    ) -> Any:
        """Run a call and report its progress.

        The call has a task of its own: the SDK cancels its handler again and again until it ends, but a program that
        is cancelled must still store its state.
        """
        if operation.approval:  # only a program can wait for a person
            arguments = {"code": f"{operation.path}(**{dict(arguments)!r})"}
            operation = self._dispatcher.load_catalog().get_operation("execute_code")
        context = self._create_context(peer.project, peer.workspace)
        task = asyncio.create_task(self._dispatcher.dispatch(operation, arguments, context))
        _running_calls.add(task)
        task.add_done_callback(_discard_task)
        began = time.monotonic()
        total = arguments.get("timeout_s", 30.0) if operation.name == "execute_code" else None
        total = total if isinstance(total, int | float) else None
        try:
            wait = FIRST_PROGRESS_S
            while not (await asyncio.wait({task}, timeout=wait))[0]:
                elapsed_s = round(time.monotonic() - began, 1)
                stage = f", {context.progress}" if context.progress.stage else ""
                await ctx.session.report_progress(elapsed_s, total, f"{operation.name}: {elapsed_s:.0f} s{stage}")
                wait = PROGRESS_INTERVAL_S
        except asyncio.CancelledError:
            task.cancel()
            raise
        try:
            return task.result()
        except AthenaError:
            raise
        except Exception:  # noqa: BLE001  # a bug of ours; the caller gets an id to report
            call_id = secrets.token_hex(4)
            _log.exception("call %s of %s", call_id, operation.name)
            raise AthenaError(f"something went wrong here (call {call_id})") from None

    async def list_resources(
        self, ctx: McpContext, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        peer = self._get_peer(ctx)
        resources = {GRAPH_URI: GRAPH_RESOURCE} if peer.surface in GRAPH_SURFACES else {}
        for workspace in dict.fromkeys((peer.workspace or DEFAULT_WORKSPACE, DEFAULT_WORKSPACE)):
            for file in await self._call_by_name("list_files", peer, workspace=workspace):
                uri = _create_file_uri(workspace, file.path)
                resources[uri] = types.Resource(
                    uri=uri, name=file.path, mime_type=_guess_mime_type(file.path), size=file.size
                )
        uris, next_cursor = _select_page(list(resources), params, self._page_size)
        return types.ListResourcesResult(resources=[resources[uri] for uri in uris], next_cursor=next_cursor)

    async def list_templates(
        self, ctx: McpContext, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            uri_template=FILE_URI_PREFIX + "{workspace}/{+path}",
            name="file",
            description="A file that programs keep: workspace.write(path=..., content=...) writes it.",
        )
        return types.ListResourceTemplatesResult(
            resource_templates=[template], ttl_ms=CACHE_TTL_MS, cache_scope="public"
        )

    async def read_resource(self, ctx: McpContext, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        workspace, _, path = params.uri.removeprefix(FILE_URI_PREFIX).partition("/")
        try:
            if params.uri == GRAPH_URI:
                graph = await self._call_by_name("read_graph", self._get_peer(ctx))
                text = (await self._write_graph("read_graph", graph)).text
                content = types.TextResourceContents(uri=GRAPH_URI, mime_type=GRAPH_RESOURCE.mime_type, text=text)
                return types.ReadResourceResult(contents=[content])
            if not (params.uri.startswith(FILE_URI_PREFIX) and path):
                raise NotFound("there is no such resource", hint="resources/list says which there are")
            workspace, path = unquote(workspace), unquote(path)
            text = await self._call_by_name("read_file", self._get_peer(ctx), workspace=workspace, path=path, raw=True)
        except AthenaError as error:
            code = types.INVALID_PARAMS if ctx.protocol_version >= "2026" else RESOURCE_NOT_FOUND
            raise MCPError(code, str(error), {"uri": params.uri, "hint": error.hint}) from None
        mime_type = _guess_mime_type(path)
        if attachments.get_mime_type(path) and not text.startswith("["):
            blob = types.BlobResourceContents(uri=params.uri, mime_type=mime_type, blob=text)
            return types.ReadResourceResult(contents=[blob])
        content = types.TextResourceContents(uri=params.uri, mime_type=mime_type, text=text)
        return types.ReadResourceResult(contents=[content])

    async def subscribe_resource(self, ctx: McpContext, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """Tell the client when its own calls change the graph, as the reference server does."""
        self._is_graph_watched |= params.uri == GRAPH_URI
        return types.EmptyResult()

    async def unsubscribe_resource(self, ctx: McpContext, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self._is_graph_watched &= params.uri != GRAPH_URI
        return types.EmptyResult()

    async def _call_by_name(self, name: str, peer: McpPeer, **arguments: Any) -> Any:
        context = self._create_context(peer.project, peer.workspace)
        operation = self._dispatcher.load_catalog().get_operation(name)
        return await self._dispatcher.dispatch(operation, arguments, context)

    async def list_prompts(
        self, ctx: McpContext, params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        task = types.PromptArgument(name="task", description="What is to be done.", required=False)
        about = "Do a task with Athena: recall first, write a program for the work, remember what was learned."
        return types.ListPromptsResult(prompts=[types.Prompt(name=PROMPT_NAME, description=about, arguments=[task])])

    async def get_prompt(self, ctx: McpContext, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        if params.name != PROMPT_NAME:
            problem = f"Unknown prompt: {mask_private(params.name[:80])}"
            raise MCPError(types.INVALID_PARAMS, problem, {"hint": f"there is {PROMPT_NAME}"})
        task = (params.arguments or {}).get("task", "").strip() or "what I ask for next"
        context = self._create_context(self._get_peer(ctx).project, None)
        task = await context.hide_values(task, by_program=True, is_shown=True)
        text = (
            f"{mcp_tools.INSTRUCTIONS}\n\nDo this now: {task}\n\nFirst `recall` what is known about it. {PROMPT_STEPS}"
        )
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description="How to work with Athena", messages=[message])


PROMPT_STEPS = (
    "Then `search_tools` for what it takes, and do all of it in as few programs as you can, each ending in a short "
    "answer. At the end `remember` what the next session should know."
)


def _select_page(
    names: list[str], params: types.PaginatedRequestParams | None, size: int
) -> tuple[list[str], str | None]:
    """Return the names of one page and the next cursor: the last name, so that changes meanwhile shift nothing."""
    cursor = None if params is None else params.cursor
    if cursor is not None and cursor not in names:
        raise MCPError(types.INVALID_PARAMS, "this cursor leads nowhere", {"hint": "begin again without a cursor"})
    start = 0 if cursor is None else names.index(cursor) + 1
    page = names[start : start + size]
    return page, page[-1] if start + size < len(names) else None


def _create_tool_result(
    text: str, attachments: Sequence[types.ContentBlock] = (), *, failed: bool
) -> types.CallToolResult:
    """Return a text as the model reads it, without hidden characters: it may come from anywhere."""
    visible = escape_invisible(make_storable(text), allowed="\n\t")
    return types.CallToolResult(content=[types.TextContent(text=visible), *attachments], is_error=failed)


def _guess_mime_type(path: str) -> str:
    return attachments.get_mime_type(path) or MIME_TYPES.get(path.lower().rpartition(".")[2], "text/plain")


def _discard_task(task: asyncio.Task[Any]) -> None:
    _running_calls.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved here, since the client may have gone


def _create_file_uri(workspace: str, path: str) -> str:
    return f"{FILE_URI_PREFIX}{quote(workspace, safe='')}/{quote(path)}"


async def _create_content(result: Any, database: Database, scope: Scope, workspace: str) -> list[types.ContentBlock]:
    """Return the attachments whose handles a result shows, as content that clients understand."""
    paths = attachments.find_paths(result.result if isinstance(result, Result) else result)
    if not paths:
        return []
    files = await workspace_files.list_files(database, scope, workspace, attachments.HANDLES_PREFIX)
    sizes = {file.path: file.size for file in files}  # a program may make up a handle
    blocks: list[types.ContentBlock] = []
    chars_left, blocks_left = MAX_CONTENT_CHARS, MAX_CONTENT_BLOCKS
    for path in [path for path in paths if path in sizes][: MAX_CONTENT_BLOCKS + MAX_LINKS]:
        uri, mime_type, size = _create_file_uri(workspace, path), attachments.get_mime_type(path) or "", sizes[path]
        is_embedded = mime_type.startswith(("image/", "audio/")) or size <= MAX_EMBEDDED_CHARS
        if size <= chars_left and blocks_left and is_embedded:
            data = await workspace_files.read_file(database, scope, workspace, path, 0, None, raw=True)
            if data.startswith("["):  # a token: it is no base64, and what it stands for is personal
                continue
            blocks.append(_create_block(data, mime_type, uri))
            chars_left, blocks_left = chars_left - size, blocks_left - 1
        else:
            blocks.append(types.ResourceLink(uri=uri, name=path, mime_type=mime_type, size=size * 3 // 4))
    return blocks


def _create_block(data: str, mime_type: str, uri: str) -> types.ContentBlock:
    if mime_type.startswith("image/"):
        return types.ImageContent(data=data, mime_type=mime_type)
    if mime_type.startswith("audio/"):
        return types.AudioContent(data=data, mime_type=mime_type)
    return types.EmbeddedResource(resource=types.BlobResourceContents(uri=uri, mime_type=mime_type, blob=data))
