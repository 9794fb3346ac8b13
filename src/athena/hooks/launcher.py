"""The launcher scripts that coding clients run; in the data folder they outlive the virtual environment."""

import os
import shlex
import sys

from athena.core.files import create_private_folder, write_file_atomically
from athena.core.home.paths import HOOK_SOCKET, socket_path
from athena.hooks import client

BIN_FOLDER = "bin"
HOOK_LAUNCHER = "athena-hook"
MCP_LAUNCHER = "athena-mcp"
HOOK_CLIENT_FILE = "hookclient.py"
TIMEOUT_MS = 5_000
SIGNATURE = "# Written by Athena"  # marks a script as ours

HOOK_SCRIPT = """#!/bin/sh
{sign}, and again whenever its daemon starts: $1 is the event, its JSON comes on standard input.
umask 077; python={python} home={home}
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
    """Write the launchers and the hook client into a data folder; return the path of the hook launcher."""
    folder = os.path.join(home, BIN_FOLDER)
    for path in (home, folder, os.path.join(home, "logs")):
        create_private_folder(path)
    values = {
        "python": python or sys.executable,
        "home": home,
        "own": sys.executable,
        "root": os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
        "socket": socket_path(home, HOOK_SOCKET),
        "timeout": str(timeout_ms),
        "run": RUN_CLI_CODE,
    }
    quoted = {name: shlex.quote(value) for name, value in values.items()} | {"sign": SIGNATURE}
    with open(client.__file__, encoding="utf-8") as file:
        client_source = file.read()
    for name, text, mode in (
        (HOOK_CLIENT_FILE, client_source, 0o600),
        (HOOK_LAUNCHER, HOOK_SCRIPT.format(**quoted), 0o700),
        (MCP_LAUNCHER, MCP_SCRIPT.format(**quoted), 0o700),
    ):
        write_file_atomically(os.path.join(folder, name), text.encode("utf-8", "surrogateescape"), mode, skip_same=True)
    return os.path.join(folder, HOOK_LAUNCHER)
