"""A real server with something to see, and a real browser at its page."""

import re
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Playwright, Request, Response, expect

from athena.cli.ui import request_link
from athena.core.home.lock import find_server
from http_tools import RunningServer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-unsafe-swiftshader",  # WebGL without a graphics card, for the graph
)
MEMORIES = (
    ("Deploys run on Fridays at 15:00, from the branch `release`", ["deploy", "release"], "decision"),
    ("The billing service retries a failed charge three times, with a day between", ["billing", "retries"], "fact"),
    ("Ann prefers tabs in Makefiles and spaces everywhere else", ["style"], "preference"),
    ("The staging database is restored from production every Monday night", ["database", "staging"], "fact"),
    ("Use `uv` to install dependencies; pip takes half a minute longer", ["tooling"], "preference"),
    ("Invoices are rounded to whole cents before tax is added", ["billing"], "decision"),
    ("The flaky test in checkout was a time zone: set TZ=UTC in CI", ["ci", "tests"], "cause"),
    ("Customers in Norway pay in NOK; prices are stored in minor units", ["billing", "money"], "fact"),
    ("Never push to `main` without a review of the migration", ["release", "database"], "rule"),
    ("The search index is rebuilt with `make index`, which takes four minutes", ["search"], "note"),
)
DUPLICATES = (
    "Deploys happen every Friday at 3 pm from the release branch",
    "We deploy on Fridays at 15:00 from the branch release",
)
ENTITIES = (
    ("Ann", "person", ["leads billing", "lives in Oslo"]),
    ("Bob", "person", ["on call this week"]),
    ("Billing", "service", ["written in Python", "retries failed charges"]),
    ("Checkout", "service", ["talks to billing"]),
    ("Ledger", "database", ["PostgreSQL 17"]),
    ("Acme", "company", ["pays in NOK"]),
)
RELATIONS = (
    ("Ann", "Billing", "owns"),
    ("Bob", "Checkout", "owns"),
    ("Checkout", "Billing", "calls"),
    ("Billing", "Ledger", "writes to"),
    ("Ann", "Bob", "reviews"),
    ("Acme", "Checkout", "uses"),
)
EVENTS = (
    ("session", "asked to find out why charges fail twice", None),
    ("action", "read billing/retries.py and its tests", "success"),
    ("error", "the test suite failed: 3 tests of rounding", "failure"),
    ("decision", "round to whole cents before tax", None),
    ("action", "ran the tests again", "success"),
)


WAIT_MS = 60_000  # a busy machine may need long to start a server


@contextmanager
def open_browser(playwright: Playwright) -> Generator[Browser]:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS), headless=True)
    yield browser
    browser.close()


def open_tab(browser: Browser, **options: Any) -> Page:
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 860}} | options))
    context.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    return context.new_page()


def seed(server: RunningServer) -> None:
    """Store what a project has after some weeks."""
    for text, tags, kind in MEMORIES:
        server.call("remember", content=text, tags=tags, memory_type=kind)
    for text in DUPLICATES:
        server.call("remember", content=text, tags=["deploy"])
    server.call("create_task", title="Renew the certificate of the shop", due="tomorrow 9am", priority="high")
    server.call("create_task", title="Write the migration of the ledger", details="Split the table by year.")
    server.call("create_entities", entities=[
        {"name": name, "entityType": kind, "observations": texts} for name, kind, texts in ENTITIES
    ])  # fmt: skip
    server.call("create_relations", relations=[
        {"from": source, "to": target, "relationType": kind} for source, target, kind in RELATIONS
    ])  # fmt: skip
    for kind, text, outcome in EVENTS:
        server.call("record_event", event_type=kind, content=text, outcome=outcome, session_id="billing-retries")


def create_link(server: RunningServer, project: str = "test", *, read_only: bool = False) -> str:
    facts = find_server(str(server.home))
    assert facts is not None
    return str(facts["page_url"]) + request_link(facts["socket"], project, read_only)


class Visitor:
    """A person at the page: one tab, whose console errors and refused requests are collected."""

    def __init__(self, tab: Page, server: RunningServer, *, project: str = "test", read_only: bool = False) -> None:
        self.server = server
        self.context, self.page = tab.context, tab
        self.problems: list[str] = []
        self._listeners: dict[str, Callable[[Any], None]] = {
            "console": self._note_console,
            "pageerror": lambda error: self.problems.append(f"error: {error}"),
            "requestfailed": self._note_failed,
            "response": self._note_response,
        }
        for event, listener in self._listeners.items():
            tab.on(event, listener)  # type: ignore[call-overload]
        self.expected_statuses: set[int] = set()
        self.page.goto(create_link(server, project, read_only=read_only))
        self.origin = re.match(r"https?://[^/]+", self.page.url)[0]  # type: ignore[index]

    def _note_console(self, message: ConsoleMessage) -> None:
        is_live = "/live" in message.location.get("url", "")  # its server may stop before the page is closed
        is_driver = "GL Driver Message" in message.text  # WebGL without a graphics card is slow, and says so
        is_live = is_live or "ERR_CONNECTION_REFUSED" in message.text
        if message.type in ("error", "warning") and "status of" not in message.text and not (is_live or is_driver):
            self.problems.append(f"console {message.type}: {message.text}")

    def _note_failed(self, request: Request) -> None:
        is_update = "/live" in request.url or "x-athena-part" in request.headers
        if not is_update and request.failure not in ("net::ERR_ABORTED",):
            self.problems.append(f"failed: {request.url} {request.failure}")

    def _note_response(self, response: Response) -> None:
        is_live = "/live" in response.url  # its server may stop before the page is closed
        is_live = is_live or (response.status == 503 and "x-athena-part" in response.request.headers)
        if response.status >= 400 and response.status not in self.expected_statuses and not is_live:
            self.problems.append(f"{response.status}: {response.url}")

    def go(self, path: str) -> Page:
        try:
            self.page.goto(self.origin + path)
        except Error as error:  # the page was still on its way to another address
            if "ERR_ABORTED" not in str(error):
                raise
            self.page.goto(self.origin + path)
        return self.page

    def check_accessible(self) -> None:
        results = Axe().run(self.page)
        assert results.violations_count == 0, (self.page.url, results.generate_report())

    def leave(self) -> None:
        """Empty the tab for the next person, and close what this one has opened beside it."""
        for tab in self.context.pages:
            if tab is not self.page:
                tab.close()
        if self.page.url.startswith(self.origin):
            self.page.evaluate("localStorage.clear()")
        self.page.goto("about:blank")
        self.context.clear_cookies()
        while self._listeners:
            self.page.remove_listener(*self._listeners.popitem())
        assert self.problems == [], self.problems
