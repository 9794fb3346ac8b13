"""Other MCP servers, whose tools are operations too: each server is a category."""

from typing import Annotated

from athena.core.operation import EVERYONE, ONLY_PERSONS, PEOPLE, CallerKind, Effect, Reach, operation
from athena.core.types import Param
from athena.gateway import review
from athena.gateway.values import ConnectedServer, ServerDetails, ServerReview, ServerTool
from athena.operations.context import Context

ServerName = Annotated[str, Param("The server's name.", least=1, most=100)]


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
    return ctx.gateway.list_servers(for_person=ctx.caller is CallerKind.PERSON, with_new_names=ctx.caller in PEOPLE)


@operation(
    Effect.READ,
    callers=EVERYONE,
    short="tools",
    asks="what can this server do; which tools does that integration offer; show everything this server "
    "offers; list the functions of an integration",
)
async def server_tools(ctx: Context, name: ServerName) -> list[ServerTool]:
    """List the tools of a server, as programs call them.

    >>> servers.server_tools(name="github")
    """
    ctx.catalog.refresh()
    tools = [tool for tool in ctx.catalog.list_operations(ctx.gateway.resolve_name(name)) if tool.is_foreign]
    return [ServerTool(tool.name, tool.summary, str(tool.effect), tool.approval, tool.signature) for tool in tools]


@operation(
    Effect.READ,
    callers=ONLY_PERSONS,
    asks="what was approved of this server and what did it log; how is that server set up",
)
async def describe_server(ctx: Context, name: ServerName) -> ServerDetails:
    """Show a server as it is set up: command, approved tools, the end of its log; for people.

    >>> servers.describe_server(name="github")
    """
    ctx.catalog.refresh()
    return await review.describe_details(ctx.gateway, name)


@operation(
    Effect.EXECUTE,
    callers=ONLY_PERSONS,
    reach=[Reach.NETWORK],
    asks="connect the server and show what changed in its tools",
)
async def review_server(ctx: Context, name: ServerName) -> ServerReview:
    """Connect a server, approved or not, and show what it offers now beside what was approved; for people.

    >>> servers.review_server(name="github")
    """
    ctx.catalog.refresh()
    return await review.review_server(ctx.gateway, name)


@operation(
    Effect.APPROVE,
    callers=ONLY_PERSONS,
    reach=[Reach.SETTINGS, Reach.NETWORK],
    asks="allow the tools of this server; the changed definition is fine",
)
async def approve_server(ctx: Context, name: ServerName) -> int:
    """Allow the tools that a server offers now; returns how many. Only a person's answer makes it work.

    >>> servers.approve_server(name="github")
    """
    ctx.catalog.refresh()
    return await review.approve_server(ctx.gateway, name, ctx.approval)
