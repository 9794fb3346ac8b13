"""Pictures, sounds and files from tools: shown to clients within a budget, never as text to a model."""

import asyncio
import base64
from collections.abc import Generator
from typing import Any

import pytest
from gateway_tools import GatewayApp, server_entry
from mcp import Client
from mcp_tools import LEGACY, connect_client

from http_tools import RunningServer, run_server

pytestmark = pytest.mark.sqlite_only("the server has a file of its own")
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PNG_BYTES = len(base64.b64decode(PNG))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("mcp")) as server:
        app = GatewayApp(server.home)
        for kind in ("attachments", "one-picture", "large-pictures", "many-pictures", "false-picture"):
            app.add(kind, server_entry(kind))
        app.app.close()
        yield server


def ask(served: RunningServer, tools: str, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    async def work() -> list[Any]:
        async with connect_client(served, f"stdio {LEGACY}", tools) as client:
            return [await call(client, *words) for words in calls]

    async def call(client: Client, name: str, arguments: dict[str, Any]) -> Any:
        return (await client.call_tool(name, arguments)).content

    return asyncio.run(work())


def test_client_gets_pictures_of_result(served: RunningServer) -> None:
    (shown, again, silent) = ask(
        served,
        "default",
        ("execute_code", {"code": "{'shots': [one_picture.bad()], 'more': attachments.bad()}"}),
        ("execute_code", {"code": "one_picture.bad()", "workspace": "other"}),
        ("execute_code", {"code": "shot = one_picture.bad()\nshot['bytes']"}),
    )
    assert [block.type for block in shown] == ["text", "image", "audio", "resource"]  # the same picture once
    assert (shown[1].data, shown[1].mime_type) == (PNG, "image/png")
    assert base64.b64decode(shown[3].resource.blob) == b"%PDF-1.7 x"
    assert PNG[:20] not in shown[0].text
    assert [block.type for block in again] == ["text", "image"]
    assert [block.text for block in silent] == [str(PNG_BYTES)]  # only the answer comes back


def test_tool_as_mcp_tool_gives_picture(served: RunningServer) -> None:
    (shown,) = ask(served, "all", ("one_picture__bad", {}))
    assert [block.type for block in shown] == ["text", "image"]
    assert shown[1].data == PNG
    assert PNG[:20] not in shown[0].text


def test_pictures_keep_to_budget(served: RunningServer) -> None:
    large, many, false = ask(
        served,
        "default",
        ("execute_code", {"code": "large_pictures.bad()"}),
        ("execute_code", {"code": "many_pictures.bad()[:9]"}),
        ("execute_code", {"code": "false_picture.bad()"}),
    )
    assert [block.type for block in large] == ["text", "image", "image", "resource_link", "resource_link"]
    assert [block.type for block in many].count("image") == 4
    assert [block.type for block in many].count("resource_link") == 5
    assert [block.type for block in false] == ["text", "resource", "image"]

    async def work() -> None:
        async with connect_client(served, f"stdio {LEGACY}") as client:
            content = (await client.call_tool("execute_code", {"code": "large_pictures.bad()"})).content
            link = content[-1]  # what did not fit can be read as a resource
            assert link.type == "resource_link"
            assert link.mime_type == "image/jpeg"
            (resource,) = (await client.read_resource(link.uri)).contents
            assert resource.mime_type == "image/jpeg"
            assert base64.b64decode(resource.blob)[:3] == b"\xff\xd8\xff"  # type: ignore[union-attr]

    asyncio.run(work())


def test_forged_handles_show_nothing(served: RunningServer) -> None:
    forged = """
workspace.write(path="notes.png", content="iVBORw0KGgo=")
[{"type": "image", "path": path} for path in ("notes.png", "handles/../notes.png", "handles/0123456789abcdef.png", 5)]
"""
    (shown,) = ask(served, "default", ("execute_code", {"code": forged}))
    assert [block.type for block in shown] == ["text"]
