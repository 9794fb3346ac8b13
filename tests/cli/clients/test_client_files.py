"""`athena init` edits the files of clients: removal restores them, and entries of others stay untouched."""

import json
import os
import re
import shlex
import stat
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import plugin_files
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from athena import api
from athena.app.compose import App
from athena.cli import clients
from athena.cli.clients import CLIENTS, hook_entries, json_edit, plugin, toml_edit
from athena.cli.clients.files import BackupRecord, ConfigFile
from athena.cli.clients.setup import SetupTarget
from athena.cli.commands import athena
from athena.cli.init import INSTRUCTIONS_TOKENS, SKILL_TOKENS
from athena.core import tokens
from athena.errors import Conflict, Denied, InvalidInput, Misconfigured, Unavailable
from athena.hooks import client as hooks_client
from athena.hooks import launcher
from athena.operations import CATALOG
from athena.server.mcp import tools
from daemon_tools import Home

pytestmark = pytest.mark.sqlite_only("no store is touched")

ROOT = Path(__file__).parents[3]
CODE = "Library/Application Support" if sys.platform == "darwin" else ".config"
WHERE = {
    ("codex", "user"): ".codex/config.toml",
    ("codex", "project"): ".codex/config.toml",
    ("cursor", "user"): ".cursor/mcp.json",
    ("cursor", "project"): ".cursor/mcp.json",
    ("vscode", "user"): f"{CODE}/Code/User/mcp.json",
    ("vscode", "project"): ".vscode/mcp.json",
    ("gemini", "user"): ".gemini/settings.json",
    ("gemini", "project"): ".gemini/settings.json",
    ("windsurf", "user"): ".codeium/windsurf/mcp_config.json",
}
TOML = '# mine\nmodel = "o5"  # why\n\n[mcp_servers.other]\ncommand="x"\n\n[mcp_servers.other.env]\nA="1"\n'
JSONS = {
    "spaces": '{\n    "theme": "dark",\n    "KEY": {\n        "zeta": {"command": "z", "args": []},\n'
    '        "alpha": {"command": "a"}\n    },\n    "hooks": {"SessionStart": [{"hooks": []}], "Other": []}\n}\n',
    "tabs, no line at the end": '{\n\t"KEY": {\n\t\t"zeta": {\n\t\t\t"command": "z"\n\t\t}\n\t}\n}',
    "lines of Windows": '{\r\n  "KEY": {\r\n    "zeta": {"command": "z"}\r\n  }\r\n}\r\n',
    "one line": '{"KEY": {"zeta": {"command": "z"}}, "b": [1, 2]}',
    "comments": '// mine\n{\n  /* all */ "KEY": {\n    "zeta": {"command": "z"} // last {\n  },\n  "b": 1 // end\n}\n',
    "a comma at the end": '{\n  "KEY": {\n    "zeta": {"command": "z"},\n  },\n}\n',
    "an empty object": "{}",
    "an empty place": '{\n  "KEY": {\n  }\n}\n',
    "an empty file": "",
    "a mark at the beginning": '\ufeff{"a": 1}',
}


class Desk:
    def __init__(self, folder: Path, name: str, scope: str) -> None:
        self.user, self.project = folder / "user", folder / "user" / "harbour"
        self.project.mkdir(parents=True, exist_ok=True)
        self.bin = folder / "bin"
        self.bin.mkdir(exist_ok=True)
        self.client = CLIENTS[name]
        self.place = SetupTarget(
            str(folder / "athena"),
            self.user,
            self.project if scope == "project" else None,
            {"PATH": f"{self.bin}{os.pathsep}/usr/bin{os.pathsep}/bin"},
        )
        self.file = self.place.base_folder / WHERE[name, scope]
        self.key = "servers" if name == "vscode" else "mcpServers"

    def write(self, text: str) -> str:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(text.encode())
        return text

    @property
    def text(self) -> str:
        return self.file.read_bytes().decode()

    @property
    def ours(self) -> Any:
        if self.file.suffix == ".toml":
            return tomllib.loads(self.text).get("mcp_servers", {}).get("athena")
        return json_edit.get_value(json_edit.parse(self.text), (self.key, "athena"))

    def put(self) -> list[Any]:
        return clients.apply_setup(self.client, self.place, False)

    def take(self) -> list[Any]:
        return clients.apply_setup(self.client, self.place, True)


@pytest.fixture(params=WHERE, ids="-".join)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    return Desk(tmp_path, *request.param)


def sample_config(desk: Desk, kind: str = "spaces") -> str:
    return TOML if desk.file.suffix == ".toml" else JSONS[kind].replace("KEY", desk.key)


def test_install_then_remove_leaves_nothing(desk: Desk) -> None:
    planned = clients.plan_setup(desk.client, desk.place, False)
    assert "athena-mcp" in planned[0].format_diff()
    assert str(desk.file) in planned[0].format_diff()
    assert not desk.file.exists()
    desk.put()
    assert desk.ours["command"] == desk.place.mcp_path
    assert desk.put() == []
    desk.take()
    assert not desk.file.exists()
    assert not desk.file.parent.exists()
    assert desk.take() == []


