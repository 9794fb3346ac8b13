"""A store with something on every page: of plain texts, or of hostile ones."""

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

from gateway_tools import RUN_TIMEOUT_S, open_gateway_app, server_entry
from page_tools import seed
from starlette.routing import compile_path
from test_page_access import open_forms, post

from athena.server.page.views import VIEWS
from http_tools import RunningServer, run_server
from wait_tools import wait_until

HOSTILE_NAME = "<img src=x onerror=window.broken=1>"
HOSTILE_TEXTS = (
    "<script>window.broken = 1</script><img src=x onerror='window.broken = 1'>",
    "</textarea></script><svg onload='window.broken=1'><style>*{display:none}</style>",
    "\u202egnp.exe\u2066 \u200b hidden \x1b[31mred\x1b[0m \x07",
    "{{ 7 * 7 }} {% raw %} ${7*7} &lt;b&gt; \"quotes\" 'and' `ticks` javascript:window.broken=1",
    "wide-" * 200_000,
)
PLAIN_NAME = "handbook"
PLAIN_TEXTS = (
    "The cache of the shop is emptied after each deploy",
    "Reports are written at night and sent at six in the morning",
    "Orders above 5,000 NOK need a second pair of eyes",
)
# Answers for a part of a page, or for its script.
PARTS = ("/graph/data", "/graph/entity", "/live", "/memories/filters", "/memories/{ref}/candidates", "/use/savings")
FIXED_PATHS = (
    "/",
    "/memories",
    "/memories/duplicates",
    "/memories/learned",
    "/memories/documents",
    "/graph",
    "/graph/names",
    "/timeline",
    "/tasks",
    "/patterns",
    "/programs",
    "/programs/skills",
    "/programs/workspaces",
    "/servers",
    "/servers/odd",
    "/servers/tools/odd.sly",
    "/servers/tools/recall",
    "/use",
    "/settings",
    "/settings/backups",
    "/settings/privacy",
)


