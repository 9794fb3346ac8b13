"""How results look on a terminal."""

import json
import re
import sys
import time
from typing import Any

import click

from athena.memory.values import format_preview

# What a terminal would obey rather than show, and marks that reorder or hide text.
UNSAFE_CHARS_PATTERN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)


def escape_control_chars(text: str) -> str:
    """Show characters that a terminal would act on, or that hide others, as escapes."""
    return UNSAFE_CHARS_PATTERN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def print_json(value: Any) -> None:
    """Print JSON; on a terminal only as characters that it cannot obey."""
    click.echo(json.dumps(value, ensure_ascii=sys.stdout.isatty(), indent=2))


def format_count(number: int, one: str = "memory", many: str = "memories") -> str:
    return f"{number:,} {one if number == 1 else many}"


def format_day(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(moment))


def format_memory_line(found: dict[str, Any]) -> str:
    """Return one memory on one line."""
    score = click.style(f"{found['score']:.2f} ", fg="green") if "score" in found else ""
    tags = click.style(f" [{escape_control_chars(', '.join(found['tags']))}]", fg="cyan") if found["tags"] else ""
    name = click.style(found["hash"], fg="yellow")
    return f"{name} {score}{format_day(found['created'])}{tags} {escape_control_chars(format_preview(found['content'], 120))}"


def format_memory(found: dict[str, Any]) -> str:
    """Return one memory with all that is known about it."""
    facts = {
        "id": found["id"],
        "type": found["memory_type"],
        "tags": ", ".join(found["tags"]) or "-",
        "project": found["project"],
        "created": time.strftime("%Y-%m-%d %H:%M", time.localtime(found["created"])),
        "updated": time.strftime("%Y-%m-%d %H:%M", time.localtime(found["updated"])),
        "importance": found["importance"],
        **{f"metadata.{key}": value for key, value in found["metadata"].items()},
        **{f"{item['relation']}": item["hash"] for item in found.get("related", ())},
    }
    head = click.style(found["hash"], fg="yellow")
    lines = [f"  {escape_control_chars(name):<12} {escape_control_chars(str(value))}" for name, value in facts.items()]
    return "\n".join([head, *lines, "", escape_control_chars(found["content"])])
