"""Programs on the page: what waits, what it would do, approve with the passphrase or refuse; workspaces and skills."""

import re
import threading
from collections.abc import Callable

from page_tools import Visitor
from playwright.sync_api import expect
from test_page_access import open_forms, open_session, post

from athena.core.approval import Approver
from http_tools import RunningServer

Visit = Callable[..., Visitor]
PASSPHRASE = "correct horse battery"
PURGE = "first = memory.list_memories(k=1)\nmemory.purge(memory_ids=[first[0]['id']], expect=1)\nprint('purged it')"


def start_waiting_program(server: RunningServer, code: str = PURGE) -> str:
    server.call("remember", content="The old address of the office")
    result = server.call("execute_code", code=code)
    assert result["status"] == "needs_approval", result
    return str(result["run_id"])


def test_person_approves_waiting_program(visit: Visit, fresh: RunningServer) -> None:
    Approver(str(fresh.home)).set_passphrase(PASSPHRASE)
    visitor = visit(fresh)
    page = visitor.page
    expect(page.get_by_text("Nothing is remembered yet")).to_be_visible()
    run_id = start_waiting_program(fresh)
    page.reload()
    expect(page.get_by_text("1 waits for you", exact=True)).to_be_visible()
    expect(page.get_by_text("All is well")).to_have_count(0)
    page.get_by_text("A program wants to call").click()
    expect(page.get_by_role("heading", name="A program waits for you")).to_be_visible()
    expect(page.locator(".source li.here")).to_contain_text("memory.purge")
    expect(page.get_by_text("Nothing brings them back")).to_be_visible()
    expect(page.locator(".named")).to_contain_text("The old address of the office")
    visitor.check_accessible()
    visitor.expected_statuses = {403}
    page.get_by_label("Passphrase for approvals").fill("wrong horse")
    page.get_by_role("button", name="Approve this call").click()
    expect(page.get_by_text("the passphrase is wrong")).to_be_visible()
    assert fresh.count() == 1
    page.get_by_role("link", name="Go back").click()
    page.wait_for_url(f"{visitor.origin}/programs/{run_id}")
    page.get_by_label("Passphrase for approvals").fill(PASSPHRASE)
    page.get_by_role("button", name="Approve this call").click()
    expect(page.locator(".head .badge")).to_have_text("Done")
    expect(page.get_by_text("purged it", exact=True)).to_be_visible()
    assert fresh.count() == 0
    visitor.go("/programs?status=done")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_page_without_passphrase_approves_nothing(fresh: RunningServer) -> None:
    """An agent with a shell can get a session and fill in forms: they approve nothing without the passphrase."""
    run_id = start_waiting_program(fresh)
    cookie, token = open_forms(fresh)
    shown = fresh.ask(
        "GET", f"/programs/{run_id}", [("Host", f"127.0.0.1:{fresh.port}"), ("Cookie", cookie)]
    ).body.decode()  # fmt: skip
    assert f"athena approve {run_id}" in shown
    subject = re.search(r'name="subject" value="([^"]+)"', shown)
    assert subject
    fields = {"form_token": token, "project": "test", "subject": subject[1], "decision": "approve"}
    for passphrase in ({}, {"passphrase": ""}, {"passphrase": PASSPHRASE}):
        assert post(fresh, f"/programs/{run_id}/decide", cookie, **fields, **passphrase).status == 403
    Approver(str(fresh.home)).set_passphrase(PASSPHRASE)
    for passphrase in ({}, {"passphrase": ""}, {"passphrase": "wrong horse"}):
        assert post(fresh, f"/programs/{run_id}/decide", cookie, **fields, **passphrase).status == 403
    changed = fields | {
        "subject": subject[1][:-1] + ("1" if subject[1].endswith("0") else "0"),
        "passphrase": PASSPHRASE,
    }
    assert post(fresh, f"/programs/{run_id}/decide", cookie, **changed).status == 409
    assert fresh.count() == 1
    assert fresh.call("get_run", run_id=run_id)["status"] == "needs_approval"


