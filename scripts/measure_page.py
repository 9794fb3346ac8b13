"""Measure the page on a large store: first bytes against the operation that it shows, sizes, a graph of 10,000 names.

Usage: .venv/bin/python scripts/measure_page.py [MEMORIES]   (docs/page.md has the figures of the last run)
"""

import gzip
import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / name) for name in ("", "server/page")), str(ROOT / "scripts")]

from bench.stores import Stores  # noqa: E402
from page_tools import create_link, open_browser  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

from athena.server.page.rendering import load_static_files  # noqa: E402
from http_tools import RunningServer, run_server  # noqa: E402

PROJECT = "bench"
REPEATS = 15
NAMES, RELATIONS = 10_000, 15_000
QUESTION_WORDS = 8
Calls = tuple[tuple[str, dict[str, Any]], ...]
# Each page with the operations that it shows, as far as HTTP has them.
PAGES: tuple[tuple[str, Calls], ...] = (
    ("/memories", (("list_memories", {"k": 25}),)),
    ("/memories?q={plus}", (("recall", {"query": "{question}", "k": 25, "explain": True}),)),
    ("/memories/1", (("get_memory", {"memory_id": 1}), ("memory_history", {"memory_id": 1}))),
    (
        "/timeline?span=year",
        (("timeline", {"since": "last year", "limit": 400}), ("list_sessions", {"since": "last year", "limit": 30})),
    ),
    ("/graph", (("stats", {}),)),
    ("/graph/data", (("read_graph", {}),)),
    ("/tasks", (("list_tasks", {"limit": 200}), ("list_tasks", {"state": "done", "limit": 20}))),
    ("/programs", (("list_runs", {"limit": 50}), ("list_runs", {"limit": 50, "status": "needs_approval"}))),
    ("/patterns", (("list_patterns", {"limit": 200}), ("consolidation_status", {}))),
    (
        "/",
        (
            ("health", {}),
            ("stats", {}),
            ("list_memories", {"k": 6}),
            ("due_tasks", {"within": "7 days", "limit": 6}),
            ("list_runs", {"limit": 10, "status": "needs_approval"}),
            ("briefing", {}),
            ("list_servers", {}),
        ),
    ),
)


def time_first_byte(
    server: RunningServer, method: str, path: str, headers: list[tuple[str, str]], body: bytes
) -> float:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "Connection: close"]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    with server.connect() as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
        began = time.perf_counter()
        assert connection.recv(1)
        return (time.perf_counter() - began) * 1_000


def choose_question(server: RunningServer) -> str:
    """Return a question that the store answers: the first words of a memory."""
    header = ("X-Athena-Project", PROJECT)
    text = str(server.call("get_memory", header, memory_id=1)["content"])
    question = " ".join(re.findall(r"\w+", text)[:QUESTION_WORDS])
    assert server.call("recall", header, query=question, k=25), question
    return question


def measure_first_bytes(server: RunningServer, cookie: str, question: str) -> None:
    host = [("Host", f"127.0.0.1:{server.port}"), ("Cookie", cookie)]
    api = [*server.auth_headers, ("Content-Type", "application/json"), ("X-Athena-Project", PROJECT)]
    print(f"question: {question}")
    print(f"{'page':30} {'page ms':>9} {'operations ms':>13} ratio")
    for path, operations in PAGES:
        full = path.replace("{plus}", quote_plus(question)) + f"{'&' if '?' in path else '?'}project={PROJECT}"
        pages, calls = [], []
        for _ in range(REPEATS):  # by turns: the machine is noisy
            pages.append(time_first_byte(server, "GET", full, host, b""))
            calls.append(0.0)
            for name, arguments in operations:
                body = json.dumps(arguments).replace("{question}", question).encode()
                calls[-1] += time_first_byte(server, "POST", f"/tools/{name}/execute", api, body)
        page_ms, call_ms = statistics.median(pages), statistics.median(calls)
        names = ", ".join(dict.fromkeys(name for name, _ in operations))
        print(f"{path[:30]:30} {page_ms:9.1f} {call_ms:13.1f} {page_ms / call_ms:5.2f}  {names}")


