"""The plugin for Claude Code: its files, from one template, with the paths of a machine or without any."""

import json
from pathlib import Path
from typing import Any

from athena.core.version import __version__

SUMMARY = "Long-term memory: sessions start with what they need to know, and leave behind what the next ones need."
HOOK_EVENTS = {
    "SessionStart": "session-start",
    "UserPromptSubmit": "user-prompt-submit",
    "PostToolUse": "post-tool-use",
    "PostToolUseFailure": "post-tool-use",
    "PreCompact": "pre-compact",
    "PostCompact": "post-compact",
    "Stop": "stop",
    "SessionEnd": "session-end",
}
ASYNC_EVENTS = ("PostToolUse", "PostToolUseFailure")  # the session need not wait for what says nothing
HOOK_TIMEOUT_S = 10  # a hook ends by itself long before
PORTABLE_LAUNCH = ("${CLAUDE_PLUGIN_ROOT}/hooks/athena-hook", "athena", ["mcp"])
TEMPLATE_FOLDER = Path(__file__).parent


def render_files(
    hook: str = PORTABLE_LAUNCH[0], command: str = PORTABLE_LAUNCH[1], words: list[str] | None = None
) -> dict[str, str]:
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
    server = {"command": command, "args": PORTABLE_LAUNCH[2] if words is None else words, "alwaysLoad": True}
    made = {
        ".claude-plugin/plugin.json": _dump_json(manifest),
        ".claude-plugin/marketplace.json": render_marketplace("./"),
        "hooks/hooks.json": _dump_json({"description": SUMMARY, "hooks": _create_hooks(hook)}),
        ".mcp.json": _dump_json({"mcpServers": {"athena": server}}),
        "skills/athena/SKILL.md": (TEMPLATE_FOLDER / "SKILL.md").read_text("utf-8"),
        "README.md": (TEMPLATE_FOLDER / "README.md").read_text("utf-8"),
    }
    if hook == PORTABLE_LAUNCH[0]:
        made["hooks/athena-hook"] = (TEMPLATE_FOLDER / "athena-hook").read_text("utf-8")
    return made


def render_marketplace(source: str) -> str:
    """Return the list of plugins that clients look for, which has this one."""
    plugin = {"name": "athena", "source": source, "description": SUMMARY}
    owner = {"name": "The Athena authors"}
    return _dump_json({"name": "athena", "owner": owner, "description": SUMMARY, "plugins": [plugin]})


def _create_hooks(hook: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for event, ours in HOOK_EVENTS.items():
        # With `args` no shell is started, so that nothing in a path means anything else.
        command: dict[str, Any] = {"type": "command", "command": hook, "args": [ours], "timeout": HOOK_TIMEOUT_S}
        if event in ASYNC_EVENTS:
            command["async"] = True
        made[event] = [{"hooks": [command]}]
    return made


def _dump_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
