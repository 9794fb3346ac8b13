"""Home and memories in a real browser: search, correct, undo, history, tags, duplicates, keyboard, phone, live."""

import json
from collections.abc import Callable
from pathlib import Path

from page_tools import Visitor, seed
from playwright.sync_api import expect

from conftest import Engine, PostgresEngine
from http_tools import RunningServer, run_server

Visit = Callable[..., Visitor]


def test_person_corrects_and_undoes_memory(visit: Visit, tmp_path: Path, engine: Engine) -> None:
    """Find a wrong memory, correct it, see the difference, take it back, forget it and bring it back."""
    url = engine.url if isinstance(engine, PostgresEngine) else ""
    with run_server(tmp_path, ATHENA_DATABASE_URL=url) as server:
        seed(server)
        visitor = visit(server)
        page = visitor.page
        expect(page.get_by_role("heading", name="test")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("when do we deploy")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="Deploys run on Fridays at 15:00, from").click()
        page.get_by_text("Correct it").click()
        page.get_by_label("Content").fill("Deploys run on Mondays at 15:00")
        page.get_by_label("Tags").fill("deploy, monday")
        page.get_by_role("button", name="Save").click()
        expect(page.locator(".memory-text")).to_have_text("Deploys run on Mondays at 15:00")
        expect(page.locator("ins").first).to_contain_text("Mondays")
        expect(page.locator("del").first).to_contain_text("Fridays")
        assert server.call("get_memory", memory_id=1)["author"] == "person"
        page.get_by_role("button", name="Undo").click()
        expect(page.locator(".memory-text")).to_contain_text("Fridays")
        assert server.call("get_memory", memory_id=1)["tags"] == ["deploy", "release"]
        page.get_by_role("button", name="Forget").click()
        expect(page.get_by_text("Forgotten")).to_be_visible()
        assert "Deploys run on Fridays" not in page.locator("main").inner_text()
        page.keyboard.press("u")
        expect(page.get_by_role("link", name="Deploys run on Fridays at 15:00, from")).to_be_visible()
        server.call("forget", memory_id=1)
        visitor.go("/memories/1")
        page.get_by_role("button", name="Bring it back").click()
        expect(page.locator(".memory-text")).to_contain_text("Fridays")
        page.get_by_role("button", name="Bring the earlier text back").first.click()
        expect(page.locator(".memory-text")).to_be_visible()
        page.get_by_text("Relate it to another").click()
        page.get_by_label("Find the other one").fill("failed charge")
        page.get_by_role("button", name="Relate to: The billing service retries").click()
        expect(page.get_by_role("heading", name="Belongs together")).to_be_visible()
        visitor.check_accessible()
        page.keyboard.press("u")
        expect(page.get_by_role("heading", name="Belongs together")).to_have_count(0)


def test_opened_form_leaves_the_field_a_person_is_in(visit: Visit, seeded: RunningServer) -> None:
    """The browser reports an opened form late: by then a person may have selected what they want to write over."""
    visitor = visit(seeded)
    page = visitor.go("/memories/1")
    selected = page.evaluate("""() => new Promise((resolve) => {
        const form = document.querySelector("#edit"), text = form.querySelector("textarea");
        form.addEventListener("toggle", () => setTimeout(() => resolve([text.selectionStart, text.selectionEnd])));
        form.open = true;
        text.focus();
        text.select();
    })""")
    assert selected == [0, len(page.get_by_label("Content").input_value())]
    page.get_by_text("Correct it").click()  # closes it
    page.get_by_text("Correct it").click()
    expect(page.get_by_label("Content")).to_be_focused()


def test_search_answers_while_typing(visit: Visit, seeded: RunningServer) -> None:
    visitor = visit(seeded)
    page = visitor.go("/memories")
    page.get_by_role("searchbox").press_sequentially("failed charge", delay=10)
    first = page.locator(".hit").first
    expect(first).to_contain_text("billing service retries")
    expect(first.locator("mark").first).to_be_visible()
    first.get_by_text("Why this one?").click()
    expect(first.locator(".why")).to_contain_text("Same words")
    assert "q=failed+charge" in page.url
    visitor.check_accessible()
    page.get_by_role("searchbox").fill("zzzz qqqq xyzzy")
    expect(page.get_by_text("Nothing found")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="test")).to_be_visible()
    page = visitor.go("/memories?memory_type=rule&since=yesterday")
    expect(page.locator(".hit")).to_have_count(1)


def test_form_to_write_has_focus_and_keys(visit: Visit, fresh: RunningServer) -> None:
    fresh.call("remember", content="Deploys run on Fridays")
    visitor = visit(fresh)
    page = visitor.go("/memories")
    page.get_by_text("Write something down").click()
    expect(page.get_by_label("Content")).to_be_focused()
    page.keyboard.type("The office closes at six")
    page.keyboard.press("Escape")
    expect(page.get_by_label("Content")).to_be_hidden()
    visitor.go("/memories/1")
    page.keyboard.press("e")
    expect(page.get_by_label("Content")).to_be_focused()
    page.keyboard.type(" at three")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".memory-text")).to_have_text("Deploys run on Fridays at three")
    visitor.go("/memories#write")
    expect(page.get_by_label("Content")).to_be_focused()


