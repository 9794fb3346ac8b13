"""The model is loaded while the store is opened."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from athena import api
from athena.app import connect
try:
    api.search({question!r})
except Exception as error:
    print(type(error).__name__)
print(len(connect._model_threads), connect._early_models)
"""


def run_program(home: Path, question: str, **variables: str) -> list[str]:
    environment = {"ATHENA_HOME": str(home), "HOME": str(home), "PATH": "/usr/bin:/bin", **variables}
    program = PROGRAM.format(question=question)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert not done.stderr
    return done.stdout.splitlines()


def test_a_first_search_loads_the_model_while_it_opens_the_store(tmp_path: Path) -> None:
    assert run_program(tmp_path, "harbour") == ["1 []"]


def test_a_process_that_ends_at_once_waits_for_the_model(tmp_path: Path) -> None:
    assert run_program(tmp_path, "") == ["InvalidInput", "1 []"]


def test_with_a_remote_model_the_bundled_one_is_not_loaded(tmp_path: Path) -> None:
    remote = {"ATHENA_EMBEDDING_URL": "http://127.0.0.1:9/v1", "ATHENA_EMBEDDING_MODEL": "any"}
    assert run_program(tmp_path, "harbour", **remote) == ["0 []"]


def test_settings_that_do_not_work_are_told_as_ever(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("nonsense = [")
    assert run_program(tmp_path, "harbour") == ["Misconfigured", "0 []"]
