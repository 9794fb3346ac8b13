"""The command line. Nothing heavy is imported here: the commands load when one of them runs."""

from __future__ import annotations

import os
import sys

from athena.core.version import __version__

TYPE_CHECKING = False  # the module that has it is too slow for `athena mcp`
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> None:
    """Run `athena` with the words it was given."""
    if sys.argv[1:2] == ["mcp"]:
        from athena.cli import mcp_proxy

        if (options := mcp_proxy.parse_args(sys.argv[2:])) is not None:
            exit_process(mcp_proxy.run_proxy(*options))
    if sys.argv[1:] == ["--version"]:  # without click, whose import takes longer than all else here
        sys.stdout.write(f"athena {__version__}\n")
        exit_process(0)
    # One question at a time needs no pool of threads, and starting one costs more than it saves.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from athena.cli.commands import athena  # brings click

    code = athena(prog_name="athena", standalone_mode=False)
    exit_process(code)


def exit_process(code: int) -> NoReturn:
    """End this process at once: all is written, and taking the interpreter apart would take 30 ms more."""
    if "athena.app.connect" in sys.modules:
        sys.modules["athena.app.connect"].close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
