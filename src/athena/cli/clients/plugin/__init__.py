"""The files of the plugin for Claude Code, with the paths of this machine or portable ones."""

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
ASYNC_EVENTS = ("PostToolUse", "PostToolUseFailure")  # these hooks return no text, so the session need not wait
HOOK_TIMEOUT_S = 10  # a hook has a much shorter timeout of its own
PORTABLE_LAUNCH = ("${CLAUDE_PLUGIN_ROOT}/hooks/athena-hook", "athena", ["mcp"])
TEMPLATE_FOLDER = Path(__file__).parent


def render_files(
    hook: str = PORTABLE_LAUNCH[0], command: str = PORTABLE_LAUNCH[1], args: list[str] | None = None
) -> dict[str, str]:
    """Return the plugin's files with the command of its hooks and that of the MCP server, by default portable ones."""
    author = {"name": "The Athena authors"}
    manifest = {
        "name": "athena",
        "version": __version__,
        "description": SUMMARY,
        "author": author,
        "license": "Apache-2.0",
        "keywords": ["memory", "mcp", "sessions"],
    }
    # alwaysLoad: the tools are few and small, and looking each of them up first would cost more tokens
    server = {"command": command, "args": PORTABLE_LAUNCH[2] if args is None else args, "alwaysLoad": True}
    rendered = {
        ".claude-plugin/plugin.json": _dump_json(manifest),
        ".claude-plugin/marketplace.json": render_marketplace("./"),
        "hooks/hooks.json": _dump_json({"description": SUMMARY, "hooks": _create_hooks(hook)}),
        ".mcp.json": _dump_json({"mcpServers": {"athena": server}}),
        "skills/athena/SKILL.md": (TEMPLATE_FOLDER / "SKILL.md").read_text("utf-8"),
        "README.md": (TEMPLATE_FOLDER / "README.md").read_text("utf-8"),
    }
    if hook == PORTABLE_LAUNCH[0]:
        rendered["hooks/athena-hook"] = (TEMPLATE_FOLDER / "athena-hook").read_text("utf-8")
    return rendered


def render_marketplace(source: str) -> str:
    """Return the marketplace file, which lists this plugin alone."""
    plugin = {"name": "athena", "source": source, "description": SUMMARY}
    owner = {"name": "The Athena authors"}
    return _dump_json({"name": "athena", "owner": owner, "description": SUMMARY, "plugins": [plugin]})


def _create_hooks(hook: str) -> dict[str, Any]:
    hooks: dict[str, Any] = {}
    for event, athena_event in HOOK_EVENTS.items():
        # with `args` the client starts no shell, so a path needs no quoting
        command: dict[str, Any] = {
            "type": "command",
            "command": hook,
            "args": [athena_event],
            "timeout": HOOK_TIMEOUT_S,
        }
        if event in ASYNC_EVENTS:
            command["async"] = True
        hooks[event] = [{"hooks": [command]}]
    return hooks


def _dump_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
