"""Other MCP servers over HTTP: their categories appear and disappear."""

import json
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from athena import AthenaClient
from athena.cli.commands import athena
from http_tools import run_server

PROGRAM = str(Path(__file__).parent.parent / "gateway" / "misbehaving.py")


@pytest.mark.sqlite_only("the servers of a home are the same for both")
@pytest.mark.usefixtures("person")
def test_servers_appear_as_categories(tmp_path: Path) -> None:
    with run_server(tmp_path) as server, AthenaClient(f"http://localhost:{server.port}", token=server.token) as client:
        before = client.discover_tools()["total_tools"]
        words = ("servers", "add", "fine", "--json", "--", sys.executable, PROGRAM, "fine")
        alone = {"ATHENA_HOME": str(server.home)}
        result = CliRunner().invoke(athena, words, env=alone, standalone_mode=False)
        assert json.loads(result.stdout)["tools"] == ["bad", "echo"]
        found = client.discover_tools()
        assert found["total_tools"] == before + 2
        assert found["categories"]["fine"] == {"description": "The MCP server fine", "count": 2, "tools": []}
        assert [one["name"] for one in client.list_tools("fine")] == ["fine.echo", "fine.bad"]
        assert client.get_tool("fine.echo")["parameters"][0]["type"] == "string"
        assert client.call_tool("fine.echo", text="hello") == "hello"
        assert client.execute_code("fine.echo(text='a') + fine.bad()")["result"] == "adid fine"
        assert client.call_tool("list_servers")[0]["status"] == "connected"


@pytest.mark.sqlite_only("the servers of a home are the same for both")
@pytest.mark.parametrize(
    ("key", "value", "code"), [("disabled", True, "not_found"), ("approval", "always", "approval_")]
)
@pytest.mark.usefixtures("person")
def test_change_during_request_is_obeyed(tmp_path: Path, key: str, value: object, code: str) -> None:
    """A server that a person disables while the body arrives is not called."""
    body = b'{"text": "hello"}'
    with run_server(tmp_path) as server:
        words = ("servers", "add", "fine", "--", sys.executable, PROGRAM, "fine")
        alone = {"ATHENA_HOME": str(server.home)}
        CliRunner().invoke(athena, words, env=alone, standalone_mode=False)
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            head = f"POST /tools/fine.echo/execute HTTP/1.1\r\nHost: localhost:{server.port}\r\nConnection: close\r\n"
            head += f"Authorization: Bearer {server.token}\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:3])
            with AthenaClient(f"http://localhost:{server.port}", token=server.token) as client:
                assert client.call_tool("fine.echo", text="x") == "x"  # the first request has passed the guard
            file = server.home / "servers.json"
            config = json.loads(file.read_text())
            config["mcpServers"]["fine"][key] = value
            file.write_text(json.dumps(config))
            connection.sendall(body[3:])
            answer = b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
    assert code in answer, answer
