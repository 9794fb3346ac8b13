"""`athena mcp` with click: its help, its options, and a server in this process where no daemon can be used."""

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Any

import click

from athena.app import connect
from athena.cli import mcp_proxy
from athena.memory.index import reembed_in_background
from athena.server.admission import CallDispatcher
from athena.server.mcp.socket import McpSocketServer
from athena.server.mcp.workspaces import WorkspacePool

if TYPE_CHECKING:
    import _socket

MAX_CONCURRENT_CALLS = 4  # there is one client


@click.command()
@click.option(
    "--tools",
    type=click.Choice(mcp_proxy.TOOL_SURFACES),
    default="default",
    show_default=True,
    help="Which tools: four small ones, two of them, the nine of a knowledge graph, or every operation as one.",
)
@click.option("--project", help="Whose memories; by default the git root of this folder, else 'default'.")
@click.option("--folder", help="Which folder that is, for clients that start servers elsewhere.")
def mcp(tools: str, project: str | None, folder: str | None) -> None:
    """Serve an MCP client over standard input and output.

    Example: claude mcp add athena -- athena mcp
    """
    raise click.exceptions.Exit(mcp_proxy.run_proxy(tools, project, folder, serve_in_process))


def serve_in_process(project: str) -> "_socket.socket":
    """Serve one client from a thread of this process; return the client's end of the connection."""
    server_end, client_end = socket.socketpair()
    app = connect.shared_app()  # in this thread, so that errors in the settings reach the caller
    reembed_in_background(app.store)
    threading.Thread(target=lambda: asyncio.run(_serve_connection(app, project, server_end)), daemon=True).start()
    return client_end


async def _serve_connection(app: Any, project: str, connection: socket.socket) -> None:
    calls = CallDispatcher(app.catalog, is_stopping=lambda: False, max_concurrent=MAX_CONCURRENT_CALLS)

    def create_context(client_project: str | None, workspace: str | None) -> Any:
        return app.create_context(project if client_project is None else client_project, "mcp", workspace=workspace)

    reader, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        await McpSocketServer(calls, create_context, WorkspacePool(), project).serve_connection(reader, writer)
    finally:
        writer.close()
