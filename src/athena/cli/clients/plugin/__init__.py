"""The plugin for Claude Code: its files, from one template, with the paths of a machine or without any."""

import json
from pathlib import Path
from typing import Any

from athena.core.version import __version__

SUMMARY = "Long-term memory: sessions start with what they need to know, and leave behind what the next ones need."
EVENTS = {
    "SessionStart": "session-start",
    "UserPromptSubmit": "user-prompt-submit",
    "PostToolUse": "post-tool-use",
    "PostToolUseFailure": "post-tool-use",
    "PreCompact": "pre-compact",
    "PostCompact": "post-compact",
    "Stop": "stop",
    "SessionEnd": "session-end",
}
ASIDE = ("PostToolUse", "PostToolUseFailure")  # the session need not wait for what says nothing
SECONDS = 10  # a hook ends by itself long before
PORTABLE = ("${CLAUDE_PLUGIN_ROOT}/hooks/athena-hook", "athena", ["mcp"])
HERE = Path(__file__).parent


def files(hook: str = PORTABLE[0], command: str = PORTABLE[1], words: list[str] | None = None) -> dict[str, str]:
    """Return the plugin's files: what hooks run, and what starts the MCP server; by default what any machine has."""
    author = {"name": "The Athena authors"}
    manifest = {
        "name": "athena",
        "version": __version__,
        "description": SUMMARY,
        "author": author,
        "license": "Apache-2.0",
        "keywords": ["memory", "mcp", "sessions"],
    }
    # The tools are few and small: to look each of them up first would cost more than to have them.
    server = {"command": command, "args": PORTABLE[2] if words is None else words, "alwaysLoad": True}
    made = {
        ".claude-plugin/plugin.json": _written(manifest),
        ".claude-plugin/marketplace.json": marketplace("./"),
        "hooks/hooks.json": _written({"description": SUMMARY, "hooks": _hooks(hook)}),
        ".mcp.json": _written({"mcpServers": {"athena": server}}),
        "skills/athena/SKILL.md": (HERE / "SKILL.md").read_text("utf-8"),
        "README.md": (HERE / "README.md").read_text("utf-8"),
    }
    if hook == PORTABLE[0]:
        made["hooks/athena-hook"] = (HERE / "athena-hook").read_text("utf-8")
    return made


def marketplace(source: str) -> str:
    """Return the list of plugins that clients look for, which has this one."""
    plugin = {"name": "athena", "source": source, "description": SUMMARY}
    owner = {"name": "The Athena authors"}
    return _written({"name": "athena", "owner": owner, "description": SUMMARY, "plugins": [plugin]})


def _hooks(hook: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for event, ours in EVENTS.items():
        # With `args` no shell is started, so that nothing in a path means anything else.
        command: dict[str, Any] = {"type": "command", "command": hook, "args": [ours], "timeout": SECONDS}
        if event in ASIDE:
            command["async"] = True
        made[event] = [{"hooks": [command]}]
    return made


def _written(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
