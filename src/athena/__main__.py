"""`python -m athena` is the same as `athena`."""

from athena.cli import main

main()
