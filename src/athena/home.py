"""Where this machine keeps Athena's data. Standard library only: every client needs it, fast."""

import os
import sys
from collections.abc import Mapping

EVERYWHERE = "user"
DEFAULT_PROJECT = "default"


def home_folder(environment: Mapping[str, str] = os.environ) -> str:
    """Return the data folder: `ATHENA_HOME`, else the platform's user data folder."""
    if chosen := environment.get("ATHENA_HOME"):
        return os.path.abspath(os.path.expanduser(chosen))
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Application Support/athena")
    base = environment.get("XDG_DATA_HOME") or ""
    # The XDG specification: a relative path is to be ignored.
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.local/share"), "athena")


def current_project(environment: Mapping[str, str] = os.environ, folder: str | None = None) -> str:
    """Return the project: `ATHENA_PROJECT`, else the git root of the working folder, else `default`."""
    if chosen := environment.get("ATHENA_PROJECT", "").strip():
        return chosen
    try:
        here = os.path.realpath(folder or os.getcwd())
    except OSError:  # the working folder is gone
        return DEFAULT_PROJECT
    while True:
        if os.path.exists(os.path.join(here, ".git")):
            return here.encode("utf-8", "backslashreplace").decode()  # a path may hold bytes that are no text
        above = os.path.dirname(here)
        if above == here:
            return DEFAULT_PROJECT
        here = above
