"""Size of typical answers in o200k tokens."""

import json
from statistics import median

from athena import api
from athena.core import tokens
from athena.operations import CATALOG
from athena.server import openapi
from bench import corpus
from bench.result import Result, Row, Table
from bench.run import Run

FIVE, HEALTH, A_TOOL = 220, 20, 18


def run(run: Run) -> Result:
    queries = corpus.make_queries(20, run.ordinary)
    with run.open_store(run.stores.copy(run.ordinary)):
        found = [str(api.search(query, limit=5)) for query in queries]
        health = str(api.health())
    counts = sorted(tokens.count_tokens_exactly(text) for text in found)
    well = tokens.count_tokens_exactly(health)
    listed = tokens.count_tokens_exactly(
        json.dumps(openapi.describe_catalog(CATALOG), ensure_ascii=False, separators=(",", ":"))
    )
    each = listed / len(CATALOG)
    return Result(
        "What an agent reads",
        "o200k tokens, counted offline with the bundled ranks: of `str(api.search(query, limit=5))` over 20 questions, "
        "of `str(api.health())`, and of the body of `GET /tools/discover` for each operation.",
        [
            Row(
                "`str(search(...))`, five ordinary memories",
                f"at most {FIVE} tokens",
                f"{median(counts):.0f} (most {counts[-1]})",
                counts[-1] <= FIVE,
            ),
            Row("`str(health())`", f"at most {HEALTH} tokens", str(well), well <= HEALTH),
            Row(
                f"`GET /tools/discover`, {len(CATALOG)} operations",
                f"at most {A_TOOL} tokens each",
                f"{each:.1f}: {listed:,} in all",
                each <= A_TOOL,
            ),
        ],
        [Table(("one answer",), [(f"`{line}`",) for line in found[0].splitlines()]), f"Health: `{health}`"],
    )
