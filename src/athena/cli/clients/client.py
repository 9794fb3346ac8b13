"""A coding agent's client, as far as setting it up goes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from athena.cli.clients.setup import Entry, Place, Step

NAME = "athena"  # under which clients know us


class Client(NamedTuple):
    """How one client is set up."""

    name: str
    title: str
    gets: str  # what it is given
    found: Callable[[Place], bool]  # is it on this machine
    steps: Callable[[Place], Sequence[Step]]
    after: str  # what to do then
    per_project: bool = True  # it can be set up for a single project
    hooks: bool = False  # it tells us what happens in sessions
    adds_up: bool = False  # it runs the hooks of a project and those of all projects
    notes: Callable[[Place], list[str]] = lambda _: []  # what there is to know about this machine's


def server(place: Place, *, folder: str | None = None) -> dict[str, Any]:
    """Return how a client starts the MCP server, in the usual form; `folder` is its word for the one that is open."""
    return {"command": place.mcp, "args": [] if folder is None else ["--folder", folder]}


def hooked(place: Place, events: dict[str, str], *, seconds: float, unit: int = 1, named: bool = False) -> list[Entry]:
    """Return the hooks of a client that has them as Claude Code does: lists in an object `hooks`."""
    entries = []
    for event, ours in events.items():
        command: dict[str, Any] = {"type": "command", "command": f"{_shell(place.hook)} {ours}"}
        if named:
            command = {"name": f"{NAME}-{ours}", **command}
        group = {"hooks": [command | {"timeout": round(seconds * unit)}]}
        entries.append(Entry(("hooks", event), group, listed=True))
    return entries


def _shell(path: str) -> str:
    import shlex  # only where there are hooks

    return shlex.quote(path)
