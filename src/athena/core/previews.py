"""The beginning of a text on one line. Standard library only: every client loads it."""

PREVIEW_CHARS = 200


def format_preview(content: str, max_chars: int = PREVIEW_CHARS) -> str:
    """Return the beginning of a text, on one line."""
    line = " ".join(content.lstrip()[: max_chars * 4].split())
    return line if len(line) <= max_chars else line[: max_chars - 1].rstrip() + "…"
