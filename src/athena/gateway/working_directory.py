"""Where a server's program runs: where a person put it, else in their own folder; never among what Athena keeps."""

import os
from collections.abc import Mapping
from typing import Any

from athena.errors import InvalidInput

FALLBACK_FOLDER = "/"  # for somebody whose own folder is Athena's


def resolve_working_directory(
    server: str, given: Mapping[str, Any], environment: Mapping[str, str], kept: str | None
) -> str:
    """Return the folder of an entry, whose variables are replaced; `kept` is where Athena keeps its files."""
    own = environment.get("HOME") or os.path.expanduser("~")
    chosen = given.get("cwd")
    if not chosen:
        usable = os.path.isabs(own) and os.path.isdir(own) and not is_inside(own, kept)
        return own if usable else FALLBACK_FOLDER
    found = os.path.normpath(os.path.join(own, os.path.expanduser(chosen)))
    if is_inside(found, kept):
        raise InvalidInput(
            f"the server {server!r:.80} cannot run in {found}: Athena keeps its own files there",
            hint="choose another folder: --cwd",
        )
    return found


def is_inside(path: str, outer: str | None) -> bool:
    """Tell whether a path is a folder or something in it, whatever links lead there."""
    if outer is None:
        return False
    path, outer = os.path.realpath(path), os.path.realpath(outer)
    return path == outer or path.startswith(outer.rstrip(os.sep) + os.sep)


def add_default_cwd(given: Mapping[str, Any], here: str) -> dict[str, Any]:
    """Return what was typed with the folder where it was typed, if it means something only there."""
    made = dict(given)
    if "command" not in made:
        return made
    if chosen := made.get("cwd"):
        if not chosen.startswith("$"):
            made["cwd"] = os.path.normpath(os.path.join(here, os.path.expanduser(chosen)))
    elif _is_relative_path(made["command"]) or any(_names_a_file(word, here) for word in made.get("args") or ()):
        made["cwd"] = here
    return made


def _is_relative_path(command: str) -> bool:
    return os.sep in command and not os.path.isabs(command) and not command.startswith(("~", "$"))


def _names_a_file(word: str, here: str) -> bool:
    path = word.partition("=")[2] if word.startswith("-") else word
    if not path or os.path.isabs(path) or "\0" in path:
        return False
    return path in (".", "..") or path.startswith(("./", "../")) or os.path.exists(os.path.join(here, path))
