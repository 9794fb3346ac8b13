"""The branch, changed files and last commits of a git repository, read without running any program that it names.

A repository can be hostile: its configuration names programs for hooks, file monitors, filters, pagers, signatures and
transports. We run only commands that read the index, file times and commits, and switch off every program that the
configuration could name. `diff-files` reads a file through its filters when the file times do not decide whether it
changed, so we do not run it where the configuration names filters.

A hostile folder can also lead git to another repository, whose commits and file names would enter the briefing here:
by a `.git` file or link, a `commondir` file, or links inside `.git`. So we read from a `.git` folder itself, or from
one that names this work tree; we resolve HEAD without following links and give git the commit's hash.
"""

import os
import re
import selectors
import subprocess
import time
from contextlib import suppress

from athena.core.files import open_beneath
from athena.core.home.paths import find_git_root, find_work_tree_folders, read_git_file
from athena.memory.sessions.values import GitContext

GIT_TIMEOUT_S = 0.4  # for all commands: a hook's answer matters more than the last changed file
MAX_OUTPUT_BYTES = 64_000  # of one command
MAX_LINE_CHARS = 200
MAX_CHANGED_FILES, MAX_COMMITS = 40, 6
MAX_GIT_FILE_BYTES = 16_000_000  # of `packed-refs`
MAX_CONFIG_BYTES = 256_000
MAX_REFS = 5  # from HEAD to a commit, as in git
HASH_PATTERN = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
SAFE_SETTINGS = (
    "core.fsmonitor=false", "core.hooksPath=/dev/null", "core.pager=cat", "core.sshCommand=false", "core.askPass=",
    "core.untrackedCache=false", "log.showSignature=false", "gpg.program=false", "diff.external=", "credential.helper=",
    "safe.bareRepository=explicit", "protocol.allow=never", "core.quotePath=false", "submodule.recurse=false",
)  # fmt: skip
GIT_ENVIRON = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",  # overrides the repository's own list
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_PAGER": "cat",
    "LC_ALL": "C.UTF-8",
    "HOME": os.devnull,
}
LOG_COMMAND = ("log", "-n", str(MAX_COMMITS), "--no-show-signature", "--no-color", "--no-decorate", "--format=%s")
# every repository has core.repositoryformatversion, so output without it means that the command failed
FILTERS_COMMAND = ("config", "--includes", "--name-only", "--get-regexp", r"^(filter\.|core\.repositoryformatversion$)")
CHANGED_COMMAND = ("diff-files", "--name-only", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "-z")
STAGED_COMMAND = (
    "diff-index", "--cached", "--name-only", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "-z",
)  # fmt: skip


def read_surroundings(folder: str, timeout_s: float = GIT_TIMEOUT_S) -> GitContext:
    """Return the branch, the changed files and the subjects of the last commits; all empty outside of git."""
    root = find_git_root(folder)
    git_folders = None if root is None else _find_git_folders(root)
    if root is None or git_folders is None:
        return GitContext()
    deadline = time.monotonic() + timeout_s
    try:
        branch, commit = _read_head(*git_folders)
    except OSError:
        return GitContext()
    option_names = _run_commands(root, (FILTERS_COMMAND,), timeout_s)[0].split()
    commands: dict[str, tuple[str, ...]] = {}
    if commit is not None:
        commands["log"] = (*LOG_COMMAND, commit, "--")
    if not os.path.islink(os.path.join(git_folders[0], "index")):
        if commit is not None:
            commands["staged"] = (*STAGED_COMMAND, commit, "--")
        if option_names == ["core.repositoryformatversion"]:  # no filters
            commands["changed"] = CHANGED_COMMAND
    outputs = dict(
        zip(commands, _run_commands(root, tuple(commands.values()), deadline - time.monotonic()), strict=True)
    )
    names = f"{outputs.get('changed', '')}\0{outputs.get('staged', '')}".split("\0")
    files = dict.fromkeys(name for name in names if name)
    subjects = tuple(subject[:MAX_LINE_CHARS] for subject in outputs.get("log", "").split("\n") if subject)
    return GitContext(branch, tuple(files)[:MAX_CHANGED_FILES], subjects)


