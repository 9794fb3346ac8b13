"""`athena recall` by a running server prints what the command itself prints."""

import subprocess
import sys
from pathlib import Path

import pytest

from athena import api
from server_forge import ServerForge

pytestmark = [pytest.mark.in_process("it starts its own server"), pytest.mark.sqlite_only("how it is printed")]
QUICK = "from athena.cli import main; main()"
BY_COMMAND = f"from athena.cli import quick; quick.main = lambda argv: None; {QUICK}"
LINES = (
    ["recall", "when does the harbour open"],
    ["search", "harbour", "-k", "1"],
    ["recall", "harbour", "--tags=boat", "--since", "yesterday"],
    ["recall", "Ada", "--project", "test"],
    ["recall", "nothing like this at all", "--json"],
    ["recall", "harbour", "-k", "0"],
    ["recall", "harbour", "--until", "no time"],
    ["recall"],
    ["recall", "--help"],
)


def run(program: str, argv: list[str]) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout, done.stderr.replace("python -c", "athena")


def test_recall_prints_the_same(forge: ServerForge, tmp_path: Path) -> None:
    pid = forge.start(tmp_path / "home")
    api.remember("The harbour opens at six.", tags="boat")
    api.remember("The harbour café \x1b[31m opens at eight.")
    api.call(
        "create_entities", entities=[{"name": "Ada", "entityType": "person", "observations": ["runs the harbour"]}]
    )
    for argv in LINES:
        assert run(QUICK, argv) == run(BY_COMMAND, argv), argv
    code, output, _ = run(QUICK, LINES[0])
    assert (code, output.count("harbour")) == (0, 3)  # the entity as well
    forge.stop(pid)


def test_plain_search_needs_no_click(forge: ServerForge, tmp_path: Path) -> None:
    pid = forge.start(tmp_path / "home")
    api.remember("The harbour opens at six.")
    program = f"import os, sys; os._exit = lambda code: sys.exit('click' in sys.modules or code); {QUICK}"
    code, output, _ = run(program, ["recall", "when does the harbour open"])
    assert (code, output[-26:]) == (0, "The harbour opens at six.\n")
    forge.stop(pid)
