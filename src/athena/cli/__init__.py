"""The command line. Nothing heavy is imported here: the commands load when one of them runs."""

import sys


def main() -> None:
    """Run `athena` with the words it was given."""
    from athena.cli.commands import athena  # brings click

    sys.exit(athena(prog_name="athena", standalone_mode=False))
