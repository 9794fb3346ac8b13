"""Fixtures of the page: one browser for the tests of a module; servers with and without content."""

from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from http_tools import RunningServer, run_server

if TYPE_CHECKING:
    from page_tools import Visitor
    from playwright.sync_api import Browser, Page

    from conftest import Engine


@pytest.fixture(scope="module")  # not longer: its event loop runs in this thread, and other tests start their own
def browser() -> "Generator[Browser]":
    import page_tools  # imports Playwright, which other tests do not need
    from playwright.sync_api import sync_playwright

    from conftest import skip_or_fail  # which loads this module

    if page_tools.CHROMIUM is None:
        skip_or_fail("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright, page_tools.open_browser(playwright) as started:
        yield started


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Generator[RunningServer]:
    """Return a server with content, for tests that change little of it; `make test-full` has one of each engine."""
    import page_tools  # imports Playwright

    url = ""
    if getattr(request, "param", "sqlite") == "postgres":
        url = request.getfixturevalue("server").create("page")  # other tests empty the shared database
    with run_server(tmp_path_factory.mktemp("page"), ATHENA_DATABASE_URL=url) as server:
        page_tools.seed(server)
        yield server


@pytest.fixture
def fresh(tmp_path: Path, engine: "Engine") -> Generator[RunningServer]:
    """Return a server with an empty store; `make test-full` has one of each engine."""
    with run_server(tmp_path, ATHENA_DATABASE_URL=getattr(engine, "url", "")) as server:
        yield server


@pytest.fixture(scope="module")
def tab(browser: "Browser") -> "Page":
    """Return a tab that the persons of a module use in turn: to open one takes longer than to load three pages."""
    import page_tools  # imports Playwright

    return page_tools.open_tab(browser)


@pytest.fixture
def visit(browser: "Browser", tab: "Page") -> "Generator[Callable[..., Visitor]]":
    """Return a function that lets a person in; at the end, their consoles must be clean."""
    from page_tools import Visitor, open_tab  # imports Playwright

    visitors: list[Visitor] = []

    def open_visitor(server: RunningServer, project: str = "test", read_only: bool = False, **options: Any) -> Visitor:
        own = open_tab(browser, **options) if options or visitors else tab
        visitors.append(Visitor(own, server, project=project, read_only=read_only))
        return visitors[-1]

    yield open_visitor
    for visitor in visitors:
        visitor.leave()
        if visitor.page is not tab:
            visitor.context.close()
