"""Format and print results on a terminal. Without click, so that `athena recall` starts fast."""

from __future__ import annotations

import json
import sys
import time

from athena.cli.streams import SafeStream, escape_text, style_text
from athena.core.previews import format_preview

TYPE_CHECKING = False  # importing typing is too slow here
if TYPE_CHECKING:
    from typing import Any, TextIO

escape_control_chars = escape_text


def style(text: str, fg: str | None = None, *, bold: bool = False) -> str:
    """Return a text in a colour, its own control characters escaped."""
    return style_text(escape_control_chars(text), fg, bold=bold)


def progress_stream() -> TextIO:
    """Return standard error for a progress bar, which moves the cursor; its texts must be ours."""
    return sys.stderr.stream if isinstance(sys.stderr, SafeStream) else sys.stderr


def print_json(value: Any) -> None:
    """Print JSON; on a terminal as ASCII, so that it cannot contain control characters."""
    print(json.dumps(value, ensure_ascii=sys.stdout.isatty(), indent=2), flush=True)


def format_count(count: int, singular: str = "memory", plural: str = "memories") -> str:
    return f"{count:,} {singular if count == 1 else plural}"


def format_day(timestamp: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(timestamp))


def format_memory_line(memory: dict[str, Any]) -> str:
    """Format a memory as one line."""
    score = style(f"{memory['score']:.2f} ", fg="green") if "score" in memory else ""
    tags = style(f" [{', '.join(memory['tags'])}]", fg="cyan") if memory["tags"] else ""
    name = style(memory["hash"], fg="yellow")
    preview = escape_control_chars(format_preview(memory["content"], 120))
    place = f" {style(place, fg='blue')}:" if (place := memory.get("place")) else ""
    return f"{name} {score}{format_day(memory['created'])}{tags}{place} {preview}"


def format_memory(memory: dict[str, Any]) -> str:
    """Format a memory with all its fields."""
    facts = {
        "id": memory["id"],
        "type": memory["memory_type"],
        "tags": ", ".join(memory["tags"]) or "-",
        "project": memory["project"],
        "created": time.strftime("%Y-%m-%d %H:%M", time.localtime(memory["created"])),
        "updated": time.strftime("%Y-%m-%d %H:%M", time.localtime(memory["updated"])),
        "importance": memory["importance"],
        **{f"metadata.{key}": value for key, value in memory["metadata"].items()},
        **{f"{item['relation']}": item["hash"] for item in memory.get("related", ())},
    }
    head = style(memory["hash"], fg="yellow")
    lines = [f"  {escape_control_chars(name):<12} {escape_control_chars(str(value))}" for name, value in facts.items()]
    return "\n".join([head, *lines, "", escape_control_chars(memory["content"])])
