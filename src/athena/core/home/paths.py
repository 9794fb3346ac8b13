"""Where this machine keeps Athena's data. Standard library only: every client needs it, fast."""

from __future__ import annotations

import os
import sys

from athena.errors import Misconfigured

TYPE_CHECKING = False  # the module that has it is too slow for `athena mcp`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

USER_PROJECT = "user"
DEFAULT_PROJECT = "default"
TOKEN_FILE = "token"
HTTP_SOCKET = "athena.sock"
MCP_SOCKET = "mcp.sock"
HOOK_GREETING = b"A"  # a working daemon's first byte on the hook socket; the hook client has its own copy
HOOK_SOCKET = "hook.sock"
MAX_SOCKET_PATH_BYTES = 100  # bytes of a socket's path: systems allow 103 to 107
SANDBOX_KEY_FILE = "sandbox.key"


def home_folder(environment: Mapping[str, str] = os.environ) -> str:
    """Return the data folder: `ATHENA_HOME`, else the platform's user data folder."""
    if chosen := environment.get("ATHENA_HOME"):
        return os.path.abspath(os.path.expanduser(chosen))
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Application Support/athena")
    base = environment.get("XDG_DATA_HOME") or ""
    # The XDG specification: a relative path is to be ignored.
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.local/share"), "athena")


def read_token(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the token that this machine's server asks for: `ATHENA_TOKEN`, else the one in the data folder."""
    if chosen := environment.get("ATHENA_TOKEN", "").strip():
        if not (chosen.isascii() and chosen.isprintable()):
            raise Misconfigured("ATHENA_TOKEN is no token", hint="printable ASCII characters, without line breaks")
        return chosen
    try:
        with open(os.path.join(home_folder(environment), TOKEN_FILE), encoding="ascii") as file:
            return file.read().strip() or None
    except (OSError, ValueError):
        return None


def ensure_token(environment: Mapping[str, str] = os.environ) -> str:
    """Return the token, making one that only its owner can read if there is none."""
    return read_token(environment) or _create_secret_file(
        home_folder(environment), TOKEN_FILE, lambda: read_token(environment)
    )


def ensure_sandbox_key(folder: str) -> bytes:
    """Return what seals the variables of programs, making one that only its owner can read if there is none."""

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

    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, name)
    secret = os.urandom(32).hex()
    data = secret.encode() + b"\n"
    if not files.create_file_atomically(path, data):
        if existing := read():
            return existing
        files.write_file_atomically(path, data)  # the file that is there holds nothing usable
    return secret


def socket_path(home: str, name: str = HTTP_SOCKET) -> str:
    """Return where a Unix socket of a home is: in it, or where its path is short enough."""
    if len(os.fsencode(path := os.path.join(home, name))) <= MAX_SOCKET_PATH_BYTES:
        return path
    import hashlib  # most homes have short paths

    short = f"{hashlib.sha256(os.fsencode(home)).hexdigest()[:24]}-{name}"
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        path = os.path.join(runtime, "athena", short)
    # Else right below /tmp, where nobody can rename what is ours.
    return path if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES else f"/tmp/athena-{os.getuid()}/{short}"


def current_project(environment: Mapping[str, str] = os.environ, folder: str | None = None) -> str:
    """Return the project: `ATHENA_PROJECT`, else the git root of the working folder, else `default`."""
    if chosen := environment.get("ATHENA_PROJECT", "").strip():
        return chosen
    try:
        root = find_git_root(folder or os.getcwd())
    except OSError:  # the working folder is gone
        return DEFAULT_PROJECT
    if root is None:
        return DEFAULT_PROJECT
    mark = os.path.join(root, ".git")
    root = root if os.path.isdir(mark) else _find_main_repository(root, mark)
    root = root.encode("utf-8", "backslashreplace").decode()  # a path may hold bytes that are no text
    return root if root == root.strip() else root + os.sep  # names are stripped, and "shop " is not "shop"


def find_git_root(folder: str) -> str | None:
    """Return the folder at or above one that holds a repository or a work tree of one."""
    here = os.path.realpath(folder)
    while not os.path.exists(os.path.join(here, ".git")):
        above = os.path.dirname(here)
        if above == here:
            return None
        here = above
    return here


def _find_main_repository(here: str, mark: str) -> str:
    """Return the repository that a work tree apart belongs to; a submodule is one of its own."""
    try:
        own = os.path.realpath(os.path.join(here, read_first_line(mark).removeprefix("gitdir:").strip()))
        shared = os.path.realpath(os.path.join(own, read_first_line(os.path.join(own, "commondir"))))
        back = os.path.join(own, read_first_line(os.path.join(own, "gitdir")))
    except (OSError, ValueError):
        return here
    # The repository must know of it too, or any folder could say that it belongs to any.
    if os.path.dirname(own) != os.path.join(shared, "worktrees") or os.path.realpath(back) != os.path.realpath(mark):
        return here
    return os.path.dirname(shared) if os.path.basename(shared) == ".git" else shared


def read_first_line(path: str) -> str:
    """Return the first line of a small file."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe of that name holds nobody up
    try:
        return os.read(file, 4_096).decode("utf-8", "surrogateescape").partition("\n")[0].rstrip("\r")
    finally:
        os.close(file)
