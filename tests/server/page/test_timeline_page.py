"""Timeline, sessions, tasks and patterns on the page."""

from collections.abc import Callable

from page_tools import Visitor
from playwright.sync_api import expect

from http_tools import RunningServer

Visit = Callable[..., Visitor]


def test_timeline_leads_to_session(visit: Visit, seeded: RunningServer) -> None:
    visitor = visit(seeded)
    page = visitor.go("/timeline")
    expect(page.locator(".dot.bad").first).to_be_visible()
    page.locator(".strip a").last.click()
    expect(page.locator(".chip.on")).to_have_text("Day")
    expect(page.get_by_text("ran the tests again")).to_be_visible()
    page.get_by_role("link", name="session", exact=True).first.click()
    expect(page.get_by_role("heading", name="What it did")).to_be_visible()
    expect(page.get_by_text("3 tests of rounding").first).to_be_visible()
    page = visitor.go("/timeline?span=hour&since=1000&until=4600")
    expect(page.get_by_text("Nothing happened in this time")).to_be_visible()


def test_person_plans_changes_and_finishes_task(visit: Visit, seeded: RunningServer) -> None:
    visitor = visit(seeded)
    page = visitor.go("/tasks")
    page.get_by_text("Plan something").click()
    page.get_by_label("Title").fill("Call the bank")
    page.get_by_label("Due").fill("in 3 days")
    page.get_by_label("Priority").select_option("high")
    page.get_by_role("button", name="Plan it").click()
    expect(page.get_by_role("link", name="Call the bank")).to_be_visible()
    page.get_by_role("link", name="Call the bank").click()
    page.get_by_label("Title").fill("Call the new bank")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="Call the new bank")).to_be_visible()
    visitor.go("/tasks")
    page.get_by_role("button", name="Done: Call the new bank").click()
    expect(page.get_by_text("Done lately")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("button", name="Done: Call the new bank")).to_be_visible()
    page.get_by_role("link", name="Call the new bank").click()
    page.get_by_role("button", name="Forget").click()
    expect(page.get_by_role("link", name="Call the new bank")).to_have_count(0)
    page.keyboard.press("u")
    page.get_by_role("link", name="Call the new bank").click()
    address = page.url
    page.get_by_role("button", name="Forget").click()
    expect(page.get_by_role("link", name="Call the new bank")).to_have_count(0)
    page.goto(address)
    page.get_by_role("button", name="Bring it back").click()
    expect(page.get_by_role("heading", name="Call the new bank")).to_be_visible()


def test_pattern_shows_evidence_and_is_silenced(visit: Visit, fresh: RunningServer) -> None:
    for day in range(8, 0, -1):
        for session in ("a", "b"):
            fields = {"session_id": f"{session}{day}", "happened": f"{day} days ago"}
            fresh.call(
                "record_event", event_type="action", content="ran the deploy script", outcome="success", **fields
            )
            fresh.call("record_event", event_type="error", content="the cache was stale", outcome="failure", **fields)
    visitor = visit(fresh)
    page = visitor.go("/patterns")
    expect(page.get_by_text("No patterns yet")).to_be_visible()
    page.get_by_role("button", name="Look now").click()
    rows = page.locator("main .list li")
    expect(rows.first).to_be_visible()
    visitor.check_accessible()
    count = rows.count()
    rows.first.get_by_role("link").click()
    expect(page.get_by_role("heading", name="Evidence")).to_be_visible()
    visitor.check_accessible()
    page.get_by_role("button", name="It is true: remember it").click()
    expect(page.get_by_text("Kept as a memory", exact=True)).to_be_visible()
    assert fresh.call("search_by_tag", tags=["pattern"])[0]["author"] == "person"
    rows.first.get_by_role("link").click()
    page.get_by_role("button", name="Silence it").click()
    expect(rows).to_have_count(count - 1)
    page.get_by_role("button", name="Undo").click()
    expect(rows).to_have_count(count)
