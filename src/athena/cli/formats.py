"""Print results as JSON, CSV or tables, and long lists through a pager. Without click, so that it loads fast."""

from __future__ import annotations

import json
import os
import sys
import time

from athena.cli.streams import SafeStream, escape_text, is_plain_terminal, style_text

TYPE_CHECKING = False  # importing typing is too slow here
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

FORMATS = {"json": "Print JSON.", "csv": "Print CSV.", "table": "Print a table."}
MIN_CUT_COLUMN_CHARS = 12  # a column of a table is not cut to less
DEFAULT_SIZE = os.terminal_size((80, 24))
TIME_FIELDS = frozenset(
    {"at", "began", "created", "due", "ended", "finished", "happened", "newest", "oldest", "started", "updated"}
)
HEADINGS = {"entityType": "type", "event_type": "type", "memory_type": "type", "relationType": "relation"}

_chosen_format = "json"


def choose_format(name: str | None) -> None:
    """Set the format of `print_data` for the command that runs; None is JSON."""
    global _chosen_format
    _chosen_format = name or "json"


def print_data(value: Any, columns: Sequence[str] = ()) -> None:
    """Print a result in the format that the command line names; a table has these columns, else all."""
    if _chosen_format == "csv":
        print(format_csv(value), end="", flush=True)
    elif _chosen_format == "table":
        if value == []:
            return
        is_list = columns and isinstance(value, list)
        print_lines(format_table(*(pick_columns(value, columns) if is_list else _split_table(value))))
    else:  # on a terminal as ASCII, so that it cannot contain control characters
        print(json.dumps(value, ensure_ascii=sys.stdout.isatty(), indent=2), flush=True)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines; on a terminal that is too short for them, through a pager."""
    text = "".join(f"{line}\n" for line in lines)
    if not (text.count("\n") >= get_terminal_size().lines and _show_in_pager(text)):
        sys.stdout.write(text)
        sys.stdout.flush()


def get_terminal_size() -> os.terminal_size:
    """Return how large the terminal is; for output that goes elsewhere, a usual size."""
    try:
        size = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else 1)
    except (OSError, ValueError):
        return DEFAULT_SIZE
    return size if size.columns and size.lines else DEFAULT_SIZE


def _show_in_pager(text: str) -> bool:
    """Show a text in the pager that PAGER names, else in less; return False where there is none."""
    pager = os.environ.get("PAGER", "less").strip()
    stdout = sys.stdout
    if pager in ("", "cat") or not isinstance(stdout, SafeStream) or is_plain_terminal(stdout):
        return False
    import shlex  # only for long lists on a terminal
    import subprocess

    environ = {"LESS": "FRX", **os.environ}  # colours, and no pager for what fits the screen
    try:
        with subprocess.Popen(shlex.split(pager), stdin=subprocess.PIPE, env=environ) as process:
            try:
                process.communicate(stdout.escape(text).encode(errors="backslashreplace"))
            except KeyboardInterrupt:  # the pager handles Ctrl-C itself
                process.wait()
    except (OSError, ValueError):
        return False
    return process.returncode != 127  # not found, says a shell


# --- tables -----------------------------------------------------------------------------------------------------------


def _split_table(value: Any) -> tuple[list[list[str]], list[str]]:
    """Return any result as the rows and the headings of a table."""
    if isinstance(value, dict):
        return [[name, format_cell(name, item)] for name, item in value.items()], ["field", "value"]
    rows, names = _to_rows(value)
    names = [name for name in names if any(row.get(name) not in (None, [], {}, "") for row in rows)] or names
    return [[format_cell(name, row.get(name)) for name in names] for row in rows], [
        HEADINGS.get(name, name) for name in names
    ]


def _to_rows(value: Any) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return a result as rows, and the names of all their fields."""
    items = value if isinstance(value, list) else [value]
    rows: list[Mapping[str, Any]] = [item if isinstance(item, dict) else {"value": item} for item in items]
    return rows, list(dict.fromkeys(name for row in rows for name in row))


def pick_columns(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Return the rows and headings of a table with these fields, without those that are empty in every row."""
    used = [name for name in columns if any(row.get(name) not in (None, [], {}, "") for row in rows)]
    return [[format_cell(name, row.get(name)) for name in used] for row in rows], [
        HEADINGS.get(name, name).replace("_", " ") for name in used
    ]


def format_cell(name: str, value: Any) -> str:
    """Return a field's value in one line, as people write it."""
    if value is None or value == [] or value == {}:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if name in TIME_FIELDS:
            return time.strftime("%Y-%m-%d %H:%M", time.localtime(value))
        return f"{value:,.2f}" if name in ("score", "confidence", "importance", "likeness") else f"{value:,.6g}"
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return ", ".join(" ".join(str(item).split()) for item in value)
    if isinstance(value, dict) and all(isinstance(item, int | float | str) for item in value.values()):
        return ", ".join(f"{key} {format_cell(key, item)}" for key, item in value.items())
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return " ".join(str(value).split())


def format_table(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> list[str]:
    """Return a table's lines; on a terminal its widest columns are cut to fit."""
    rows = [[escape_text(cell) for cell in row] for row in rows]
    widths = [
        max([measure_width(heading), *(measure_width(row[i]) for row in rows)]) for i, heading in enumerate(headings)
    ]
    if sys.stdout.isatty():
        spare = sum(widths) + 2 * (len(widths) - 1) - get_terminal_size().columns
        for i in sorted(range(len(widths)), key=lambda i: -widths[i]):  # the widest first: texts, not times
            cut = min(max(0, spare), max(0, widths[i] - MIN_CUT_COLUMN_CHARS))
            widths[i] -= cut
            spare -= cut
    return [style_text(_fit_row(headings, widths), None, bold=True), *(_fit_row(row, widths) for row in rows)]


def _fit_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(_fit_cell(cell, width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _fit_cell(text: str, width: int) -> str:
    """Return a text with exactly this width on a terminal."""
    if (actual := measure_width(text)) > width:
        while measure_width(text) > width - 1:
            text = text[:-1]
        text, actual = f"{text.rstrip()}…", measure_width(text.rstrip()) + 1
    return text + " " * (width - actual)


def measure_width(text: str) -> int:
    """Return how many columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # few texts need it

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


# --- CSV --------------------------------------------------------------------------------------------------------------


def format_csv(value: Any) -> str:
    """Return a result as CSV with a heading: a row for each item, lists and objects within it as JSON."""
    import csv  # only for this format
    import io

    rows, names = _to_rows(value)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_format_csv_cell(row.get(name)) for name in names])
    return stream.getvalue() if names else ""


def _format_csv_cell(value: Any) -> Any:
    if isinstance(value, dict | list | bool):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else value
