"""`athena serve --workers`: readers answer as the server does, see every acknowledged write, and end with it."""

import os
import pickle
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from athena.app.compose import App
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.core.types import to_json
from athena.server import readers
from conftest import Engine, rounds
from http_tools import SERVE, RunningServer, run_server, serve_command, server_environ
from wait_tools import LONG, wait_until

T = TypeVar("T")
CALLERS = 8
WORDS = ("harbor", "lantern", "meadow", "copper", "violin", "glacier", "orchard", "saddle")


@contextmanager
def serve(folder: Path, command: list[str] = SERVE, **environment: str) -> Iterator[RunningServer]:
    with run_server(folder, "--port", "0", "--workers", "2", home=None, command=command, **environment) as served:
        yield served


def list_readers(served: RunningServer) -> list[int]:
    """Return the processes that the server has started for reads."""
    children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"athena.server.readers" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def count_started(served: RunningServer) -> int:
    return served.log.read_text().count('"event": "reader started"')


def wait_for_reader(served: RunningServer, started: int = 1) -> int:
    wait_until(lambda: count_started(served) >= started)
    return list_readers(served)[0]


def count_waits(pid: int) -> int:
    """Return how often the main thread of a process has waited, which a reader does after each answer."""
    lines = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("voluntary_ctxt_switches")))


def count_sockets(pid: int) -> int:
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(link).startswith("socket:")
    return count


def call_at_once(call: Callable[[int], T], count: int = CALLERS) -> list[T]:
    """Make calls from several threads: the server answers a call that is alone by itself."""
    with ThreadPoolExecutor(CALLERS) as callers:
        return list(callers.map(call, range(count)))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.both_engines
def test_readers_see_own_writes_under_load(tmp_path: Path, engine: Engine) -> None:
    database = {"ATHENA_DATABASE_URL": url} if (url := getattr(engine, "url", None)) else {}
    with serve(tmp_path, **database) as served:
        reader = wait_for_reader(served)
        before = count_waits(reader)

        def store_and_read(number: int) -> list[bool]:
            seen = []
            for turn in range(rounds(8, 60)):
                text = f"{WORDS[number]} {WORDS[turn % len(WORDS)]} number {number}-{turn}"
                stored = served.call("remember", content=text)
                hits = served.call("recall", query=text, k=3)
                served.call("update_memory", memory_id=stored["id"], content=f"{text} again")
                changed = served.call("recall", query=f"{text} again", k=3)
                served.call("forget", memory_id=stored["id"])
                left = served.call("recall", query=f"{text} again", k=20)
                seen += [
                    (stored["id"], text) in [(hit["id"], hit["content"]) for hit in hits],
                    (stored["id"], f"{text} again") in [(hit["id"], hit["content"]) for hit in changed],
                    stored["id"] not in [hit["id"] for hit in left],
                ]
            return seen

        seen = call_at_once(store_and_read)
        assert len(seen) == CALLERS
        assert all(all(each) for each in seen), seen
        assert count_waits(reader) > before + CALLERS  # it answered some of the calls
        wait_until(lambda: count_calls(served, "recall") == 3 * CALLERS * rounds(8, 60))


def count_calls(served: RunningServer, operation: str) -> int:
    """Return how many calls of an operation were recorded."""
    spent = served.call("token_savings")["operations"]
    return sum(one["calls"] for one in spent if one["operation"] == operation)


@pytest.mark.sqlite_only("the server has a store of its own")
def test_killed_and_hung_readers_are_replaced(tmp_path: Path) -> None:
    changes = (
        "import athena.server.readers as r; r.ANSWER_TIMEOUT_S = r.END_TIMEOUT_S = 0.5; r.MAX_RESTART_DELAY_S = 0.1"
    )
    with serve(tmp_path, command=serve_command(changes)) as served:
        served.call("remember", content="Deploys run on Fridays")
        first = wait_for_reader(served)
        sockets = wait_until(lambda: count_sockets(served.process.pid))

        def recall(number: int) -> int:
            return served.execute("recall", {"query": f"when do deploys run {number}"}).status

        for turn, sent in enumerate((signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL), 1):
            reader = wait_for_reader(served, turn)
            with ThreadPoolExecutor(CALLERS) as callers:
                calls = [callers.submit(recall, number) for number in range(CALLERS * 5)]
                os.kill(reader, sent)
                assert [call.result() for call in calls] == [200] * len(calls)
                calls = [callers.submit(recall, number) for number in range(CALLERS * 5)]
                assert [call.result() for call in calls] == [200] * len(calls)
            wait_until(lambda pid=reader: not is_running(pid))  # type: ignore[misc]
        last = wait_for_reader(served, 4)
        assert last != first
        wait_until(lambda: count_sockets(served.process.pid) <= sockets)
        assert count_sockets(last) == 1  # none of the server's own
        assert len(list_readers(served)) == 1


