"""An agent that works in code: it looks up one tool, keeps large results to itself and reports a few lines.

An agent that calls tools directly reads every tool's definition first, and every result in full. What that would have
been is counted here in o200k tokens, next to what this agent printed.
"""

import json
import os
import tempfile
from typing import Any

from server import athena

from athena import AthenaClient
from athena.tokens import exactly

AREAS = ["checkout", "search", "login", "export", "mail"]
CAUSES = ["a timeout of the database", "a full disk", "an expired certificate", "a wrong cache key"]


def discover(client: AthenaClient) -> tuple[str, dict[str, Any]]:
    """Look at the categories, then at the one tool that is needed."""
    categories = client.discover_tools()["categories"]
    overview = "\n".join(f"{name}: {group['count']} tools" for name, group in categories.items())
    return overview, client.get_tool("recall")


def store(client: AthenaClient) -> int:
    records = [
        {
            "content": f"Incident {number}: {AREAS[number % 5]} failed because of {CAUSES[number % 4]}, "
            f"{number % 50 + 1} minutes until it was repaired",
            "tags": ["incident", AREAS[number % 5]],
            "metadata": {"minutes": number % 50 + 1},
        }
        for number in range(400)
    ]
    return len(client.remember_batch(records))


def fetch(client: AthenaClient, cache: str) -> tuple[list[dict[str, Any]], bool]:
    """Ask once and keep the answer in a file; a later run goes on from there."""
    if os.path.exists(cache):
        with open(cache, encoding="utf-8") as file:
            return json.load(file), True
    found = list(client.recall_iter("incident caused by the database", k=300, tags=["incident"]))
    with open(cache, "w", encoding="utf-8") as file:
        json.dump(found, file)
    return found, False


def summary(found: list[dict[str, Any]]) -> str:
    """Filter and add up here, where it costs no tokens."""
    chosen = [one for one in found if "database" in one["content"] and one["metadata"]["minutes"] > 30]
    areas = {area: sum(area in one["tags"] for one in chosen) for area in AREAS}
    worst = max(areas, key=lambda area: areas[area])
    return f"{len(chosen)} of {len(found)} incidents: database, over 30 minutes; most in {worst} ({areas[worst]})"


def main() -> None:
    with athena() as client, tempfile.TemporaryDirectory() as folder:
        cache = os.path.join(folder, "incidents.json")
        overview, tool = discover(client)
        print(overview)
        print(f"recall takes {', '.join(one['name'] for one in tool['parameters'])}")
        print(f"stored {store(client)} records")
        found, resumed = fetch(client, cache)
        print(f"fetched {len(found)} records, from the file: {resumed}")
        found, resumed = fetch(client, cache)
        print(f"fetched {len(found)} records, from the file: {resumed}")
        report = summary(found)
        print(report)

        definitions = [client.get_tool(one["name"]) for one in client.list_tools()]
        before = exactly(json.dumps(definitions)), exactly(json.dumps(found))
        after = exactly(overview + json.dumps(tool)), exactly(report)
        print(
            f"tokens, tools called directly: {before[0]} for {len(definitions)} definitions, {before[1]} for the result"
        )
        print(f"tokens, this agent: {after[0]} for the categories and one definition, {after[1]} for the summary")
        print(f"saved: {1 - sum(after) / sum(before):.1%} of what is read")
        with open(__file__, encoding="utf-8") as file:
            print(f"tokens of this program, which an agent would write once: {exactly(file.read())}")


if __name__ == "__main__":
    main()
