"""Recall, token cost and latency of tool search."""

import sys
import time
from statistics import median

from athena.core import tokens
from athena.core.threads import run_sync
from athena.discovery.entry import ToolEntry, list_catalog_entries
from athena.discovery.finder import ToolFinder
from athena.embedding.encoder import Encoder
from athena.embedding.minilm import MiniLM
from athena.operations import tools
from bench import machine
from bench.result import Result, Row, Table
from bench.run import Run
from bench.timing import format_ms, time_call

TOP, ENOUGH = 3, 0.95
PARTS = {
    "dev": "tuned on",
    "more": "written later, tuned on",
    "held_out": "held out",
    "strangers_dev": "by others, tuned on",
    "strangers_held_out": "by others, held out",
}
LEVELS: tuple[tools.Detail, ...] = ("names", "signatures", "full")


def run(run: Run) -> Result:
    sys.path.insert(0, str(machine.ROOT / "tests"))  # the tool catalog and the requests are test data
    import tool_requests

    model = MiniLM()
    every = list_catalog_entries(tool_requests.catalog())
    finder = ToolFinder(Encoder(model))
    built = time_call(_warm_up, finder, every)
    rows, lines = [], []
    for part, told in PARTS.items():
        asked = tool_requests.requests(part)
        for words_only in (False, True):
            first, third = _measure_recall(finder, every, asked, words_only=words_only)
            how = "words alone" if words_only else "words and meaning"
            lines.append((told, str(len(asked)), how, f"{first:.1%}", f"{third:.1%}"))
            if not words_only and part != "more":
                what = f"the right one of {len(every)} tools in the first three, requests {told}"
                rows.append(Row(what, f"at least {ENOUGH:.0%}", f"{third:.1%} of {len(asked)}", third >= ENOUGH))
    before = tool_requests.requests("dev") + tool_requests.requests("held_out")
    _, both = _measure_recall(finder, every, before, words_only=False)
    what = f"the right one of {len(every)} tools in the first three, both halves"
    rows.append(Row(what, f"at least {ENOUGH:.0%}", f"{both:.1%} of {len(before)}", both >= ENOUGH))
    questions = [said for said, _ in tool_requests.requests("held_out")]
    passes = [time_call(model.encode_question, one) for one in questions]
    searches = [time_call(run_sync, finder.rank(every, one)) for one in questions]
    hurried = [time_call(run_sync, finder.rank(every, one, words_only=True)) for one in questions]
    more = median(searches) / median(passes)
    rows.append(Row("a search, beside one pass of the model", "", f"{more:.1f} x: {format_ms(median(searches))}", None))
    costs = [(one, *_measure_cost(finder, every, questions, one)) for one in LEVELS]
    finder.stop()
    return Result(
        "Finding tools",
        "Requests in plain language over our operations and the tools of 34 typical servers (`tests/data/`), each with "
        "the few tools that would do. Which ones were held out was fixed before the ranking was tuned. Those by others "
        "were written with only the names and summaries of the tools in view.",
        rows,
        [
            Table(("requests", "how many", "by", "first", "among the first three"), lines),
            Table(("detail", "five tools, o200k tokens (median)", "most"), costs),
            f"By words alone: {format_ms(median(hurried))}. "
            f"Reading all tools once, in the background: {format_ms(built)}.",
        ],
    )


def _warm_up(finder: ToolFinder, every: tuple[ToolEntry, ...]) -> None:
    finder.warm_up(every)
    while not finder.vectors.is_ready:
        time.sleep(0.005)


def _measure_recall(
    finder: ToolFinder, every: tuple[ToolEntry, ...], asked: list[tuple[str, list[str]]], *, words_only: bool
) -> tuple[float, float]:
    first = third = 0
    for said, right in asked:
        found = [one.path for one in run_sync(finder.rank(every, said, words_only=words_only))[:TOP]]
        first += bool(set(found[:1]) & set(right))
        third += bool(set(found) & set(right))
    return first / len(asked), third / len(asked)


def _measure_cost(
    finder: ToolFinder, every: tuple[ToolEntry, ...], questions: list[str], detail: tools.Detail
) -> tuple[str, str]:
    answers = [
        "\n".join(tools.format_entries(run_sync(finder.rank(every, one))[:5], detail, None)) for one in questions
    ]
    counts = [tokens.count_tokens_exactly(answer) for answer in answers]
    return f"{median(counts):.0f}", str(max(counts))
