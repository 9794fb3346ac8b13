"""Clients of the reference server for knowledge graphs find here what they know: `--tools graph` and `--tools all`."""

import asyncio
import json
from collections.abc import Generator
from typing import Any

import pytest
from mcp_tools import LEGACY, connect_client, open_lines
from reference_server import Reference

from athena.server.mcp.graph_answers import GRAPH_URI, OUTPUT_SCHEMAS, create_graph_answer
from http_tools import RunningServer, run_server
from reference_tools import open_reference

pytestmark = pytest.mark.sqlite_only("the server has a file of its own")

ANN = {"name": "Ann", "entityType": "person", "observations": ['likes "tea"\n\tand cake', "naïve 数据 👩‍🔬"]}
BOB = {"name": "Bob", "entityType": "Person", "observations": []}
KNOWS = {"from": "Ann", "to": "Bob", "relationType": "knows"}
STRAY = {"from": "Bob", "to": "Nobody yet", "relationType": "looks for"}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("read_graph", {}),
    ("create_entities", {"entities": [ANN, BOB]}),
    ("create_entities", {"entities": [BOB]}),
    ("create_relations", {"relations": [KNOWS, STRAY]}),
    ("create_relations", {"relations": [KNOWS]}),
    ("add_observations", {"observations": [{"entityName": "Bob", "contents": ["plays chess", "50%_sure"]}]}),
    ("add_observations", {"observations": [{"entityName": "Bob", "contents": ["plays chess"]}]}),
    ("search_nodes", {"query": "TEA"}),
    ("search_nodes", {"query": "person"}),
    ("search_nodes", {"query": "%_"}),
    ("search_nodes", {"query": "drinks hot beverages"}),
    ("search_nodes", {"query": ""}),
    ("open_nodes", {"names": ["Bob", "Ghost"]}),
    ("open_nodes", {"names": []}),
    ("delete_observations", {"deletions": [{"entityName": "Bob", "observations": ["plays chess", "x"]}]}),
    ("delete_relations", {"relations": [KNOWS]}),
    ("read_graph", {}),
    ("delete_entities", {"entityNames": ["Ann", "Ghost"]}),
    ("delete_entities", {"entityNames": ["Bob"]}),
    ("read_graph", {}),
    ("create_entities", {"entities": [ANN]}),
    ("read_graph", {}),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("graph")) as server:
        yield server


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Generator[Reference]:
    with open_reference(tmp_path_factory.mktemp("reference")) as server:
        yield server


@pytest.mark.parametrize("surface", ["graph", "all"])
def test_answers_are_bytes_of_reference_server(served: RunningServer, reference: Reference, surface: str) -> None:
    reference.empty()
    listed = reference.ask("tools/list", {})["result"]["tools"]
    schemas = {tool["name"]: tool["outputSchema"] for tool in listed}
    hello = json.dumps({"tools": surface, "project": f"compare {surface}"}).encode()
    with open_lines(served.home, hello) as ours:
        ours.begin()
        ours.ask(1, "tools/list")
        offered = {tool["name"]: tool.get("outputSchema") for tool in ours.read()["result"]["tools"]}
        assert {name: offered[name] for name in schemas} == schemas
        assert surface == "all" or list(offered) == list(schemas)
        for number, (name, arguments) in enumerate(CALLS, 2):
            theirs = reference.ask("tools/call", {"name": name, "arguments": arguments})["result"]
            ours.call(number, name, **arguments)
            answer = ours.read()["result"]
            assert answer["content"] == theirs["content"], name
            assert json.dumps(answer["structuredContent"]) == json.dumps(theirs["structuredContent"]), name
        theirs = reference.ask("resources/read", {"uri": GRAPH_URI})["result"]
        ours.ask("read", "resources/read", uri=GRAPH_URI)
        assert ours.read()["result"]["contents"] == theirs["contents"]


def test_graph_tools_answer_with_structured_json(served: RunningServer) -> None:
    """The same without Node: the client of the SDK checks each result by its schema."""

    async def work() -> None:
        async with connect_client(served, f"stdio {LEGACY}", "graph") as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == list(OUTPUT_SCHEMAS)
            assert client.session.instructions is None
            periods = [{"since": "2020", "until": "2021"}, {"since": "2024"}]
            assert (await client.call_tool("create_entities", {"entities": [ANN, BOB]})).structured_content == {
                "entities": [ANN, BOB]
            }
            made = await client.call_tool("create_relations", {"relations": [KNOWS | period for period in periods]})
            assert made.structured_content == {"relations": [KNOWS]}  # periods are not theirs
            assert made.content[0].text == json.dumps([KNOWS], indent=2)  # type: ignore[union-attr]
            graph = {"entities": [ANN, BOB], "relations": [KNOWS]}
            assert (await client.call_tool("read_graph", {})).structured_content == graph
            assert [one.uri for one in (await client.list_resources()).resources] == [GRAPH_URI]
            (text,) = (await client.read_resource(GRAPH_URI)).contents
            assert json.loads(text.text) == graph  # type: ignore[union-attr]
            gone = await client.call_tool("delete_entities", {"entityNames": ["Ann"]})
            assert gone.content[0].text == gone.structured_content["message"]  # type: ignore[union-attr]
            lost = await client.call_tool(
                "add_observations", {"observations": [{"entityName": "Ghost", "contents": ["x"]}]}
            )
            assert lost.is_error
            assert lost.content[0].text.startswith("Entity with name Ghost not found")  # type: ignore[union-attr]

    asyncio.run(work())


def test_hidden_characters_are_escapes_of_json() -> None:
    hidden = {"name": "a\u202eb", "entityType": "\U000e0041", "observations": ["👩‍🔬 tab\t"]}
    text, structured = create_graph_answer("create_entities", [hidden])
    assert json.loads(text) == structured["entities"] == [hidden]
    assert "a\\u202eb" in text
    assert "\\udb40\\udc41" in text


def test_client_hears_of_changes_it_subscribed_to(served: RunningServer) -> None:
    with open_lines(served.home, b'{"tools": "graph", "project": "watched"}') as lines:
        lines.begin()
        lines.call(1, "create_entities", entities=[ANN])
        assert lines.read()["id"] == 1
        lines.ask(2, "resources/subscribe", uri=GRAPH_URI)
        assert lines.read()["result"] == {}
        lines.call(3, "read_graph")
        assert lines.read()["id"] == 3
        lines.call(4, "delete_entities", entityNames=["Ann"])
        heard = [lines.read(), lines.read()]
        assert {"method": "notifications/resources/updated", "params": {"uri": GRAPH_URI}, "jsonrpc": "2.0"} in heard
        lines.ask(5, "resources/unsubscribe", uri=GRAPH_URI)
        assert lines.read()["id"] == 5
        lines.call(6, "create_entities", entities=[ANN])
        assert lines.read()["id"] == 6
