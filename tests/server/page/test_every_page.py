"""What holds on every page: hostile content stays in its box, none is heavy, all fit phones, dark and readers."""

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Generator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from page_contents import HOSTILE_NAME, HOSTILE_TEXTS, PLAIN_NAME, PLAIN_TEXTS, open_every_page, run_full_server
from page_tools import Visitor
from test_page_access import ask, open_session

from athena.server.page.rendering import STATIC_FOLDER, load_static_files
from conftest import FULL, sample
from http_tools import RunningServer

Visit = Callable[..., Visitor]
HEAVY_PAGES = ("/graph", "/use")
MAX_HEAVY_BYTES = 200_000
MAX_BYTES = 60_000
MODES: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 800}},
    "dark phone": {"viewport": {"width": 390, "height": 800}, "color_scheme": "dark"},
}
LINK_PATTERN = re.compile(r'<a [^>]*href="(/[^"#]*)')


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[RunningServer, list[str]]]:
    """Return a server with something on every page, and addresses of all of them."""
    folder = tmp_path_factory.mktemp("full")
    with (
        run_full_server(folder, PLAIN_NAME, PLAIN_TEXTS) as server,
        open_every_page(server, folder, PLAIN_NAME, PLAIN_TEXTS) as paths,
    ):
        yield server, paths


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["light", "phone"] if FULL else ["light"])
def test_hostile_content_stays_in_its_box(visit: Visit, tmp_path: Path, mode: str) -> None:
    """Texts, tags, names, files, tools and programs with markup, hidden characters and long lines: nothing runs."""
    with (
        run_full_server(tmp_path, HOSTILE_NAME, HOSTILE_TEXTS) as server,
        open_every_page(server, tmp_path, HOSTILE_NAME, HOSTILE_TEXTS) as paths,
    ):
        visitor = visit(server, **MODES[mode])
        for path in sample(paths, 10):
            page = visitor.go(path)
            assert page.evaluate("window.broken") is None, path
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
            assert page.locator("main").is_visible(), path  # no style of theirs counts
        [waiting] = server.call("list_runs", status="needs_approval")
        page = visitor.go(f"/programs/{waiting['run_id']}")
        assert page.locator(".codepoint", has_text="300 spaces").is_visible()
        assert page.get_by_text("<b>far right</b>").is_visible()
        hidden = server.call("search_by_tag", tags=[HOSTILE_TEXTS[2][:60]])[0]["id"]
        assert visitor.go(f"/memories/{hidden}").locator(".codepoint").first.is_visible()
        visitor.leave()


def test_no_page_is_heavy(full: tuple[RunningServer, list[str]]) -> None:
    server, paths = full
    cookie = open_session(server)
    files = load_static_files()
    assert paths
    for path in paths:
        reply = ask(server, "GET", path, Cookie=cookie)
        assert reply.status == 200, path
        names = set(re.findall(r"/static/([\w./-]+\.(?:js|css))\?", reply.body.decode()))
        names |= {"live.js"} | ({"graph-layout.js"} if "graph.js" in names else set())
        vendored = re.findall(r'importScripts\("([\w./-]+)\?', files["graph-layout.js"].body.decode())
        names |= set(vendored) if "graph.js" in names else set()
        size = sum(len(gzip.compress(files[name].body, 9)) for name in names)
        assert size <= (MAX_HEAVY_BYTES if path.startswith(HEAVY_PAGES) else MAX_BYTES), (path, size, names)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", MODES)
def test_pages_are_accessible(visit: Visit, full: tuple[RunningServer, list[str]], mode: str) -> None:
    server, every = full
    visitor = visit(server, **MODES[mode])
    paths = sample(every, 3)
    assert len(paths) >= 3
    for path in paths:
        page = visitor.go(path)
        visitor.check_accessible()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
    if "phone" in mode:
        visitor.go("/tasks")
        page.get_by_role("button", name="Menu").click()
        page.get_by_role("link", name="Home").click()
        page.wait_for_url(f"{visitor.origin}/")


def test_links_lead_somewhere(full: tuple[RunningServer, list[str]]) -> None:
    server, paths = full
    cookie = open_session(server)
    links = {
        unescape(link)
        for path in paths
        for link in LINK_PATTERN.findall(ask(server, "GET", path, Cookie=cookie).body.decode())
    }
    assert len(links) > 100
    for link in sorted(links):
        assert ask(server, "GET", link, Cookie=cookie).status == 200, link


def test_read_only_page_has_no_forms_that_change(full: tuple[RunningServer, list[str]]) -> None:
    server, paths = full
    cookie = open_session(server, read_only=True)
    assert paths
    for path in paths:
        body = ask(server, "GET", path, Cookie=cookie).body.decode()
        assert re.findall(r'method="post" action="([^"]+)"', body) == ["/leave"], path


def test_files_of_others_have_their_checksums() -> None:
    folder = STATIC_FOLDER / "vendor"
    packages = json.loads((folder / "vendor.json").read_text())
    sums = {name: digest for package in packages for name, digest in package["files"].items()}
    assert {path.name for path in folder.iterdir()} == {*sums, "vendor.json"}
    for name, digest in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
