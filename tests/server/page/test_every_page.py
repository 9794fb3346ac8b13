"""What holds on every page: hostile content stays in its box, none is heavy, all fit phones, dark and readers."""

import gzip
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from gateway_tools import open_gateway_app, server_entry
from page_tools import HOSTILE_TEXTS, Visitor
from test_page_access import ask, open_session

from athena.server.page.rendering import STATIC_FOLDER, load_static_files
from conftest import sample
from http_tools import RunningServer, run_server

Visit = Callable[..., Visitor]
PAGES = (
    "/",
    "/memories",
    "/memories?q=deploy",
    "/memories/1",
    "/memories/duplicates",
    "/memories/learned",
    "/memories/documents",
    "/graph",
    "/graph?name=Ann",
    "/graph/names",
    "/timeline",
    "/timeline/sessions/billing-retries",
    "/tasks",
    "/tasks/13",
    "/patterns",
    "/programs",
    "/programs/workspaces",
    "/programs/skills",
    "/servers",
    "/servers/tools/recall",
    "/use",
    "/settings",
    "/settings/privacy",
    "/settings/backups",
)
HEAVY_PAGES = ("/graph", "/use")
MAX_HEAVY_BYTES = 200_000
MAX_BYTES = 60_000
NAME = "<img src=x onerror=window.broken=1>"


def test_hostile_content_stays_in_its_box(visit: Visit, tmp_path: Path) -> None:
    """Texts, tags, names, files, tools and programs with markup, hidden characters and long lines: nothing runs."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with open_gateway_app(home) as app:
        app.add("odd", server_entry("hidden-text"))
    with run_server(tmp_path, home=home) as server:
        ids = []
        for text in HOSTILE_TEXTS:
            tag = text[:60].replace(",", " ")
            ids.append(server.call("remember", content=text, tags=[tag], memory_type=text[:50])["id"])
            server.call("record_event", event_type=text[:40], content=text, outcome=text[:20], session_id=text[:60])
            server.call("create_task", title=text, due="tomorrow", details=text)
            entity = {"name": text[:80], "entityType": text[:40], "observations": [text]}
            server.call("create_entities", entities=[entity])
            relation = {"from": text[:80], "to": HOSTILE_TEXTS[0][:80], "relationType": text[:60]}
            server.call("create_relations", relations=[relation])
        server.call("remember", content="x" * 1_000_000)
        said = [{"role": "user", "text": f"I prefer {text[:60]} in all templates."} for text in HOSTILE_TEXTS]
        server.call("learn", session_id="hostile", messages=said)
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / f"{NAME}.md").write_text(HOSTILE_TEXTS[1])
        server.call("ingest_document", path=str(tmp_path / "docs"))
        ended_id = server.call("execute_code", code=f"print({HOSTILE_TEXTS[0]!r})")["run_id"]
        code = (
            f"x = {HOSTILE_TEXTS[0]!r}  #{' ' * 300}# <b>far right</b>\n"
            f"y = {HOSTILE_TEXTS[1]!r}\nprint(y)\nworkspace.write(path={NAME!r} + '.txt', content=y)\n"
            "memory.purge(expect=0)"
        )
        run_id = server.call("execute_code", code=code)["run_id"]
        visitor = visit(server)
        name = urlencode({"name": HOSTILE_TEXTS[0][:80]})
        file = urlencode({"name": "default", "path": f"{NAME}.txt"})
        more = (
            "/memories?q=window+broken",
            *(f"/memories/{number}" for number in ids),
            f"/memories?q={quote(NAME)}&tags={quote(NAME)}&project={quote(NAME)}",
            f"/graph?{name}",
            f"/timeline/sessions/{quote(HOSTILE_TEXTS[1][:60], safe='')}",
            f"/programs/{run_id}",
            f"/programs/{ended_id}",
            "/programs",
            "/memories/learned",
            "/memories/documents",
            f"/memories/documents/one?{urlencode({'source': str(tmp_path / 'docs' / f'{NAME}.md')})}",
            f"/programs/workspaces?{file}",
            "/servers/odd",
        )
        pages = [path for path in PAGES if path not in ("/graph?name=Ann", "/timeline/sessions/billing-retries")]
        for path in (*sample(pages, 3), *more):
            visitor.expected_statuses = {404}
            page = visitor.go(path)
            assert page.evaluate("window.broken") is None, path
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
            assert page.locator("main").is_visible(), path  # no style of theirs counts
        page = visitor.go(f"/programs/{run_id}")
        assert page.locator(".codepoint", has_text="300 spaces").is_visible()
        assert page.get_by_text("<b>far right</b>").is_visible()
        assert visitor.go(f"/memories/{ids[2]}").locator(".codepoint").first.is_visible()
        visitor.leave()


def test_no_page_is_heavy(seeded: RunningServer) -> None:
    cookie = open_session(seeded)
    files = load_static_files()
    for path in PAGES:
        reply = ask(seeded, "GET", path, Cookie=cookie)
        assert reply.status == 200, path
        names = set(re.findall(r"/static/([\w./-]+\.(?:js|css))\?", reply.body.decode()))
        names |= {"live.js"} | ({"graph-layout.js"} if "graph.js" in names else set())
        vendored = re.findall(r'importScripts\("([\w./-]+)\?', files["graph-layout.js"].body.decode())
        names |= set(vendored) if "graph.js" in names else set()
        size = sum(len(gzip.compress(files[name].body, 9)) for name in names)
        assert size <= (MAX_HEAVY_BYTES if path.startswith(HEAVY_PAGES) else MAX_BYTES), (path, size, names)


@pytest.mark.parametrize("options", [{"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 800}}])
def test_pages_fit_dark_and_phone(visit: Visit, seeded: RunningServer, options: dict[str, object]) -> None:
    visitor = visit(seeded, **options)
    paths = sample(PAGES, 4)
    assert len(paths) >= 4
    for path in paths:
        page = visitor.go(path)
        visitor.check_accessible()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
    if "viewport" in options:
        page.get_by_role("button", name="Menu").click()
        page.get_by_role("link", name="Home").click()
        page.wait_for_url(f"{visitor.origin}/")


def test_read_only_page_has_no_forms_that_change(seeded: RunningServer) -> None:
    cookie = open_session(seeded, read_only=True)
    for path in PAGES:
        body = ask(seeded, "GET", path, Cookie=cookie).body.decode()
        assert re.findall(r'method="post" action="([^"]+)"', body) == ["/leave"], path


def test_files_of_others_have_their_checksums() -> None:
    folder = STATIC_FOLDER / "vendor"
    packages = json.loads((folder / "vendor.json").read_text())
    sums = {name: digest for package in packages for name, digest in package["files"].items()}
    assert {path.name for path in folder.iterdir()} == {*sums, "vendor.json"}
    for name, digest in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
