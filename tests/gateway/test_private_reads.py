"""A run that has read something private waits for a person before it calls a server that may not get it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_tools import GatewayApp, open_gateway_app, server_entry

from athena.core.threads import run_sync
from athena.errors import InvalidInput
from athena.gateway.config import read_foreign_entries, validate_entry
from athena.storage import usage
from athena.storage.database import Transaction
from conftest import FULL
from wait_tools import wait_until

READ = "text = ''.join(documents.get_document(source='notes.md'))"
SEND = "out.echo(text=text)"
DOCUMENT = "piece = [m['id'] for m in memory.list_memories() if m['memory_type'] == 'document'][0]"
NODE = "graph.create_entities(entities=[{'name': 'n', 'entityType': 't', 'observations': ['x']}])"
# Ways from a document to a call of a server: each is (earlier programs, program).
PATHS = {
    "direct": ([], f"{READ}\n{SEND}"),
    "recall": ([], f"text = memory.recall(query='purple lamp')[0]['content']\n{SEND}"),
    "list": ([], f"text = memory.list_memories()[0]['content']\n{SEND}"),
    "tag": ([], f"text = memory.search_by_tag(tags=['docs'])[0]['content']\n{SEND}"),
    "get": ([], f"text = str(memory.get_memory(memory_id=memory.list_memories()[0]['id']))\n{SEND}"),
    "ingest": ([], f"documents.ingest_document(path='notes.md')\ntext = str(memory.recall(query='lamp'))\n{SEND}"),
    "read after": ([], f"out.echo(text='fine')\n{READ}\n{SEND}"),
    "constant": ([], f"{READ}\nout.echo(text='nothing of it')"),
    "variable": ([READ], SEND),
    "file": ([f"{READ}\nworkspace.write(path='a.txt', content=text)"], f"text = workspace.read(path='a.txt')\n{SEND}"),
    "file elsewhere": (
        [f"{READ}\nworkspace.write(path='a.txt', content=text, workspace='w2')"],
        f"text = workspace.read(path='a.txt', workspace='w2')\n{SEND}",
    ),
    "memory": (
        [f"{READ}\nmemory.remember(content='note: ' + text, tags=['mine'])"],
        f"text = memory.search_by_tag(tags=['mine'])[0]['content']\n{SEND}",
    ),
    "event": (
        [f"{READ}\nevents.record_event(event_type='note', content=text)"],
        f"text = str(events.recall_events())\n{SEND}",
    ),
    "task": ([f"{READ}\ntasks.create_task(title=text)"], f"text = str(tasks.list_tasks())\n{SEND}"),
    "graph": (
        [f"{READ}\ngraph.create_entities(entities=[{{'name': 'n', 'entityType': 't', 'observations': [text]}}])"],
        f"text = str(graph.open_nodes(names=['n']))\n{SEND}",
    ),
    "update": (
        [f"{READ}\nm = memory.remember(content='plain')\nmemory.update_memory(memory_id=m['id'], content=text + '!')"],
        f"text = str([m['content'] for m in memory.recall(query='lamp', tags=[]) if '!' in m['content']])\n{SEND}",
    ),
    "skill": ([], f"text = skills.peek()\n{SEND}"),
    "handle": ([f"{READ}\n[text] * 5000"], f"text = str(workspace.read(path=workspace.list()[0]['path']))[:9]\n{SEND}"),
    "relation": (
        [f"{READ}\ngraph.create_relations(relations=[{{'from': 'a', 'to': 'b', 'relationType': text}}])"],
        f"text = str(graph.read_graph())\n{SEND}",
    ),
    "link": (
        [
            f"{READ}\na = memory.remember(content='aa')['id']\nb = memory.remember(content='bb')['id']\n"
            "memory.relate_memories(memory_id=a, other_id=b, relation=text)"
        ],
        f"text = str(memory.get_memory(memory_id=memory.recall(query='bb')[0]['id']))\n{SEND}",
    ),
    "tag name": (
        [f"{READ}\nmemory.remember(content='aa', tags=[text])"],
        f"text = str(memory.list_tags())\n{SEND}",
    ),
    "session name": (
        [f"{READ}\nevents.record_event(event_type='x', content='y', session_id=text)"],
        f"text = str(events.list_sessions())\n{SEND}",
    ),
    "file name": (
        [f"{READ}\nworkspace.write(path=text[:9], content='', workspace='w2')"],
        f"text = str(workspace.list(workspace='w2'))\n{SEND}",
    ),
    "history": (
        [f"{READ}\nm = memory.remember(content=text + '?')['id']\nmemory.update_memory(memory_id=m, content='new')"],
        f"text = str(memory.memory_history(memory_id=memory.recall(query='new', k=1)[0]['id']))\n{SEND}",
    ),
    "type name": ([f"{READ}\nmemory.remember(content='aa', memory_type=text)"], f"text = str(meta.stats())\n{SEND}"),
    "topic": ([f"{READ}\nmemory.remember(content='aa', tags=[text])"], f"text = str(meta.expertise())\n{SEND}"),
    "tag of a document": (
        [f"{READ}\ndocuments.ingest_document(path='notes.md', tags=[text])"],
        f"text = str(memory.list_tags())\n{SEND}",
    ),
    "name of a document": (
        [f"{READ}\nmemory.remember(content='aa', memory_type='document', metadata={{'session_id': text}})"],
        f"text = str(documents.list_documents())\n{SEND}",
    ),
    "code of a skill": (
        [f"{READ}\nskills.save(name='sly', code='def sly() -> str:\\n    return ' + repr(text), description='x')"],
        f"text = skills.sly()\n{SEND}",
    ),
    "session of a document": (
        [f"{READ}\n{DOCUMENT}\nmemory.update_memory(memory_id=piece, tags=[], metadata={{'session_id': text + '!'}})"],
        f"text = str(documents.list_documents())\n{SEND}",
    ),
    "type of a document": (
        [f"{READ}\n{DOCUMENT}\nmemory.update_memory(memory_id=piece, tags=[], memory_type=text)"],
        f"text = str(meta.stats())\n{SEND}",
    ),
    # what is there is an answer, too
    "known observations": (
        [NODE, f"{READ}\ngraph.add_observations(observations=[{{'entityName': 'n', 'contents': ['0' + text[0]]}}])"],
        "guesses = ['0' + chr(code) for code in range(32, 123)]\n"
        f"text = str(graph.add_observations(observations=[{{'entityName': 'n', 'contents': guesses}}]))\n{SEND}",
    ),
    "files that are there": (
        [f"{READ}\nworkspace.write(path='0' + text[0], content='', workspace='w2')"],
        f"text = str(workspace.delete(path='0T', workspace='w2'))\n{SEND}",
    ),
    "tags that are there": (
        [f"{READ}\nmemory.remember(content='aa', tags=['0' + text[0]])"],
        "try:\n    memory.forget_by_tag(tags=['0T'], expect=99)\nexcept Exception as error:\n"
        f"    text = str(error)\n{SEND}",
    ),
    "words that a document has": (
        ["memory.remember_batch(items=[{'content': word, 'tags': ['mine']} for word in ('purple', 'green')])"],
        "hits = memory.recall(query='purple green', tags=['mine'], explain=True)\n"
        f"text = str([(hit['content'], hit['why']['words']) for hit in hits])\n{SEND}",
    ),
    "number of events in a session": (
        [
            "events.record_event(event_type='note', content='public', session_id='s')",
            f"{READ}\nevents.record_event(event_type='note', content='x', session_id='s')",
        ],
        f"text = str(events.timeline(session_id='s', since='1 day ago', limit=1)[0]['left_out'])\n{SEND}",
    ),
    "number of events in a time": (
        [
            "events.record_event(event_type='note', content='public')",
            f"{READ}\nevents.record_event(event_type='note', content='x')",
        ],
        f"text = str(events.timeline(since='1 day ago', limit=1)[0]['left_out'])\n{SEND}",
    ),
    "error of a run": ([f"{READ}\n1 / 0"], f"text = str(code.list_runs())\n{SEND}"),
}
ENGINES = ("monty", "python")
PAIRS = [(path, ENGINES[i % 2]) for i, path in enumerate(PATHS)]  # each path on one engine, with full counts on both
PAIRS += [(path, ENGINES[1 - i % 2]) for i, path in enumerate(PATHS)] if FULL else []
OTHER_WORKSPACE = PATHS.keys() - {"variable", "file", "handle"}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayApp]:
    project = tmp_path / "repo"
    (project / ".git").mkdir(parents=True)
    (project / "notes.md").write_text("The purple lamp is in the cellar.")
    with open_gateway_app(tmp_path / "home", project=str(project)) as gateway:
        gateway.add("out", server_entry("echo"))
        gateway.call("ingest_document", path=str(project / "notes.md"), tags="docs")
        yield gateway


@pytest.mark.parametrize(("path", "engine"), PAIRS)
def test_private_text_does_not_leave(gateway: GatewayApp, path: str, engine: str) -> None:
    earlier, code = PATHS[path]
    if path == "skill":
        peek = "def peek() -> str:\n    return documents.get_document(source='notes.md')[0]"
        gateway.call("save_skill", name="peek", code=peek, description="Peek.", example="peek()")
    for number, program in enumerate(earlier):
        workspace = f"other{number}" if path in OTHER_WORKSPACE else "w"
        done = gateway.run(program, workspace=workspace, engine=engine)
        assert done.error is None or path == "error of a run", done.error
    done = gateway.run(code, workspace="w", engine=engine)
    assert done.status == "needs_approval", (done.error, done.result)
    assert done.waiting.operation == "out.echo"


# Ways through a call that belongs to no run, and copies text: (earlier programs, the call, program).
COPIES: dict[str, tuple[list[str], tuple[str, dict[str, Any]], str]] = {
    "merged entities": (
        [f"{READ}\ngraph.create_entities(entities=[{{'name': 'a', 'entityType': 't', 'observations': [text]}}])", NODE],
        ("merge_entities", {"source": "a", "into": "n"}),
        "text = str(graph.open_nodes(names=['n']))",
    ),
    "merged facts": (
        [f"{READ}\ngraph.create_entity(name='a', entity_type='t', metadata={{'k': text}})", NODE],
        ("merge_entities", {"source": "a", "into": "n"}),
        "text = str(graph.search_graph(query='n'))",
    ),
    "outcomes of a pattern": (
        [
            "for i in range(8):\n    events.record_event(event_type='x', content='deploy the shop', session_id=str(i))",
            f"{READ}\nevents.record_event(event_type='x', content='deploy the shop', session_id='9', outcome=text)",
        ],
        ("consolidate", {}),
        "text = str(consolidation.list_patterns())",
    ),
    "importance of a memory": (
        [
            f"{READ}\nmemory.remember(content='the bit number 7 is on.' if text[0] == 'T' else 'x')",
            "memory.remember(content='The bit number 7 is on', tags=['bits'])",
        ],
        ("consolidate", {}),
        "text = str(memory.search_by_tag(tags=['bits'])[0]['importance'])",
    ),
    "work of a session": (
        [f"{READ}\nevents.record_event(event_type='edit', content='edit ' + text, session_id='s')"],
        ("learn", {"session_id": "s", "messages": [{"role": "user", "text": "go on"}]}),
        "text = str(events.recall_events(event_type='episode'))",
    ),
}


@pytest.mark.parametrize("path", COPIES)
def test_copies_keep_marks(gateway: GatewayApp, path: str) -> None:
    earlier, (operation, arguments), code = COPIES[path]
    for number, program in enumerate(earlier):
        assert gateway.run(program, workspace=f"other{number}").error is None
    gateway.call(operation, **arguments)
    done = gateway.run(f"{code}\n{SEND}", workspace="w")
    assert done.status == "needs_approval", (done.error, done.result)


BITS = "bits = ''.join(format(byte, '08b') for byte in (text * 9).encode())\n"
FOUND = "ids = {m['content']: m['id'] for m in memory.search_by_tag(tags=['bits'], k=1000)}\n"
ITEMS = "memory.remember_batch(items=[{'content': f'bit {i}', 'tags': ['bits']} for i in range(150)])"
# What is left of many things tells which ones a run removed or changed: (an unmarked program, what a marked one does).
REMOVALS = {
    "memories": (
        ITEMS,
        f"{FOUND}memory.forget_batch(memory_ids=[ids[f'bit {{i}}'] for i in range(150) if bits[i] == '0'])",
    ),
    "tags": (
        ITEMS,
        f"{FOUND}for i in range(150):\n    if bits[i] == '0':\n"
        "        memory.update_memory(memory_id=ids[f'bit {i}'], tags=['gone'])",
    ),
    "tasks": (
        "for i in range(110):\n    tasks.create_task(title=f't {i}')",
        "for i, task in enumerate(tasks.list_tasks(limit=200)):\n    if bits[i] == '0':\n"
        "        tasks.complete_task(task_id=task['id'])",
    ),
    "observations": (
        "names = [f'o {i}' for i in range(150)]\n"
        "graph.create_entities(entities=[{'name': 'n', 'entityType': 't', 'observations': names}])",
        "names = [f'o {i}' for i in range(150) if bits[i] == '0']\n"
        "graph.delete_observations(deletions=[{'entityName': 'n', 'observations': names}])",
    ),
    "relations": (
        "graph.create_relations(relations=[{'from': 'a', 'to': f'b{i}', 'relationType': 'r'} for i in range(150)])",
        "gone = [{'from': 'a', 'to': f'b{i}', 'relationType': 'r'} for i in range(150) if bits[i] == '0']\n"
        "graph.delete_relations(relations=gone)",
    ),
    "files": (
        "for i in range(150):\n    workspace.write(path=str(i), content='', workspace='w2')",
        "for i in range(150):\n    if bits[i] == '0':\n        workspace.delete(path=str(i), workspace='w2')",
    ),
}


@pytest.mark.parametrize("path", REMOVALS)
def test_marked_run_tells_little_by_what_it_removes(gateway: GatewayApp, path: str) -> None:
    earlier, code = REMOVALS[path]
    assert gateway.run(earlier, workspace="a", engine="python").error is None
    done = gateway.run(f"{READ}\n{BITS}{code}", workspace="b", engine="python")
    assert done.error is not None
    assert "may change or remove at most 50 things" in done.error.message


def test_marked_run_strengthens_nothing(gateway: GatewayApp) -> None:
    async def list_strong(tx: Transaction) -> list[str]:
        return [row[0] for row in await tx.fetch("SELECT content FROM memories WHERE strength > 0")]

    gateway.run("memory.remember_batch(items=[{'content': word, 'tags': [word]} for word in ('left', 'right')])")
    gateway.run(f"{READ}\nmemory.recall(query='left', tags=['left'])", workspace="b")
    gateway.run("memory.recall(query='right', tags=['right'])", workspace="c")
    wait_until(lambda: run_sync(gateway.app.store.database.read(list_strong)))
    assert run_sync(gateway.app.store.database.read(list_strong)) == ["right"]


TOLD = "for i in range(8):\n    if i % 3 == 0:\n        "
# What a page leaves out is a message, too: (an unmarked program, what a marked one adds, how another reads it).
PAGES = {
    "tag": (
        "for i in range(8):\n    memory.remember(content=f'public {i}', tags=[f's{i}'])",
        f"{TOLD}memory.remember(content=f'z {{i}}', tags=[f's{{i}}'])",
        "[len(memory.list_memories(tags=[f's{i}'], k=1, offset=1)) for i in range(8)]",
    ),
    "search by tag": (
        "for i in range(8):\n    memory.remember(content=f'public {i}', tags=[f's{i}'])",
        f"{TOLD}memory.remember(content=f'z {{i}}', tags=[f's{{i}}'])",
        "[len(memory.search_by_tag(tags=[f's{i}'], k=1, offset=1)) for i in range(8)]",
    ),
    "type": (
        "for i in range(8):\n    memory.remember(content=f'public {i}', memory_type=f's{i}')",
        f"{TOLD}memory.remember(content=f'z {{i}}', memory_type=f's{{i}}')",
        "[len(memory.list_memories(memory_type=f's{i}', k=1, offset=1)) for i in range(8)]",
    ),
    "session": (
        "for i in range(8):\n    events.record_event(event_type='note', content=f'public {i}', session_id=f's{i}')",
        f"{TOLD}events.record_event(event_type='note', content='z', session_id=f's{{i}}')",
        "[len(events.recall_events(session_id=f's{i}', k=1, offset=1)) for i in range(8)]",
    ),
    "meaning": (
        "for i in range(8):\n    memory.remember(content=f'kitten {i} sleeps', tags=[f's{i}'])",
        f"{TOLD}memory.remember(content=f'Invoice tax payment due to the revenue office {{i}}', tags=[f's{{i}}'])",
        "[len(memory.recall(query='fiscal bill money', tags=[f's{i}'], k=1, offset=1)) for i in range(8)]",
    ),
    "score": (
        "for i in range(8):\n    memory.remember(content=f'kitten {i} sleeps', tags=[f's{i}'])",
        f"{TOLD}memory.remember(content=f'Invoice tax payment due to the revenue office {{i}}', tags=[f's{{i}}'])",
        "[memory.recall(query='young cats', tags=[f's{i}'], k=1)[0]['score'] for i in range(8)]",
    ),
}


@pytest.mark.parametrize("path", PAGES)
def test_rows_beside_the_page_tell_nothing_without_a_mark(gateway: GatewayApp, path: str) -> None:
    earlier, told, asked = PAGES[path]
    asked = f"text = str({asked})\nprint(text)"
    assert gateway.run(earlier, workspace="a").error is None
    before = gateway.run(f"{asked}\n{SEND}", workspace="b")
    done = gateway.run(f"{READ}\n{told}", workspace="c")
    assert done.error is None, done.error
    after = gateway.run(f"{asked}\n{SEND}", workspace="d")
    assert after.status == "needs_approval" or (before.status, before.output) == (after.status, after.output)


def test_uses_by_marked_run_are_not_counted(gateway: GatewayApp) -> None:
    for name in ("one", "two"):
        gateway.call("save_skill", name=name, code=f"def {name}() -> int:\n    return 1", description="x", example="1")
    assert gateway.run(f"{READ}\nskills.one()\nskills.run_skill(name='one')", workspace="b").error is None
    assert gateway.run("skills.two()\nskills.run_skill(name='two')", workspace="c").error is None

    def read_uses() -> dict[str, int]:
        return {skill.name: skill.uses for skill in gateway.call("find_skills", query="one two", k=50)}

    wait_until(lambda: read_uses().get("two") == 2)
    assert read_uses()["one"] == 0


def test_usage_of_marked_run_tells_nothing(gateway: GatewayApp) -> None:
    async def read_usage(tx: Transaction) -> dict[str, int]:
        return await usage.count_recent_calls(tx, gateway.project, gateway.app.store.clock(), 1)

    assert gateway.run(f"{READ}\n[meta.stats() for _ in range(9)]", workspace="b").error is None
    assert gateway.run("meta.health()", workspace="c").error is None
    wait_until(lambda: run_sync(gateway.app.store.database.read(read_usage)).get("health") == 1)
    assert "stats" not in run_sync(gateway.app.store.database.read(read_usage))
    assert gateway.run("meta.token_savings()", workspace="d").error is not None
    assert any(row.operation == "stats" for row in gateway.call("token_savings").operations)


def test_run_that_read_nothing_private_calls_freely(gateway: GatewayApp) -> None:
    done = gateway.run("memory.remember(content='x')\nout.echo(text=str(memory.recall(query='x', tags=['none'])))")
    assert done.error is None
    notes = "memory.remember_batch(items=[{'content': 'note ' + str(i)} for i in range(3)])"
    listed = "memory.list_memories(since='1 day ago', k=2)\nmemory.recall(query='today', k=2)"
    assert gateway.run(f"{notes}\n{listed}\nout.echo(text='x')").error is None
    assert gateway.run("meta.health()\ntasks.list_tasks()\nout.echo(text='x')").error is None


def test_person_can_let_one_call_pass(gateway: GatewayApp) -> None:
    waiting = gateway.run(f"{READ}\n{SEND}\n{SEND}", workspace="w")
    assert waiting.waiting.reason == "this run has read files, which out does not accept"
    assert waiting.waiting.reason in waiting.error.message
    assert "athena servers privacy out --accept files" in waiting.error.hint
    done = gateway.approve_run(waiting.run_id)
    assert done.status == "needs_approval", "the approval is good for one call"
    assert gateway.approve_run(waiting.run_id).status == "done"


def test_reason_says_that_only_a_search_went_through_files(gateway: GatewayApp) -> None:
    search = "memory.remember(content='a lamp of mine', tags=['own'])\nmemory.recall(query='lamp', tags=['own'])"
    waiting = gateway.run(f"{search}\nout.echo(text='x')", workspace="w").waiting
    assert waiting.reason == "a search of this run also went through files, which out does not accept"
    waiting = gateway.run(f"{search}\n{READ}\n{SEND}", workspace="w2").waiting
    assert waiting.reason == "this run has read files, which out does not accept"


def test_server_may_accept_files(gateway: GatewayApp) -> None:
    gateway.gateway.servers_file.update_entry("out", {"accepts": ["files"]})
    assert gateway.run(f"{READ}\n{SEND}").error is None
    gateway.gateway.servers_file.update_entry("out", {"accepts": None})
    assert gateway.run(f"{READ}\n{SEND}").status == "needs_approval"


def test_results_of_a_private_server_stay_from_others(gateway: GatewayApp) -> None:
    code = "text = str(inner.echo(text='payroll'))\n"
    gateway.add("inner", server_entry("echo"))
    assert gateway.run(code + SEND).error is None, "results go between servers unless one is private"
    gateway.gateway.servers_file.update_entry("inner", {"private": True})
    assert gateway.run(code + SEND, workspace="a").status == "needs_approval"
    assert gateway.run(code + "inner.echo(text=text)", workspace="b").error is None, "it may get its own results"
    gateway.gateway.servers_file.update_entry("out", {"accepts": ["server:inner"]})
    assert gateway.run(code + SEND, workspace="c").error is None
    gateway.gateway.servers_file.update_entry("out", {"accepts": ["all"]})
    assert gateway.run(f"{READ}\n{SEND}", workspace="c").error is None


@pytest.mark.parametrize("options", [{"accepts": "files"}, {"accepts": ["fiels"]}, {"accepts": [1]}, {"private": 1}])
def test_wrong_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"accepts must be|private must be"):
        validate_entry("x", {"command": "x", **options})


def test_imported_file_cannot_say_what_its_servers_accept() -> None:
    file = b'{"mcpServers": {"x": {"command": "x", "accepts": ["all"], "private": true}}}'
    [entry], _ = read_foreign_entries(file, "mcp.json")
    assert (entry.accepted_marks, entry.is_private) == (frozenset(), True)
