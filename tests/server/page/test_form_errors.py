"""What a person reads after a form that does not fit, and where they get back to."""

import re
from collections.abc import Callable

from page_tools import Visitor
from playwright.sync_api import expect
from test_page_access import FORM, ask, open_forms

from http_tools import RunningServer

Visit = Callable[..., Visitor]


def test_problem_has_the_words_of_the_form(fresh: RunningServer) -> None:
    seen = fresh.call("remember", content="Deploys run on Fridays")["updated"]
    cookie, token = open_forms(fresh)
    origin = f"http://127.0.0.1:{fresh.port}"
    fields = f"form_token={token}&project=test&updated={seen}&content=x&importance=7"
    headers = {"Cookie": cookie, "Origin": origin, "Content_Type": FORM, "Referer": f"{origin}/memories/1?q=deploy"}
    reply = ask(fresh, "POST", "/memories/1/edit", fields.encode(), **headers)
    shown = reply.body.decode()
    assert reply.status == 422
    assert "Importance is 7.0; it must be at most 1" in shown
    assert "update_memory" not in shown.lower()
    assert 'href="/memories/1?q=deploy"' in shown
    headers["Referer"] = "http://elsewhere.example/memories"
    assert "elsewhere" not in ask(fresh, "POST", "/memories/1/edit", fields.encode(), **headers).body.decode()


def test_odd_number_is_no_error_of_ours(fresh: RunningServer) -> None:
    cookie, _ = open_forms(fresh)
    odd = ("%C2%B2", "9" * 27, "-1", "1e300", "nan", "0", "%00", "%F0%9F%98%80")
    lists = ("/memories", "/memories/learned", "/memories/documents", "/graph/names")
    paths = [f"{path}?offset={number}" for path in lists for number in odd]
    paths += [f"/timeline?{name}={number}" for name in ("since", "until") for number in odd]
    paths += [f"{folder}/{number}" for folder in ("/memories", "/tasks", "/patterns") for number in (*odd, "9" * 5_000)]
    statuses = {path[:60]: ask(fresh, "GET", path, Cookie=cookie).status for path in paths}
    assert len(statuses) > 40
    assert {path: status for path, status in statuses.items() if status >= 500} == {}


def test_number_field_has_bounds_and_typed_text_stays(visit: Visit, fresh: RunningServer) -> None:
    fresh.call("remember", content="Deploys run on Fridays")
    visitor = visit(fresh)
    visitor.expected_statuses = {422}
    page = visitor.go("/memories/1")
    page.get_by_text("Correct it").click()
    importance = page.get_by_label("Importance")
    expect(importance).to_have_attribute("min", "0")
    expect(importance).to_have_attribute("max", "1")
    page.get_by_label("Content").fill(" ")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("a memory needs a text")).to_be_visible()
    page.get_by_role("link", name="Go back").click()
    expect(page).to_have_url(re.compile("/memories/1$"))
