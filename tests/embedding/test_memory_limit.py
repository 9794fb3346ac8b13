"""A memory limit of the process makes calls fail with an error, or work without the model; it never ends a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wait_tools import LONG

SCRIPT = """
import resource, sys
from athena import api
from athena.errors import AthenaError
limit = int(sys.argv[1]) << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print("stored", len(api.store("The lamp of the harbour is lit at dusk")))
try:
    print("hits", len(api.search("harbour lamp", min_score=0).memories))
except AthenaError as error:
    print("refused", error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the address space")
@pytest.mark.parametrize(("limit_mb", "outcome"), [(120, "refused"), (200, "refused"), (260, "hits"), (600, "hits")])
def test_process_survives_its_memory_limit(tmp_path: Path, limit_mb: int, outcome: str) -> None:
    environment = {**os.environ, "ATHENA_HOME": str(tmp_path), "OPENBLAS_NUM_THREADS": ""}
    command = [sys.executable, "-c", SCRIPT, str(limit_mb)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    stored, answer = done.stdout.splitlines()
    assert stored == "stored 8"
    assert answer.startswith(outcome), answer
    if outcome == "refused":
        assert f"the memory limit of this process, {limit_mb} MB, is too low for search" in answer
    else:
        assert answer == "hits 1"
