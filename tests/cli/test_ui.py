"""`athena ui`: print a link that opens the page of a running server, once."""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from http_tools import run_server


def run_ui(home: Path, *words: str) -> str:
    environ = os.environ | {"ATHENA_HOME": str(home)}
    command = [sys.executable, "-m", "athena", "ui", "--no-browser", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.sqlite_only("a command and a server")
def test_link_opens_page_of_project(tmp_path: Path) -> None:
    with run_server(tmp_path) as server:
        link = run_ui(server.home, "--project", "shop & more").strip()
        assert link.startswith(f"http://127.0.0.1:{server.port}/open?key=")
        with build_opener(HTTPCookieProcessor()).open(link, timeout=30) as page:
            text = page.read().decode()
        assert "shop &amp; more" in text
        read_only = json.loads(run_ui(server.home, "--read-only", "--json"))["url"]
        with build_opener(HTTPCookieProcessor()).open(read_only, timeout=30) as page:
            assert "Read-only" in page.read().decode()
        assert link not in server.log.read_text()  # no key is logged
        assert link.partition("key=")[2] not in server.log.read_text()


@pytest.mark.sqlite_only("a command and a server")
def test_errors_of_missing_browsers_are_not_shown(tmp_path: Path) -> None:
    opener = tmp_path / "bin" / "xdg-open"
    opener.parent.mkdir()
    opener.write_text("#!/bin/sh\necho lynx: not found >&2\nexit 3\n")
    opener.chmod(0o755)
    with run_server(tmp_path) as server:
        environ = os.environ | {"ATHENA_HOME": str(server.home), "PATH": f"{opener.parent}:{os.environ['PATH']}"}
        command = [sys.executable, "-m", "athena", "ui"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "open this link in a browser; it works once, within 10 minutes\n"
