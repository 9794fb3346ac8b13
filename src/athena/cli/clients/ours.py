"""Which words in clients' files are ours: those that run a launcher of ours, none that only looks like one."""

import os
import shlex
from typing import Any

from athena.hooks.launcher import BIN_FOLDER, HOOK_LAUNCHER, MCP_LAUNCHER, SIGNATURE

MANUAL_COMMANDS = ("athena", "athena-memory")  # what a person would call


def is_ours(value: Any) -> bool:
    """Tell whether an entry is one that we wrote, or a command: its first word is one of our launchers."""
    if isinstance(value, dict):
        return is_ours(value.get("command"))
    return isinstance(value, str) and (_is_launcher(value) or _is_launcher(first_word(value)))


def is_athena(value: Any) -> bool:
    """Tell whether an entry runs Athena, whoever wrote it and whatever is around it."""
    words = value.get("args") if isinstance(value, dict) else None
    around = isinstance(words, list) and any(is_ours(word) for word in words)
    return around or is_manual_entry(value) or (isinstance(value, dict) and is_ours(value))


def is_manual_entry(value: Any) -> bool:
    """Tell whether an entry is what a person would write: `athena mcp`."""
    command, words = (value.get("command"), value.get("args")) if isinstance(value, dict) else (None, None)
    called = isinstance(command, str) and os.path.basename(command) in MANUAL_COMMANDS
    return called and isinstance(words, list) and "mcp" in words


def first_word(command: str) -> str:
    """Return the first word of a command, nothing if it is not one of the kind that we write."""
    try:
        return next(iter(shlex.split(command)), "")
    except ValueError:
        return ""  # it is no command of ours: those are quoted well


def _is_launcher(path: str) -> bool:
    """Tell whether a path is that of a launcher of ours, in whichever home: it says so itself, or is gone."""
    folder, name = os.path.split(path)
    if name not in (HOOK_LAUNCHER, MCP_LAUNCHER) or os.path.basename(folder) != BIN_FOLDER or not os.path.isabs(path):
        return False
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe of that name holds nobody up
    except (FileNotFoundError, NotADirectoryError):
        return True  # its home was moved or removed
    except OSError:
        return False
    try:
        return SIGNATURE.encode() in os.read(file, 200)
    except OSError:
        return False
    finally:
        os.close(file)