def show_run(server: RunningServer, run_id: str) -> str:
    cookie = open_session(server)
    headers = [("Host", f"127.0.0.1:{server.port}"), ("Cookie", cookie)]
    return server.ask("GET", f"/programs/{run_id}", headers).body.decode()


def test_approval_shows_what_a_purge_removes(fresh: RunningServer) -> None:
    """Without ids a purge removes all that was forgotten; with none of them, nothing."""
    nothing = show_run(fresh, start_waiting_program(fresh, "memory.purge(expect=0)"))
    assert "no memory is forgotten here" in nothing
    assert "it names no memory" in show_run(
        fresh, start_waiting_program(fresh, "memory.purge(memory_ids=[], expect=0)")
    )
    for number in range(22):
        stored = fresh.call("remember", content=f"Old address {number} of the office")
        fresh.call("forget", memory_id=stored["id"])
    shown = show_run(fresh, start_waiting_program(fresh, "memory.purge(expect=22)"))
    assert "It removes 22 memories for good: all that is forgotten in this project" in shown
    assert "of which these are the first 20" in shown
    assert "Old address 0 of the office" in shown
    one = f"memory.purge(memory_ids=[{stored['id']}], expect=1)"
    assert "Old address 21 of the office" in show_run(fresh, start_waiting_program(fresh, one))


def test_run_of_before_the_passphrase_can_only_be_refused(fresh: RunningServer) -> None:
    run_id = start_waiting_program(fresh)
    Approver(str(fresh.home)).set_passphrase(PASSPHRASE)
    shown = show_run(fresh, run_id)
    assert "asked for before the passphrase for approvals was set" in shown
    assert 'name="passphrase"' not in shown
    assert "Refuse it" in shown
    subject = re.search(r'name="subject" value="([^"]+)"', shown)
    assert subject
    cookie, token = open_forms(fresh)
    fields = {"form_token": token, "project": "test", "subject": subject[1]}
    reply = post(
        fresh, f"/programs/{run_id}/decide", cookie, **fields, decision="approve", passphrase=PASSPHRASE
    )  # fmt: skip
    assert reply.status == 409
    assert f"athena approve {run_id} --refuse" in reply.body.decode()
    assert "Somebody was faster" not in reply.body.decode()
    assert post(fresh, f"/programs/{run_id}/decide", cookie, **fields, decision="refuse").status == 303


def test_token_does_not_review_or_approve(fresh: RunningServer) -> None:
    run_id = start_waiting_program(fresh)
    assert fresh.execute("review_run", {"run_id": run_id}).status == 404
    assert fresh.execute("approve_run", {"run_id": run_id}).status == 404
    names = fresh.get("/tools/list").body.decode()
    assert "recent_changes" not in names
    assert "list_workspaces" not in names


def test_person_refuses_and_runs_programs(visit: Visit, fresh: RunningServer) -> None:
    run_id = start_waiting_program(
        fresh, "try:\n    memory.purge(expect=0)\nexcept Exception as error:\n    print(error)"
    )
    visitor = visit(fresh)
    page = visitor.go(f"/programs/{run_id}")
    expect(page.get_by_text(f"athena approve {run_id}")).to_be_visible()
    page.get_by_label("Why not").fill("not before the release")
    page.get_by_role("button", name="Refuse it").click()
    expect(page.locator(".code")).to_contain_text("not before the release")
    visitor.go("/programs")
    page.get_by_text("Run a program yourself").click()
    page.get_by_label("Code").fill("total = 41 + 1\nworkspace.write(path='sum.txt', content=str(total))\ntotal")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("heading", name="Its result")).to_be_visible()
    visitor.go("/programs/workspaces")
    expect(page.get_by_text("total")).to_be_visible()
    page.get_by_role("link", name="sum.txt").click()
    expect(page.locator("pre")).to_have_text("42")
    visitor.check_accessible()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete for good").click()
    expect(page.get_by_role("link", name="sum.txt")).to_have_count(0)
    assert fresh.call("list_files") == []