@pytest.mark.sqlite_only("the server has a store of its own")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_readers_end_with_the_server(tmp_path: Path, sent: signal.Signals) -> None:
    with serve(tmp_path) as served:
        reader = wait_for_reader(served)
        os.kill(reader, signal.SIGTERM)  # a service manager sends it to all; the server ends its readers
        os.kill(reader, signal.SIGINT)
        statuses = call_at_once(lambda number: served.execute("recall", {"query": WORDS[number]}).status)
        assert statuses == [200] * CALLERS
        assert is_running(reader)
        served.process.send_signal(sent)
        served.process.wait(LONG)
        wait_until(lambda: not is_running(reader))


@pytest.mark.sqlite_only("the server has a store of its own")
def test_readers_respect_tokens_and_projects(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        wait_for_reader(served)
        projects = [f"project-{number}" for number in range(CALLERS)]
        for project in projects:
            served.call("remember", ("X-Athena-Project", project), content=f"the harbor of {project}")

        def read(number: int) -> tuple[list[str], int]:
            header = ("X-Athena-Project", projects[number % CALLERS])
            hits = served.call("recall", header, query="the harbor", k=20)
            body = b'{"query": "the harbor"}'
            headers = [("Host", f"localhost:{served.port}"), ("Authorization", "Bearer wrong")]
            refused = served.ask(
                "POST", "/tools/recall/execute", [*headers, ("Content-Type", "application/json")], body
            )
            return [hit["content"] for hit in hits], refused.status

        answers = call_at_once(read, 4 * CALLERS)
        assert len(answers) == 4 * CALLERS
        for number, (hits, refused) in enumerate(answers):
            assert (hits, refused) == ([f"the harbor of {projects[number % CALLERS]}"], 401)


@pytest.mark.sqlite_only("the server has a store of its own")
def test_readers_answer_the_client(tmp_path: Path) -> None:
    """It sends a key with every call, which means nothing to a search."""
    with serve(tmp_path) as served:
        reader = wait_for_reader(served)
        served.call("remember", content="the harbor of the town")
        before = count_waits(reader)
        key = ("Idempotency-Key", "client-1")
        hits = call_at_once(lambda _: served.call("recall", key, query="the harbor"), 4 * CALLERS)
        assert {hit[0]["content"] for hit in hits} == {"the harbor of the town"}
        assert count_waits(reader) > before


@pytest.mark.sqlite_only("the server has a store of its own")
def test_no_reader_answers_where_privacy_is_on(tmp_path: Path) -> None:
    with serve(tmp_path / "on", ATHENA_PRIVACY="boundary") as served:
        assert "--workers has no effect" in served.log.read_text()
        served.call("remember", content="Ann's number is +1 202 555 0143")
        texts = call_at_once(lambda _: served.call("recall", query="the number of Ann")[0]["content"])
        assert set(texts) == {"Ann's number is +1 202 555 0143"}
        assert not list_readers(served)
    with serve(tmp_path / "changed") as served:
        wait_for_reader(served)
        (served.home / "config.toml").write_text('privacy = "strict"\n')
        refused = call_at_once(lambda _: served.execute("recall", {"query": "the number of Ann"}))
        assert {reply.status for reply in refused} == {503}


@pytest.mark.sqlite_only("one store is in memory")
def test_store_in_memory_has_no_readers(tmp_path: Path) -> None:
    argv = [*SERVE, "--port", "0", "--workers", "2"]
    environ = server_environ(tmp_path / "home", ATHENA_DB_PATH=":memory:")
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 8
    assert "leave out --workers" in done.stderr


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("recall", {"query": "when do we deploy", "k": 2}),
    ("recall", {"query": "when do we deploy", "explain": True, "full": False, "kinds": ["memory", "task"]}),
    ("recall", {"query": ""}),
    ("recall", {"q": "unknown"}),
    ("recall", {"query": "deploy", "k": 0}),
    ("recall_events", {"query": "deploy"}),
    ("search_graph", {"query": "who likes tea"}),
]


def test_readers_answer_as_the_server_does(app: App) -> None:
    def call(name: str, arguments: dict[str, Any]) -> Any:
        return run_sync(
            invoke(app.catalog, name, arguments, app.create_context("test", "page"))
        )  # where no use counts: it changes scores

    call("remember", {"content": "Deploys run on Fridays", "tags": ["deploy"]})
    call("remember", {"content": "We do not deploy in December", "tags": ["deploy", "winter"]})
    call("create_entities", {"entities": [{"name": "Ann", "entityType": "person", "observations": ["likes tea"]}]})
    assert {name for name, _ in CALLS} == readers.SEARCHES
    refused = []
    for name, arguments in CALLS:
        result, error = pickle.loads(readers._answer(app, pickle.dumps((name, arguments, "test", "page"))))
        if error is not None:
            with pytest.raises(type(error)) as raised:
                call(name, arguments)
            assert raised.value.to_json() == error.to_json()
            refused.append(name)
            continue
        expected = call(name, arguments)
        assert (type(result), to_json(result)) == (type(expected), to_json(expected))
        assert getattr(result, "total", None) == getattr(expected, "total", None)
    assert refused == ["recall", "recall", "recall"]
