"""Tokens and time of the briefing at session start, compared with the same memories as raw tool results."""

import json
from statistics import median
from typing import Any

from athena import api
from athena.app.connect import AppConnection, shared_app
from athena.core import tokens
from athena.core.threads import run_sync
from bench import corpus
from bench.result import Result, Row, Table
from bench.run import PROJECT, Run
from bench.timing import format_ms, time_call

SMALL, BUDGET = 1_000, 900
GIT_STATE = {"branch": "fix/socket-timeouts", "files": ["src/socketserver.py", "tests/test_threading.py"]}


def run(run: Run) -> Result:
    sizes = [SMALL] + [size for size in (run.ordinary, run.large) if size > SMALL]
    rounds = 5 if run.quick else 30
    measured = {size: _measure(run, size, rounds) for size in sizes}
    told, raw, _, text = measured[SMALL]
    return Result(
        "What a session start costs",
        "`briefing` for a branch and two changed files in stores of notes, of which 40 are tagged as important, with "
        "six episodes and four tasks that are due: o200k tokens of its text, beside the same "
        f"{text.count('- [')} things as `get_memory` returns each of them in JSON; and its time in this process, "
        "without git and without the hook's own process.",
        [
            Row(
                f"session start, a store of {SMALL:,} memories",
                f"at most {BUDGET} tokens",
                f"{told} (as raw tool results {raw:,}, {raw / told:.1f} times as many)",
                told <= BUDGET,
            ),
            Row(
                f"`briefing`, {sizes[-1]:,} memories beside {SMALL:,}",
                "no bar",
                f"{format_ms(measured[sizes[-1]][2])} beside {format_ms(measured[SMALL][2])}",
                None,
            ),
        ],
        [
            Table(
                ("memories", "tokens", "as raw tool results", "time"),
                [(f"{size:,}", f"{one[0]:,}", f"{one[1]:,}", format_ms(one[2])) for size, one in measured.items()],
            ),
            f"```\n{text}\n```",
        ],
    )


def _measure(run: Run, size: int, rounds: int) -> tuple[int, int, float, str]:
    with run.open_store(run.stores.copy(size)):
        call = AppConnection(shared_app, PROJECT, "bench").call

        def ask(name: str, **arguments: Any) -> Any:
            return run_sync(call(name, arguments)).data

        for note in corpus.load_notes(SMALL)[:: SMALL // 40]:
            api.store(note, tags=["important"])
        for i, note in enumerate(corpus.make_queries(10, SMALL)):
            if i < 6:
                ask("record_event", event_type="episode", content=f"Worked on {note}", session_id=f"s{i}")
            else:
                ask("create_task", title=f"Look into {note}", due=1.0)
        times = [time_call(ask, "briefing", **GIT_STATE) for _ in range(rounds)]
        made = ask("briefing", **GIT_STATE)
        raw = [ask("get_memory", memory_id=one["hash"]) for one in made["told"]]
        text = made["text"]
    return (
        tokens.count_tokens_exactly(text),
        sum(tokens.count_tokens_exactly(json.dumps(one)) for one in raw),
        median(times),
        text,
    )
