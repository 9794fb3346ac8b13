"""Search time while the vectors of an earlier model are replaced in the background."""

import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import apsw

from athena import api
from athena.app import connect
from athena.app.compose import App
from athena.embedding.minilm import MiniLM
from athena.memory import index
from athena.storage.sqlite.store import Sqlite
from bench import corpus
from bench.result import Result, Row, Table
from bench.run import Run
from bench.stores import FILE
from bench.timing import format_ms, percentile

MAX_RATIO = 1.5  # of the p99 with re-embedding to that without
SEARCH_INTERVAL_S = 0.05  # a steady searcher


class NextModel(MiniLM):
    """The bundled model under a new name, so that a store of the bundled one is that of an earlier model."""

    name = "bench-next/1"
    compatible_models = (MiniLM.name,)


class Phase(NamedTuple):
    """Searches of one phase."""

    seconds: list[float]
    cpu: float  # of the whole process, for each search
    replaced: int  # vectors, in this phase


def run(run: Run) -> Result:
    rounds, phase_s = (1, 3.0) if run.quick else (4, 20.0)
    home = run.stores.copy(run.large)
    queries = corpus.make_queries(100, run.ordinary)
    rows, lines = [], []
    for label, interval_s in (("20 searches a second", SEARCH_INTERVAL_S), ("searches without a pause", 0.0)):
        phases = [
            (_search_phase(home, queries, phase_s, interval_s, reembed=reembed), reembed)
            for _ in range(rounds)
            for reembed in (False, True)
        ]
        alone, beside = (_join([phase for phase, reembed in phases if reembed is wanted]) for wanted in (False, True))
        ratio = percentile(beside.seconds, 0.99) / percentile(alone.seconds, 0.99)
        rows.append(
            Row(
                f"p99 of {label} in {run.large:,} memories, while they are re-embedded",
                f"at most {MAX_RATIO}x that without",
                f"{ratio:.2f}x: {format_ms(percentile(beside.seconds, 0.99))} "
                f"against {format_ms(percentile(alone.seconds, 0.99))}",
                ratio <= MAX_RATIO,
            )
        )
        for name, phase in (("alone", alone), ("beside re-embedding", beside)):
            lines.append(
                (
                    label,
                    name,
                    f"{len(phase.seconds):,}",
                    *(format_ms(value) for value in (median(phase.seconds), percentile(phase.seconds, 0.99))),
                    format_ms(phase.cpu),
                    f"{phase.replaced / (rounds * phase_s):,.0f}",
                )
            )
    return Result(
        "Search beside re-embedding",
        f"A store of {run.large:,} notes whose vectors are of an earlier model. One searcher in the process that "
        f"replaces them, {rounds} phases of {phase_s:.0f} s without and {rounds} with re-embedding, in turn.",
        rows,
        [Table(("searcher", "", "searches", "median", "p99", "CPU for each", "vectors replaced a second"), lines)],
    )


def _search_phase(home: Path, queries: list[str], seconds: float, interval_s: float, *, reembed: bool) -> Phase:
    _rename_models(home)
    app = App(Sqlite(home / FILE), NextModel())
    try:
        with connect.use_app(app):
            for query in queries[:20]:  # loads the model and the vector cache
                api.search(query)
            if reembed:
                index.REEMBED_DELAY_S = 0.0
                index.reembed_in_background(app.store)
                time.sleep(1.0)
            taken: list[float] = []
            cpu_before, end = time.process_time(), time.monotonic() + seconds
            while time.monotonic() < end:
                began = time.perf_counter()
                api.search(queries[len(taken) % len(queries)])
                taken.append(time.perf_counter() - began)
                time.sleep(interval_s)
            cpu = (time.process_time() - cpu_before) / len(taken)
    finally:
        app.close()
    return Phase(taken, cpu, _count_replaced(home))


def _rename_models(home: Path) -> None:
    """Make all vectors those of the earlier model again."""
    with apsw.Connection(str(home / FILE)) as connection:
        connection.execute("UPDATE passages SET model = (SELECT min(id) FROM models), stamp = stamp")


def _count_replaced(home: Path) -> int:
    connection = apsw.Connection(str(home / FILE))
    sql = "SELECT count(*) FROM passages p JOIN models d ON d.id = p.model WHERE d.name = ?"
    ((count,),) = connection.execute(sql, (NextModel.name,)).fetchall()
    connection.close()
    assert isinstance(count, int)
    return count


def _join(phases: list[Phase]) -> Phase:
    seconds = [one for phase in phases for one in phase.seconds]
    cpu = sum(phase.cpu * len(phase.seconds) for phase in phases) / len(seconds)
    return Phase(seconds, cpu, sum(phase.replaced for phase in phases))
