"""Clients for MCP tests: the official SDK, and raw lines that no client would send."""

import json
import socket
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from http_tools import RunningServer, server_environ

MCP = [sys.executable, "-m", "athena", "mcp"]
MODERN, LEGACY = "2026-07-28", "2025-11-25"
CLIENT = {"name": "test", "version": "1"}
HELLO = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": CLIENT}


def stdio_parameters(home: Path, *words: str, **environment: str) -> StdioServerParameters:
    return StdioServerParameters(command=MCP[0], args=[*MCP[1:], *words], env=server_environ(home, **environment))


@asynccontextmanager
async def connect_client(
    served: RunningServer, how: str, tools: str = "default", more: dict[str, str] | None = None
) -> AsyncGenerator[Client]:
    """Connect the SDK's client: `how` is transport and protocol revision, e.g. `stdio 2025-11-25`."""
    way, _, revision = how.partition(" ")
    mode: Any = "legacy" if revision == LEGACY else "auto"
    if way == "stdio":
        async with Client(stdio_parameters(served.home, "--tools", tools), mode=mode) as client:
            assert client.session.protocol_version == revision
            yield client
        return
    headers = {"Authorization": f"Bearer {served.token}"} | (more or {})
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        url = f"http://localhost:{served.port}/mcp?tools={tools}"
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            assert client.session.protocol_version == revision
            yield client


async def call_for_text(client: Client, tool: str, /, **arguments: Any) -> str:
    """Call a tool, assert that it succeeds, and return its single text."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    assert result.structured_content is None
    (only,) = result.content
    assert only.type == "text"
    return only.text


class LineConnection:
    """A connection to the socket that sends and reads lines."""

    def __init__(self, connection: socket.socket, hello: bytes | None) -> None:
        self.socket = connection
        self._file = connection.makefile("rb")
        if hello is not None:
            self.send(hello)
            self.greeting = self.read()

    def send(self, *lines: bytes) -> None:
        self.socket.sendall(b"".join(line + b"\n" for line in lines))

    def read_line(self) -> bytes:
        return self._file.readline()

    def read(self) -> Any:
        line = self.read_line()
        return json.loads(line) if line else None

    def ask(self, number: Any, method: str, **parameters: Any) -> None:
        self.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}).encode())

    def tell(self, method: str, **parameters: Any) -> None:
        self.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": parameters}).encode())

    def call(self, number: Any, tool: str, **arguments: Any) -> None:
        self.ask(number, "tools/call", name=tool, arguments=arguments)

    def begin(self) -> "LineConnection":
        self.ask(0, "initialize", **HELLO)
        assert self.read()["result"]["protocolVersion"] == LEGACY
        self.tell("notifications/initialized")
        return self

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@contextmanager
def open_lines(home: Path, hello: bytes | None = b"{}") -> Generator[LineConnection]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect(str(home / "mcp.sock"))
        lines = LineConnection(connection, hello)
        try:
            yield lines
        finally:
            lines.close()
