"""The command line. Little is imported here: each command imports its own module."""

from __future__ import annotations

import os
import sys

from athena.core.version import __version__

TYPE_CHECKING = False  # importing `typing` would slow down `athena mcp`
if TYPE_CHECKING:
    from _socket import socket
    from typing import NoReturn


def main() -> None:
    """Run `athena` with the arguments of this process."""
    if sys.argv[1:2] == ["mcp"]:
        from athena.cli import mcp_proxy  # only for this command

        if (options := mcp_proxy.parse_args(sys.argv[2:])) is not None:
            exit_process(mcp_proxy.run_proxy(*options, _serve_in_process))
    if sys.argv[1:] == ["--version"]:  # without click, whose import takes longer than all else here
        sys.stdout.write(f"athena {__version__}\n")
        exit_process(0)
    if sys.argv[1:2] in (["recall"], ["search"]):
        from athena.cli import quick  # only for this command

        if (code := quick.main(sys.argv[2:])) is not None:
            exit_process(code)
    # one query at a time needs no thread pool, and starting one costs more than it saves
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from athena.cli.commands import athena  # imports click

    exit_process(athena(prog_name="athena", standalone_mode=False))


def _serve_in_process(project: str) -> socket:
    from athena.cli.mcp import serve_in_process  # imports asyncio and the server; only where no daemon can be used

    return serve_in_process(project)


def exit_process(code: int) -> NoReturn:
    """Close the store and exit without the interpreter's own cleanup, which takes 30 ms."""
    if "athena.app.connect" in sys.modules:
        sys.modules["athena.app.connect"].close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
