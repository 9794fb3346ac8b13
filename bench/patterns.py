"""Consolidation: the share of planted patterns that it finds, and its speed."""

import resource
import time
import uuid

from athena.core.threads import run_sync
from athena.core.values import Call
from athena.memory.consolidation import run as consolidation
from athena.memory.remember import remember
from athena.memory.values import SERIAL_KEY, Draft
from bench.evaluation import planted
from bench.evaluation.planted import JudgedPattern, PatternScore
from bench.evaluation.planting import START_TIME_S, generate_noise, generate_stream
from bench.evaluation.statements import generate_statements
from bench.result import Result, Row, Table
from bench.run import PROJECT, Run

SIZES = (200, 600, 1_500)
LEAST, ERROR = 0.9, 0.1
SECONDS = 60.0
DAYS = 30
Results = list[tuple[list[JudgedPattern], dict[str, int]]]


def run(run: Run) -> Result:
    count = 6 if run.quick else 60
    halves = {
        name: _trials(first, count)
        for name, first in (("tuned on", planted.FIRST_TUNING_SEED), ("held out", planted.FIRST_TEST_SEED))
    }
    quiet, found = _noise(count)
    speed, stages = _speed(run)
    held = planted.sum_scores(halves["held out"])
    rows = [_row(kind, score) for kind, score in held.items()]
    errors = {kind: _error(halves["held out"], kind) for kind in held}
    rows.append(
        Row("confidence of patterns", f"expected calibration error at most {ERROR}",
            ", ".join(f"{error:.3f} ({kind})" for kind, error in errors.items()), max(errors.values()) <= ERROR)
    )  # fmt: skip
    rows.append(Row("patterns in pure noise", "none", f"{found} in {quiet:,} events", found == 0))
    halves["held-out families"] = _unseen(count)
    lines = [
        (name, kind, str(score.planted), str(score.found), f"{score.precision:.3f}", f"{score.recall:.3f}",
         f"{_error(results, kind):.3f}")
        for name, results in halves.items()
        for kind, score in planted.sum_scores(results).items()
    ]  # fmt: skip
    head = ("seeds", "type", "planted", "found", "precision", "recall", "calibration error")
    return Result(
        "Consolidation",
        f"{count} streams of 200 to 1,500 events with 2 to 4 recurring episodes and 1 to 3 sequences each, {count} "
        "sets of about 60 memories with 6 contradictions and 8 pairs that only look like one, and streams without any "
        "pattern (`athena/evaluation/planting.py`, `statements.py`). Thresholds and weights were fitted to the even "
        "seeds (`scripts/fit_patterns.py`), the bars are judged by seeds of another range, which also hold "
        "families of statements that the even ones lack, a third of all; these alone are in the table, too. "
        "A pattern is right if it shares at least half of its evidence with a "
        "planted one; " + REPORT,
        [*rows, speed],
        [Table(head, lines), "`consolidate(balanced)` over events and memories in a store:", stages],
    )


REPORT = f"from a confidence of {planted.MIN_REPORTED_CONFIDENCE} on it is reported."


def _trials(first: int, count: int) -> Results:
    results: Results = []
    for i in range(count):
        seed = first + 2 * i
        one = generate_stream(seed, SIZES[i % 3], recurring=2 + i % 3, sequences=1 + i % 3, days=(28, 14, 56)[i % 3])
        results += [
            planted.judge_stream(one, planted.find_event_patterns(one)),
            planted.judge_statements(generate_statements(seed)),
        ]
    return results


def _unseen(count: int) -> Results:
    """Score only statements of families that no rule was tuned on."""
    seeds = range(planted.FIRST_TEST_SEED, planted.FIRST_TEST_SEED + 2 * count, 2)
    return [planted.judge_statements(generate_statements(seed, unseen_only=True)) for seed in seeds]


def _noise(count: int) -> tuple[int, int]:
    """Return the number of noise events and of patterns found in them."""
    events = found = 0
    for i in range(count):
        quiet = generate_noise(planted.FIRST_TEST_SEED + 100_000 + 2 * i, SIZES[i % 3])
        events += len(quiet.events)
        found += sum(one.confidence >= planted.MIN_REPORTED_CONFIDENCE for one in planted.find_event_patterns(quiet))
    return events, found


def _error(results: Results, kind: str) -> float:
    return planted.compute_calibration_error(one for judged, _ in results for one in judged if one.type == kind)


def _row(kind: str, score: PatternScore) -> Row:
    return Row(
        f"planted patterns: {kind}",
        f"precision and recall at least {LEAST}",
        f"precision {score.precision:.3f}, recall {score.recall:.3f} of {score.planted}",
        min(score.precision, score.recall) >= LEAST,
    )


def _speed(run: Run) -> tuple[Row, Table]:
    """Time a run over many events, and a second run over the same events."""
    home = run.folder / "patterns"
    home.mkdir()
    with run.open_store(home) as app:
        scope = app.create_context(PROJECT, "python").scope
        call = Call("consolidate", "bench", scope, app.store.clock())
        shift = app.store.clock() - START_TIME_S - (DAYS - 1) * 86_400
        planned = generate_stream(1, run.ordinary, recurring=10, sequences=3)
        for first in range(0, len(planned.events), 1_000):
            drafts = [
                Draft(e.text, (), e.event_type, {"session_id": e.session, "outcome": e.outcome, "date": e.at + shift,
                                                 SERIAL_KEY: uuid.uuid4().hex})
                for e in planned.events[first : first + 1_000]
            ]  # fmt: skip
            run_sync(remember(app.store, drafts, call.with_kind("event"), read_first=False))
        app.store.encoder.stop()  # keep the model from competing for the CPU while timing
        lines: list[tuple[str, str, str]] = []
        last = began = time.perf_counter()

        def tell(stage: str, done: int, total: int) -> None:
            nonlocal last
            now = time.perf_counter()
            if lines:
                lines[-1] = (lines[-1][0], f"{now - last:.2f} s", "")
            lines.append((stage, "", ""))
            last = now

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        first_run = run_sync(consolidation.consolidate(app.store, "balanced", DAYS, False, call, tell))
        seconds = time.perf_counter() - began
        lines[-1] = (lines[-1][0], f"{time.perf_counter() - last:.2f} s", "")
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        began = time.perf_counter()
        again = run_sync(consolidation.consolidate(app.store, "balanced", DAYS, False, call))
        repeated = time.perf_counter() - began
    lines.append(("whole", f"{seconds:.2f} s", f"{len(first_run.patterns)} patterns, {grown:.0f} MB more memory"))
    lines.append(("the same again", f"{repeated * 1000:.1f} ms", f"{again.new} new patterns"))
    row = Row(
        f"`consolidate(balanced)` over {len(planned.events):,} events",
        f"under {SECONDS:.0f} s",
        f"{seconds:.1f} s, {grown:.0f} MB more memory; the same again {repeated * 1000:.0f} ms",
        seconds < SECONDS,
    )
    return row, Table(("stage", "time", ""), lines)
