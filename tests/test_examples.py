"""Every example runs by itself with an empty home folder and leaves nothing behind."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sqlite_only("the examples bring a server of their own")
EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, home: Path) -> str:
    """Run an example in a folder of its own and return its output."""
    kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
    (home / "tmp").mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env=kept | {"HOME": str(home), "TMPDIR": str(home / "tmp")},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [path for path in home.rglob("*") if path.is_file()] == []
    assert list((home / "tmp").iterdir()) == []
    return done.stdout


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("crm_leads.py", ["stored 300 leads in", "stored 0 more", "looked at 300 leads"]),
        (
            "server_notes.py",
            ["100 notes from 10 jobs", "  db-1: replication falls behind", "  mail-2: its certificate"],
        ),
        ("ticket_tags.py", ["of 120 tickets got the tag they were written for", "billing, from the store: "]),
        ("copy_records.py", ["copied 350 records", "copied 0 records the second time", "hold the same: True"]),
        ("code_execution_agent.py", ["recall: ", "stored 400 records", "resumed from the file", "most in "]),
    ],
)
def test_example_runs_with_few_tokens(name: str, lines: list[str], tmp_path: Path) -> None:
    shown = run(name, tmp_path / "empty")
    for line in lines:
        assert line in shown
    if name != "server_notes.py":  # this one runs no program
        saved = re.search(r"saved: ([\d.]+)%", shown)
        assert saved is not None
        assert float(saved[1]) > 80
