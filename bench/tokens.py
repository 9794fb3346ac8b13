"""Size of typical answers in o200k tokens, and whether what a model is shown holds the answer."""

import json
import random
import sys
from statistics import median
from typing import Any

from athena import api, testing
from athena.app.compose import App
from athena.core import tokens
from athena.core.home.paths import current_project
from athena.core.threads import run_sync
from athena.operations import CATALOG
from athena.server import openapi
from athena.server.mcp import text as mcp_text
from athena.server.mcp.tools import DEFAULT_ARGUMENTS
from bench import corpus
from bench.machine import ROOT
from bench.result import Result, Row, Table
from bench.run import Run

sys.path.append(str(ROOT / "scripts"))

import build_worlds

FIVE, FIVE_OVER_MCP, HEALTH, A_TOOL, ALL_NAMES, SHOWN_SHARE = 220, 385, 20, 16, 500, 0.95
JUDGE = "dov"  # a writer of worlds on which nothing was trained


def run(run: Run) -> Result:
    queries = corpus.make_queries(20, run.ordinary)
    with run.open_store(run.stores.copy(run.ordinary)) as app:
        found = [str(api.search(query, limit=5)) for query in queries]
        over_mcp = [_recall_over_mcp(app, current_project(), query)[1] for query in queries]
        health = str(api.health())
    counts = _count_all(found)
    well = tokens.count_tokens_exactly(health)
    listed = tokens.count_tokens_exactly(_dump(openapi.describe_catalog(CATALOG)))
    names = tokens.count_tokens_exactly(_dump(openapi.describe_catalog(CATALOG, names_only=True)))
    each = listed / len(CATALOG)
    question_count, found_count, shown_count, told = _measure_worlds(2 if run.quick else 24)
    mcp_counts = _count_all([*over_mcp, *told])
    share = shown_count / found_count
    return Result(
        "What an agent reads",
        "o200k tokens, counted offline with the bundled ranks: of `str(api.search(query, limit=5))` over 20 questions, "
        "of the answer of `recall` over MCP to these and to the questions below, of `str(api.health())`, and of the "
        "body of `GET /tools/discover` for each operation.",
        [
            Row(
                "`str(search(...))`, five ordinary memories",
                f"at most {FIVE} tokens",
                f"{median(counts):.0f} (most {counts[-1]})",
                counts[-1] <= FIVE,
            ),
            Row(
                "`recall` over MCP, five ordinary memories",
                f"at most {FIVE_OVER_MCP} tokens",
                f"{median(mcp_counts):.0f} (most {mcp_counts[-1]})",
                mcp_counts[-1] <= FIVE_OVER_MCP,
            ),
            Row(
                f"The memories that answer are in that answer, of {question_count} questions of one writer",
                f"at least {SHOWN_SHARE:.0%} of those found",
                f"{share:.1%} of {found_count}",
                share >= SHOWN_SHARE,
            ),
            Row("`str(health())`", f"at most {HEALTH} tokens", str(well), well <= HEALTH),
            Row(
                f"`GET /tools/discover`, {len(CATALOG)} operations",
                f"at most {A_TOOL} tokens each",
                f"{each:.1f}: {listed:,} in all",
                each <= A_TOOL,
            ),
            Row("`GET /tools/discover?detail=names`", f"at most {ALL_NAMES} tokens", str(names), names <= ALL_NAMES),
        ],
        [Table(("one answer",), [(f"`{line}`",) for line in found[0].splitlines()]), f"Health: `{health}`"],
    )


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _count_all(texts: list[str]) -> list[int]:
    return sorted(map(tokens.count_tokens_exactly, texts))


def _recall_over_mcp(app: App, project: str, query: str) -> tuple[Any, str]:
    """Return the hits and the text that a model gets for a question."""
    operation = CATALOG.get_operation("recall")
    arguments = {"query": query, "k": 5, **DEFAULT_ARGUMENTS["recall"]}
    hits = run_sync(operation(app.create_context(project, "mcp"), **arguments))
    return hits, mcp_text.format_result(operation, arguments, hits)


def _measure_worlds(count: int) -> tuple[int, int, int, list[str]]:
    """Ask the questions of some worlds; return how many there are, found something, show all of it, and the answers."""
    worlds = list(build_worlds.read_worlds(build_worlds.FOLDER / f"{JUDGE}.txt", random.Random(1)))[:count]
    asked = found = shown = 0
    answers = []
    with testing.isolated() as app:
        for world in worlds:
            items = [turn.text for turn in world.turns.values()]
            run_sync(CATALOG.get_operation("remember_batch")(app.create_context(world.name, "python"), items=items))
            for _, question, numbers in world.questions:
                if not numbers:
                    continue
                asked += 1
                hits, answer = _recall_over_mcp(app, world.name, question)
                whole = run_sync(CATALOG.get_operation("recall")(app.create_context(world.name, "mcp"), query=question))
                gold = {world.turns[number].text for number in numbers} & {hit.content for hit in whole}
                found += bool(gold)
                shown += bool(gold) and gold <= {hit.content for hit in hits}
                answers.append(answer)
    return asked, found, shown, answers
