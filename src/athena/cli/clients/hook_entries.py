"""Add and remove our commands in a client's lists of hooks, and recognize entries that run Athena."""

import os
import shlex
from collections.abc import Sequence
from typing import Any

from athena.cli.clients import json_edit
from athena.errors import InvalidInput
from athena.hooks.launcher import BIN_FOLDER, HOOK_LAUNCHER, MCP_LAUNCHER, SIGNATURE

MANUAL_COMMANDS = ("athena", "athena-memory")  # in an entry that a person writes
HookPosition = tuple[int, int]  # the index of the group, and that of the command in it


def add_hook_group(text: str, path: Sequence[str], group: Any) -> str:
    """Add a group of ours to a list of hooks; if our command is there already, update only its launcher."""
    groups = json_edit.get_value(json_edit.parse(text), path) if text.strip() else None
    if groups is None:
        return json_edit.set_value(text, path, [group])
    if not isinstance(groups, list):
        raise InvalidInput(f"{'.'.join(path)} is not a list")
    positions = _find_hooks(groups)
    if not positions:
        return json_edit.set_value(text, (*path, len(groups)), group)
    (wanted,) = group["hooks"]
    seen, duplicates = [], []
    for position in positions:
        renewed = _renew_command(groups, position, wanted["command"])
        if renewed in seen:
            duplicates.append(position)
        seen.append(renewed)
        text = json_edit.set_value(text, (*_hook_path(path, position), "command"), renewed["hooks"][0]["command"])
    return _remove_positions(text, path, duplicates, None)


def remove_hooks(text: str, path: Sequence[str], keep: Any) -> str:
    """Remove our commands, and groups and lists that held nothing else and are not in `keep`."""
    groups = json_edit.get_value(json_edit.parse(text), path) if text.strip() else None
    return _remove_positions(text, path, _find_hooks(groups), keep)


def has_modified_hooks(groups: Any, group: Any) -> bool:
    """Return whether somebody has changed our group; another path of the launcher does not count."""
    (wanted,) = group["hooks"]
    return any(_renew_command(groups, position, wanted["command"]) != group for position in _find_hooks(groups))


def _find_hooks(groups: Any) -> list[HookPosition]:
    """Return the positions of our commands."""
    positions = []
    for i, group in enumerate(groups if isinstance(groups, list) else []):
        commands = group.get("hooks") if isinstance(group, dict) else None
        for j, command in enumerate(commands if isinstance(commands, list) else []):
            if isinstance(command, dict) and is_ours(command):
                positions.append((i, j))
    return positions


def _hook_path(path: Sequence[str], position: HookPosition) -> tuple[str | int, ...]:
    return (*path, position[0], "hooks", position[1])


def _renew_command(groups: Any, position: HookPosition, wanted: str) -> Any:
    """Return a group with our command alone and its launcher updated; arguments that somebody added stay."""
    group = groups[position[0]]
    hook = group["hooks"][position[1]]
    command = hook["command"]
    old, new = first_word(command), first_word(wanted)
    if old != new:
        is_quoted_well = command.startswith(shlex.quote(old))
        command = shlex.quote(new) + command.removeprefix(shlex.quote(old)) if is_quoted_well else wanted
    return group | {"hooks": [hook | {"command": command}]}


def _remove_positions(text: str, path: Sequence[str], positions: list[HookPosition], keep: Any) -> str:
    """Remove commands from the last to the first, so that the positions of the others stay valid."""
    if not positions:
        return text
    groups = json_edit.get_value(json_edit.parse(text), path)
    for i in sorted({i for i, _ in positions}, reverse=True):
        in_group = [position for position in positions if position[0] == i]
        paths: list[tuple[str | int, ...]] = [_hook_path(path, position) for position in reversed(in_group)]
        if len(in_group) == len(groups[i]["hooks"]):
            paths = [(*path, i)]
        for removed_path in paths:
            text = json_edit.remove_value(text, removed_path, lambda _: True, keep)
    return text


def is_ours(value: Any) -> bool:
    """Return whether an entry or a command is ours: its first word is one of our launchers."""
    if isinstance(value, dict):
        return is_ours(value.get("command"))
    return isinstance(value, str) and (_is_launcher(value) or _is_launcher(first_word(value)))


def is_athena(value: Any) -> bool:
    """Return whether an entry runs Athena: written by us or by hand, also inside another command."""
    args = value.get("args") if isinstance(value, dict) else None
    is_wrapped = isinstance(args, list) and any(is_ours(arg) for arg in args)
    return is_wrapped or is_manual_entry(value) or (isinstance(value, dict) and is_ours(value))


def is_manual_entry(value: Any) -> bool:
    """Return whether an entry is a handwritten one: `athena mcp`."""
    command, args = (value.get("command"), value.get("args")) if isinstance(value, dict) else (None, None)
    is_athena_command = isinstance(command, str) and os.path.basename(command) in MANUAL_COMMANDS
    return is_athena_command and isinstance(args, list) and "mcp" in args


def first_word(command: str) -> str:
    """Return the first word of a shell command, an empty text if it is badly quoted."""
    try:
        return next(iter(shlex.split(command)), "")
    except ValueError:
        return ""  # ours are well quoted


def _is_launcher(path: str) -> bool:
    """Return whether a path is that of one of our launchers: the file has our signature, or no longer exists."""
    folder, name = os.path.split(path)
    if name not in (HOOK_LAUNCHER, MCP_LAUNCHER) or os.path.basename(folder) != BIN_FOLDER or not os.path.isabs(path):
        return False
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe does not block
    except (FileNotFoundError, NotADirectoryError):
        return True  # its data folder was moved or removed
    except OSError:
        return False
    try:
        return SIGNATURE.encode() in os.read(file, 200)
    except OSError:
        return False
    finally:
        os.close(file)
