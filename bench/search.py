"""Search time in a running process, from small stores to large ones."""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import NamedTuple

from athena import api
from bench import chart, corpus
from bench.parts import Parts, watch_search
from bench.result import Result, Row, Table
from bench.run import Run
from bench.timing import format_ms, percentile, time_call

BARS = {10_000: 2.0, 100_000: 3.0, 300_000: 4.0}
PARTS = {
    "model": "model pass",
    "news": "look for changes",
    "words": "by words",
    "vectors": "by meaning",
    "tokens": "fetch tokens",
    "likeness": "compare tokens",
    "rows": "fetch rows",
}


class SearchTimes(NamedTuple):
    """Least time of each query over the rounds."""

    model: list[float]
    search: list[float]
    parts: dict[str, float]  # mean seconds per search
    whole: float  # mean seconds of whole searches in the same rounds

    @property
    def ratio(self) -> float:
        """Return the median ratio of search time to one model pass."""
        return median(s / m for s, m in zip(self.search, self.model, strict=True))

    def shown(self) -> str:
        return f"{self.ratio:.2f}x: {format_ms(median(self.search))} against {format_ms(median(self.model))}"


def run(run: Run) -> Result:
    queries = corpus.make_queries(20 if run.quick else 100, run.sizes[0])
    rounds = 2 if run.quick else 4
    sizes = run.sizes if run.quick else (*run.sizes, max(BARS))
    measured = {size: _measure(run, size, queries, rounds) for size in sizes}
    bars = {run.ordinary: 2.0, run.large: 3.0} if run.quick else BARS
    rows = [
        Row(
            f"Warm `search` of {size:,} memories, with re-ranking",
            f"at most {bar:.0f}x one model pass over the question",
            measured[size].shown(),
            measured[size].ratio <= bar,
        )
        for size, bar in bars.items()
    ]
    growth = {size: (median(m.model), median(m.search), percentile(m.search, 0.95)) for size, m in measured.items()}
    split = {size: {PARTS[n]: m.parts.get(n, 0.0) for n in PARTS} | _other_time(m) for size, m in measured.items()}
    return Result(
        "Warm search",
        f"{len(queries)} questions of 3 to 8 words of stored notes, stop words and all. For each, "
        f"`embedder.embed([q])` and `api.search(q)` in turn, {rounds} rounds in changing order after one to warm up; "
        "each question's least time counts. The ratio is taken question by question; its median is shown. Encodings "
        "of questions that were asked before are dropped, so each search runs the model.",
        rows,
        [
            _growth(measured),
            "Where a search's time goes (averages over further rounds with a clock around each part):",
            _parts(measured),
            f"The vectors of the first {run.ordinary:,} notes are the model's own. Those of the rest are one of these "
            "with noise (cosine 0.96), since embedding them all would take too long; their words and rows are real.",
        ],
        {"search-growth.svg": chart.draw_growth(growth, bars), "search-parts.svg": chart.draw_parts(split)},
    )


def _measure(run: Run, size: int, queries: list[str], rounds: int) -> SearchTimes:
    home = run.stores.copy(size)  # searches write records, so use a copy
    with run.open_store(home) as app:
        embedder, kept_questions = app.store.encoder.embedder, app.store.encoder.kept_questions

        def search_anew(query: str) -> None:
            kept_questions.clear()
            api.search(query)

        model = [float("inf")] * len(queries)
        search = list(model)
        for number in range(-1, rounds):
            for i, query in enumerate(queries):
                calls: dict[str, Callable[[], object]] = {
                    "model": partial(embedder.embed, [query]),
                    "search": partial(search_anew, query),
                }
                taken = {name: time_call(calls[name]) for name in (calls if number % 2 else reversed(calls))}
                if number >= 0:
                    model[i], search[i] = min(model[i], taken["model"]), min(search[i], taken["search"])
        with Parts() as parts:
            watch_search(parts, app)
            whole = sum(time_call(search_anew, query) for query in queries * 2)
    count = 2 * len(queries)
    return SearchTimes(model, search, {name: spent / count for name, spent in parts.spent.items()}, whole / count)


def _other_time(measured: SearchTimes) -> dict[str, float]:
    return {"the rest": measured.whole - sum(measured.parts.values())}


def _growth(measured: dict[int, SearchTimes]) -> Table:
    lines = [
        (
            f"{size:,}",
            format_ms(median(m.model)),
            format_ms(median(m.search)),
            format_ms(percentile(m.search, 0.95)),
            format_ms(max(m.search)),
            f"{m.ratio:.2f}x",
        )
        for size, m in measured.items()
    ]
    return Table(("memories", "model pass", "search, median", "95 %", "slowest", "ratio"), lines)


def _parts(measured: dict[int, SearchTimes]) -> Table:
    lines = [
        (
            f"{size:,}",
            *(format_ms(m.parts.get(name, 0.0)) for name in PARTS),
            format_ms(_other_time(m)["the rest"]),
            format_ms(m.whole),
        )
        for size, m in measured.items()
    ]
    return Table(("memories", *PARTS.values(), "the rest", "whole"), lines)
