"""The examples of docs/http.md and the README run unchanged, except for the port."""

import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import postgres
import psycopg
import pytest

from athena.core.home.paths import ensure_token
from conftest import rounds
from http_tools import RunningServer, run_server, serve_command, server_environ
from wait_tools import wait_until

pytestmark = pytest.mark.sqlite_only("the server has a store of its own")

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?P<kind>sh|py|python)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = (ROOT / "docs" / "http.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
# The operations of SPEC section 3 that exist.
CONTRACT = """
from athena import AthenaClient
with AthenaClient("http://localhost:3000") as client:
    client.discover_tools(); client.list_tools(category="memory"); client.get_tool("recall"); client.search_tools("tag")
    made = client.remember(content="...", tags=["a"])
    assert made["hash"] and made["id"]
    found = client.recall(query="...", k=10)
    assert {"id", "hash", "content", "tags", "score", "created"} <= set(found[0])
    assert client.forget(memory_id=made["id"]) is True and client.forget(memory_id=made["id"]) is False
    client.record_event(event_type="action", content="...", outcome="success", session_id="s1")
    assert client.recall_events(session_id="s1", limit=50)[0]["outcome"] == "success"
    client.create_entity(name="...", entity_type="Task")
    assert client.search_graph(query="...", max_results=10)[0]["name"] == "..."
    assert isinstance(client.consolidate(strategy="balanced", days_back=7)["patterns"], list)
    client.call_tool("recall", query="...", k=5); client.health(); client.info()
    assert client.execute_code("len(memory.list_memories()) * 0 + 2")["result"] == 2
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("documents")) as made:
        yield made


def programs(text: str) -> list[str]:
    return [
        match["body"] for match in BLOCK.finditer(text) if match["kind"] != "sh" and "AthenaClient" in match["body"]
    ]


@pytest.mark.parametrize("source", [*programs(PAGE), *programs(README), CONTRACT])
def test_shown_program_runs(served: RunningServer, source: str) -> None:
    program = source.replace("localhost:3000", f"localhost:{served.port}")
    environ = server_environ(served.home)
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_shown_requests_are_answered(served: RunningServer) -> None:
    shown = next(match["body"] for match in BLOCK.finditer(PAGE) if match["kind"] == "sh")
    requests = shown[shown.index("curl") :].replace("localhost:3000", f"localhost:{served.port}")
    environ = server_environ(served.home, PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    command = f"set -e\n{requests}".replace("curl ", "curl -sSf ")
    done = subprocess.run(["bash", "-c", command], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"total_tools"' in done.stdout
    assert '"success":true' in done.stdout


def test_lost_store_is_live_not_ready(tmp_path: Path, server: postgres.Server) -> None:
    url = server.create("gone")
    patience = rounds(1, 10)  # seconds in which the store may return before a call fails
    changed = f"from athena.storage.postgres.store import Postgres; Postgres.__init__.__defaults__ = ({patience},)"
    with run_server(tmp_path, command=serve_command(changed), ATHENA_DATABASE_URL=url) as served:
        assert served.get("/health").json == {"live": True, "ready": True}
        with psycopg.connect(server.create("beside"), autocommit=True) as connection:
            connection.execute("DROP DATABASE gone WITH (FORCE)")
        wait_until(lambda: served.get("/health").status != 200)  # health checks the store again after a second
        seen = served.get("/health")
        assert (seen.status, seen.json) == (503, {"live": True, "ready": False})
        assert served.get("/tools/recall").status == 200
        refused = served.execute("recall", {"query": "anything"})
        assert (refused.status, refused.error["code"]) == (503, "misconfigured")


@pytest.mark.parametrize("left", ["", "\n"])
def test_empty_token_file_gets_token(tmp_path: Path, left: str) -> None:
    (tmp_path / "token").write_text(left)
    made = ensure_token({"ATHENA_HOME": str(tmp_path)})
    assert len(made) == 64
    assert (tmp_path / "token").read_text().strip() == made
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert ensure_token({"ATHENA_HOME": str(tmp_path)}) == made
    assert [file.name for file in tmp_path.iterdir()] == ["token"]


def test_integral_float_is_integer(served: RunningServer) -> None:
    assert served.execute("recall", b'{"query": "anything", "k": 5.0}').status == 200
    assert served.execute("recall", b'{"query": "anything", "k": 5.5}').status == 422


def test_tag_length_is_limited(served: RunningServer) -> None:
    reply = served.execute("remember", {"content": "many tags", "tags": "x," * 1_000_000})
    assert reply.status == 422
    assert "tags" in reply.error["message"]