def measure_sizes(server: RunningServer, cookie: str) -> None:
    files = load_static_files()
    for path in ("/memories", "/use", "/graph"):
        body = server.ask(
            "GET", f"{path}?project={PROJECT}", [("Host", f"127.0.0.1:{server.port}"), ("Cookie", cookie)]
        ).body
        names = set(re.findall(r"/static/([\w./-]+\.(?:js|css))\?", body.decode())) | {"live.js"}
        if "graph.js" in names:
            vendored = re.findall(r'importScripts\("([\w./-]+)\?', files["graph-layout.js"].body.decode())
            names |= {"graph-layout.js", *vendored}
        size = sum(len(gzip.compress(files[name].body, 9)) for name in names)
        print(f"{path}: {size / 1_000:.1f} KB of script and style, compressed; its text {len(body) / 1_000:.0f} KB")


def measure_in_browser(server: RunningServer, count: int, question: str) -> None:
    with sync_playwright() as playwright, open_browser(playwright) as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.goto(create_link(server, PROJECT))
        origin = re.match(r"https?://[^/]+", page.url)[0]  # type: ignore[index]
        began = time.perf_counter()
        page.goto(f"{origin}/memories?project={PROJECT}")
        page.locator(".hit").first.wait_for()
        print(f"list of memories shown after {time.perf_counter() - began:.2f} s")
        box = page.get_by_role("searchbox")
        began = time.perf_counter()
        box.fill(question)
        page.locator(".hit .score").first.wait_for()
        print(f"hits shown after {time.perf_counter() - began:.2f} s (0.14 s of it to see whether more is typed)")
        page.goto(f"{origin}/memories?offset={count - 500}&project={PROJECT}")
        page.locator(".hit").first.wait_for()
        began = time.perf_counter()
        page.goto(f"{origin}/graph?project={PROJECT}")
        page.locator("#graph canvas").first.wait_for(timeout=60_000)
        print(f"graph of {NAMES:,} names drawn first after {time.perf_counter() - began:.2f} s")
        page.evaluate(
            "() => { window.longest = 0; let last = performance.now(); const step = (now) => {"
            " window.longest = Math.max(window.longest, now - last); last = now; requestAnimationFrame(step); };"
            " requestAnimationFrame(step); }"
        )
        page.locator("#graph[data-ready]").wait_for(timeout=60_000)
        print(
            f"arranged after {time.perf_counter() - began:.2f} s; "
            f"the page never paused longer than {page.evaluate('longest'):.0f} ms"
        )
        began = time.perf_counter()
        page.locator("#graph-search").fill("name 77")
        page.locator("#graph-search").press("Enter")
        page.locator("#entity .entity").wait_for()
        print(f"a name found and opened after {time.perf_counter() - began:.2f} s")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["ATHENA_PROJECT"] = PROJECT
        home = Stores(folder / "stores", min(1_000, count)).home(count)
        with run_server(folder / "server", home=home, ATHENA_PROJECT=PROJECT) as server:
            header = ("X-Athena-Project", PROJECT)
            for start in range(0, NAMES, 1_000):
                entities = [
                    {"name": f"name {i}", "entityType": f"type {i % 8}", "observations": []}
                    for i in range(start, start + 1_000)
                ]
                server.call("create_entities", header, entities=entities)
            for start in range(0, RELATIONS, 1_000):
                relations = [
                    {"from": f"name {i % NAMES}", "to": f"name {(i * i + 7) % NAMES}", "relationType": "uses"}
                    for i in range(start, start + 1_000)
                    if i % NAMES != (i * i + 7) % NAMES
                ]
                server.call("create_relations", header, relations=relations)
            link = urlsplit(create_link(server, PROJECT))
            reply = server.ask("GET", f"{link.path}?{link.query}", [("Host", f"127.0.0.1:{server.port}")])
            cookie = str(reply.header("set-cookie")).partition(";")[0]
            print(f"{count:,} memories, {NAMES:,} names, {RELATIONS:,} relations")
            question = choose_question(server)
            measure_first_bytes(server, cookie, question)
            measure_sizes(server, cookie)
            measure_in_browser(server, count, question)


if __name__ == "__main__":
    main()
