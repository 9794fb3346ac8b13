"""What clients run: small scripts in the home, which last longer than any environment that they were written from."""

import os
import shlex
import sys

from athena.core.home.paths import HOOK_SOCKET, socket_path
from athena.hooks import client

BIN_FOLDER = "bin"
HOOK_LAUNCHER = "athena-hook"
MCP_LAUNCHER = "athena-mcp"
HOOK_CLIENT_FILE = "hookclient.py"
TIMEOUT_MS = 5_000
SIGNATURE = "# Written by Athena"  # by which a launcher is known for one of ours

HOOK_SCRIPT = """#!/bin/sh
{sign}, and again whenever its daemon starts: $1 is the event, its JSON comes on standard input.
python={python} home={home}
{{ "$python" -I -S "$home/bin/hookclient.py" {own} {root} "$home" {socket} {timeout} "${{1:-}}" ||
  echo "the hook could not be run by $python" >"$home/logs/launcher.log"; }} 2>/dev/null
exit 0
"""

MCP_SCRIPT = """#!/bin/sh
{sign}, and again whenever its daemon starts: an MCP server on standard input and output.
python={own}
[ -x "$python" ] || {{ echo "athena: there is no Python at $python; run athena init again" >&2; exit 1; }}
ATHENA_HOME={home} exec "$python" -I -c {run} {root} mcp "$@"
"""
RUN_CLI_CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from athena.cli import main; main()"


def install_launchers(home: str, python: str | None = None, timeout_ms: int = TIMEOUT_MS) -> str:
    """Write the launchers and the hooks' client into a home, and return the hooks' launcher's path."""
    folder = os.path.join(home, BIN_FOLDER)
    for each in (home, folder, os.path.join(home, "logs")):
        os.makedirs(each, mode=0o700, exist_ok=True)
    own = sys.executable
    words = {
        "python": python or own,
        "home": home,
        "own": own,
        "root": os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
        "socket": socket_path(home, HOOK_SOCKET),
        "timeout": str(timeout_ms),
        "run": RUN_CLI_CODE,
    }
    quoted = {name: shlex.quote(word) for name, word in words.items()} | {"sign": SIGNATURE}
    with open(client.__file__, encoding="utf-8") as file:
        _write_if_changed(os.path.join(folder, HOOK_CLIENT_FILE), file.read(), 0o600)
    launcher = os.path.join(folder, HOOK_LAUNCHER)
    _write_if_changed(launcher, HOOK_SCRIPT.format(**quoted), 0o700)
    _write_if_changed(os.path.join(folder, MCP_LAUNCHER), MCP_SCRIPT.format(**quoted), 0o700)
    return launcher


def _write_if_changed(path: str, text: str, mode: int) -> None:
    """Write a file whole or not at all; one that says the same already is left alone."""
    data = text.encode("utf-8", "surrogateescape")
    try:
        with open(path, "rb") as file:
            if file.read() == data and os.stat(path).st_mode & 0o777 == mode:
                return
    except OSError:
        pass
    part = f"{path}.{os.urandom(6).hex()}"
    try:
        made = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            rest = memoryview(data)
            while rest:  # a disk that is nearly full takes a part
                rest = rest[os.write(made, rest) :]
            os.fsync(made)
        finally:
            os.close(made)
        os.replace(part, path)
    finally:
        if os.path.lexists(part):
            os.unlink(part)
