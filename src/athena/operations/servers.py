"""Other MCP servers, whose tools are operations too: each server is a category."""

from typing import Annotated

from athena.core.operation import EVERYONE, Effect, operation
from athena.core.types import Param
from athena.gateway.values import ConnectedServer, ServerTool
from athena.operations.context import Context


@operation(
    Effect.READ,
    callers=EVERYONE,
    short="list",
    asks="which servers are connected; is that integration working; what integrations do we have; are all mcp "
    "servers online; what services am I hooked up to; status of the connections",
)
async def list_servers(ctx: Context) -> list[ConnectedServer]:
    """List connected MCP servers and their status.

    >>> servers.list_servers()
    """
    ctx.catalog.refresh()
    return ctx.gateway.list_servers()


@operation(
    Effect.READ,
    callers=EVERYONE,
    short="tools",
    asks="what can this server do; which tools does that integration offer; show everything this server "
    "offers; list the functions of an integration",
)
async def server_tools(
    ctx: Context, name: Annotated[str, Param("The server's name.", least=1, most=100)]
) -> list[ServerTool]:
    """List the tools of a server, as programs call them.

    >>> servers.server_tools(name="github")
    """
    ctx.catalog.refresh()
    tools = [tool for tool in ctx.catalog.list_operations(ctx.gateway.resolve_name(name)) if tool.is_foreign]
    return [ServerTool(tool.name, tool.summary, str(tool.effect), tool.approval, tool.signature) for tool in tools]
