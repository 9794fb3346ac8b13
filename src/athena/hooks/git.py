"""The branch, changed files and last commits of a git repository, read without running any program that it names.

A repository can be hostile: its configuration names programs for hooks, file monitors, filters, pagers, signatures and
transports. We run only commands that read the index, file times and commits, and switch off every program that the
configuration could name. `diff-files` reads a file through its filters when the file times do not decide whether it
changed, so we do not run it where the configuration names filters.
"""

import os
import selectors
import subprocess
import time
from contextlib import suppress

from athena.core.home.paths import find_git_root, read_first_line
from athena.memory.sessions.values import GitContext

GIT_TIMEOUT_S = 0.4  # for all commands: a hook's answer matters more than the last changed file
MAX_OUTPUT_BYTES = 64_000  # of one command
MAX_LINE_CHARS = 200
MAX_CHANGED_FILES, MAX_COMMITS = 40, 6
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
    "HEAD", "--",
)  # fmt: skip


def read_surroundings(folder: str, timeout_s: float = GIT_TIMEOUT_S) -> GitContext:
    """Return the branch, the changed files and the subjects of the last commits; all empty outside of git."""
    root = find_git_root(folder)
    if root is None:
        return GitContext()
    deadline = time.monotonic() + timeout_s
    option_names = _run_commands(root, (FILTERS_COMMAND,), timeout_s)[0].split()
    has_no_filters = option_names == ["core.repositoryformatversion"]
    commands = (LOG_COMMAND, STAGED_COMMAND, CHANGED_COMMAND) if has_no_filters else (LOG_COMMAND, STAGED_COMMAND)
    log, staged, changed = (*_run_commands(root, commands, deadline - time.monotonic()), "")[:3]
    files = dict.fromkeys(name for name in (*changed.split("\0"), *staged.split("\0")) if name)
    subjects = tuple(subject[:MAX_LINE_CHARS] for subject in log.split("\n") if subject)
    return GitContext(_read_branch(root), tuple(files)[:MAX_CHANGED_FILES], subjects)


def _read_branch(root: str) -> str | None:
    """Read the branch from `.git/HEAD`; in a linked work tree `.git` is a file with the path of that folder."""
    git_folder = os.path.join(root, ".git")
    with suppress(OSError, ValueError):
        if os.path.isfile(git_folder):
            git_folder = os.path.join(root, read_first_line(git_folder).removeprefix("gitdir:").strip())
        head = read_first_line(os.path.join(git_folder, "HEAD"))
        if head.startswith("ref: refs/heads/"):
            name = head.removeprefix("ref: refs/heads/").strip().encode("utf-8", "replace").decode()
            return name[:MAX_LINE_CHARS] or None
    return None


def _run_commands(root: str, commands: tuple[tuple[str, ...], ...], timeout_s: float) -> list[str]:
    """Run git commands in parallel and return the output of each until the timeout."""
    options = [part for setting in SAFE_SETTINGS for part in ("-c", setting)]
    environ = GIT_ENVIRON | {
        "PATH": _absolute_path_entries(),
        "GIT_CEILING_DIRECTORIES": os.path.dirname(root),
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
