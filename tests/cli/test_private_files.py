"""Whatever the umask and the data folder's mode: all that Athena creates there is for its owner alone."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from daemon_tools import Home
from wait_tools import LONG, wait_until

pytestmark = pytest.mark.sqlite_only("the files of the data folder")

SERVER = """
import sys, json
for line in sys.stdin:
    request = json.loads(line)
    results = {"initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                              "serverInfo": {"name": "s", "version": "1"}},
               "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}}
    if "id" in request:
        answer = {"jsonrpc": "2.0", "id": request["id"], "result": results.get(request["method"], {})}
        print(json.dumps(answer), flush=True)
"""


def list_open_files(folder: Path) -> list[str]:
    """Return what somebody else may read, write or enter, with its mode."""
    paths = [path for path in sorted(folder.rglob("*")) if not path.is_symlink()]
    assert paths
    modes = {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in paths}
    return [f"{path} {mode:o}" for path, mode in modes.items() if mode & 0o077]


class OpenSession:
    """Commands of a person whose umask hides nothing."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.environ = Home(home).environ(HOME=str(folder), ATHENA_UNATTENDED="1")

    def run(self, *argv: str, stdin: str = "") -> str:
        done = subprocess.run(
            argv, input=stdin, env=self.environ, cwd=self.folder, umask=0, capture_output=True, text=True, timeout=LONG
        )
        assert done.returncode == 0, done
        return done.stdout

    def athena(self, *argv: str, stdin: str = "") -> str:
        return self.run(sys.executable, "-m", "athena", *argv, stdin=stdin)


def test_session_leaves_no_file_for_others(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    (project / "bin").mkdir(parents=True)
    (project / ".git").mkdir()
    (project / "server.py").write_text(SERVER)
    session = OpenSession(home, project)
    claude = project / "bin" / "claude"
    claude.write_text("#!/bin/sh\nexit 0\n")
    claude.chmod(0o755)
    session.environ["PATH"] = f"{project / 'bin'}{os.pathsep}{session.environ['PATH']}"
    session.athena("remember", "Deploys run on Fridays", "--tags", "deploy")
    session.athena("run", "-", stdin="x = {1, 2}\nx")
    session.athena("servers", "add", "one", "--", sys.executable, str(project / "server.py"))
    session.athena("servers", "approve", "one", "--yes")
    session.athena("init", "claude-code")
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    try:
        session.run(str(home / "bin" / "athena-hook"), "session-start", stdin=json.dumps({"cwd": str(project)}))
        assert "athena" in session.run(str(home / "bin" / "athena-mcp"), stdin=json.dumps(initialize) + "\n")
        wait_until(lambda: (home / "logs" / "daemon.log").exists() and (home / "hook.sock").exists())
        names = {path.name for path in home.rglob("*")}
        assert {"athena.db", "athena.db-wal", "athena.db-shm", "token", "server.json", "hook.sock", "mcp.sock"} <= names
        assert {"clients.json", "sandbox.key", "daemon.log", "athena-hook", "claude-code"} <= names
        assert list_open_files(home) == []
    finally:
        session.athena("daemon", "stop")
    assert list_open_files(home) == []
