"""The real Claude Code, set up by `athena init`, with a stub instead of the model."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import node_packages
import pytest

import model_stub
from athena.cli.clients import plugin
from conftest import skip_or_fail
from daemon_tools import Home

# the first test downloads the client
pytestmark = [pytest.mark.sqlite_only("each has a store of its own"), pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[3]
SETTINGS = '{\n    "model": "opus",\n    "env": {"EDITOR": "vi"}, "permissions": {\n\t"allow": []}\n}'
FACT = "Releases are signed with the key in the blue safe"
DONE = "The billing worker now retries three times, because the bank rejects a fourth attempt within a minute."
TOOL = "mcp__plugin_athena_athena__"


class Desk:
    """A user's home with Claude Code on the PATH, a project, and Athena's home."""

    def __init__(self, folder: Path, program: str | None) -> None:
        self.user, self.project = folder / "user", folder / "user" / "harbour"
        self.athena = Home(folder / "athena")
        (self.project / ".git").mkdir(parents=True)
        (self.user / ".claude").mkdir()
        self.settings = self.user / ".claude" / "settings.json"
        self.settings.write_text(SETTINGS)
        (folder / "bin").mkdir()
        if program is not None:
            (folder / "bin" / "claude").symlink_to(program)
        self.path = f"{folder / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        around = self.athena.environ(HOME=str(self.user), PATH=self.path, **quiet, **more)
        return subprocess.run(
            words, cwd=self.project, env=around, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
        )

    def init(self, *words: str) -> Any:
        done = self.run(sys.executable, "-m", "athena", "init", "claude-code", "--json", *words)
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    @property
    def marketplaces(self) -> Any:
        return json.loads((self.user / ".claude" / "plugins" / "known_marketplaces.json").read_text())

    def call(self, operation: str, **given: Any) -> Any:
        done = self.run(sys.executable, "-m", "athena", "call", operation, "--json", json.dumps(given))
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def session(self, model: model_stub.Model, prompt: str, program: str, *words: str) -> str:
        key = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none"}
        done = self.run(program, "-p", prompt, *words, **key)
        assert done.returncode == 0, done
        return done.stdout


@pytest.fixture(scope="session")
def claude() -> str:
    try:
        return node_packages.command(node_packages.claude_code())[0]
    except node_packages.Unobtainable as error:
        skip_or_fail(f"Claude Code is not to be had here: {error}")


@pytest.fixture
def desk(claude: str, tmp_path: Path) -> Generator[Desk]:
    made = Desk(tmp_path, claude)
    yield made
    made.athena.stop()


def injected_text(request: dict[str, Any]) -> str:
    """Return the text that hooks added to the prompt."""
    texts = [part["text"] for one in request["messages"] for part in one["content"] if part["type"] == "text"]
    (found,) = [text for text in texts if "<athena-memory>" in text]
    return str(found).partition("<athena-memory>")[2].partition("</athena-memory>")[0]


def test_claude_sessions_recall_memories_and_work(desk: Desk, claude: str) -> None:
    assert desk.init("--dry-run")["changed"]
    assert desk.settings.read_text() == SETTINGS
    assert desk.init()["changed"]
    with_us = desk.settings.read_text()
    # other settings keep their text, order and whitespace
    assert with_us.startswith(SETTINGS[: SETTINGS.rindex("\n}")])
    assert desk.init()["changed"] == []
    assert desk.settings.read_text() == with_us
    desk.call("remember", content=FACT, tags=["important"])

    with model_stub.running() as model:
        keep = {"content": "Tugs are ordered by radio", "tags": ["tugs"]}
        model.says = [(f"{TOOL}remember", keep), ("Bash", {"command": "true harbour"}), DONE]
        allowed = ("--allowedTools", f"{TOOL}remember,Bash")
        assert desk.session(model, "Look at the retries", claude, *allowed).strip() == DONE
        first = model.asked("Look at the retries")
        assert FACT in injected_text(first)
        tools = {tool["name"].removeprefix(TOOL) for tool in first["tools"] if tool["name"].startswith(TOOL)}
        assert tools == {"search_tools", "execute_code", "remember", "recall"}

        desk.session(model, "What next?", claude)
        second = injected_text(model.asked("What next?"))
    assert "retries three times, because the bank rejects a fourth" in second
    assert "Tugs are ordered by radio" in second
    events = [event["content"] for event in desk.call("recall_events", limit=20)]
    assert any("true harbour" in event for event in events), events

    desk.init("--remove")
    assert desk.settings.read_text() == SETTINGS
    assert not (desk.athena.path / "plugins" / "claude-code").exists()
    assert desk.marketplaces == {}
    assert desk.init("--remove")["changed"] == []


def test_project_scope_writes_project_settings(desk: Desk) -> None:
    local = desk.project / ".claude" / "settings.local.json"
    desk.init("--project")
    assert json.loads(local.read_text())["enabledPlugins"] == {"athena@athena": True}
    assert desk.settings.read_text() == SETTINGS
    first, desk.project = desk.project, desk.user / "lighthouse"
    (desk.project / ".git").mkdir(parents=True)
    desk.init("--project")
    desk.init("--project", "--remove")
    assert not (desk.project / ".claude").exists()
    desk.project = first
    assert desk.init("--project")["changed"] == []  # still installed, although the other scope was removed
    changed = json.loads(local.read_text()) | {"model": "haiku"}
    local.write_text(json.dumps(changed))
    server = desk.athena.path / "plugins" / "claude-code" / ".mcp.json"
    server.write_text(server.read_text().replace("true", "false"))
    desk.init()
    (copied,) = (desk.user / ".claude" / "plugins" / "cache").rglob(".mcp.json")
    assert copied.read_text() == server.read_text()
    desk.init("--project", "--remove")
    assert json.loads(local.read_text()) == {"model": "haiku"}
    assert desk.init()["changed"] == []  # the plugin folder that both scopes use is still there
    desk.init("--remove")
    assert desk.settings.read_text() == SETTINGS
    assert not (desk.athena.path / "plugins" / "claude-code").exists()
    assert desk.marketplaces == {}


def test_broken_settings_are_left_alone(desk: Desk) -> None:
    desk.settings.write_text('{"model": ')
    done = desk.run(sys.executable, "-m", "athena", "init", "claude-code")
    assert done.returncode == 2
    assert "settings.json" in done.stderr
    assert desk.settings.read_text() == '{"model": '


def test_foreign_marketplace_is_left_alone(desk: Desk) -> None:
    other = {"extraKnownMarketplaces": {"athena": {"source": {"source": "github", "repo": "someone/athena"}}}}
    desk.settings.write_text(json.dumps(other))
    done = desk.run(sys.executable, "-m", "athena", "init", "claude-code")
    assert done.returncode == 4
    assert "marketplace remove athena" in done.stderr
    assert desk.init("--remove")["changed"] == []
    assert json.loads(desk.settings.read_text()) == other


def test_plugin_passes_clients_validator(desk: Desk, claude: str, tmp_path: Path) -> None:
    for name, text in plugin.render_files(
        "/home/me/athena/bin/athena-hook", "/home/me/athena/bin/athena-mcp", []
    ).items():
        (tmp_path / "plugin" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "plugin" / name).write_text(text)

    def validate(folder: Path) -> int:
        return desk.run(claude, "plugin", "validate", "--strict", str(folder)).returncode

    assert [validate(folder) for folder in (ROOT, ROOT / "plugins" / "claude-code", tmp_path / "plugin")] == [0, 0, 0]
    hooks = tmp_path / "plugin" / "hooks" / "hooks.json"
    hooks.write_text(hooks.read_text().replace('"SessionStart"', '"SessionBegin"'))
    assert validate(tmp_path / "plugin") == 1


def test_plugin_folder_is_found_without_command(claude: str, tmp_path: Path) -> None:
    desk = Desk(tmp_path, None)
    try:
        assert desk.init()["changed"]
        details = desk.run(claude, "plugin", "details", "athena")
        assert "athena@skills-dir" in details.stdout, details
        assert "SessionStart" in details.stdout
        server = desk.user / ".claude" / "skills" / "athena" / ".mcp.json"
        server.write_text(server.read_text().replace("true", "false"))
        assert desk.init()["changed"] == []
        (found,) = json.loads(desk.run(sys.executable, "-m", "athena", "init", "--json").stdout)["found"]
        assert (found["set_up"], found["changed_by_you"]) == (True, True)
        desk.init("--remove")
        assert not (desk.user / ".claude" / "skills" / "athena").exists()
        assert desk.settings.read_text() == SETTINGS
    finally:
        desk.athena.stop()
