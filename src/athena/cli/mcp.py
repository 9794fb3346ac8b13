"""`athena mcp` where it cannot be done with a few bytes: its help, and serving without a server."""

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Any

import click

from athena.app import connect
from athena.cli import mcp_proxy

if TYPE_CHECKING:
    import _socket

MAX_CONCURRENT_CALLS = 4  # operations at once: one client asks


@click.command()
@click.option(
    "--tools",
    type=click.Choice(mcp_proxy.TOOL_SURFACES),
    default="default",
    show_default=True,
    help="Which tools: four small ones, two of them, or every operation as one.",
)
@click.option("--project", help="Whose memories; by default the git root of this folder, else 'default'.")
@click.option("--folder", help="Which folder that is, for clients that start servers elsewhere.")
def mcp(tools: str, project: str | None, folder: str | None) -> None:
    """Serve an MCP client over standard input and output.

    Example: claude mcp add athena -- athena mcp
    """
    raise click.exceptions.Exit(mcp_proxy.run_proxy(tools, project, folder))


def serve_here(project: str) -> "_socket.socket":
    """Serve one client from a thread of this process; return its end of the connection."""
    ours, theirs = socket.socketpair()
    app = connect.shared_app()  # here, so that what is wrong with the settings is said
    threading.Thread(target=lambda: asyncio.run(_serve_connection(app, project, ours)), daemon=True).start()
    return theirs


async def _serve_connection(app: Any, project: str, connection: socket.socket) -> None:
    from athena.server.admission import CallDispatcher
    from athena.server.mcp.socket import McpSocketServer
    from athena.server.mcp.workspaces import WorkspacePool

    calls = CallDispatcher(app.catalog, is_stopping=lambda: False, max_concurrent=MAX_CONCURRENT_CALLS)

    def create_context(named: str | None, workspace: str | None) -> Any:
        return app.create_context(project if named is None else named, "mcp", workspace=workspace)

    reader, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        await McpSocketServer(calls, create_context, WorkspacePool(), project).serve_connection(reader, writer)
    finally:
        writer.close()
