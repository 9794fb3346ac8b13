"""The same searches on PostgreSQL and SQLite, alternating, and from several processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

from athena import api
from athena.app import connect
from athena.app.compose import App
from athena.embedding.minilm import MiniLM
from athena.storage.copying import copy_store
from athena.storage.postgres.store import Postgres
from athena.storage.sqlite.store import Sqlite
from bench import corpus
from bench.machine import ROOT
from bench.processes import run_processes
from bench.result import Result, Row, Table
from bench.run import Run
from bench.stores import FILE
from bench.timing import format_ms, percentile, time_call

sys.path.insert(0, str(ROOT / "scripts"))
import postgres as throwaway  # scripts/postgres.py, not part of the package

SLOWER, GROWTH, SCALING, STORE, WORKERS, PARTITIONED = 2.5, 1.6, 1.6, 1.5, 1.7, 1.1
READERS, PARTITIONS = 4, 8
PATIENCE = 600.0  # seconds to build the index


class EngineTimes(NamedTuple):
    """Least time of each query over the rounds, on both engines."""

    sqlite: list[float]
    postgres: list[float]
    copied: float
    graph: float | None
    alike: float  # share of SQLite's first five results that PostgreSQL also found

    @property
    def ratio(self) -> float:
        return median(p / s for p, s in zip(self.postgres, self.sqlite, strict=True))


def run(run: Run) -> Result:
    queries = corpus.make_queries(20 if run.quick else 100, run.sizes[0])
    with throwaway.running() as server:
        measured = {size: _measure(run, server, size, queries) for size in (run.ordinary, run.large)}
        url = server.url(f"bench_{run.ordinary}")
        one = _rate(run, url, queries, 1)
        several = _rate(run, url, queries, READERS)
        stored, model, commit = _store(run, url)
        partitioned, plain, divided = _compare_partitions(run, server, url, queries)
        one_worker, two_workers = (_embed_backlog(run, url, workers) for workers in (1, 2))
    growth = median(measured[run.large].postgres) / median(measured[run.ordinary].postgres)
    rows = [
        Row(
            f"`recall` of {size:,} memories on PostgreSQL",
            f"at most {SLOWER}x SQLite in-process",
            f"{m.ratio:.2f}x: {format_ms(median(m.postgres))} against {format_ms(median(m.sqlite))}",
            m.ratio <= SLOWER,
        )
        for size, m in measured.items()
    ]
    rows += [
        Row(
            f"The same, from {run.ordinary:,} to {run.large:,} memories",
            f"grows by less than {GROWTH}x",
            f"{growth:.2f}x",
            growth < GROWTH,
        ),
        Row(
            f"{READERS} processes that search one database",
            f"at least {SCALING}x the searches of one, on 2 cores",
            f"{several / one:.2f}x: {several:,.0f} searches a second against {one:,.0f}",
            several / one >= SCALING,
        ),
        Row(
            "`store` of one note on PostgreSQL",
            f"at most {STORE}x (one model pass + one commit)",
            f"{stored / (model + commit):.2f}x: {format_ms(stored)} against {format_ms(model)} + {format_ms(commit)}",
            stored <= STORE * (model + commit),
        ),
        Row(
            "Two `athena worker` with one thread each, for a backlog of passages without vectors",
            f"at least {WORKERS}x the rate of one, on 2 cores",
            f"{two_workers / one_worker:.2f}x: {two_workers:,.0f} passages a second against {one_worker:,.0f}",
            two_workers / one_worker >= WORKERS,
        ),
        Row(
            f"`recall` of {run.ordinary:,} memories in {PARTITIONS} partitions (`athena migrate --partitions`)",
            f"at most {PARTITIONED}x without",
            f"{partitioned / plain:.2f}x: {format_ms(partitioned)} against {format_ms(plain)}; copied in "
            f"{divided:.1f} s",
            partitioned / plain <= PARTITIONED,
        ),
    ]
    return Result(
        "PostgreSQL",
        f"A server of its own on this machine, reached by a Unix socket, fsync on. The stores of the other benchmarks "
        f"are copied into it by `athena migrate`. {len(queries)} questions on both engines in turn, 4 rounds after one "
        "to warm up; each question's least time counts, the ratio is taken question by question, and its median is "
        f"shown. Then 1 and {READERS} processes, each with a model of its own, search {run.ordinary:,} memories "
        "as fast as they can.",
        rows,
        [
            _table(measured),
            "A search waits for the server about ten times; another machine adds its round trip to each. How "
            "common a word is and a sample of vectors are read once a minute: the rounds after the first have them.",
        ],
    )


def _compare_partitions(run: Run, server: throwaway.Server, url: str, queries: list[str]) -> tuple[float, float, float]:
    """Return the median times of the questions with partitions and without, in turn, and how long the copy took."""
    target_url = server.create("bench_partitions")
    began = time.perf_counter()
    source, target = Postgres(url), Postgres(target_url, copying="to", partitions=PARTITIONS)
    copy_store(source, target)
    source.close()
    target.close()
    copied = time.perf_counter() - began
    embedder = MiniLM()
    apps = [App(Postgres(target_url), embedder), App(Postgres(url), embedder)]
    least = [[float("inf")] * len(queries) for _ in apps]
    for number in range(-1, 2 if run.quick else 4):
        for i, query in enumerate(queries):
            for app, times in zip(apps, least, strict=True):
                with connect.use_app(app):
                    app.store.encoder.kept_questions.clear()
                    taken = time_call(api.search, query)
                    times[i] = min(times[i], taken if number >= 0 else float("inf"))
    for app in apps:
        app.close()
    return median(least[0]), median(least[1]), copied


def _embed_backlog(run: Run, url: str, workers: int) -> float:
    """Take the vectors of some passages away, and return how many a second `athena worker` processes bring back."""
    import psycopg

    count = 100 if run.quick else 2_000
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path TO athena, public")
        chosen = "SELECT id FROM passages WHERE live = 1 ORDER BY id LIMIT %s"
        connection.execute(f"DELETE FROM tokens WHERE passage IN ({chosen})".encode(), [count])
        connection.execute(f"UPDATE passages SET model = NULL, code = NULL WHERE id IN ({chosen})".encode(), [count])
        connection.execute("VACUUM ANALYZE passages")
    environment = run.environment(run.folder) | {"ATHENA_DATABASE_URL": url}
    command = [sys.executable, "-m", "athena", "worker", "--once", "--threads", "1", "--json"]
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, cwd=run.folder) for _ in range(workers)
    ]
    reports = [json.loads(process.communicate()[0]) for process in processes]
    return float(sum(report["done"] / report["seconds"] for report in reports if report["done"]))


def _measure(run: Run, server: throwaway.Server, size: int, queries: list[str]) -> EngineTimes:
    home = run.stores.copy(size)
    url = server.create(f"bench_{size}")
    began = time.perf_counter()
    source, target = Sqlite(home / FILE), Postgres(url, copying="to")
    copy_store(source, target)
    source.close()
    target.close()
    copied = time.perf_counter() - began
    embedder = MiniLM()
    apps = {"sqlite": App(Sqlite(home / FILE), embedder), "postgres": App(Postgres(url), embedder)}
    try:
        graph = _wait_for_graph(apps["postgres"], queries[0], url) if size > 20_000 else None
        least = {name: [float("inf")] * len(queries) for name in apps}
        common = 0
        for number in range(-1, 2 if run.quick else 4):
            for i, query in enumerate(queries):
                found = {}
                for name in apps if number % 2 else reversed(apps):
                    with connect.use_app(apps[name]):
                        apps[name].store.encoder.kept_questions.clear()
                        taken = time_call(api.search, query)
                        least[name][i] = min(least[name][i], taken if number >= 0 else float("inf"))
                        if number == 0:
                            found[name] = {memory.hash for memory in api.search(query, limit=5).memories}
                if found:
                    common += len(found["sqlite"] & found["postgres"])
    finally:
        for app in apps.values():
            app.close()
    return EngineTimes(least["sqlite"], least["postgres"], copied, graph, common / (5 * len(queries)))


def _wait_for_graph(app: App, query: str, url: str) -> float:
    """Search once to trigger the index build, and return how long it took."""
    import psycopg

    began = time.perf_counter()
    with connect.use_app(app):
        api.search(query)
    with psycopg.connect(url, autocommit=True) as connection:
        while not connection.execute(
            "SELECT 1 FROM pg_index WHERE indisvalid AND indexrelid::regclass::text LIKE '%passages_near%'"
        ).fetchone():
            if time.perf_counter() - began > PATIENCE:
                raise SystemExit("the graph was not drawn")
            time.sleep(0.1)
    return time.perf_counter() - began


def _rate(run: Run, url: str, queries: list[str], readers: int) -> float:
    """Return the searches per second of several processes together."""
    environment = run.environment(run.folder) | {"ATHENA_DATABASE_URL": url}
    reports, _ = run_processes(environment, "bench.reader", [json.dumps((queries, 2 if run.quick else 8))] * readers)
    return float(sum(report["searches"] / report["seconds"] for report in reports))


def _store(run: Run, url: str) -> tuple[float, float, float]:
    """Return the median seconds of a store, of the model's pass over the note, and of a commit of one row, in turn."""
    import psycopg

    texts = corpus.load_notes(run.ordinary + 200)[run.ordinary :][: 20 if run.quick else 200]
    embedder = MiniLM()
    times: list[tuple[float, float, float]] = []
    with _using(url), psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE bench_commits (value integer)")
        for text in texts:
            commit = time_call(connection.execute, "INSERT INTO bench_commits VALUES (1)")
            times.append((time_call(api.store, text), time_call(embedder.embed, [text]), commit))
        connection.execute("DROP TABLE bench_commits")
    stored, model, commits = zip(*times, strict=True)
    return median(stored), median(model), median(commits)


@contextmanager
def _using(url: str) -> Generator[None]:
    os.environ["ATHENA_DATABASE_URL"] = url
    try:
        yield
    finally:
        api.close()
        del os.environ["ATHENA_DATABASE_URL"]


def _table(measured: dict[int, EngineTimes]) -> Table:
    lines = [
        (
            f"{size:,}",
            format_ms(median(m.sqlite)),
            format_ms(median(m.postgres)),
            format_ms(percentile(m.postgres, 0.95)),
            f"{m.ratio:.2f}x",
            f"{m.alike:.0%}",
            f"{m.copied:.1f} s",
            "-" if m.graph is None else f"{m.graph:.0f} s",
        )
        for size, m in measured.items()
    ]
    head = ("memories", "SQLite", "PostgreSQL", "95 %", "ratio", "the same first five", "migrate", "graph drawn in")
    return Table(head, lines)
