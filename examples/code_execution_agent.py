"""An agent that works in code: it finds the tool it needs, keeps large results to itself and reports a few lines."""

import json
import os
import tempfile
from typing import Any

from athena import AthenaClient
from server import Report, athena

AREAS = ["checkout", "search", "login", "export", "mail"]
CAUSES = ["a timeout of the database", "a full disk", "an expired certificate", "a wrong cache key"]


def discover(client: AthenaClient, task: str) -> dict[str, Any]:
    """Look for tools by the task, and read the descriptions until one takes a question."""
    tools = (client.get_tool(one["name"]) for one in client.search_tools(task))
    return next(tool for tool in tools if "query" in [parameter["name"] for parameter in tool["parameters"]])


def store(client: AthenaClient, report: Report) -> None:
    records = [
        {
            "content": f"Incident {number}: {AREAS[number % 7 % 5]} failed because of {CAUSES[number % 4]}, "
            f"{number % 50 + 1} minutes until it was repaired",
            "tags": ["incident", AREAS[number % 7 % 5]],
            "metadata": {"minutes": number % 50 + 1},
        }
        for number in range(400)
    ]
    report.moved(records, [one["hash"] for one in client.remember_batch(records)])
    report.say(f"stored {len(records)} records")


def fetch(client: AthenaClient, tool: str, cache: str, report: Report) -> list[dict[str, Any]]:
    """Ask once and keep the answer in a file; an agent that is interrupted goes on from there."""
    if os.path.exists(cache):
        report.say("resumed from the file")
        with open(cache, encoding="utf-8") as file:
            return list(json.load(file))
    question = {"query": "incident caused by the database", "k": 300, "tags": ["incident"]}
    found = client.call_tool(tool, **question)
    report.moved(question, found)
    report.say(f"fetched {len(found)} records")
    with open(cache, "w", encoding="utf-8") as file:
        json.dump(found, file)
    return list(found)


def summary(found: list[dict[str, Any]]) -> str:
    """Filter and add up here, where it costs no tokens."""
    chosen = [one for one in found if "database" in one["content"] and one["metadata"]["minutes"] > 30]
    areas = {area: sum(area in one["tags"] for one in chosen) for area in AREAS}
    worst = max(areas, key=lambda area: areas[area])
    return f"{len(chosen)} of {len(found)} incidents: database, over 30 minutes; most in {worst} ({areas[worst]})"


def main() -> None:
    report = Report()
    with athena() as client, tempfile.TemporaryDirectory() as folder:
        cache = os.path.join(folder, "incidents.json")
        tool = discover(client, "find memories that answer a question")
        report.say(f"{tool['name']}: {tool['description']} {', '.join(one['name'] for one in tool['parameters'])}")
        store(client, report)
        fetch(client, tool["name"], cache, report)
        report.say(summary(fetch(client, tool["name"], cache, report)))
        report.end(client, __file__)


if __name__ == "__main__":
    main()
