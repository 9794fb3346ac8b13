"""Take the pictures of docs/page.md; ATHENA_TEST_SCREENSHOTS=1 writes them there."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from page_tools import Visitor, seed

from conftest import FULL
from http_tools import RunningServer, run_server

Visit = Callable[..., Visitor]
IMAGES = Path(__file__).parents[3] / "docs" / "images"
IS_WANTED = os.environ.get("ATHENA_TEST_SCREENSHOTS") == "1"
SERVICES = ("Billing", "Checkout", "Search", "Accounts", "Mail", "Reports", "Stock", "Prices")
PEOPLE = ("Ann", "Bob", "Cora", "Dan", "Eve")
PROGRAM = """stale = [m for m in memory.search_by_tag(tags="staging", k=100) if m["importance"] < 0.6]
for note in stale:
    print(note["id"], note["content"][:50])
memory.purge(memory_ids=[note["id"] for note in stale], expect=len(stale))
print(len(stale), "removed")"""


def tell_story(server: RunningServer) -> str:
    """Store more of what a project has after some weeks; return the run that waits."""
    seed(server)
    for position, service in enumerate(SERVICES):
        names = [(service, "service"), (f"{service} API", "interface"), (f"{service} tables", "database")]
        entities = [{"name": name, "entityType": kind, "observations": []} for name, kind in names]
        person, other = PEOPLE[position % len(PEOPLE)], SERVICES[(position * 3 + 1) % len(SERVICES)]
        entities.append({"name": person, "entityType": "person", "observations": []})
        server.call("create_entities", entities=entities)
        edges = [(person, service, "owns"), (service, f"{service} API", "offers"), (service, other, "calls")]
        edges.append((service, f"{service} tables", "writes to"))
        relations = [{"from": a, "to": b, "relationType": kind} for a, b, kind in edges if a != b]
        server.call("create_relations", relations=relations)
    for day in range(1, 26):
        for number in range(day % 4 + 1):
            outcome = "failure" if (day * number) % 5 == 3 else "success" if number % 2 else None
            fields = {"outcome": outcome, "session_id": f"day-{day}", "happened": f"{day} days ago"}
            server.call("record_event", event_type="action", content=f"worked on {SERVICES[day % 8]}", **fields)
    server.call("update_memory", memory_id=1, content="Deploys run on Mondays at 15:00, from the branch `release`")
    return str(server.call("execute_code", code=PROGRAM, workspace="cleanup")["run_id"])


@pytest.mark.skipif(not (FULL or IS_WANTED), reason="other tests show these pages: ATHENA_TEST_FULL=1")
def test_pictures_of_docs(visit: Visit, tmp_path: Path) -> None:
    with run_server(tmp_path, ATHENA_PROJECT="shop") as server:
        take_pictures(visit, server, IMAGES if IS_WANTED else tmp_path)


def take_pictures(visit: Visit, fresh: RunningServer, folder: Path) -> None:
    run_id = tell_story(fresh)
    light = visit(fresh, project="shop", viewport={"width": 1200, "height": 780})
    pages = {
        "home": "/",
        "search": "/memories?q=when+do+we+deploy",
        "history": "/memories/1",
        "approval": f"/programs/{run_id}",
    }
    for name, path in pages.items():
        page = light.go(path)
        if name == "home":
            page.get_by_text("tokens saved").wait_for(timeout=20_000)
        if name == "search":
            page.get_by_text("Why this one?").first.click()
        page.screenshot(path=folder / f"page-{name}.png")
    assert all((folder / f"page-{name}.png").stat().st_size > 10_000 for name in pages)
    dark = visit(fresh, project="shop", viewport={"width": 1200, "height": 780}, color_scheme="dark")
    page = dark.go("/graph?name=Billing")
    page.locator("#graph[data-ready]").wait_for(timeout=20_000)
    page.wait_for_timeout(500)
    page.screenshot(path=folder / "page-graph.png")
    page = dark.go("/timeline?span=month")
    page.screenshot(path=folder / "page-timeline.png")
    assert all((folder / f"page-{name}.png").stat().st_size > 10_000 for name in ("graph", "timeline"))
