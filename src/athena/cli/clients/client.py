"""A coding agent's client, as far as setting it up goes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from athena.cli.clients.setup import Entry, SetupStep, SetupTarget

ENTRY_NAME = "athena"  # under which clients know us


class Client(NamedTuple):
    """How one client is set up."""

    name: str
    title: str
    features: str  # what it is given
    is_installed: Callable[[SetupTarget], bool]  # is it on this machine
    steps: Callable[[SetupTarget], Sequence[SetupStep]]
    next_step: str  # what to do then
    per_project: bool = True  # it can be set up for a single project
    hooks: bool = False  # it tells us what happens in sessions
    runs_user_hooks: bool = False  # it runs the hooks of a project and those of all projects
    notes: Callable[[SetupTarget], list[str]] = lambda _: []  # what there is to know about this machine's


def create_server_entry(place: SetupTarget, *, folder: str | None = None) -> dict[str, Any]:
    """Return how a client starts the MCP server, in the usual form; `folder` is its word for the one that is open."""
    return {"command": place.mcp_path, "args": [] if folder is None else ["--folder", folder]}


def create_hook_entries(
    place: SetupTarget, events: dict[str, str], *, seconds: float, unit: int = 1, named: bool = False
) -> list[Entry]:
    """Return the hooks of a client that has them as Claude Code does: lists in an object `hooks`."""
    entries = []
    for event, ours in events.items():
        command: dict[str, Any] = {"type": "command", "command": f"{_shell_quote(place.hook_path)} {ours}"}
        if named:
            command = {"name": f"{ENTRY_NAME}-{ours}", **command}
        group = {"hooks": [command | {"timeout": round(seconds * unit)}]}
        entries.append(Entry(("hooks", event), group, is_hook_group=True))
    return entries


def _shell_quote(path: str) -> str:
    import shlex  # only where there are hooks

    return shlex.quote(path)
