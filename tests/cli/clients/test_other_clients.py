"""The real Gemini CLI and Codex, set up by `athena init`, with a stub instead of the model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import node_packages
import pytest

import model_stub
from conftest import FULL, skip_or_fail
from daemon_tools import Home

pytestmark = [
    pytest.mark.sqlite_only("each has a store of its own"),
    pytest.mark.timeout(400),  # the first test downloads the client
    pytest.mark.skipif(not FULL, reason="in make test-full: hundreds of megabytes, and seconds for each session"),
]

GEMINI = """{
  // mine
  "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}},
  "privacy": {"usageStatisticsEnabled": false}
}
"""
CODEX = """# mine
model = "gpt-5"  # why
model_provider = "stub"
[model_providers.stub]
name="stub"
base_url="URL/v1"
wire_api="responses"
env_key="STUB_KEY"
"""
FACT = "Releases are signed with the key in the blue safe"
DONE = "The billing worker now retries three times, because the bank rejects a fourth attempt within a minute."
TRUSTED = ["exec", "--dangerously-bypass-hook-trust", "--skip-git-repo-check"]
WORDS = {"codex": TRUSTED, "gemini": ["--skip-trust", "--approval-mode", "yolo", "-m", "gemini-2.5-flash", "-p"]}


@pytest.mark.parametrize("name", WORDS)
def test_client_sessions_recall_memories_and_work(name: str, tmp_path: Path) -> None:
    try:
        program = node_packages.command(node_packages.codex() if name == "codex" else node_packages.GEMINI)
    except node_packages.Unobtainable as error:
        skip_or_fail(f"{name} is not to be had here: {error}")
    home, user = Home(tmp_path / "athena"), tmp_path / "user"
    (user / "harbour" / ".git").mkdir(parents=True)
    (user / f".{name}").mkdir()

    def run(*words: str, **more: str) -> None:
        path = f"{Path(program[0]).parent}{os.pathsep}/usr/bin{os.pathsep}/bin"
        around = home.environ(HOME=str(user), PATH=path, **more)
        folder = user / "harbour"
        done = subprocess.run(words, cwd=folder, env=around, stdin=subprocess.DEVNULL, capture_output=True, timeout=100)
        assert done.returncode == 0, done

    athena = (sys.executable, "-m", "athena")
    with model_stub.running() as model:
        settings = user / f".{name}" / ("config.toml" if name == "codex" else "settings.json")
        before = CODEX.replace("URL", model.url) if name == "codex" else GEMINI
        settings.write_text(before)
        try:
            run(*athena, "init", name)
            run(*athena, "remember", FACT, "--tags", "important")
            keys = {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": model.url, "STUB_KEY": "none"}
            model.says = [DONE]
            for prompt in ("Look at the retries", "What next?"):
                run(*program, *WORDS[name], prompt, **keys)
            first, second = (json.dumps(one) for one in model.requests)
            run(*athena, "init", name, "--remove")
        finally:
            home.stop()
    assert FACT in first
    assert DONE in second
    assert "athena" in json.dumps(model.requests[1]["tools"])
    assert settings.read_text() == before
    assert not (user / ".codex" / "hooks.json").exists()
