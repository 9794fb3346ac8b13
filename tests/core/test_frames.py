"""How many of our functions lie between a request and its work; `scripts/count_frames.py` prints them."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "count_frames.py"


def test_recall_over_http_stays_within_its_frames() -> None:
    done = subprocess.run([sys.executable, SCRIPT], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
