"""Public MCP servers, connected on the command line and used over HTTP and in programs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import node_packages
import pytest
from click.testing import CliRunner, Result

from athena.app import connect
from athena.cli.commands import athena
from athena.core.threads import run_sync
from athena.errors import NotFound
from conftest import skip_or_fail
from person_tools import Person

COPY = """
graph = notes.read_graph()
names = sorted(entity["name"] for entity in graph["entities"])
for entity in graph["entities"]:
    lines = "\\n".join(entity["observations"])
    files.write_file(path=f"{folder}/{entity['name']}.txt", content=lines)
read = parallel([lambda: files.read_text_file(path=f"{folder}/{names[0]}.txt"), lambda: every_thing.get_sum(a=2, b=3)])
{"names": names, "first": read[0]["content"], "sum": read[1]}
"""


def run(*words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(athena, words, input=stdin, standalone_mode=False, catch_exceptions=False)


def call(name: str, **arguments: Any) -> Any:
    return run_sync(connect.AppConnection(connect.shared_app, "test", "python").call(name, arguments)).data


@pytest.fixture
def folder(tmp_path: Path, person: Person) -> Iterator[Path]:
    """Return a home with three reference servers, added as a person adds them."""
    made = tmp_path / "files"
    made.mkdir()
    try:
        memory, files, every = map(
            node_packages.command, (node_packages.REFERENCE, node_packages.FILESYSTEM, node_packages.EVERYTHING)
        )
    except node_packages.Unobtainable as why:
        skip_or_fail(str(why))
    result = run("servers", "add", "notes", "--env", f"MEMORY_FILE_PATH={tmp_path / 'notes.jsonl'}", "--", *memory)
    assert "notes: 9 tools can be called" in result.output
    others = {"mcpServers": {"every-thing": {"command": every[0], "args": every[1:]}}}
    (tmp_path / "others.json").write_text(json.dumps(others), "utf-8")
    assert "every_thing: added" in run("servers", "import", str(tmp_path / "others.json")).output
    run("servers", "add", "files", "--approval", "destructive", "--", *files, str(made))
    yield made
    connect.close()


def test_program_copies_data_between_servers(folder: Path) -> None:
    entities = [
        {"name": name, "entityType": "city", "observations": [f"{name} is a city"]} for name in ("Rome", "Oslo")
    ]
    call("notes.create_entities", entities=entities)
    done = call("execute_code", code=f"folder = {str(folder)!r}\n{COPY}")
    # Overwriting a file is destructive, and destructive calls of this server need approval.
    assert done["status"] == "needs_approval"
    for _ in entities:
        result = run("approve", done["run_id"], "--json")
        done = json.loads(result.stdout)
    assert done["result"] == {"names": ["Oslo", "Rome"], "first": "Oslo is a city", "sum": "The sum of 2 and 3 is 5."}
    assert (folder / "Rome.txt").read_text("utf-8") == "Rome is a city"

    listed = json.loads(run("servers", "list", "--check", "--json").stdout)
    assert {one["name"]: (one["status"], one["tools"]) for one in listed} == {
        "every_thing": ("connected", 13),
        "files": ("connected", 14),
        "notes": ("connected", 9),
    }
    assert "every_thing.get_structured_content" in str(call("search_tools", query="structured content output schema"))
    assert call("every_thing.get_structured_content", location="Chicago").keys() == {
        "temperature",
        "conditions",
        "humidity",
    }
    assert call("every_thing.get_tiny_image")[1]["type"] == "image"
    assert "data" not in str(call("every_thing.get_tiny_image")[1])
    links = call("every_thing.get_resource_links", count=2)
    assert [one["type"] for one in links[1:]] == ["resource_link", "resource_link"]

    assert run("servers", "remove", "notes").output == "removed notes\n"
    with pytest.raises(NotFound):
        call("notes.read_graph")
