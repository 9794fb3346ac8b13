"""A hostile folder leads git to another repository: nothing of that one enters the surroundings here."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from athena.core.home import paths
from athena.hooks import git
from athena.memory.sessions.values import GitContext

pytestmark = pytest.mark.sqlite_only("no store is touched")

RUN = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always")


def run_git(folder: Path, *command: str) -> str:
    completed = subprocess.run([*RUN, *command], cwd=folder, check=True, capture_output=True, timeout=60, text=True)
    return completed.stdout.strip()


def create_repository(folder: Path, branch: str, name: str, subject: str) -> Path:
    folder.mkdir()
    run_git(folder, "init", "-q", "-b", branch)
    (folder / name).write_text("1\n")
    run_git(folder, "add", ".")
    run_git(folder, "commit", "-q", "-m", subject)
    (folder / name).write_text("changed\n")
    return folder


@pytest.fixture
def private(tmp_path: Path) -> Path:
    return create_repository(tmp_path / "private", "private-branch", "private.py", "private subject")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return create_repository(tmp_path / "repo", "main", "own.py", "own subject")


def replace_with_link(path: Path, target: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def name_other_folder(repo: Path, private: Path) -> None:
    shutil.rmtree(repo / ".git")
    (repo / ".git").write_text(f"gitdir: {private}/.git\n")


def link_git_folder(repo: Path, private: Path) -> None:
    replace_with_link(repo / ".git", private / ".git")


def name_common_folder(repo: Path, private: Path) -> None:
    (repo / ".git" / "commondir").write_text(f"{private}/.git\n")
    (repo / ".git" / "HEAD").write_text("ref: refs/heads/private-branch\n")


def link_head(repo: Path, private: Path) -> None:
    replace_with_link(repo / ".git" / "HEAD", private / ".git" / "HEAD")


def link_refs(repo: Path, private: Path) -> None:
    replace_with_link(repo / ".git" / "objects", private / ".git" / "objects")
    replace_with_link(repo / ".git" / "refs", private / ".git" / "refs")
    (repo / ".git" / "HEAD").write_text("ref: refs/heads/private-branch\n")


def link_branch(repo: Path, private: Path) -> None:
    replace_with_link(repo / ".git" / "objects", private / ".git" / "objects")
    replace_with_link(repo / ".git" / "refs" / "heads" / "main", private / ".git" / "refs" / "heads" / "private-branch")


def chain_refs(repo: Path, private: Path) -> None:
    link_branch(repo, private)
    (repo / ".git" / "refs" / "heads" / "first").write_text("ref: refs/heads/main\n")
    (repo / ".git" / "HEAD").write_text("ref: refs/heads/first\n")


def link_packed_refs(repo: Path, private: Path) -> None:
    run_git(private, "pack-refs", "--all")
    replace_with_link(repo / ".git" / "objects", private / ".git" / "objects")
    replace_with_link(repo / ".git" / "packed-refs", private / ".git" / "packed-refs")
    (repo / ".git" / "HEAD").write_text("ref: refs/heads/private-branch\n")


def link_index(repo: Path, private: Path) -> None:
    replace_with_link(repo / ".git" / "index", private / ".git" / "index")


def forge_work_tree(repo: Path, private: Path) -> None:
    run_git(private, "worktree", "add", "-q", "-b", "private-aside", str(private.parent / "aside"))
    shutil.rmtree(repo / ".git")
    (repo / ".git").write_text(f"gitdir: {private}/.git/worktrees/aside\n")


def name_two_lines(repo: Path, private: Path) -> None:
    """Write a path that git reads as one, while its first line is a work tree that the folder brings along."""
    shutil.move(repo / ".git", repo / "real")
    for name in ("tree", "tree\n"):
        folder = repo / "real" / "worktrees" / name
        folder.mkdir(parents=True)
        (folder / "commondir").write_text("../..\n")
        (folder / "gitdir").write_text(f"{repo}/.git\n")
        (folder / "HEAD").write_text("ref: refs/heads/main\n")
    (repo / ".git").write_text("gitdir: real/worktrees/tree\n/../../../../private/.git\n")


def test_link_to_a_work_tree_names_no_other_project(repo: Path, private: Path) -> None:
    run_git(private, "worktree", "add", "-q", "-b", "private-aside", str(private.parent / "aside"))
    assert paths.current_project({}, str(private.parent / "aside")) == str(private)
    shutil.rmtree(repo / ".git")
    (repo / ".git").symlink_to(private.parent / "aside" / ".git")
    assert paths.current_project({}, str(repo)) == str(repo)


@pytest.mark.parametrize(
    "attack",
    [
        name_other_folder,
        link_git_folder,
        name_common_folder,
        link_head,
        link_refs,
        link_branch,
        chain_refs,
        link_packed_refs,
        link_index,
        forge_work_tree,
        name_two_lines,
    ],
)
def test_other_repository_is_not_read(repo: Path, private: Path, attack: Callable[[Path, Path], None]) -> None:
    assert "private" in str(git.read_surroundings(str(private), timeout_s=60))
    attack(repo, private)
    context = git.read_surroundings(str(repo), timeout_s=60)
    branch = None if attack in (name_common_folder, link_refs, link_packed_refs) else context.branch
    assert "private" not in str(context._replace(branch=branch))  # these wrote the word into their own HEAD


def test_work_tree_of_the_configuration_is_ignored(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    run_git(repo, "config", "core.worktree", str(tmp_path / "elsewhere"))
    run_git(repo, "--work-tree=.", "checkout", "--", "own.py")
    assert git.read_surroundings(str(repo), timeout_s=60).files == ()


@pytest.mark.parametrize("packed", [False, True])
def test_work_tree_submodule_and_packed_refs_are_read(repo: Path, private: Path, packed: bool) -> None:
    run_git(repo, "worktree", "add", "-q", "-b", "aside", str(repo.parent / "aside"))
    run_git(repo, "submodule", "--quiet", "add", str(private), "part")
    if packed:
        for folder in (repo, repo / "part"):
            run_git(folder, "pack-refs", "--all")
    own = git.read_surroundings(str(repo), timeout_s=60)
    assert (own.branch, own.commits) == ("main", ("own subject",))
    assert {"own.py", ".gitmodules"} <= set(own.files)
    aside = git.read_surroundings(str(repo.parent / "aside"), timeout_s=60)
    assert (aside.branch, aside.commits) == ("aside", ("own subject",))
    part = git.read_surroundings(str(repo / "part"), timeout_s=60)
    assert (part.branch, part.commits) == ("private-branch", ("private subject",))


def test_detached_head_and_empty_repository_are_read(repo: Path, tmp_path: Path) -> None:
    run_git(repo, "checkout", "-q", "--detach")
    assert git.read_surroundings(str(repo), timeout_s=60) == GitContext(None, ("own.py",), ("own subject",))
    empty = tmp_path / "empty"
    empty.mkdir()
    run_git(empty, "init", "-q", "-b", "first")
    assert git.read_surroundings(str(empty), timeout_s=60) == GitContext("first")


def test_huge_and_odd_heads_are_no_error(repo: Path) -> None:
    head = repo / ".git" / "HEAD"
    for text in ("", "ref: ", "ref: refs/heads/../../../etc/passwd", "ref: refs/heads/" + "a/" * 5_000, "\0" * 100):
        head.write_text(text)
        assert git.read_surroundings(str(repo), timeout_s=60).commits == ()
    head.unlink()
    os.mkfifo(head)  # reading a pipe would block
    assert git.read_surroundings(str(repo), timeout_s=60).commits == ()
