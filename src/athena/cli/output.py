"""Format and print results on a terminal. Without click, so that `athena recall` starts fast."""

from __future__ import annotations

import time

from athena.cli.formats import format_cell, format_table, pick_columns
from athena.cli.formats import print_data as print_data  # commands use them from here
from athena.cli.formats import print_lines as print_lines
from athena.cli.streams import escape_text, style_text
from athena.core.previews import format_preview

TYPE_CHECKING = False  # importing typing is too slow here
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

escape_control_chars = escape_text


def style(text: str, fg: str | None = None, *, bold: bool = False) -> str:
    """Return a text in a colour, its own control characters escaped."""
    return style_text(escape_control_chars(text), fg, bold=bold)


MAX_PURGED_CHARS = 300  # of each text, in the list of what is removed for good
ENTITY_COLUMNS = ("name", "entityType", "observations", "score")
KIND_WORDS = {
    "memories": ("memory", "memories"),
    "events": ("event", "events"),
    "tasks": ("task", "tasks"),
    "entities": ("entity", "entities"),
    "observations": ("observation", "observations"),
    "relations": ("relation", "relations"),
    "removed": ("file removed", "files removed"),
    "patterns": ("pattern", "patterns"),
    "skills": ("skill", "skills"),
    "left_out": ("event, task, pattern or skill left out", "events, tasks, patterns and skills left out"),
}


def format_kinds(counts: dict[str, int]) -> str:
    """Say how much there is of each kind, in words."""
    return ", ".join(format_count(counts[name], *words) for name, words in KIND_WORDS.items() if counts.get(name))


def format_count(count: int, singular: str = "memory", plural: str = "memories") -> str:
    return f"{count:,} {singular if count == 1 else plural}"


def format_purgeable(purgeable: dict[str, Any]) -> Iterator[str]:
    """Yield what is to be removed for good: how many memories, and the first of them."""
    count, memories = purgeable["count"], purgeable["memories"]
    yield f"it removes {count:,} for good{':' if memories else ''}"
    for memory in memories:
        yield f"  {memory['hash']}  {' '.join(memory['content'].split())[:MAX_PURGED_CHARS]}"
    if count > len(memories):
        yield f"  and {count - len(memories):,} more"


def format_day(timestamp: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(timestamp))


def format_memory_line(memory: dict[str, Any]) -> str:
    """Format a memory as one line."""
    score = style(f"{memory['score']:.2f} ", fg="green") if "score" in memory else ""
    tags = style(f" [{', '.join(memory['tags'])}]", fg="cyan") if memory["tags"] else ""
    name = style(memory["hash"], fg="yellow")
    preview = escape_control_chars(format_preview(memory["content"], 120))
    place = f" {style(place, fg='blue')}:" if (place := memory.get("place")) else ""
    kind = style(f" ({memory['kind']})", fg="magenta") if memory.get("kind", "memory") != "memory" else ""
    return f"{name} {score}{format_day(memory['created'])}{kind}{tags}{place} {preview}"


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


def format_graph(graph: dict[str, Any]) -> str:
    """Return entities as a table, and relations as sentences below it."""
    entities, relations = graph.get("entities", ()), graph.get("relations", ())
    parts = ["\n".join(format_table(*pick_columns(entities, ENTITY_COLUMNS)))] if entities else []
    if relations:
        parts.append("\n".join(map(format_relation, relations)))
    return "\n\n".join(parts)


def format_relation(relation: dict[str, Any]) -> str:
    times = [f"{name} {format_cell('at', relation[name])}" for name in ("since", "until") if relation.get(name)]
    line = f"{relation['from']} {relation['relationType']} {relation['to']}"
    return f"{line} ({', '.join(times)})" if times else line
