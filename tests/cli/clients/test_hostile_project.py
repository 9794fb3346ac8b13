"""`athena init --project` in a repository of a stranger: no link there leads us out of it."""

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from athena.cli import clients
from athena.cli.clients import CLIENTS
from athena.cli.clients.setup import SetupTarget
from athena.errors import AthenaError, Denied

pytestmark = pytest.mark.sqlite_only("no store is touched")

PROJECT_CLIENTS = [name for name, client in CLIENTS.items() if client.per_project]
FOLDERS = {
    "claude-code": ".claude",
    "codex": ".codex",
    "cursor": ".cursor",
    "vscode": ".vscode",
    "gemini": ".gemini",
}
FILES = {
    "claude-code": ".claude/skills/athena/.mcp.json",
    "codex": ".codex/config.toml",
    "cursor": ".cursor/mcp.json",
    "vscode": ".vscode/mcp.json",
    "gemini": ".gemini/settings.json",
}


@pytest.fixture
def target(tmp_path: Path) -> SetupTarget:
    for name in ("user", "repository", "victim"):
        (tmp_path / name).mkdir()
    environ = {"PATH": str(tmp_path / "no-programs")}
    return SetupTarget(str(tmp_path / "athena"), tmp_path / "user", tmp_path / "repository", environ)


def read_tree(folder: Path) -> dict[str, bytes | None]:
    """Return all that is in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def set_up_and_remove(target: SetupTarget, name: str) -> list[AthenaError]:
    """Set a client up in the project and remove it again; return the errors."""
    errors = []
    for remove in (False, True):
        try:
            clients.apply_setup(CLIENTS[name], target, remove)
        except AthenaError as error:
            errors.append(error)
    return errors


@pytest.mark.parametrize("name", PROJECT_CLIENTS)
def test_linked_folder_is_not_followed(target: SetupTarget, tmp_path: Path, name: str) -> None:
    assert target.project
    (target.project / FOLDERS[name]).symlink_to(tmp_path / "victim")
    errors = set_up_and_remove(target, name)
    assert [type(error) for error in errors[:1]] == [Denied]
    assert "link" in str(errors[0])
    assert read_tree(tmp_path / "victim") == {}


@pytest.mark.parametrize("name", PROJECT_CLIENTS)
def test_linked_file_is_neither_read_nor_written(target: SetupTarget, tmp_path: Path, name: str) -> None:
    assert target.project
    file = target.project / FILES[name]
    file.parent.mkdir(parents=True)
    victim = tmp_path / "victim" / file.name
    victim.write_text('{"private": "words"}' if file.suffix == ".json" else 'private = "words"')
    before = read_tree(tmp_path / "victim")
    file.symlink_to(victim)
    errors = set_up_and_remove(target, name)
    assert [type(error) for error in errors[:1]] == [Denied]
    assert read_tree(tmp_path / "victim") == before
    record = tmp_path / "athena" / "clients.json"
    assert not record.exists() or "words" not in record.read_text()


@pytest.mark.parametrize("name", PROJECT_CLIENTS)
def test_link_to_a_missing_file_creates_nothing(target: SetupTarget, tmp_path: Path, name: str) -> None:
    assert target.project
    file = target.project / FILES[name]
    file.parent.mkdir(parents=True)
    file.symlink_to(tmp_path / "victim" / "autostart.sh")
    assert set_up_and_remove(target, name)
    assert read_tree(tmp_path / "victim") == {}


def test_removal_deletes_nothing_behind_a_later_link(target: SetupTarget, tmp_path: Path) -> None:
    """Exchange the folder for a link after the set-up, as a pull can."""
    assert target.project
    clients.apply_setup(CLIENTS["cursor"], target, False)
    folder = target.project / ".cursor"
    folder.rename(tmp_path / "victim" / "cursor")
    folder.symlink_to(tmp_path / "victim" / "cursor")
    before = read_tree(tmp_path / "victim")
    with pytest.raises(Denied, match="link"):
        clients.apply_setup(CLIENTS["cursor"], target, True)
    assert before
    assert read_tree(tmp_path / "victim") == before


def test_exchange_for_a_link_during_the_set_up_writes_nothing_outside(target: SetupTarget, tmp_path: Path) -> None:
    """Swap the client's folder and a link all the time: no check can come before its use."""
    assert target.project
    folder, spare = target.project / ".cursor", target.project / "spare"
    folder.mkdir()
    stopped = threading.Event()

    def exchange() -> None:
        while not stopped.is_set():
            with suppress(OSError):  # the set-up creates the folder in between
                folder.rename(spare)
                folder.symlink_to(tmp_path / "victim")
                folder.unlink()
                spare.rename(folder)
            shutil.rmtree(spare, ignore_errors=True)

    thread = threading.Thread(target=exchange)
    thread.start()
    successes = failures = 0
    try:
        for _ in range(2_000):
            try:
                clients.apply_setup(CLIENTS["cursor"], target, bool(successes % 2))
                successes += 1
            except AthenaError:
                failures += 1
            assert read_tree(tmp_path / "victim") == {}
            if failures >= 30 and successes >= 30:
                break
    finally:
        stopped.set()
        thread.join()
    assert failures
    assert successes


def test_program_in_the_project_is_not_run(target: SetupTarget) -> None:
    assert target.project
    program = target.project / "claude"
    program.write_text("#!/bin/sh\ntouch ran\n")
    program.chmod(0o755)
    hostile = target._replace(environ={"PATH": f".{os.pathsep}{os.pathsep}bin"})
    before = os.getcwd()
    os.chdir(target.project)
    try:
        assert hostile.find_program("claude") is None
    finally:
        os.chdir(before)
