"""An app with servers that misbehave on demand."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from athena.app.compose import App
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.gateway.config import validate_entry
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL
from person_tools import approve_tools, decide_run

RUN_TIMEOUT_S = 100.0  # a busy machine takes long to start servers
PROGRAM = str(Path(__file__).with_name("misbehaving.py"))


def server_entry(kind: str, **more: Any) -> dict[str, Any]:
    """Return the configuration entry of a server that misbehaves in one way."""
    return {"command": sys.executable, "args": ["-I", "-S", PROGRAM, kind], **more}


class GatewayApp:
    def __init__(self, home: Path, project: str = "test") -> None:
        self.home, self.project = home, project
        self.app = App(Sqlite(IN_MEMORY_PATH), MODEL, servers=str(home))
        self.gateway = self.app.gateway

    def add(self, name: str, entry: dict[str, Any], *, approve: bool = True) -> str:
        self.gateway.servers_file.add_entries([validate_entry(name, entry)], replaceable=[name])
        self.app.catalog.refresh()
        name = self.gateway.resolve_name(name)
        if approve:
            self.approve(name)
        return name

    def approve(self, name: str) -> None:
        approve_tools(self.app, name, *run_sync(self.gateway.fetch_tools(name)))
        self.app.catalog.refresh()

    def call(self, path: str, surface: str = "python", key: str | None = None, /, **arguments: Any) -> Any:
        return run_sync(invoke(self.app.catalog, path, arguments, self.app.create_context(self.project, surface, key)))

    def run(self, code: str, **more: Any) -> Any:
        return self.call("execute_code", code=code, **{"timeout_s": RUN_TIMEOUT_S} | more)

    def approve_run(self, run_id: str) -> Any:
        return decide_run(self.app, run_id, project=self.project)

    def server(self, name: str) -> Any:
        return next(one for one in self.call("list_servers") if one.name == name)


@contextmanager
def open_gateway_app(home: Path, project: str = "test") -> Iterator[GatewayApp]:
    gateway = GatewayApp(home, project)
    try:
        yield gateway
    finally:
        gateway.app.close()


@contextmanager
def serve_web(kind: str) -> Iterator[str]:
    """Yield the address of a server over HTTP that misbehaves in one way."""
    web = subprocess.Popen(
        [sys.executable, "-I", "-S", PROGRAM, kind, "http"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert web.stdout
        yield f"http://127.0.0.1:{int(web.stdout.readline())}/mcp"
    finally:
        web.communicate()
