"""Paths and names of the data folder: token, sockets, project. Standard library only: every client loads it."""

from __future__ import annotations

import os
import sys

from athena.errors import Misconfigured

TYPE_CHECKING = False  # importing typing is too slow for `athena mcp`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

USER_PROJECT = "user"
DEFAULT_PROJECT = "default"
TOKEN_FILE = "token"
HTTP_SOCKET = "athena.sock"
MCP_SOCKET = "mcp.sock"
HOOK_GREETING = b"A"  # a working daemon's first byte on the hook socket; the hook client has its own copy
HOOK_SOCKET = "hook.sock"
CALL_SOCKET = "call.sock"
MAX_SOCKET_PATH_BYTES = 100  # systems allow 103 to 107
SANDBOX_KEY_FILE = "sandbox.key"


def home_folder(environment: Mapping[str, str] = os.environ) -> str:
    """Return the data folder: `ATHENA_HOME`, else the platform's user data folder."""
    if path := environment.get("ATHENA_HOME"):
        return os.path.abspath(os.path.expanduser(path))
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Application Support/athena")
    base = environment.get("XDG_DATA_HOME") or ""
    # the XDG specification says to ignore a relative path
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.local/share"), "athena")


def find_home_problem(home: str) -> tuple[str, str] | None:
    """Return why a data folder must not be trusted, and what to do; None for one that is safe, or does not exist yet.

    Whoever can write there decides what our hooks run. A group counts as others unless it is the user's own. Root may
    use a folder of anybody.
    """
    try:
        facts = os.stat(home)
    except OSError:
        return None
    if not os.path.isdir(home):
        return f"ATHENA_HOME is a file, not a folder: {home}", "set it to a folder of yours"
    user, mode = os.geteuid(), facts.st_mode
    is_own_group = facts.st_gid == os.getegid() == user
    if facts.st_uid not in (user, 0) and user:
        problem = f"the data folder {home} belongs to another user (id {facts.st_uid})"
        return problem, "set ATHENA_HOME to a folder of yours"
    if mode & 0o002 or (mode & 0o020 and not is_own_group):
        problem = f"others can write to the data folder {home} (its mode is {mode & 0o777:04o})"
        import shlex  # only for the error

        return problem, f"chmod go-w {shlex.quote(home)}, or set ATHENA_HOME to a folder inside that does not exist yet"
    return None


def is_home_writable(home: str) -> bool:
    """Return whether files can be created in the data folder, or the folder itself if it does not exist yet."""
    while not os.path.exists(home):
        home = os.path.dirname(home)
    return os.access(home, os.W_OK)