def test_refused_program_did_not_fail(visit: Visit, fresh: RunningServer) -> None:
    """A program that ends because a person refused its call is shown as refused, with the reason."""
    run_id = start_waiting_program(fresh)
    visitor = visit(fresh)
    page = visitor.go(f"/programs/{run_id}")
    page.get_by_label("Why not").fill("not before the release")
    page.get_by_role("button", name="Refuse it").click()
    expect(page.locator(".head .badge")).to_have_text("Refused")
    expect(page.get_by_text("A person refused its call")).to_be_visible()
    expect(page.get_by_text("not before the release").first).to_be_visible()
    assert "ToolError" not in page.locator("main").inner_text()
    visitor.check_accessible()
    visitor.go("/programs?status=refused")
    expect(page.locator("tbody .badge")).to_have_text(["Refused"])
    assert "ToolError" not in page.locator("tbody").inner_text()
    visitor.check_accessible()
    visitor.go("/programs?status=failed")
    expect(page.locator("tbody tr")).to_have_count(0)


def test_skill_has_form(visit: Visit, fresh: RunningServer) -> None:
    body = "    '''Greet somebody.'''\n    return ' '.join(['hello', name] * times)"
    code = f"def greet(name: str, times: int = 2) -> str:\n{body}"
    fresh.call("save_skill", name="greet", code=code, example="greet('Ann')")
    visitor = visit(fresh)
    page = visitor.go("/programs/skills")
    page.get_by_role("link", name=re.compile("greet")).click()
    page.get_by_label("Name").fill("Bob")
    page.get_by_label("Times").fill("1")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("pre").first).to_have_text("hello Bob")
    visitor.check_accessible()
    page.get_by_role("button", name="Delete the skill").click()
    expect(page.get_by_text("The skill greet is deleted")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    assert fresh.call("get_skill", name="greet")["version"] >= 1


def test_code_that_cannot_be_foreseen_is_named(visit: Visit, fresh: RunningServer) -> None:
    """Where a program may run other code, the page says so and shows the files of its workspace."""
    fresh.call("write_file", path="step.txt", content="print('from a file')")
    run_id = start_waiting_program(fresh, "exec(workspace.read(path='step.txt'))\nmemory.purge(expect=0)")
    visitor = visit(fresh)
    page = visitor.go(f"/programs/{run_id}")
    expect(page.get_by_text("It can run other code than you see here")).to_be_visible()
    expect(page.get_by_text("from a file")).to_be_visible()
    visitor.check_accessible()


def test_page_follows_running_program(visit: Visit, fresh: RunningServer) -> None:
    """What an agent's program prints appears while it runs; its text, calls and tokens are there."""
    waiting = "import time\nwhile not memory.search_by_tag(tags='go'):\n    time.sleep(0.2)"
    code = f"print('the first line')\n{waiting}\n'it went on'"
    runner = threading.Thread(target=fresh.call, args=("execute_code",), kwargs={"code": code, "engine": "python"})
    runner.start()
    visitor = visit(fresh)
    page = visitor.go("/programs")
    page.get_by_role("link", name="print('the first line')").click()
    expect(page.locator("[data-tail]")).to_contain_text("the first line")
    expect(page.get_by_text("memory.search_by_tag").first).to_be_visible()
    visitor.check_accessible()
    fresh.call("remember", content="Go on", tags=["go"])
    expect(page.get_by_role("heading", name="Its result")).to_be_visible(timeout=20_000)
    runner.join()
    expect(page.locator(".source")).to_contain_text("while not memory.search_by_tag")
    expect(page.locator(".figures")).to_contain_text("tokens written")
    assert fresh.execute("watch_runs", {}).status == 404  # for persons alone
