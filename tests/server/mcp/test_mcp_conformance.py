"""Third-party checks of MCP servers: the conformance suite and the inspector, against our server."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import node_packages
import pytest
from mcp_tools import LEGACY, MCP, MODERN

from conftest import skip_or_fail
from http_tools import RunningServer, run_server, server_environ

pytestmark = pytest.mark.sqlite_only("the server has a store of its own")

HERE = Path(__file__).parent
REVISIONS = (MODERN, LEGACY)


def program(package: node_packages.Package) -> list[str]:
    try:
        return node_packages.command(package)
    except node_packages.Unobtainable as error:
        skip_or_fail(f"{package.name} is not to be had here: {error}")


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Yield the URL of a server with the tools that the suite needs."""
    folder = tmp_path_factory.mktemp("conformance")
    command = [sys.executable, str(HERE / "conformance_server.py"), str(folder / "home")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=server_environ(folder / "home"))
    assert process.stdout is not None
    with process.stdout:
        url = process.stdout.readline().decode().strip()
        assert url, (folder / "log").read_text()
        yield url
        process.terminate()
        process.wait(timeout=40)


@pytest.mark.parametrize("revision", REVISIONS)
def test_conformance_suite_passes(fixture: str, revision: str, tmp_path: Path) -> None:
    command = program(node_packages.CONFORMANCE)
    url = f"{fixture.replace('localhost', '127.0.0.1')}/mcp?tools=all"
    words = ["server", "--url", url, "--requirements", revision, "-o", str(tmp_path)]
    words += ["--expected-failures", str(HERE / f"conformance-{revision}.yml")]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    for name in ("dns-rebinding-protection", "tools-list", "tools-call-simple-text", "tools-call-with-progress"):
        assert re.search(rf"✓ {name}: [1-9]\d* passed, 0 failed", done.stdout), name


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("inspected")) as server:
        yield server


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_inspector_lists_and_calls_tools(served: RunningServer, way: str, tmp_path: Path) -> None:
    command = [*program(node_packages.INSPECTOR), "--cli"]
    environ = server_environ(served.home)
    environ = {name: environ[name] for name in ("PYTHONPATH", "ATHENA_HOME", "ATHENA_PROJECT") if name in environ}
    elsewhere = os.environ | {"HOME": str(tmp_path), "MCP_CATALOG_PATH": str(tmp_path / "catalog.json")}

    def inspect(tools: str, *words: str) -> Any:
        target = [*MCP, "--tools", tools]
        more = [word for name, value in environ.items() for word in ("-e", f"{name}={value}")]
        if way == "http":
            target = [f"http://localhost:{served.port}/mcp?tools={tools}"]
            more = ["--header", f"Authorization: Bearer {served.token}"]
        full = [*command, *target, *words, *more, "--format", "json", "-q"]
        done = subprocess.run(full, capture_output=True, text=True, timeout=60, env=elsewhere, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)["result"]

    modern = inspect("default", "--method", "tools/list", "--strict", "--protocol-era", "modern")["tools"]
    assert [tool["name"] for tool in modern] == ["search_tools", "execute_code", "remember", "recall"]
    everything = inspect("all", "--method", "tools/list", "--strict")["tools"]  # with the older protocol revision
    assert {"forget", "create_task", "search_graph"} <= {tool["name"] for tool in everything}
    called = inspect("default", "--method", "tools/call", "--tool-name", "remember", "--tool-arg", f"content=By {way}")
    assert called["content"][0]["text"].endswith(" kept")
    assert served.call("recall", query=f"By {way}", k=1)[0]["content"] == f"By {way}"
