"""The graph, use and settings on the page."""

import re
from collections.abc import Callable

from page_tools import Visitor
from playwright.sync_api import expect

from http_tools import RunningServer

Visit = Callable[..., Visitor]


def test_graph_is_drawn_searched_and_edited(visit: Visit, fresh: RunningServer) -> None:
    visitor = visit(fresh)
    page = visitor.go("/graph")
    expect(page.get_by_text("The graph is empty")).to_be_visible()
    names = ["Ann", "Billing", "Ledger"]
    fresh.call(
        "create_entities", entities=[{"name": name, "entityType": "thing", "observations": []} for name in names]
    )
    edges = [("Ann", "Billing", "owns"), ("Billing", "Ledger", "writes to")]
    relations = [{"from": a, "to": b, "relationType": kind, "since": "2024"} for a, b, kind in edges]
    fresh.call("create_relations", relations=relations)
    visitor.go("/graph")
    expect(page.locator("#graph canvas").first).to_be_attached()
    expect(page.locator("#graph")).to_have_attribute("data-ready", "1", timeout=15_000)
    expect(page.locator("#graph-legend")).to_contain_text("thing 3")
    page.locator("#graph-search").fill("Billing")
    page.locator("#graph-search").press("Enter")
    expect(page.locator("#entity")).to_contain_text("writes to Ledger")
    assert "name=Billing" in page.url
    visitor.check_accessible()
    page.get_by_label("What else is known").fill("retries failed charges")
    page.get_by_role("button", name="Add", exact=True).first.click()
    expect(page.locator("#entity")).to_contain_text("retries failed charges")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#entity")).not_to_contain_text("retries failed charges")
    page.get_by_label("What else is known").fill("retires failed charges")
    page.get_by_role("button", name="Add", exact=True).first.click()
    page.get_by_text("retires failed charges").click()
    page.get_by_label("What is right").fill("retries failed charges")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#entity .known summary")).to_have_text(["retries failed charges"])
    fresh.call("create_entity", name="Billing service", entity_type="thing", observations=["written in Python"])
    page.get_by_text("It has another name here").click()
    page.get_by_label("The other name").fill("Billing service")
    page.get_by_role("button", name="Join them").click()
    expect(page.locator("#entity .known")).to_contain_text("written in Python")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#entity .known")).not_to_contain_text("written in Python")
    fresh.call("delete_entities", entityNames=["Billing service"])
    visitor.go("/graph?name=Billing&near=Billing&depth=1")
    expect(page.locator("#graph")).to_have_attribute("data-names", "3", timeout=15_000)
    page.get_by_role("button", name="Delete the relation to Ledger").click()
    expect(page.locator("#entity")).not_to_contain_text("Ledger")
    page.keyboard.press("u")
    expect(page.get_by_text("Undone")).to_be_visible()
    visitor.go("/graph?source=Ann&target=Ledger")
    expect(page.locator(".way li")).to_have_count(3)
    visitor.go("/graph?name=Ann&near=Ann")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("Deleted, with what was known of it")).to_be_visible()
    assert "Ann" not in [entity["name"] for entity in fresh.call("read_graph")["entities"]]
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("Undone")).to_be_visible()
    assert "Ann" in [entity["name"] for entity in fresh.call("read_graph")["entities"]]
    visitor.go("/graph/names")
    expect(page.locator("tbody tr")).to_have_count(3)
    visitor.go("/graph")
    page.get_by_text("Add a name").click()
    page.get_by_label("Name", exact=True).fill("Checkout")
    page.get_by_label("What is known, one a line").fill("written in Go")
    page.get_by_role("button", name="Add", exact=True).last.click()
    expect(page.locator("#entity")).to_contain_text("written in Go")
    page.get_by_role("button", name="Delete: written in Go").click()
    expect(page.locator("#entity")).not_to_contain_text("written in Go")
    page.get_by_text("Relate it").click()
    page.get_by_label("To whom or what").fill("Billing")
    page.get_by_label("How", exact=True).fill("calls")
    page.get_by_role("button", name="Relate", exact=True).click()
    expect(page.locator("#entity")).to_contain_text("calls Billing")


def test_use_and_settings(visit: Visit, seeded: RunningServer) -> None:
    visitor = visit(seeded)
    page = visitor.go("/use?days=7")
    while page.locator(".chart").count() == 0:  # usage is stored in the background
        page.wait_for_timeout(200)
        page.reload()
    expect(page.locator(".chart canvas")).to_have_count(3)
    expect(page.get_by_role("cell", name="remember", exact=True).first).to_be_visible()
    expect(page.get_by_text("tokens saved, ")).to_be_visible(timeout=20_000)
    visitor.check_accessible()
    page = visitor.go("/settings")
    row = page.get_by_role("row", name=re.compile("^home"))
    expect(row).to_contain_text("ATHENA_HOME")
