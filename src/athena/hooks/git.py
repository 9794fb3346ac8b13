"""What a git repository says about the work in it, read without running anything that the repository brings.

A repository can be hostile: its configuration names programs for hooks, file monitors, filters, pagers, signatures and
transports. Only commands that look at the index, at times of files and at commits are run, with every program that the
configuration could name switched off. One of them reads the content of a file whose times do not tell whether it was
changed, through the file's filters: it is not run where the configuration names any.
"""

import os
import selectors
import subprocess
import time
from contextlib import suppress

from athena.core.home.paths import find_git_root, read_first_line
from athena.memory.sessions.values import GitContext

GIT_TIMEOUT_S = 0.4  # for all of it; a hook's answer is worth more than the last changed file
MAX_OUTPUT_BYTES = 64_000  # bytes of a command's answer
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
    "GIT_ALLOW_PROTOCOL": "",  # beats what the repository allows
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_PAGER": "cat",
    "LC_ALL": "C.UTF-8",
    "HOME": os.devnull,
}
LOG_COMMAND = ("log", "-n", str(MAX_COMMITS), "--no-show-signature", "--no-color", "--no-decorate", "--format=%s")
# Every repository has the second of these, so that an answer without it is none.
FILTERS_COMMAND = ("config", "--includes", "--name-only", "--get-regexp", r"^(filter\.|core\.repositoryformatversion$)")
CHANGED_COMMAND = ("diff-files", "--name-only", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "-z")
STAGED_COMMAND = ("diff-index", "--cached", "--name-only", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "-z",
          "HEAD", "--")  # fmt: skip


def read_surroundings(folder: str, seconds: float = GIT_TIMEOUT_S) -> GitContext:
    """Return the branch, the files that were changed and what the last commits say; nothing where there is no git."""
    root = find_git_root(folder)
    if root is None:
        return GitContext()
    until = time.monotonic() + seconds
    filters = _run_commands(root, (FILTERS_COMMAND,), seconds)[0].split()
    harmless = filters == ["core.repositoryformatversion"]
    commands = (LOG_COMMAND, STAGED_COMMAND, CHANGED_COMMAND) if harmless else (LOG_COMMAND, STAGED_COMMAND)
    log, staged, changed = (*_run_commands(root, commands, until - time.monotonic()), "")[:3]
    files = dict.fromkeys(name for name in (*changed.split("\0"), *staged.split("\0")) if name)
    subjects = tuple(subject[:200] for subject in log.split("\n") if subject)
    return GitContext(_read_branch(root), tuple(files)[:MAX_CHANGED_FILES], subjects)


def _read_branch(root: str) -> str | None:
    """Read the branch from where git keeps it; a work tree apart points to it."""
    kept = os.path.join(root, ".git")
    with suppress(OSError, ValueError):
        if os.path.isfile(kept):
            kept = os.path.join(root, read_first_line(kept).removeprefix("gitdir:").strip())
        head = read_first_line(os.path.join(kept, "HEAD"))
        if head.startswith("ref: refs/heads/"):
            name = head.removeprefix("ref: refs/heads/").strip().encode("utf-8", "replace").decode()
            return name[:200] or None
    return None


def _run_commands(root: str, commands: tuple[tuple[str, ...], ...], seconds: float) -> list[str]:
    """Run git commands side by side and return what each said until the time is up."""
    options = [part for setting in SAFE_SETTINGS for part in ("-c", setting)]
    environment = GIT_ENVIRON | {
        "PATH": _absolute_path_entries(),
        "GIT_CEILING_DIRECTORIES": os.path.dirname(root),
    }
    running: list[subprocess.Popen[bytes]] = []
    said = [b"" for _ in commands]
    try:
        running.extend(_start_git(root, environment, [*options, *command]) for command in commands)
        _collect_output(running, said, time.monotonic() + seconds)
    except OSError:
        pass  # there is no git, or no more processes: what is known so far must do
    finally:
        for process in running:
            _end_process(process)
    return [text.decode("utf-8", "replace") for text in said]


def _absolute_path_entries() -> str:
    """Return where git is looked for: in no folder that is named from the repository's own."""
    return os.pathsep.join(filter(os.path.isabs, os.environ.get("PATH", "").split(os.pathsep))) or os.defpath


def _start_git(root: str, environment: dict[str, str], options: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["git", "--no-pager", "--no-replace-objects", "--literal-pathspecs", *options],
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _collect_output(running: list[subprocess.Popen[bytes]], said: list[bytes], until: float) -> None:
    with selectors.DefaultSelector() as waiting:
        for place, process in enumerate(running):
            assert process.stdout is not None
            waiting.register(process.stdout, selectors.EVENT_READ, place)
        while waiting.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                piece = os.read(key.fd, MAX_OUTPUT_BYTES)
                said[key.data] += piece
                if not piece or len(said[key.data]) >= MAX_OUTPUT_BYTES:
                    waiting.unregister(key.fileobj)


def _end_process(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(OSError):
            process.kill()
    if process.stdout is not None:
        process.stdout.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