def test_foreign_entries_stay_in_place(desk: Desk) -> None:
    before = desk.write(sample_config(desk))
    desk.file.chmod(0o640)
    desk.put()
    with_us = desk.text
    left = iter(with_us)
    assert all(letter in left for letter in before)  # setup only inserted text
    assert desk.put() == []
    assert desk.text == with_us
    assert stat.S_IMODE(desk.file.stat().st_mode) == 0o640
    assert [path.name for path in desk.file.parent.iterdir() if path.name.startswith(f".{desk.file.name}")] == []
    desk.take()
    assert desk.text == before


@pytest.mark.parametrize("kind", JSONS)
@pytest.mark.parametrize("name", ["cursor", "gemini"])
def test_json_layouts_survive_byte_for_byte(name: str, kind: str, tmp_path: Path) -> None:
    desk = Desk(tmp_path, name, "user")
    before = desk.write(sample_config(desk, kind))
    said = json_edit.parse(before) if before else {}
    desk.put()
    now = json_edit.parse(desk.text)
    assert now[desk.key].pop("athena")["command"] == desk.place.mcp_path
    for key, value in said.items():
        if key != "hooks":
            assert now[key] == value
    desk.take()
    assert desk.text == before


def test_toml_table_keeps_line_endings(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "codex", "user")
    before = desk.write(TOML.replace("\n", "\r\n"))
    desk.put()
    assert desk.text.count("\n") == desk.text.count("\r\n")
    more = "\r\n# the new one\r\n[profiles.new]\r\nx = 1\r\n"
    desk.write(desk.text + more)
    desk.take()
    assert desk.text == before + more


def test_changes_by_others_survive_removal(desk: Desk) -> None:
    before = desk.write(sample_config(desk))
    desk.put()

    def change(text: str) -> str:
        if desk.file.suffix == ".toml":
            return f"{text}\n# the new one\n[profiles.new]\nx = 1\n"
        return text.replace('"theme": "dark"', '"theme": "light"')

    desk.write(change(desk.text))
    assert desk.put() == []
    desk.take()
    assert desk.text == change(before)


def test_older_entry_is_replaced(desk: Desk) -> None:
    desk.write(sample_config(desk))
    desk.put()
    desk.write(desk.text.replace(desk.place.home, "/elsewhere/athena"))
    desk.put()
    assert desk.ours["command"] == desk.place.mcp_path
    desk.take()
    if desk.file.suffix == ".toml":
        assert desk.text == TOML
    else:
        assert json_edit.parse(desk.text) == json_edit.parse(sample_config(desk))


def test_users_changes_to_entry_are_kept(desk: Desk) -> None:
    before = desk.write(sample_config(desk))
    desk.put()
    assert not clients.is_setup_modified(desk.client, desk.place)
    write_command(desk, "codex", '[ "$2" = remove ]')  # re-adding would rewrite the entry
    write_command(desk, "code", "exit 3")
    if desk.file.suffix == ".toml":
        desk.write(f'{desk.text}startup_timeout_sec = 30  # slow\nenv = {{A = "1"}}\n')
    else:
        more = {"args": [*desk.ours.get("args", []), "--tools", "code"], "env": {"A": "1"}}
        desk.write(json_edit.set_value(desk.text, (desk.key, "athena"), desk.ours | more))
    changed, wanted = desk.text, desk.ours
    assert desk.put() == []
    assert clients.is_setup_modified(desk.client, desk.place)
    desk.write(changed.replace(desk.place.home, "/elsewhere/athena"))
    assert desk.put()
    assert desk.ours == wanted
    assert desk.text == changed or desk.client.name == "gemini"  # Gemini's hooks are rewritten
    desk.take()
    assert desk.text == before


def test_hooks_keep_users_timeout(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "gemini", "user")
    desk.put()
    desk.write(desk.text.replace('"timeout": 10000', '"timeout": 2000').replace(desk.place.home, "/elsewhere/athena"))
    assert desk.put()
    assert "/elsewhere" not in desk.text
    assert desk.text.count('"timeout": 2000') == 5
    assert desk.put() == []
    assert clients.is_setup_modified(desk.client, desk.place)


def test_broken_file_is_left_alone(desk: Desk) -> None:
    for broken in ("{", '{"a": 1} x', "[mcp_servers", '{"a": tru}', "\x00"):
        before = desk.write(broken)
        with pytest.raises(InvalidInput, match=desk.file.name):
            desk.put()
        assert desk.text == before
    desk.file.unlink()
    os.mkfifo(desk.file)  # reading a pipe would block
    with pytest.raises(Denied, match="no plain file"):
        desk.put()
    desk.file.unlink()
    desk.file.write_bytes(b"\xff\xfe{}")
    with pytest.raises(InvalidInput, match="no text"):
        desk.put()
    assert desk.file.read_bytes() == b"\xff\xfe{}"


