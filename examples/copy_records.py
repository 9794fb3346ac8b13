"""Copy records from one project to another in batches. Run twice, it copies nothing twice."""

import time
from typing import Any

from athena import AthenaClient
from server import Report, project, serving

BATCH = 100


def records(client: AthenaClient) -> list[dict[str, Any]]:
    """Read everything that a project holds, a batch at a time."""
    found: list[dict[str, Any]] = []
    while page := client.call_tool("list_memories", k=BATCH, offset=len(found)):
        found += page
    return [one for one in found if one["project"] == client.project]


def copy(source: AthenaClient, target: AthenaClient, report: Report) -> int:
    """Copy all records and return how many were new."""
    found = records(source)
    kept = [{name: one[name] for name in ("content", "tags", "memory_type", "metadata")} for one in found]
    made = [one for at in range(0, len(kept), BATCH) for one in target.remember_batch(kept[at : at + BATCH])]
    report.moved(found, kept, [one["hash"] for one in made])
    return sum(one["outcome"] == "new" for one in made)


def main() -> None:
    report = Report()
    with serving() as (url, token), project(url, token) as source, project(url, token) as target:
        source.remember_batch(
            [
                {"content": f"Order {number} was shipped to customer {number % 40}", "metadata": {"order": number}}
                for number in range(350)
            ]
        )
        began = time.perf_counter()
        report.say(f"copied {copy(source, target, report)} records in {time.perf_counter() - began:.1f} s")
        report.say(f"copied {copy(source, target, report)} records the second time")
        same = sorted(one["content"] for one in records(source)) == sorted(one["content"] for one in records(target))
        report.say(f"both projects hold the same: {same}")
        report.end(source, __file__)


if __name__ == "__main__":
    main()
