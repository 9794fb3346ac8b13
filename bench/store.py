"""Time to store memories, one at a time and in batches."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from athena import api
from bench import corpus
from bench.parts import Parts
from bench.result import Result, Row, Table
from bench.run import Run
from bench.timing import format_ms, percentile, time_call

BAR = 2.0
BATCH_BAR = 0.8
PAGE = bytes(4096)
PARTS = {
    "model": "model pass",
    "known": "ask whether it is known",
    "statements": "statements of the write",
    "commit": "wait for the writer's thread, begin, commit with fsync",
}


def run(run: Run) -> Result:
    singles, batch, rounds = (30, 200, 2) if run.quick else (300, 2_000, 4)
    texts = corpus.load_notes(run.ordinary + 2 * singles + rounds * batch)[run.ordinary :]
    with run.open_store(run.stores.copy(run.ordinary)) as app:
        single, table = _singles(app, run.folder, texts[:singles])
        split = _split(app, texts[singles : 2 * singles])
        many, rates = _batches(app, texts[2 * singles :], batch)
    return Result(
        "Storing",
        f"Single: {singles} new notes into a store of {run.ordinary:,}; for each, the model's pass over it, an fsync "
        "(4 KB appended to a file in the same folder, then fdatasync), and `api.store`, in turn. "
        f"Batch: {batch:,} new notes, the model alone and `api.store_batch`, in turn, {rounds} times.",
        [single, many],
        [
            table,
            "Where the time of a single store goes (averages):",
            split,
            "Many at once. A batch takes seconds, in which the load of a shared machine changes: the two rates side by "
            "side may even say that a store is faster than the model pass it contains. So the bar is judged by the "
            "lower of the last two columns: which part of the call's own time the model took, and what CPU time the "
            "model needs alone against the whole call.",
            rates,
        ],
    )


def _singles(app: Any, folder: Path, texts: list[str]) -> tuple[Row, Table]:
    embedder = app.store.encoder.embedder
    times: dict[str, list[float]] = {"model pass": [], "fsync": [], "store": []}
    sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
    with open(folder / "appended", "ab", buffering=0) as file:

        def append() -> None:
            file.write(PAGE)
            sync(file.fileno())

        api.store("A note that opens the connection of the writer and loads the model.")
        for text in texts:
            times["model pass"].append(time_call(embedder.embed, [text]))
            times["fsync"].append(time_call(append))
            times["store"].append(time_call(api.store, text))
    model, fsync, store = map(median, times.values())
    ratio = store / (model + fsync)
    least = min(times["store"]) / (min(times["model pass"]) + min(times["fsync"]))
    row = Row(
        "`store` of one note",
        f"acknowledged within {BAR:.0f}x (one model pass + one fsync)",
        f"{ratio:.2f}x: {format_ms(store)} against {format_ms(model)} + {format_ms(fsync)}",
        ratio <= BAR,
    )
    lines = [
        (n, format_ms(min(t)), format_ms(median(t)), format_ms(percentile(t, 0.95)), format_ms(max(t)))
        for n, t in times.items()
    ]
    lines.append(("ratio", f"{least:.2f}x", f"{ratio:.2f}x", "", ""))
    return row, Table(("single", "least", "median", "95 %", "slowest"), lines)


def _split(app: Any, texts: list[str]) -> Table:
    """Time the steps of single stores; the SQL runs on the writer's thread while the caller waits for it."""
    database = app.store.database
    write = database.write

    async def watched(work: Any) -> Any:
        return await write(parts.timed("statements", work))

    with Parts() as parts:
        parts.watch("model", app.store.encoder.embedder, "encode_passages")
        parts.watch("known", database, "read")
        parts.replace(database, "write", parts.timed("wait", watched))
        whole = sum(time_call(api.store, text) for text in texts)
    spent = dict(parts.spent)
    spent["commit"] = spent.pop("wait", 0.0) - spent.get("statements", 0.0)
    lines = [(label, format_ms(spent.get(name, 0.0) / len(texts))) for name, label in PARTS.items()]
    rest = whole - sum(spent.values())
    return Table(
        ("step", "time"), [*lines, ("the rest", format_ms(rest / len(texts))), ("whole", format_ms(whole / len(texts)))]
    )


def _batches(app: Any, texts: list[str], size: int) -> tuple[Row, Table]:
    """Compare `store_batch` with the model: within the same call, and by CPU time with the model alone."""
    embedder = app.store.encoder.embedder
    lines: list[tuple[str, ...]] = []
    inside: list[float] = []
    work: list[float] = []
    for number, first in enumerate(range(0, len(texts), size), 1):
        batch = texts[first : first + size]
        alone, alone_cpu = 0.0, 0.0
        if number % 2:
            alone, alone_cpu = _measure_call(embedder.embed, batch)
        with Parts() as parts:
            parts.watch("model", embedder, "encode_passages")
            whole, whole_cpu = _measure_call(api.store_batch, batch)
        if not alone:
            alone, alone_cpu = _measure_call(embedder.embed, batch)
        inside.append(parts.spent["model"] / whole)
        work.append(alone_cpu / whole_cpu)
        rates = (f"{size / seconds:,.0f} notes/s" for seconds in (alone, whole))
        lines.append((str(number), *rates, f"{inside[-1]:.0%}", f"{work[-1]:.0%}"))
    by_time, by_work = median(inside), median(work)
    lines.append(("median", "", "", f"{by_time:.0%}", f"{by_work:.0%}"))
    row = Row(
        f"`store_batch` of {size:,} notes",
        f"at least {BATCH_BAR:.0%} of the model's own batch rate",
        f"{min(by_time, by_work):.0%} ({by_time:.0%} by time inside the call, {by_work:.0%} by CPU time)",
        min(by_time, by_work) >= BATCH_BAR,
    )
    head = ("batch", "model alone", "`store_batch`", "model's part of the call", "CPU time, model alone / call")
    return row, Table(head, lines)


def _measure_call(function: Callable[[list[str]], object], texts: list[str]) -> tuple[float, float]:
    """Return wall and CPU seconds of a call."""
    before = time.process_time()
    return time_call(function, texts), time.process_time() - before