def test_foreign_server_of_same_name_stays(desk: Desk) -> None:
    toml = '[mcp_servers.athena]\ncommand = "theirs"\n'
    other = json.dumps({desk.key: {"athena": {"command": "theirs"}}})
    before = desk.write(toml if desk.file.suffix == ".toml" else other)
    with pytest.raises(Conflict, match="not ours"):
        desk.put()
    desk.take()
    assert desk.text == before


def test_similar_command_is_left_alone(desk: Desk, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "athena-mcp"
    script.write_text("#!/bin/sh\n# A server for another Athena\n")
    for theirs in ("/opt/aws/bin/athena-mcp-server", "/opt/athena-mcp", "bin/athena-mcp", str(script)):
        toml = f'[mcp_servers.athena]\ncommand = "{theirs}"\nenv = {{HOME = "{desk.place.mcp_path}"}}\n'
        other = json.dumps({desk.key: {"athena": {"command": theirs, "env": {"HOME": desk.place.mcp_path}}}})
        before = desk.write(toml if desk.file.suffix == ".toml" else other)
        with pytest.raises(Conflict, match="athena is not ours"):
            desk.put()
        desk.take()
        assert desk.text == before


def test_launcher_in_other_home_is_ours(desk: Desk, tmp_path: Path) -> None:
    launcher.install_launchers(str(tmp_path / "old"))
    desk.write(sample_config(desk))
    desk.put()
    before = desk.text.count(desk.place.home)
    desk.write(desk.text.replace(desk.place.home, str(tmp_path / "old")))
    desk.put()
    assert desk.ours["command"] == desk.place.mcp_path
    assert desk.text.count(desk.place.home) == before


def test_group_around_our_hook_stays(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "cursor", "user")
    around = {"command": "nice", "args": [desk.place.mcp_path]}
    before = desk.write(json.dumps({"mcpServers": {"athena": around}}))
    assert desk.put() == []
    assert clients.is_setup_modified(desk.client, desk.place)
    assert desk.take() == []
    assert desk.text == before


@pytest.mark.parametrize("name", ["gemini", "codex"])
def test_removal_takes_only_our_hooks(name: str, tmp_path: Path) -> None:
    desk = Desk(tmp_path, name, "user")
    file = desk.file.with_name("hooks.json") if name == "codex" else desk.file
    event = "Stop" if name == "codex" else "AfterAgent"
    mine = {"type": "command", "command": "/home/me/bin/athena-hook-metrics.sh"}
    desk.put()
    data = json.loads(file.read_text())
    data["hooks"][event][0]["hooks"].insert(0, mine)
    data["hooks"][event].append({"matcher": "x", "hooks": [mine, mine]})
    file.write_text(json.dumps(data))
    assert desk.put() == []
    moved = (
        file.read_text()
        .replace(desk.place.home, "/elsewhere/athena")
        .replace('athena-hook stop"', 'athena-hook stop -v"')
    )
    file.write_text(moved)
    desk.put()
    assert json.loads(file.read_text()) == json.loads(moved.replace("/elsewhere/athena", desk.place.home))
    desk.take()
    assert json.loads(file.read_text()) == {
        "hooks": {event: [{"hooks": [mine]}, {"matcher": "x", "hooks": [mine, mine]}]}
    }


def test_duplicate_hooks_are_reduced_to_one(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "gemini", "user")
    desk.put()
    once = desk.text
    data = json.loads(once)
    (group,) = data["hooks"]["SessionStart"]
    old = json.loads(json.dumps(group).replace(desk.place.home, "/elsewhere/athena"))
    other = {"matcher": "resume", **old}
    data["hooks"]["SessionStart"] = [old, group, other, {"hooks": old["hooks"] * 2}]
    desk.write(json.dumps(data, indent=2) + "\n")
    desk.put()
    assert json.loads(desk.text)["hooks"]["SessionStart"] == [group, {"matcher": "resume", **group}]
    assert desk.put() == []
    desk.take()
    assert not desk.file.exists()


def test_handwritten_entry_is_restored(desk: Desk) -> None:
    toml = '[mcp_servers.athena]\ncommand = "athena"\nargs = ["mcp"]\n'
    other = json.dumps({desk.key: {"athena": {"command": "athena", "args": ["mcp"]}}})
    before = desk.write(toml if desk.file.suffix == ".toml" else other)
    desk.take()
    assert desk.text == before
    desk.put()
    assert desk.ours["command"] == desk.place.mcp_path
    desk.take()
    assert desk.text == before


def test_handwritten_entry_survives_other_changes(desk: Desk) -> None:
    write_command(desk, "codex", "exit 3")  # remove and re-add would drop the rest of the entry
    more = '[mcp_servers.athena.env]\nA = "1"\n\n# mine\n[mcp_servers.athena.tools.recall]\napproval_mode = "approve"\n'
    first = '[mcp_servers.athena]\ncommand = "athena"\nargs = [\n  "mcp", "--tools", "code",\n]\n'
    toml = f"{first}\n{more}\n[other]\nx = 1\n"
    entry = '{"command": "athena", "args": ["mcp", "--tools", "code"], /* mine */ "env": {"A": "1"}}'
    other = f'{{"{desk.key}": {{"athena": {entry}, "z": {{}}}}, "x": 1}}'
    before = desk.write(toml if desk.file.suffix == ".toml" else other)
    if desk.place.project is not None:  # it may be a stranger's
        with pytest.raises(Conflict, match="more than Athena wrote"):
            desk.put()
        assert desk.text == before
        return
    desk.put()
    assert desk.ours["command"] == desk.place.mcp_path
    assert desk.ours["args"][-2:] == ["--tools", "code"]
    assert "mcp" not in desk.ours["args"]
    assert desk.ours["env"] == {"A": "1"}
    # a file on one line stays on one line
    assert desk.file.suffix == ".toml" or "\n" not in desk.text.partition('"hooks"')[0]
    for now in ("2", "3"):  # the user changes another value, setup runs again, and the user changes it again

        def change(text: str, now: str = now) -> str:
            return re.sub(r'(x"?(?: =|:)) \d', rf"\1 {now}", text)

        desk.write(change(desk.text))
        desk.put()
    desk.write(change(desk.text))
    assert desk.take()
    assert desk.text == change(before)
    assert desk.take() == []


def test_handwritten_tables_are_restored(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "codex", "user")
    one, two = '[mcp_servers.athena]\ncommand = "athena"\nargs = ["mcp"]\n', '[mcp_servers.athena.env]\nA = "1"\n'
    for before, now in ((f"{one}\n{two}", ""), (one, f"\n{two}")):
        desk.write(before)
        desk.put()
        desk.write(desk.text.replace(f"\n{two}", "") + now + "\n[other]\n")
        desk.take()
        assert tomllib.loads(desk.text) == {**tomllib.loads(before), "other": {}}


def test_tables_added_inside_ours_stay(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "codex", "user")
    desk.put()
    more = '\n[mcp_servers.athena.env]\nA = "1"\n\n[mcp_servers.athena.tools.recall]\napproval_mode = "approve"\n'
    before = desk.write(desk.text + more)
    assert desk.put() == []
    desk.write(before.replace(desk.place.home, "/elsewhere/athena"))
    desk.put()
    assert desk.text == before
    desk.take()
    assert not desk.file.exists()


def test_symlink_stays_symlink(desk: Desk, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles"
    real.write_text(sample_config(desk))
    desk.file.parent.mkdir(parents=True)
    desk.file.symlink_to(real)
    if desk.place.project is not None:
        with pytest.raises(Denied, match="it is a link"):
            desk.put()
        assert real.read_text() == sample_config(desk)
        return
    desk.put()
    assert desk.file.is_symlink()
    assert "athena-mcp" in real.read_text()
    desk.take()
    assert desk.file.is_symlink()
    assert real.read_text() == sample_config(desk)


def test_unwritable_file_is_not_changed(desk: Desk) -> None:
    Path(desk.place.home).write_text("no folder")
    with pytest.raises(Denied, match="cannot be written"):
        desk.put()
    assert not desk.file.exists()
    Path(desk.place.home).unlink()
    desk.file.parent.parent.mkdir(parents=True, exist_ok=True)
    desk.file.parent.write_text("no folder")
    with pytest.raises(Denied, match=desk.file.name):
        desk.put()
    desk.file.parent.unlink()
    desk.file.parent.mkdir()
    desk.file.symlink_to("/proc/self/nothing")
    with pytest.raises(Denied, match="cannot be read" if desk.place.project else "cannot be written"):
        desk.put()
    if os.geteuid():
        desk.file.unlink()
        before = desk.write(sample_config(desk))
        desk.file.chmod(0o400)
        with pytest.raises(Denied, match="cannot be written"):
            desk.put()
        assert desk.text == before


def test_value_of_wrong_type_is_kept(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "gemini", "user")
    for text in ('{"mcpServers": []}', '{"hooks": 1}', '{"hooks": {"SessionStart": {}}}', "[]", '{"a": 1, "a": 2}'):
        before = desk.write(text)
        with pytest.raises(InvalidInput):
            desk.put()
        assert desk.text == before


def test_inline_tables_are_not_edited(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "codex", "user")
    before = desk.write('mcp_servers = {other = {command = "x"}}\n')
    with pytest.raises(Conflict):
        desk.put()
    assert desk.text == before
    inside = desk.write('text = """\n[mcp_servers.athena]\n"""\n')
    desk.put()
    assert desk.ours["command"] == desk.place.mcp_path
    desk.take()
    assert desk.text == inside


# --- our own files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    return tmp_path / "user" / ".claude" / "skills" / "athena"


def claude(folder: Path, remove: bool = False) -> list[Any]:
    place = SetupTarget(str(folder / "athena"), folder / "user", None, {"PATH": str(folder / "bin")})
    return clients.apply_setup(CLIENTS["claude-code"], place, remove)


def test_foreign_files_are_kept(tmp_path: Path, skill: Path) -> None:
    mine = {"README.md": "mine", ".mcp.json": '{"mcpServers": {"athena": {"command": "mine"}}}'}
    skill.mkdir(parents=True)
    for name, text in mine.items():
        (skill / name).write_text(text)
    with pytest.raises(Conflict, match="is not ours"):
        claude(tmp_path)
    assert claude(tmp_path, remove=True) == []
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "claude"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    claude(tmp_path)  # Claude Code gets a plugin, so there must be no folder of ours
    claude(tmp_path, remove=True)
    assert {path.name: path.read_text() for path in skill.rglob("*") if path.is_file()} == mine


def test_unchanged_own_files_are_renewed(tmp_path: Path, skill: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claude(tmp_path)
    texts = plugin.render_files
    # a newer version
    monkeypatch.setattr(plugin, "render_files", lambda *given: {**texts(*given), "README.md": "a newer one"})
    claude(tmp_path)
    assert (skill / "README.md").read_text() == "a newer one"
    manual = skill / "skills" / "athena" / "SKILL.md"
    manual.write_text("with my own words")
    with pytest.raises(Conflict, match=r"SKILL.md is not ours, or was changed"):
        claude(tmp_path)
    claude(tmp_path, remove=True)
    assert [path for path in skill.rglob("*") if path.is_file()] == [manual]
    manual.unlink()
    claude(tmp_path)
    claude(tmp_path, remove=True)
    assert not (tmp_path / "athena" / "clients.json").exists()


def test_foreign_server_in_plugin_folder_stays(tmp_path: Path, skill: Path) -> None:
    claude(tmp_path)
    servers = skill / ".mcp.json"
    servers.write_text(json_edit.set_value(servers.read_text(), ("mcpServers", "mine"), {"command": "mine"}))
    assert claude(tmp_path) == []
    claude(tmp_path, remove=True)
    assert [path for path in skill.rglob("*") if path.is_file()] == [servers]
    assert json.loads(servers.read_text()) == {"mcpServers": {"mine": {"command": "mine"}}}
    assert claude(tmp_path, remove=True) == []


# --- the client's own command -----------------------------------------------------------------------------------------


def write_command(desk: Desk, name: str, script: str) -> None:
    path = desk.bin / name
    path.write_text(f'#!/bin/sh\necho "$@" >>"{desk.bin}/said"\n{script}\n')
    path.chmod(0o755)


def test_clients_own_command_runs_first(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "codex", "user")
    before = desk.write(TOML)
    tidy = f"""
if [ "$2" = add ]; then printf 'model = "o5"\\n[mcp_servers.athena]\\ncommand = "%s"\\n' "$5" >"{desk.file}.new"
  printf '[mcp_servers.other]\\ncommand = "x"\\n[mcp_servers.other.env]\\nA = "1"\\n' >>"{desk.file}.new"
else printf 'model = "o5"\\n[mcp_servers.other]\\ncommand = "x"\\nenv = {{A = "1"}}\\n' >"{desk.file}.new"; fi
mv "{desk.file}.new" "{desk.file}" """
    write_command(desk, "codex", tidy)
    planned = clients.plan_setup(desk.client, desk.place, False)
    assert f"mcp add athena -- {desk.place.mcp_path}" in planned[0].format_diff()
    desk.put()
    assert desk.text.startswith(before)  # although the command reformatted the file
    assert desk.put() == []
    desk.take()
    assert desk.text == before
    assert (desk.bin / "said").read_text().splitlines() == [
        f"mcp add athena -- {desk.place.mcp_path}",
        "mcp remove athena",
    ]


def test_silent_command_falls_back_to_file(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "vscode", "user")
    write_command(desk, "code", "exit 0")
    desk.put()
    assert desk.ours == {"type": "stdio", "command": desk.place.mcp_path, "args": []}
    assert (desk.bin / "said").read_text().startswith('--add-mcp {"name": "athena"')
    desk.take()
    assert not desk.file.exists()


def test_failed_command_is_reported(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "codex", "user")
    before = desk.write(TOML)
    write_command(desk, "codex", "echo 'the disk is full' >&2; exit 3")
    with pytest.raises(Unavailable, match="the disk is full"):
        desk.put()
    assert desk.text == before


def test_concurrent_setups_keep_original_entry(tmp_path: Path) -> None:
    slow, quick = Desk(tmp_path, "codex", "user"), Desk(tmp_path, "gemini", "user")
    wait = 'n=0; while [ ! -e "$0.go" ] && [ $n -lt 1200 ]; do sleep 0.05; n=$((n+1)); done'
    write_command(slow, "codex", f': >"$0.begun"; {wait}')
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(slow.put)
        while not (slow.bin / "codex.begun").exists() and not one.done():
            time.sleep(0.01)
        other = pool.submit(quick.put)
        wait_a_little = time.monotonic() + 0.3
        while time.monotonic() < wait_a_little and not other.done():
            time.sleep(0.01)
        (slow.bin / "codex.go").touch()
        assert one.result()
        assert other.result()
    data = json.loads((tmp_path / "athena" / "clients.json").read_text())
    assert {str(slow.file), str(quick.file)} <= set(data)


def test_concurrent_user_write_is_not_lost(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    before = desk.write(sample_config(desk))
    theirs, keep = f"{before}\n", BackupRecord.save_original

    def meanwhile(record: BackupRecord, file: ConfigFile, was: str | None, after: str | None) -> None:
        keep(record, file, was, after)
        if file.path == desk.file:
            desk.write(theirs)

    monkeypatch.setattr(BackupRecord, "save_original", meanwhile)
    with pytest.raises(Conflict, match="somebody else just now"):
        desk.put()
    assert desk.text == theirs
    monkeypatch.undo()
    desk.put()
    desk.take()
    assert desk.text == theirs


@pytest.mark.parametrize("text", ["{", "[1]", "7"])
def test_damaged_record_is_reported(tmp_path: Path, text: str) -> None:
    desk = Desk(tmp_path, "cursor", "user")
    Path(desk.place.home).mkdir()
    (Path(desk.place.home) / "clients.json").write_text(text)
    with pytest.raises(Misconfigured, match="damaged"):
        desk.put()
    assert not desk.file.exists()


# --- athena init ------------------------------------------------------------------------------------------------------


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "someone"
    (folder / "harbour" / ".git").mkdir(parents=True)
    (folder / "harbour" / "src").mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name in ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder / "harbour" / "src")
    return folder


def run(*words: str) -> int:
    return athena(args=["init", *words], prog_name="athena", standalone_mode=False)


def test_init_reports_changes_cost_and_undo(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("gemini", "--dry-run") == 0
    assert '+    "athena": {' in capsys.readouterr().out
    assert not (user / ".gemini").exists()
    assert run("gemini") == 0
    output = capsys.readouterr().out
    assert "changed" in output
    assert "900 for the briefing" in output
    assert "remove: athena init gemini --remove" in output
    assert "athena session told" in output
    assert "[hooks]" in output
    assert os.access(Path(os.environ["ATHENA_HOME"]) / "bin" / "athena-mcp", os.X_OK)
    assert run("gemini") == 0
    assert "nothing to do" in capsys.readouterr().out
    assert run("--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["found"]
    assert (found["client"], found["set_up"], found["changed_by_you"], found["would"]) == ("gemini", True, False, [])
    assert run("gemini", "--remove", "--json") == 0
    assert json.loads(capsys.readouterr().out)["removed"]
    assert not (user / ".gemini").exists()


def test_project_is_git_root(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cursor", "--project") == 0
    output = capsys.readouterr().out
    assert f"do not share {user / 'harbour' / '.cursor' / 'mcp.json'}\n" in output
    assert "--tools code" in output
    assert "hooks" not in output
    assert "session told" not in output
    data = json.loads((user / "harbour" / ".cursor" / "mcp.json").read_text())
    assert data["mcpServers"]["athena"]["args"] == ["--folder", "${workspaceFolder}"]
    data["mcpServers"]["athena"]["args"] += ["--tools", "code"]
    (user / "harbour" / ".cursor" / "mcp.json").write_text(json.dumps(data))
    assert run("cursor", "--project") == 0
    assert "nothing to do, it is set up (changed by you)" in capsys.readouterr().out
    assert not (user / ".cursor").exists()


def test_command_is_shown_with_its_file(
    user: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (user / "bin").mkdir()
    (user / "bin" / "claude").write_text("#!/bin/sh\n")
    (user / "bin" / "claude").chmod(0o755)
    monkeypatch.setenv("PATH", f"{user / 'bin'}:/usr/bin:/bin")
    assert run("claude-code", "--dry-run") == 0
    assert (
        f"install athena@athena --scope user  # writes {user / '.claude' / 'settings.json'}\n"
        in capsys.readouterr().out
    )
    assert run("claude-code", "--project") == 0
    output = capsys.readouterr().out
    local = user / "harbour" / ".claude" / "settings.local.json"
    assert f"changed {local}\n" in output
    assert f"do not share {local}\n" in output


@pytest.mark.parametrize("name", ["codex", "gemini"])
def test_project_gets_no_second_hooks(user: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name) == 0
    assert run(name, "--project") == 0
    assert "it is set up for all projects already" in capsys.readouterr().out
    assert not (user / "harbour" / f".{name}").exists()
    run(name, "--remove")
    run(name, "--project")
    assert (user / "harbour" / f".{name}").exists()
    run(name)
    capsys.readouterr()
    run(name, "--project")
    assert f"athena init {name} --project --remove" in capsys.readouterr().out
    run(name, "--project", "--remove")
    assert not (user / "harbour" / f".{name}").exists()


def test_existing_claude_server_is_named(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {"mcpServers": {"athena": {"type": "stdio", "command": ".venv/bin/athena", "args": ["mcp"]}, "x": {}}}
    harbour = str(user / "harbour")
    (user / ".claude.json").write_text(json.dumps({"projects": {harbour: own, "/other": {"mcpServers": None}}}))
    assert run("claude-code", "--dry-run") == 0
    assert f"cd {harbour} && claude mcp remove athena --scope local" in capsys.readouterr().out
    (user / ".claude.json").write_text(json.dumps(own))
    assert run("claude-code", "--project", "--json") == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note.endswith(": claude mcp remove athena --scope user")
    (user / ".claude.json").write_text("{")
    assert run("claude-code", "--project", "--json") == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


def test_contradictory_options_are_refused(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("windsurf", "--project") == 2
    assert "--user" in capsys.readouterr().err
    assert run("cursor", "--project", "--user") == 2
    assert run("emacs") == 2
    assert run() == 0
    assert "none of these is found" in capsys.readouterr().out
    (user / ".gemini").mkdir()
    (user / ".gemini" / "settings.json").write_text("{")
    assert run() == 0
    assert "cannot be set up" in capsys.readouterr().out


def test_names_and_hooks_match_clients(tmp_path: Path) -> None:
    place = SetupTarget(str(tmp_path), tmp_path, None, {"PATH": ""})
    with_hooks = [
        name
        for name, client in CLIENTS.items()
        if any("athena-hook" in change.format_diff() for change in clients.plan_setup(client, place, False))
    ]
    assert with_hooks == [name for name, client in CLIENTS.items() if client.hooks]


# --- the plugin -------------------------------------------------------------------------------------------------------


def test_plugin_in_repository_is_current() -> None:
    files = plugin_files.wanted()
    assert [path.name for path, text in files.items() if path.read_text("utf-8") != text] == []
    assert {path for path in (ROOT / "plugins" / "claude-code").rglob("*") if path.is_file()} <= set(files)
    assert os.access(ROOT / "plugins" / "claude-code" / "hooks" / "athena-hook", os.X_OK)


def test_plugin_events_are_answered() -> None:
    data = json.loads(plugin.render_files("/x", "/y", [])["hooks/hooks.json"])["hooks"]
    assert data
    for (group,) in data.values():
        (hook,) = group["hooks"]
        assert hook["args"][0] in hooks_client.EVENTS
        assert hook["timeout"] > 5


def test_skill_names_existing_operations(isolated: App) -> None:
    skill = plugin.render_files()["skills/athena/SKILL.md"]
    taught = set(re.findall(r"`(\w+)\.(\w+)[(`]", skill))
    assert len(taught) >= 5
    assert taught <= {(operation.category, operation.name) for operation in CATALOG}
    api.store("Tugs are ordered by radio", tags="tugs")
    program = skill.partition("```python\n")[2].partition("```")[0]
    assert api.call("execute_code", code=program)["result"] == [["tugs", 1]]


@pytest.mark.parametrize("name", CLIENTS)
def test_pages_document_cost_and_removal(name: str) -> None:
    page = (ROOT / "docs" / "clients" / f"{name}.md").read_text("utf-8")
    parts = {match[1]: match[2] for match in re.finditer(r"^\*\*([\w ]+)\.\*\* (.*?)(?=^\*\*|\Z)", page, re.M | re.S)}
    assert {"What it installs", "What it costs", "See", "Limit", "Remove"} <= set(parts)
    assert re.search(r"\d+ o200k tokens", parts["What it costs"])
    assert "athena savings" in parts["See"]
    assert ("athena session told" in parts["See"]) == CLIENTS[name].hooks
    assert ("[hooks]" in parts["Limit"]) == CLIENTS[name].hooks
    assert f"athena init {name} --remove" in parts["Remove"]


def test_documented_token_counts_are_right() -> None:
    head = plugin.render_files()["skills/athena/SKILL.md"].split("---")[1]
    assert tokens.count_tokens_exactly(head) <= SKILL_TOKENS
    assert tokens.count_tokens_exactly(tools.INSTRUCTIONS) <= INSTRUCTIONS_TOKENS


def test_unconfigured_plugin_finds_athena(tmp_path: Path) -> None:
    script = tmp_path / "athena-hook"
    script.write_text(plugin.render_files()["hooks/athena-hook"])
    (tmp_path / "home" / "bin").mkdir(parents=True)

    def said(path: str) -> tuple[int, str]:
        around = {"PATH": path, "HOME": str(tmp_path), "ATHENA_HOME": str(tmp_path / "home")}
        done = subprocess.run(["/bin/sh", script, "stop"], env=around, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    assert said("/usr/bin:/bin") == (0, "")
    for name, place in (("athena", tmp_path), ("athena-hook", tmp_path / "home" / "bin")):
        (place / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (place / name).chmod(0o755)
    assert said("/usr/bin:/bin") == (0, "athena-hook stop\n")
    (tmp_path / "home" / "bin" / "athena-hook").unlink()
    assert said(f"{tmp_path}:/usr/bin:/bin") == (0, "athena hook stop\n")
    # exit code 2 would block a prompt
    (tmp_path / "athena").write_text("#!/bin/sh\necho no such command >&2\nexit 2\n")
    assert said(f"{tmp_path}:/usr/bin:/bin") == (0, "")


def test_unconfigured_plugin_ignores_working_folder(tmp_path: Path) -> None:
    (tmp_path / "athena" / "bin").mkdir(parents=True)
    launched = tmp_path / "athena" / "bin" / "athena-hook"
    launched.write_text("#!/bin/sh\necho ran\n")
    launched.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(plugin.render_files()["hooks/athena-hook"])

    def said(data: str) -> bytes:
        around = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_DATA_HOME": data}
        return subprocess.run(
            ["/bin/sh", script, "stop"], env=around, cwd=tmp_path, capture_output=True, check=True
        ).stdout

    assert said(".") == said("") == b""
    assert said(str(tmp_path)) == b"ran\n" or sys.platform == "darwin"


def test_server_launcher_reports_missing_package(tmp_path: Path) -> None:
    launcher.install_launchers(str(tmp_path))
    script = tmp_path / "bin" / "athena-mcp"
    script.write_text(script.read_text().replace(shlex.quote(sys.executable), "/nowhere/python3"))
    done = subprocess.run([script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no Python at /nowhere/python3; run athena init again" in done.stderr


def test_server_launcher_uses_home_and_folder(tmp_path: Path) -> None:
    home = Home(tmp_path / """it's $(touch x) "here" `y`""")
    home.install()
    (tmp_path / "harbour" / ".git").mkdir(parents=True)
    (tmp_path / "json.py").write_text("raise SystemExit('code of the folder')")
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    keep = {"name": "remember", "arguments": {"content": "Tugs are ordered by radio"}}
    said = [("initialize", hello), ("tools/call", keep)]
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": given})
        for number, (method, given) in enumerate(said)
    ]
    lines.insert(1, '{"jsonrpc": "2.0", "method": "notifications/initialized"}')
    around = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    script = [str(home.path / "bin" / "athena-mcp"), "--folder", str(tmp_path / "harbour")]
    try:
        done = subprocess.run(
            script, input="\n".join([*lines, ""]), cwd=tmp_path, env=around, capture_output=True, text=True, timeout=60
        )
        assert "kept" in done.stdout.splitlines()[-1], done
        assert "Tugs" in home.athena("recall", "tugs", project=str(tmp_path / "harbour"))
    finally:
        home.stop()


# --- property-based round trips ---------------------------------------------------------------------------------------

VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(max_size=8),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
FILES = some.dictionaries(some.text(max_size=5), VALUES, max_size=4)


@given(FILES, some.sampled_from([None, 1, 4, "\t"]), some.dictionaries(some.text(min_size=1, max_size=5), VALUES))
def test_any_json_round_trips(said: dict[str, Any], indent: Any, servers: dict[str, Any]) -> None:
    said = {**said, "servers": {key: value for key, value in servers.items() if key != "athena"}}
    text = json.dumps(said, indent=indent, ensure_ascii=False)
    with_us = json_edit.set_value(text, ("servers", "athena"), {"command": "x"})
    wanted = {**said, "servers": {**said["servers"], "athena": {"command": "x"}}}
    assert json.loads(with_us) == wanted
    assert list(json.loads(with_us)) == list(wanted)
    without = json_edit.remove_value(with_us, ("servers", "athena"), lambda _: True, said)
    assert without == text


COMMANDS = some.fixed_dictionaries({"command": some.text(max_size=8)}) | VALUES
GROUPS = some.lists(some.fixed_dictionaries({"hooks": some.lists(COMMANDS, max_size=3)}) | VALUES, max_size=3)


@settings(max_examples=40)
@given(GROUPS, some.sampled_from([None, 1, 4, "\t"]), some.data())
def test_any_hook_list_round_trips(groups: list[Any], indent: Any, data: Any) -> None:
    text = json.dumps({"hooks": {"Stop": groups}}, indent=indent)
    ours = {"hooks": [{"type": "command", "command": "/nowhere/bin/athena-hook stop"}]}
    path = ("hooks", "Stop")
    with_us = hook_entries.add_hook_group(text, path, ours)
    assert json.loads(with_us)["hooks"]["Stop"] == [*groups, ours]
    assert hook_entries.add_hook_group(with_us, path, ours) == with_us
    assert hook_entries.remove_hooks(with_us, path, json.loads(text)) == text
    shared = [at for at, one in enumerate(groups) if isinstance(one, dict) and one.get("hooks")]
    if shared and isinstance(groups[at := data.draw(some.sampled_from(shared))]["hooks"], list):
        place = data.draw(some.integers(0, len(groups[at]["hooks"])))
        mixed = json.loads(text)
        mixed["hooks"]["Stop"][at]["hooks"].insert(place, ours["hooks"][0])
        assert json.loads(hook_entries.remove_hooks(json.dumps(mixed, indent=indent), path, None)) == json.loads(text)


@given(some.dictionaries(some.from_regex(r"[a-z]{1,5}", fullmatch=True), some.integers() | some.booleans(), max_size=3))
def test_any_toml_round_trips(said: dict[str, Any]) -> None:
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in said.items())
    with_us = toml_edit.set_value(text, ("servers", "athena"), {"command": 'a "quoted" \\ path'})
    assert tomllib.loads(with_us) == {**said, "servers": {"athena": {"command": 'a "quoted" \\ path'}}}
    assert toml_edit.remove_value(with_us, ("servers", "athena"), lambda _: True) == text
