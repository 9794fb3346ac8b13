"""How much an agent has to read."""

from statistics import median

from athena import api
from bench import corpus
from bench.result import Result, Row, Table
from bench.run import Run


def run(run: Run) -> Result:
    queries = corpus.queries(20, run.ordinary)
    with run.opened(run.stores.copy(run.ordinary)):
        found = [str(api.search(query, limit=5)) for query in queries]
        health = str(api.health())
    lengths = sorted(map(len, found))
    return Result(
        "What an agent reads",
        "Characters of `str(api.search(query, limit=5))` over 20 questions, and of `str(api.health())`. The bars are "
        "in o200k tokens; that tokenizer is not among the dependencies yet, so only characters are counted here.",
        [
            Row(
                "`str(search(...))`, five ordinary memories",
                "at most 280 o200k tokens",
                f"{median(lengths):.0f} characters (most {lengths[-1]}); tokens not counted yet",
                None,
            ),
            Row(
                "`str(health())`", "at most 20 o200k tokens", f"{len(health)} characters; tokens not counted yet", None
            ),
        ],
        [Table(("one answer",), [(f"`{line}`",) for line in found[0].splitlines()]), f"Health: `{health}`"],
    )