def test_memory_leads_back_to_its_search(visit: Visit, seeded: RunningServer) -> None:
    visitor = visit(seeded)
    page = visitor.go("/memories?q=failed+charge&tags=billing")
    page.locator(".hit a.text").first.click()
    expect(page.locator(".memory-text")).to_be_visible()
    page.locator("a.crumb").click()
    page.wait_for_url(f"{visitor.origin}/memories?q=failed+charge&tags=billing")


def test_history_names_undo(visit: Visit, fresh: RunningServer) -> None:
    """What was taken back is offered no more: it is the text of now."""
    fresh.call("remember", content="Deploys run on Fridays", tags=["a"])
    visitor = visit(fresh)
    page = visitor.go("/memories/1#edit")
    page.get_by_label("Content").fill("Deploys run on Mondays")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".steps strong")).to_have_text(["Undone", "Updated", "Remembered"])
    expect(page.get_by_role("button", name="Bring the earlier text back")).to_have_count(1)


def test_many_are_tagged_and_forgotten(visit: Visit, fresh: RunningServer) -> None:
    seed(fresh)
    visitor = visit(fresh)
    page = visitor.go("/memories")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_text("2 selected")).to_be_visible()
    page.get_by_role("textbox", name="Tags", exact=True).last.fill("seen")
    page.get_by_role("button", name="Add tags").click()
    expect(page.get_by_text("2 changed")).to_be_visible()
    assert len(fresh.call("search_by_tag", tags=["seen"])) == 2
    page.keyboard.press("u")
    expect(page.get_by_text("Undone")).to_be_visible()
    assert fresh.call("search_by_tag", tags=["seen"]) == []
    visitor.go("/memories?tags=staging")
    page.get_by_label("Select", exact=True).check()
    page.get_by_role("textbox", name="Tags", exact=True).last.fill("staging")
    page.get_by_role("button", name="Take them away").click()
    expect(page.get_by_text("1 changed")).to_be_visible()
    assert fresh.call("search_by_tag", tags=["staging"]) == []
    visitor.go("/memories")
    page.get_by_text("Write something down").click()
    page.get_by_label("Content").fill("The office closes at six")
    page.get_by_role("button", name="Remember").click()
    expect(page.locator(".memory-text, .hit").first).to_contain_text("The office closes at six")
    assert fresh.call("list_memories", k=1)[0]["author"] == "person"
    page = visitor.go("/memories/duplicates")
    count = fresh.count()
    page.get_by_role("button", name="Keep this one").first.click()
    expect(page.get_by_text("Merged")).to_be_visible()
    assert fresh.count() < count
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("Undone")).to_be_visible()
    assert fresh.count() == count


def remember_over_mcp(server: RunningServer, text: str) -> None:
    """Store a memory as an agent does: by a program, over MCP."""
    headers = [*server.auth_headers, ("Content-Type", "application/json")]
    headers.append(("Accept", "application/json, text/event-stream"))
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "agent", "version": "1"}}
    arguments = {"code": f"memory.remember(content={text!r})"}
    messages: list[dict[str, object]] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "execute_code", "arguments": arguments}},
    ]
    for message in messages:
        reply = server.ask("POST", "/mcp", headers, json.dumps(message).encode())
        assert reply.status in (200, 202), reply
        if session := reply.header("mcp-session-id"):
            headers = [header for header in headers if header[0] != "Mcp-Session-Id"] + [("Mcp-Session-Id", session)]


def test_memory_of_agent_appears_without_reload(visit: Visit, fresh: RunningServer) -> None:
    visitor = visit(fresh)
    page = visitor.go("/memories")
    expect(page.get_by_text("No memories in this project yet")).to_be_visible()
    visitor.check_accessible()
    others = [visitor.context.new_page() for _ in range(6)]  # more tabs than a browser has connections to one server
    for tab in others:
        tab.goto(f"{visitor.origin}/memories")
    page.wait_for_timeout(900)  # the first tab connects, and takes its first look
    remember_over_mcp(fresh, "The agent learned this just now")
    for tab in (page, *others):
        expect(tab.locator(".hit")).to_contain_text("The agent learned this just now")


def test_reading_works_without_script(visit: Visit, seeded: RunningServer) -> None:
    visitor = visit(seeded, java_script_enabled=False)
    page = visitor.go("/memories")
    page.get_by_role("searchbox").fill("deploy")
    page.get_by_role("searchbox").press("Enter")
    page.locator(".hit a.text").first.click()
    expect(page.locator(".memory-text")).to_be_visible()
    visitor.expected_statuses = {403}
    page.locator("form[action='/memories/forget'] button").first.click()
    expect(page.get_by_text("the browser ran no script")).to_be_visible()


def test_token_of_forms_leaves_the_address(visit: Visit, seeded: RunningServer) -> None:
    visitor = visit(seeded)
    assert "#" not in visitor.page.url
    assert len(visitor.page.evaluate("localStorage.getItem('form_token')")) > 40