def read_token(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the token of this machine's server: `ATHENA_TOKEN`, else the one in the data folder."""
    if token := environment.get("ATHENA_TOKEN", "").strip():
        if not (token.isascii() and token.isprintable()):
            raise Misconfigured("ATHENA_TOKEN is no token", hint="use printable ASCII characters, without line breaks")
        return token
    try:
        with open(os.path.join(home_folder(environment), TOKEN_FILE), encoding="ascii") as file:
            return file.read().strip() or None
    except (OSError, ValueError):
        return None


def ensure_token(environment: Mapping[str, str] = os.environ) -> str:
    """Return the token; if there is none, create one that only its owner can read."""
    return read_token(environment) or _create_secret_file(
        home_folder(environment), TOKEN_FILE, lambda: read_token(environment)
    )


def ensure_sandbox_key(folder: str) -> bytes:
    """Return the key that seals the variables of programs; if there is none, create it for its owner alone."""

    def read_key() -> str | None:
        try:
            with open(os.path.join(folder, SANDBOX_KEY_FILE), encoding="ascii") as file:
                text = file.read().strip()
            return text if len(bytes.fromhex(text)) == 32 else None
        except (OSError, ValueError):
            return None

    return bytes.fromhex(read_key() or _create_secret_file(folder, SANDBOX_KEY_FILE, read_key))


def _create_secret_file(folder: str, name: str, read: Callable[[], str | None]) -> str:
    """Write 32 random bytes for the owner alone and return them, or what another process wrote first."""
    from athena.core import files  # needed once in the life of a data folder

    files.create_private_folder(folder)
    path = os.path.join(folder, name)
    secret = os.urandom(32).hex()
    data = secret.encode() + b"\n"
    if not files.create_file_atomically(path, data):
        if existing := read():
            return existing
        files.write_file_atomically(path, data)  # the file that is there holds nothing usable
    return secret


def socket_path(home: str, name: str = HTTP_SOCKET) -> str:
    """Return the path of a Unix socket: in the data folder, or elsewhere if that path would be too long."""
    if len(os.fsencode(path := os.path.join(home, name))) <= MAX_SOCKET_PATH_BYTES:
        return path
    import hashlib  # few data folders have such long paths

    short = f"{hashlib.sha256(os.fsencode(home)).hexdigest()[:24]}-{name}"
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        path = os.path.join(runtime, "athena", short)
    # directly below /tmp, where other users cannot rename our folder
    return path if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES else f"/tmp/athena-{os.getuid()}/{short}"


def current_project(environment: Mapping[str, str] = os.environ, folder: str | None = None) -> str:
    """Return the project: `ATHENA_PROJECT`, else the git root of the working folder, else `default`."""
    if project := environment.get("ATHENA_PROJECT", "").strip():
        return project
    try:
        root = find_git_root(folder or os.getcwd())
    except OSError:  # the working folder is gone
        return DEFAULT_PROJECT
    if root is None:
        return DEFAULT_PROJECT
    git_path = os.path.join(root, ".git")
    root = root if os.path.isdir(git_path) else _find_main_repository(root, git_path)
    root = root.encode("utf-8", "backslashreplace").decode()  # a path may hold bytes that are not UTF-8
    return root if root == root.strip() else root + os.sep  # names are stripped, and "shop " is not "shop"


def find_git_root(folder: str) -> str | None:
    """Return the folder, or the nearest above it, that holds a git repository or work tree."""
    path = os.path.realpath(folder)
    while not os.path.exists(os.path.join(path, ".git")):
        parent = os.path.dirname(path)
        if parent == path:
            return None
        path = parent
    return path


def _find_main_repository(root: str, git_file: str) -> str:
    """Return the repository of a linked work tree; a submodule is its own repository."""
    folders = find_work_tree_folders(root, git_file)
    if folders is None:
        return root
    return os.path.dirname(folders[1]) if os.path.basename(folders[1]) == ".git" else folders[1]


def find_work_tree_folders(root: str, git_file: str) -> tuple[str, str] | None:
    """Return the git folder of a linked work tree and that of its repository; None if that does not list the tree."""
    try:
        git_folder = read_git_file(root, git_file)
        common = os.path.realpath(os.path.join(git_folder, read_first_line(os.path.join(git_folder, "commondir"))))
        back = os.path.join(git_folder, read_first_line(os.path.join(git_folder, "gitdir")))
    except (OSError, ValueError):
        return None
    # the repository must list the work tree too, or any folder could claim any project
    if os.path.dirname(git_folder) != os.path.join(common, "worktrees"):
        return None
    return (git_folder, common) if os.path.realpath(back) == os.path.realpath(git_file) else None


def read_git_file(root: str, git_file: str) -> str:
    """Return the real path that a `.git` file names; a link to the file of another work tree is refused."""
    text = _read_small_file(git_file, os.O_NOFOLLOW).rstrip("\r\n")
    if not text.startswith("gitdir:") or "\n" in text:  # git would take several lines for one path
        raise ValueError(f"{git_file} names no folder")
    return os.path.realpath(os.path.join(root, text.removeprefix("gitdir:").strip()))


def read_first_line(path: str) -> str:
    """Return the first line of a small file."""
    return _read_small_file(path).partition("\n")[0].rstrip("\r")


def _read_small_file(path: str, flags: int = 0) -> str:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)  # a pipe of that name must not block
    try:
        return os.read(file, 4_096).decode("utf-8", "surrogateescape")
    finally:
        os.close(file)
