"""The command line. Nothing heavy is imported here: the commands load when one of them runs."""

import os
import sys


def main() -> None:
    """Run `athena` with the words it was given."""
    # One question at a time needs no pool of threads, and starting one costs more than it saves.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from athena import connect
    from athena.cli.commands import athena  # brings click

    code = athena(prog_name="athena", standalone_mode=False)
    connect.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is written; taking the interpreter apart would take 30 ms more
