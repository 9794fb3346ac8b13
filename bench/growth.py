"""What operations cost in stores of several sizes, as ratios."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from athena import api
from athena.app import connect
from athena.app.compose import App
from athena.core.threads import run_sync
from athena.embedding.embedder import Excerpt
from athena.storage.sqlite.store import Sqlite
from bench import corpus
from bench.result import Result, Row, Table
from bench.run import Run
from bench.stores import EMBED_BATCH_SIZE, FILE, ImitatingEmbedder
from bench.timing import format_ms, python_command, run_process

PROGRAM = "from bench.growth import measure; measure()"
# So that the vector blocks are there.
WARM_UP_PROGRAM = "import time; from athena import api; api.search('anything'); time.sleep(8); api.close()"
# Alone, because the first search of a process also imports what it needs. The model has encoded a question before.
FIRST_SEARCH_PROGRAM = """
import sys, time
from athena import api
from athena.app import connect
from athena.core.threads import run_sync
app = connect.shared_app()
for question in sys.argv[1:3]:
    run_sync(app.store.encoder.encode_question(question))
began = time.process_time()
api.search(sys.argv[3])
print(time.process_time() - began)
"""
FIRST_SEARCHES = 5
REAL_VECTORS = 300
LINEAR_SLACK = 1.3  # a larger store also misses the processor's caches
MIXED_TYPES = ("note", "note", "note", "decision", "preference")
FIRST_MOMENT, MOMENTS_APART_S = 1_760_000_000.0, 600.0
# Each operation with its bar: what it may cost in the larger store, as a multiple; 0 for linear.
BARS = {
    "first search of a process": 2.0,
    "search": 2.0,
    "the newest 20": 2.0,
    "the newest 20 with a common tag": 2.0,
    "list_tags": 2.0,
    "stats": 2.0,
    "expertise": 2.0,
    "health": 2.0,
    "store": 2.0,
    "forget": 2.0,
    "forget, each of 80": 2.0,
    "all pages of 100": 0.0,
    "verify": 0.0,
    "copy of the store": 0.0,
}


def run(run: Run) -> Result:
    sizes = (300, 1_000, 3_000) if run.quick else (10_000, 100_000, 300_000)
    figures: dict[int, dict[str, float]] = {}
    home = run.folder / "growing"
    for smaller, size in zip((0, *sizes), sizes, strict=False):
        grow(home, smaller, size)
        copy = run.folder / f"growing-{size}"
        shutil.copytree(home, copy)
        figures[size] = measure_processes(run.environment(copy), run.folder, PROGRAM)
        shutil.rmtree(copy)
    first, second = sizes[:2]
    rows = [_judge(name, first, second, figures) for name in BARS]
    lines = [
        (
            name,
            *(format_ms(figures[size][name]) for size in sizes),
            *(f"{figures[size][name] / figures[first][name]:.1f}x" for size in sizes[1:]),
        )
        for name in BARS
    ]
    head = ("CPU of", *(f"{size:,}" for size in sizes), *(f"{size:,} to {first:,}" for size in sizes[1:]))
    return Result(
        "Growth",
        "CPU time of this process (user and system, all threads) in stores of several sizes: notes with two tags, five "
        "types and different times, most with imitated vectors. The least of several calls; of the first search, "
        "after the model has encoded a question. A process has searched each store before, so its vector blocks exist.",
        rows,
        [Table(head, lines)],
    )


def measure_processes(environment: Mapping[str, str], folder: Path, program: str) -> dict[str, float]:
    """Return the CPU seconds of operations, and of the first search, each in processes of their own."""
    run_process(python_command(WARM_UP_PROGRAM), environment, str(folder))
    figures: dict[str, float] = json.loads(run_process(python_command(program), environment, str(folder)).output)
    first_search = [*python_command(FIRST_SEARCH_PROGRAM), *corpus.make_queries(3, 200)]
    times = [float(run_process(first_search, environment, str(folder)).output) for _ in range(FIRST_SEARCHES)]
    return figures | {"first search of a process": min(times)}


def _judge(name: str, first: int, second: int, figures: dict[int, dict[str, float]]) -> Row:
    ratio, growth = figures[second][name] / figures[first][name], second / first
    bar = BARS[name] or LINEAR_SLACK * growth
    text = f"at most {bar:.0f}x" if BARS[name] else f"linear: at most {bar:.0f}x"
    what = f"{name}: {second:,} against {first:,} memories"
    return Row(what, text, f"{ratio:.1f}x: {format_ms(figures[second][name])}", ratio <= bar)


def grow(home: Path, smaller: int, size: int) -> None:
    """Add notes to a store until it has `size`."""
    texts = corpus.load_notes(size + REAL_VECTORS)
    embedder = ImitatingEmbedder(REAL_VECTORS)
    embedder.encode_passages([Excerpt(text, "") for text in corpus.load_notes(REAL_VECTORS)])
    moment = FIRST_MOMENT
    app = App(Sqlite(home / FILE), embedder, time=lambda: moment)
    try:
        with connect.use_app(app):
            for begin in range(smaller, size, EMBED_BATCH_SIZE // 5):
                moment = FIRST_MOMENT + begin * MOMENTS_APART_S / (EMBED_BATCH_SIZE // 5)
                numbers = range(begin, min(size, begin + EMBED_BATCH_SIZE // 5))
                api.store_batch([_create_item(i, texts[i]) for i in numbers])
    finally:
        app.close()


def _create_item(number: int, text: str) -> dict[str, Any]:
    tags = [f"topic{number % 50}", *(["common"] if number % 2 else [])]
    return {"content": text, "tags": tags, "memory_type": MIXED_TYPES[number % len(MIXED_TYPES)]}


def measure(*, is_read_whole: bool = True) -> None:
    """Print the CPU seconds of each operation in the store of this process's settings, as JSON."""
    questions = iter(corpus.make_queries(40, 200))
    app = connect.shared_app()
    for _ in range(2):
        run_sync(app.store.encoder.encode_question(next(questions)))
    figures: dict[str, float] = {}

    def add(name: str, work: Callable[[], Any], rounds: int = 5) -> None:
        figures[name] = min(_measure_cpu(work) for _ in range(rounds))

    api.search(next(questions))
    add("search", lambda: api.search(next(questions)), 15)
    add("the newest 20", partial(api.call, "list_memories", k=20))
    add("the newest 20 with a common tag", partial(api.call, "search_by_tag", tags="common", k=20))
    for name in ("list_tags", "stats", "expertise", "health"):
        add(name, partial(api.call, name))
    if is_read_whole:
        add("all pages of 100", _read_pages, 1)
        add("copy of the store", partial(_copy_store, app), 1)
    add("verify", partial(api.call, "verify"), 1)
    serial = iter(range(100))
    add("store", lambda: api.store(f"A new note, number {next(serial)}, about the harbour", tags=["common"]), 12)
    newest = iter([memory["id"] for memory in api.call("list_memories", k=100)])
    add("forget", lambda: api.call("forget", memory_id=next(newest)), 12)
    ids = list(newest)[:80]
    add("forget, each of 80", partial(api.call, "forget_batch", memory_ids=ids), 1)
    figures["forget, each of 80"] /= len(ids)
    api.close()
    sys.stdout.write(json.dumps(figures))


def _measure_cpu(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _read_pages() -> None:
    after = None
    while page := api.call("list_memories", k=100, after=after):
        after = page[-1]["id"]


def _copy_store(app: App) -> None:
    """Copy the store as `athena migrate` does."""
    from athena.storage.copying import copy_store

    database = app.store.database
    assert isinstance(database, Sqlite)
    source, target = Sqlite(database.path, copying="from"), Sqlite(f"{database.path}.copy", copying="to")
    try:
        copy_store(source, target, lambda *_: None)
    finally:
        source.close()
        target.close()
