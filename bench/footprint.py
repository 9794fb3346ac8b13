"""Memory and disk space of a store."""

import json
import os
from pathlib import Path

import apsw

from bench import corpus
from bench.result import Result, Row, Table
from bench.run import Run
from bench.stores import FILE
from bench.timing import python_command, run_process

BAR = 250_000_000
PROGRAM = """
import json, resource, sys
def resident():
    try:
        with open("/proc/self/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        return [int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")]
    except OSError:  # not Linux: only the peak can be had, in bytes
        return [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss] * 2
bare = resident()
from athena import api
for query in json.loads(sys.argv[1]):
    assert api.search(query).memories
print(json.dumps([bare, resident()]))
"""
# Part of the store by prefix of a table's or index's name; the first match counts.
KINDS = (
    ("words", ("words", "word_", "passage_words")),
    ("vectors", ("passages", "models")),
    ("text", ("memories", "sqlite_autoindex_memories", "tags", "links")),
    ("history and calls", ("history", "calls", "receipts")),
)


def run(run: Run) -> Result:
    home = run.stores.home(run.ordinary)
    copy = run.stores.copy(run.ordinary)
    asked = json.dumps(corpus.make_queries(20, run.ordinary))
    ran = run_process([*python_command(PROGRAM), asked], run.environment(copy), str(run.folder))
    bare, after = json.loads(ran.output)
    count = run.ordinary
    disk = os.path.getsize(home / FILE)
    characters = sum(map(len, corpus.load_notes(count))) / count
    parts = _parts(home / FILE)
    lines = [(name, _kb(size), f"{size / count:,.0f} bytes", f"{size / disk:.0%}") for name, size in parts.items()]
    return Result(
        "Memory and disk",
        f"Memory: the resident set of a process that opened {count:,} notes and searched 20 times. Disk: the file "
        f"after it was closed, by `dbstat`; a note has {characters:.0f} characters on average.",
        [
            Row(
                f"Memory of a process that opened {count:,} memories and searched",
                f"under {BAR / 1e6:.0f} MB",
                f"{after[1] / 1e6:.0f} MB at its peak, {after[0] / 1e6:.0f} MB afterwards",
                after[1] < BAR,
            ),
            Row("Disk for each memory", "stated", f"{disk / count:,.0f} bytes", None),
        ],
        [
            f"Python alone, before the first import of ours: {bare[0] / 1e6:.0f} MB.",
            Table(
                ("part of the file", "size", "each memory", "share"),
                [*lines, ("whole", _kb(disk), f"{disk / count:,.0f} bytes", "")],
            ),
        ],
    )


def _parts(file: Path) -> dict[str, int]:
    """Return the bytes of the pages of each part of the store."""
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        rows = connection.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name").fetchall()
    except apsw.SQLError:  # this SQLite was built without dbstat
        return {}
    finally:
        connection.close()
    sizes: dict[str, int] = {}
    for name, size in rows:
        kind = next((kind for kind, starts in KINDS if str(name).startswith(starts)), "the rest")
        sizes[kind] = sizes.get(kind, 0) + int(str(size))
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _kb(size: int) -> str:
    return f"{size / 1000:,.0f} kB"
