"""Writes the plugin for Claude Code as a marketplace offers it: `plugins/claude-code`, and the list of plugins.

Its files come from `src/athena/cli/clients/plugin`; `--check` only tells whether they are up to date.
"""

import sys
from pathlib import Path

from athena.cli.clients import plugin

ROOT = Path(__file__).parent.parent
FOLDER = "plugins/claude-code"


def wanted() -> dict[Path, str]:
    """Return every file and what is to be in it."""
    made = {ROOT / FOLDER / name: text for name, text in plugin.render_files().items()}
    return made | {ROOT / ".claude-plugin" / "marketplace.json": plugin.render_marketplace(f"./{FOLDER}")}


def main() -> None:
    files = wanted()
    there = {path for path in (ROOT / FOLDER).rglob("*") if path.is_file()}
    old = [path for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text]
    stray = sorted(there - set(files))
    if "--check" in sys.argv:
        sys.exit(f"out of date: {[str(path.relative_to(ROOT)) for path in [*old, *stray]]}" if old or stray else 0)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        path.chmod(0o755 if text.startswith("#!") else 0o644)
    for path in stray:
        path.unlink()


if __name__ == "__main__":
    main()
