"""Our hooks in the lists of a client's: groups with commands, of which only our own go in and out."""

import os
import shlex
from collections.abc import Sequence
from typing import Any

from athena.cli.clients import json_edit
from athena.errors import InvalidInput
from athena.hooks.launcher import BIN_FOLDER, HOOK_LAUNCHER, MCP_LAUNCHER, SIGNATURE

HookPosition = tuple[int, int]  # in which group, and where in that


def add_hook_group(text: str, path: Sequence[str], group: Any) -> str:
    """Return a text with a group of ours; where our command is there already, only its launcher is renewed."""
    groups = json_edit.get_value(json_edit.parse(text), path) if text.strip() else None
    if groups is None:
        return json_edit.set_value(text, path, [group])
    if not isinstance(groups, list):
        raise InvalidInput(f"{'.'.join(path)} is not a list")
    places = _find_hooks(groups)
    if not places:
        return json_edit.set_value(text, (*path, len(groups)), group)
    (wanted,) = group["hooks"]
    seen, twice = [], []
    for place in places:
        one = _renew_command(groups, place, wanted["command"])
        if one in seen:
            twice.append(place)
        seen.append(one)
        text = json_edit.set_value(text, (*_hook_path(path, place), "command"), one["hooks"][0]["command"])
    return _remove_positions(text, path, twice, None)


def remove_hooks(text: str, path: Sequence[str], keep: Any) -> str:
    """Return a text without our commands, and without groups and lists that held nothing else."""
    groups = json_edit.get_value(json_edit.parse(text), path) if text.strip() else None
    return _remove_positions(text, path, _find_hooks(groups), keep)


def has_modified_hooks(groups: Any, group: Any) -> bool:
    """Tell whether somebody has changed our group; another path of the launcher is no such change."""
    (wanted,) = group["hooks"]
    return any(_renew_command(groups, place, wanted["command"]) != group for place in _find_hooks(groups))


def _find_hooks(groups: Any) -> list[HookPosition]:
    """Find our commands."""
    found = []
    for at, group in enumerate(groups if isinstance(groups, list) else []):
        commands = group.get("hooks") if isinstance(group, dict) else None
        for inside, command in enumerate(commands if isinstance(commands, list) else []):
            if isinstance(command, dict) and is_ours(command):
                found.append((at, inside))
    return found


def _hook_path(path: Sequence[str], place: HookPosition) -> tuple[str | int, ...]:
    return (*path, place[0], "hooks", place[1])


def _renew_command(groups: Any, place: HookPosition, wanted: str) -> Any:
    """Return a group with none but our command, as it should be; words that somebody put behind the launcher stay."""
    group = groups[place[0]]
    one = group["hooks"][place[1]]
    old, new = first_word(one["command"]), first_word(wanted)
    command = one["command"]
    if old != new:
        behind = command.startswith(shlex.quote(old))
        command = shlex.quote(new) + command.removeprefix(shlex.quote(old)) if behind else wanted
    return group | {"hooks": [one | {"command": command}]}


def _remove_positions(text: str, path: Sequence[str], gone: list[HookPosition], keep: Any) -> str:
    """Remove commands from the last to the first, so that the places of the others stay what they are."""
    if not gone:
        return text
    groups = json_edit.get_value(json_edit.parse(text), path)
    for at in sorted({at for at, _ in gone}, reverse=True):
        mine = [place for place in gone if place[0] == at]
        whole = len(mine) == len(groups[at]["hooks"])
        ways: list[tuple[str | int, ...]] = (
            [(*path, at)] if whole else [_hook_path(path, place) for place in reversed(mine)]
        )
        for way in ways:
            text = json_edit.remove_value(text, way, lambda _: True, keep)
    return text


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
