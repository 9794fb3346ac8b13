"""Codex: an MCP server in its `config.toml`, by its own command where there is one; hooks in `hooks.json`."""

from collections.abc import Sequence
from pathlib import Path

from athena.cli.clients import toml_edit
from athena.cli.clients.client import NAME, Client, hooked
from athena.cli.clients.setup import Edited, Entry, Place, Step
from athena.cli.clients.wording import Words

EVENTS = {
    "SessionStart": "session-start",
    "UserPromptSubmit": "user-prompt-submit",
    "PostToolUse": "post-tool-use",
    "PreCompact": "pre-compact",
    "PostCompact": "post-compact",
    "Stop": "stop",
}


def _folder(place: Place) -> Path:
    if place.project is not None:
        return place.project / ".codex"
    return Path(place.environment.get("CODEX_HOME") or place.user / ".codex")


def _steps(place: Place) -> Sequence[Step]:
    folder = _folder(place)
    table = Edited(folder / "config.toml", [Entry(("mcp_servers", NAME), {"command": place.mcp})], toml_edit)
    program = place.program("codex") if place.project is None else None  # its own command knows no projects
    if program is None:
        first: Step = table
    else:
        add = [[program, "mcp", "add", NAME, "--", place.mcp]]
        first = Words(place, add, [[program, "mcp", "remove", NAME]], table)
    return [first, Edited(folder / "hooks.json", hooked(place, EVENTS, seconds=10))]


CODEX = Client(
    "codex",
    "Codex",
    "the MCP server and session hooks",
    lambda place: place.program("codex") is not None or _folder(place).is_dir(),
    _steps,
    "start codex and agree to the hooks in /hooks: it runs none that was not looked at",
    hooks=True,
    adds_up=True,
)
