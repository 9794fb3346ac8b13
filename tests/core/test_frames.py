"""How many of our functions lie between a request and its work; `scripts/count_frames.py` prints them."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "count_frames.py"


def test_http_recall_stays_within_frame_budget() -> None:
    done = subprocess.run([sys.executable, SCRIPT], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