def _find_git_folders(root: str) -> tuple[str, str] | None:
    """Return the folder with a work tree's HEAD and index, and the one with its refs; None if they are another's."""
    git_path = os.path.join(root, ".git")
    if os.path.islink(git_path):
        return None
    if os.path.isdir(git_path):
        is_whole = not os.path.lexists(os.path.join(git_path, "commondir"))
        return (git_path, git_path) if is_whole else None
    if folders := find_work_tree_folders(root, git_path):
        return folders
    with suppress(OSError, ValueError):  # a submodule: the folder is in the repository around it and names this one
        git_folder = read_git_file(root, git_path)
        work_tree = _find_work_tree(_read_file(git_folder, "config", MAX_CONFIG_BYTES))
        if work_tree and os.path.realpath(os.path.join(git_folder, work_tree)) == root:
            return git_folder, git_folder
    return None


def _find_work_tree(config: str) -> str:
    """Return the folder that the configuration of a repository names as its work tree."""
    for line in config.splitlines():
        name, _, value = line.partition("=")
        if name.strip().lower() == "worktree":
            return value.strip().strip('"')
    return ""


def _read_head(git_folder: str, common_folder: str) -> tuple[str | None, str | None]:
    """Return the branch and the hash of the last commit."""
    value = _read_file(git_folder, "HEAD").partition("\n")[0].strip()
    branch = None
    if value.startswith("ref: refs/heads/"):
        branch = value.removeprefix("ref: refs/heads/").encode("utf-8", "replace").decode()[:MAX_LINE_CHARS]
    with suppress(OSError, ValueError):
        for _ in range(MAX_REFS):
            if HASH_PATTERN.fullmatch(value):
                return branch, value
            if not value.startswith("ref: refs/"):
                break
            value = _read_ref(common_folder, value.removeprefix("ref: "))
    return branch or None, None


def _read_ref(common_folder: str, ref: str) -> str:
    """Return the value of a ref: a commit's hash, or `ref: ` and another one."""
    try:
        return _read_file(common_folder, ref).partition("\n")[0].strip()
    except FileNotFoundError:
        end = (packed := "\n" + _read_file(common_folder, "packed-refs")).find(f" {ref}\n")
        return packed[packed.rfind("\n", 0, end) + 1 : end] if end > 0 else ""


def _read_file(folder: str, name: str, max_bytes: int = MAX_GIT_FILE_BYTES) -> str:
    """Read a file of git; one that is a link, or behind one, is an error."""
    with open(open_beneath(folder, name), "rb") as file:
        return file.read(max_bytes).decode("utf-8", "surrogateescape")


def _run_commands(root: str, commands: tuple[tuple[str, ...], ...], timeout_s: float) -> list[str]:
    """Run git commands in parallel and return the output of each until the timeout."""
    options = [part for setting in SAFE_SETTINGS for part in ("-c", setting)]
    environ = GIT_ENVIRON | {
        "PATH": _absolute_path_entries(),
        "GIT_CEILING_DIRECTORIES": os.path.dirname(root),
        "GIT_WORK_TREE": root,  # not the one that the configuration names
    }
    processes: list[subprocess.Popen[bytes]] = []
    outputs = [b"" for _ in commands]
    try:
        processes.extend(_start_git(root, environ, [*options, *command]) for command in commands)
        _collect_output(processes, outputs, time.monotonic() + timeout_s)
    except OSError:
        pass  # git is not installed, or no process can start: return a partial result
    finally:
        for process in processes:
            _end_process(process)
    return [output.decode("utf-8", "replace") for output in outputs]


def _absolute_path_entries() -> str:
    """Return PATH without relative folders, which would be searched inside the repository."""
    return os.pathsep.join(filter(os.path.isabs, os.environ.get("PATH", "").split(os.pathsep))) or os.defpath


def _start_git(root: str, environ: dict[str, str], arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["git", "--no-pager", "--no-replace-objects", "--literal-pathspecs", *arguments],
        cwd=root,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _collect_output(processes: list[subprocess.Popen[bytes]], outputs: list[bytes], deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        for index, process in enumerate(processes):
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, index)
        while selector.get_map() and (seconds_left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(seconds_left):
                piece = os.read(key.fd, MAX_OUTPUT_BYTES)
                outputs[key.data] += piece
                if not piece or len(outputs[key.data]) >= MAX_OUTPUT_BYTES:
                    selector.unregister(key.fileobj)


def _end_process(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(OSError):
            process.kill()
    if process.stdout is not None:
        process.stdout.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
