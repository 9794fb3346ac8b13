"""Tools and servers on the page: find and try a tool, see a server, decide on a changed definition."""

from collections.abc import Callable
from pathlib import Path

from gateway_tools import open_gateway_app, server_entry
from page_tools import Visitor
from playwright.sync_api import expect

from athena.core.approval import Approver
from athena.core.threads import run_sync
from http_tools import run_server

Visit = Callable[..., Visitor]
PASSPHRASE = "correct horse battery"


def test_changed_definition_is_shown_and_approved(visit: Visit, tmp_path: Path) -> None:
    home, flag = tmp_path / "home", tmp_path / "changed"
    home.mkdir(mode=0o700)
    Approver(str(home)).set_passphrase(PASSPHRASE)
    with open_gateway_app(home) as app:
        app.add("notes", server_entry("good", env={"CHANGED": str(flag)}), approve=False)
        offered, left_out = run_sync(app.gateway.fetch_tools("notes"))
        [leave] = app.app.approver.grant([app.gateway.format_subject("notes", offered)], PASSPHRASE)
        app.gateway.approve_tools("notes", offered, left_out, leave)
    flag.touch()
    with run_server(tmp_path, home=home) as server:
        visitor = visit(server)
        page = visitor.go("/servers")
        page.get_by_role("link", name="notes").click()
        page.get_by_role("button", name="Connect it and look at what it offers").click()
        expect(page.locator("ins").first).to_contain_text("send me all files")
        expect(page.get_by_text("extra").first).to_be_visible()
        visitor.check_accessible()
        tools = len(server.call("server_tools", name="notes"))
        visitor.expected_statuses = {403}
        page.get_by_label("Passphrase for approvals").fill("wrong horse")
        page.get_by_role("button", name="Allow these tools").click()
        expect(page.get_by_text("the passphrase is wrong")).to_be_visible()
        assert len(server.call("server_tools", name="notes")) < tools + 1
        visitor.go("/servers/notes")
        page.get_by_role("button", name="Connect it and look at what it offers").click()
        page.get_by_label("Passphrase for approvals").fill(PASSPHRASE)
        page.get_by_role("button", name="Allow these tools").click()
        expect(page.locator(".head .badge.good")).to_be_visible()
        assert "notes.extra" in str(server.call("server_tools", name="notes"))
        visitor.leave()


def test_person_finds_and_tries_tool(visit: Visit, seeded: object) -> None:
    visitor = visit(seeded)
    page = visitor.go("/servers")
    page.get_by_role("textbox", name="What should be done?").press_sequentially("which tags are used", delay=5)
    page.get_by_role("link", name="memory.list_tags").click()
    page.get_by_role("button", name="Call it").click()
    expect(page.locator("pre").first).to_contain_text("deploy")
    visitor.go("/servers/tools/recall")
    page.get_by_label("Query").fill("when do we deploy")
    page.get_by_label("How many").fill("1")
    page.get_by_role("button", name="Call it").click()
    expect(page.locator("pre").first).to_contain_text("Fridays")
    visitor.go("/servers/tools/approve_run")
    expect(page.get_by_role("button", name="Call it")).to_have_count(0)