@contextmanager
def run_full_server(folder: Path, name: str, texts: Sequence[str], **settings: str) -> Generator[RunningServer]:
    """Start a server with something on every page."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    with open_gateway_app(home) as app:
        app.add("odd", server_entry("hidden-text"))
    with run_server(folder, home=home, **settings) as server:
        seed(server)
        store_memories(server, texts)
        store_lessons(server, folder, name, texts)
        yield server


def store_memories(server: RunningServer, texts: Sequence[str]) -> None:
    for text in texts:
        tag = text[:60].replace(",", " ")
        server.call("remember", content=text, tags=[tag], memory_type=text[:50])
        server.call("remember", content=f"{text[:300]} and the same again", tags=[tag])
        server.call("record_event", event_type=text[:40], content=text, outcome=text[:20], session_id=text[:60])
        server.call("create_task", title=text[:300], due="tomorrow", details=text)
        entity = {"name": text[:80], "entityType": text[:40], "observations": [text[:10_000]]}
        server.call("create_entities", entities=[entity])
        relation = {"from": text[:80], "to": texts[0][:80], "relationType": text[:60]}
        server.call("create_relations", relations=[relation])
    for day in range(8, 0, -1):
        for session in ("a", "b"):
            fields = {"session_id": f"{session}{day}", "happened": f"{day} days ago"}
            server.call("record_event", event_type="action", content=texts[0], outcome="success", **fields)
            server.call("record_event", event_type="error", content=texts[1], outcome="failure", **fields)
    server.call("consolidate")


def store_lessons(server: RunningServer, folder: Path, name: str, texts: Sequence[str]) -> None:
    """Store what was learned and may not be, documents, a skill, a file and a backup."""
    said = [{"role": "user", "text": f"I prefer {text[:60]} in all templates."} for text in texts]
    server.call("learn", session_id="lessons", messages=said)
    server.call("learn", session_id="lesson", messages=[{"role": "user", "text": f"I prefer {texts[0][:60]} here."}])
    documents = folder / "documents"
    documents.mkdir()
    (documents / f"{name}.md").write_text(f"# {name}\n\n" + "\n\n".join(text[:20_000] for text in texts))
    server.call("ingest_document", path=str(documents))
    text = f"    {texts[0][:300]!r}\n    return name"
    server.call("save_skill", name="greet", code=f"def greet(name: str) -> str:\n{text}", example="greet('Ann')")
    server.call("write_file", path=f"{name}.txt", content=texts[1])
    cookie, token = open_forms(server)
    learned = server.call("list_learned", limit=1)[0]["hash"]
    refused = {"memory_id": learned, "topic": texts[1][:60]}
    for path, fields in (("/memories/learned/refuse", refused), ("/settings/backups", {})):
        reply = post(server, path, cookie, form_token=token, project="test", **fields)
        assert reply.status == 303, (path, reply, server.log.read_text())


@contextmanager
def open_every_page(server: RunningServer, folder: Path, name: str, texts: Sequence[str]) -> Generator[list[str]]:
    """Run programs that ended, wait and run; return addresses that show every view of the page."""
    printed = f"print({texts[0]!r})\nprint({texts[1]!r})"
    ended = server.call("execute_code", code=f"{printed}\n{texts[1]!r}")["run_id"]
    failed = server.call("execute_code", code=f"raise ValueError({texts[0]!r})")["run_id"]
    purge = "memory.purge(expect=memory.purge(dry_run=True))"
    waits = f"x = {texts[1]!r}  #{' ' * 300}# <b>far right</b>\n{printed}\n{purge}"
    waiting = server.call("execute_code", code=waits)["run_id"]
    code = f"{printed}\nimport time\nwhile not memory.search_by_tag(tags='go'):\n    time.sleep(0.2)"
    arguments = {"code": code, "engine": "python", "timeout_s": RUN_TIMEOUT_S}
    runner = threading.Thread(target=server.call, args=("execute_code",), kwargs=arguments)
    runner.start()
    wait_until(lambda: bool(server.call("list_runs", status="running")))
    running = server.call("list_runs", status="running")[0]["run_id"]
    memories = [row["id"] for row in server.call("list_memories", k=100)]
    tasks = [task["id"] for task in server.call("list_tasks", limit=100)]
    forgotten = server.call("remember", content=f"{texts[0][:200]} is gone")["id"]
    server.call("forget", memory_id=forgotten)
    forgotten_task = server.call("create_task", title=f"{texts[1][:200]} is gone")["id"]
    server.call("forget", memory_id=forgotten_task, kind="task")
    patterns = [pattern["id"] for pattern in server.call("list_patterns", limit=3)]
    assert patterns
    source = urlencode({"source": str(folder / "documents" / f"{name}.md")})
    paths = [
        *FIXED_PATHS,
        f"/memories?{urlencode({'q': texts[0][:60]})}",
        *(f"/memories/{number}" for number in memories[: 2 * len(texts)]),
        f"/memories/{forgotten}",
        f"/memories/documents/one?{source}",
        *(f"/graph?{urlencode({'name': text[:80]})}" for text in texts),
        f"/graph?{urlencode({'source': texts[1][:80], 'target': texts[0][:80]})}",
        *(f"/timeline/sessions/{quote(text[:60], safe='')}" for text in texts),
        "/timeline?span=day",
        *(f"/tasks/{number}" for number in (*tasks[: len(texts)], forgotten_task)),
        *(f"/patterns/{number}" for number in patterns),
        *(f"/programs/{run}" for run in (ended, failed, waiting, running)),
        "/programs/skills/greet",
        f"/programs/workspaces?{urlencode({'name': 'default', 'path': f'{name}.txt'})}",
        f"/memories?{urlencode({'q': name, 'tags': name, 'project': name})}",
    ]
    check_every_view(paths)
    try:
        yield paths
    finally:
        server.call("remember", content="Go on", tags=["go"])
        runner.join()


def check_every_view(paths: Sequence[str]) -> None:
    """Assert that some address shows each view, so that a new view is not forgotten."""
    views = [view.path for view in VIEWS if view.method == "GET" and view.path not in PARTS]
    assert len(views) > 20
    for view in views:
        pattern = compile_path(view)[0]
        assert any(pattern.match(path.partition("?")[0]) for path in paths), view
