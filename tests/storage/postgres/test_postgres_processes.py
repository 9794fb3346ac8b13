"""Several processes and threads on one database: a consistent view, and no lost or repeated change."""

import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import postgres
import psycopg
import pytest
from postgres_tools import StoreProcess, call, new_database, open_app, query, start_processes

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.core.values import Call, Scope
from athena.errors import Conflict, NotFound
from athena.storage import scopes
from athena.storage.call_log import CallLog
from athena.storage.database import Transaction
from athena.storage.filters import Filter
from athena.storage.postgres import store
from athena.storage.usage import TokenUsage
from conftest import MODEL, rounds
from wait_tools import LONG, wait_until

# Pairs of texts whose digests share the first eight digits.
COLLIDING = ((53529, 75183), (25723, 115993), (115508, 139220), (66124, 183956), (97599, 189637), (9556, 198249))


@pytest.fixture(scope="module")
def shared(server: postgres.Server) -> str:
    return new_database(server)


@pytest.fixture(scope="module")
def crowd(shared: str) -> Generator[list[StoreProcess]]:
    """Start three processes that opened the empty store of this file at the same time."""
    with start_processes(shared, 3, threads=4) as made:
        yield made


@pytest.fixture
def app(shared: str, crowd: list[StoreProcess]) -> Generator[App]:
    """Return the same store in this process, emptied."""
    rows = query(shared, "SELECT tablename FROM pg_tables WHERE schemaname = 'athena' AND tablename <> 'counters'")
    query(shared, f"TRUNCATE {', '.join(row[0] for row in rows)}")
    with open_app(shared) as made:
        yield made
        assert call(made, "verify").problems == ()


def nearest(app: App, text: str) -> int:
    """Return the memory with the vector nearest to that of a text."""
    vector = MODEL.embed([text])[0]

    async def work(tx: Transaction) -> int:
        vectors, encoder = app.store.database.vectors, app.store.encoder
        scope = Scope("test")
        scope_ids = await scopes.fetch_visible_ids(tx, scope)
        among = await vectors.select_candidates(tx, Filter(scope), scope_ids, encoder.models, encoder.dimensions)
        near = await vectors.search_nearest(tx, among, vector, 1, None)
        return int(near.memories[near.cosines.argmax()])

    return run_sync(app.store.database.read(work))


def run_concurrently(*works: Callable[[], Any]) -> list[Any]:
    """Run functions concurrently and return what each returned or raised."""
    together = threading.Barrier(len(works))

    def run(work: Callable[[], Any]) -> Any:
        together.wait(LONG)
        try:
            return work()
        except (Conflict, NotFound) as error:
            return error

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))


def test_concurrent_creation_succeeds(server: postgres.Server) -> None:
    with start_processes(new_database(server), 3) as made:
        for number, one in enumerate(made):
            one.begin(("remember", {"content": f"from process {number}"}))
        assert [one.results()[0]["done"]["outcome"] for one in made] == ["new"] * 3
        assert all(len(one.call("list_memories")) == 3 for one in made)


def test_processes_see_each_others_changes(app: App, crowd: list[StoreProcess]) -> None:
    for i in range(5):
        told = crowd[i % 3].call("remember", content=f"quokka{i} sleeps under the {i}th lighthouse by the harbour")
        assert [hit.id for hit in call(app, "recall", query=f"quokka{i}", k=1)] == [told["id"]], "by words"
        assert nearest(app, f"a small animal rests below lighthouse number {i} at the port") == told["id"], "by meaning"
        crowd[(i + 1) % 3].call("update_memory", memory_id=told["id"], content=f"invoice{i} was paid by bank transfer")
        assert call(app, "recall", query=f"invoice{i}", k=1)[0].id == told["id"]
        assert nearest(app, "the bill has been settled with money") == told["id"]
        assert f"quokka{i}" not in str(call(app, "recall", query=f"quokka{i}"))
        crowd[i % 3].call("forget", memory_id=told["id"])
        assert call(app, "recall", query=f"invoice{i}") == []
        assert call(app, "health").count == 0
    stored = call(app, "remember", content="a lantern hangs in the hall")
    assert [one.call("recall", query="lantern")[0]["id"] for one in crowd] == [stored.id] * 3


def test_concurrent_equal_texts_merge_tags(app: App, crowd: list[StoreProcess]) -> None:
    each = rounds(6, 20)
    for number, one in enumerate(crowd):
        one.begin(*(("remember", {"content": "the same", "tags": [f"t{number}-{i}"]}) for i in range(each)))
    told = [found["done"] for one in crowd for found in one.results()]
    assert Counter(found["outcome"] for found in told) == {"new": 1, "known": 3 * each - 1}
    assert len({found["id"] for found in told}) == 1
    (memory,) = call(app, "list_memories")
    assert set(memory.tags) == {f"t{number}-{i}" for number in range(3) for i in range(each)}
    assert query(app.store.database.url, "SELECT occurrences FROM memories") == [(3 * each,)]  # type: ignore[attr-defined]
    assert len(call(app, "memory_history", memory_id=memory.id)) == 3 * each


def test_concurrent_new_projects_get_one_id(app: App, crowd: list[StoreProcess], shared: str) -> None:
    for i in range(4):
        for number, one in enumerate(crowd):
            one.begin(*(("remember", {"content": f"{number} {j}"}) for j in range(4)), project=f"project {i}")
        assert all("done" in found for one in crowd for found in one.results())
    assert query(shared, "SELECT count(*), count(DISTINCT name) FROM scopes") == [(4, 4)]
    assert query(shared, "SELECT count(*) FROM memories GROUP BY scope") == [(12,)] * 4


def test_concurrent_key_counts_once(app: App, crowd: list[StoreProcess], shared: str) -> None:
    for name in ("one", "two", "three"):
        for one in crowd:
            one.begin(*[("remember", {"content": f"kept under key {name}"})] * 4, key=name)
        told = [found["done"] for one in crowd for found in one.results()]
        assert len({(found["id"], found["hash"], found["outcome"]) for found in told}) == 1
    assert (
        query(shared, "SELECT occurrences, (SELECT count(*) FROM history h WHERE h.memory = m.id) FROM memories m")
        == [(1, 1)] * 3
    )


def test_concurrent_change_and_removal_are_consistent(app: App) -> None:
    for i in range(rounds(6, 60)):
        number = call(app, "remember", content=f"text {i}").id
        changed, forgotten = run_concurrently(
            lambda: call(app, "update_memory", memory_id=number, content=f"changed {i}"),  # noqa: B023  # run here
            lambda: call(app, "forget", memory_id=number),  # noqa: B023
        )
        assert forgotten is True
        actions = [change.action for change in call(app, "memory_history", memory_id=number)]
        if isinstance(changed, NotFound):
            assert actions == ["remembered", "forgotten"]
        else:
            assert actions == ["remembered", "updated", "forgotten"]
        assert call(app, "list_memories") == []


def test_concurrent_undo_and_change_keep_history(app: App) -> None:
    for i in range(rounds(6, 60)):
        number = call(app, "remember", content=f"first {i}").id
        call(app, "update_memory", memory_id=number, content=f"second {i}")
        undone, changed = run_concurrently(
            lambda: call(app, "undo"),
            lambda: call(app, "update_memory", memory_id=number, content=f"third {i}"),  # noqa: B023  # run here
        )
        assert not isinstance(undone, Exception)
        assert not isinstance(changed, Exception)
        text = call(app, "get_memory", memory_id=number).content
        actions = [change.action for change in call(app, "memory_history", memory_id=number)]
        assert sorted(actions) == ["remembered", "undone", "updated", "updated"]
        assert text == (f"third {i}" if actions[-1] == "updated" else f"second {i}")
        call(app, "forget", memory_id=number)


def test_concurrent_undos_revert_each_change_once(app: App, crowd: list[StoreProcess]) -> None:
    for i in range(12):
        call(app, "remember", content=f"item {i}")
    for one in crowd:
        one.begin(*[("undo", {})] * 4)
    told = [found["done"] for one in crowd for found in one.results()]
    assert sorted(change["before"]["content"] for changes in told for change in changes) == sorted(
        f"item {i}" for i in range(12)
    )
    assert call(app, "list_memories") == []


def test_forget_lists_do_not_deadlock(app: App, crowd: list[StoreProcess]) -> None:
    numbers = [call(app, "remember", content=f"item {i}").id for i in range(12)]
    for one, order in zip(crowd, (numbers, numbers[::-1], numbers[6:] + numbers[:6]), strict=True):
        one.begin(("forget_batch", {"memory_ids": order}))
    assert sum(one.results()[0]["done"] for one in crowd) == 12
    assert call(app, "list_memories") == []


@pytest.mark.parametrize("pair", COLLIDING[: rounds(3, 6)])
def test_colliding_hashes_get_unique_names(app: App, pair: tuple[int, int]) -> None:
    call(app, "remember", content="before")
    one, other = run_concurrently(*(lambda n=n: call(app, "remember", content=f"note {n}") for n in pair))
    names = query(app.store.database.url, "SELECT hash FROM memories WHERE content LIKE 'note%'")  # type: ignore[attr-defined]
    assert len(set(names)) == 2
    assert {call(app, "get_memory", memory_id=name).id for (name,) in names} == {one.id, other.id}


def test_concurrent_session_starts_are_one(app: App, shared: str) -> None:
    call(app, "remember", content="before")
    for i in range(rounds(4, 20)):
        run_concurrently(
            *(
                lambda n=n: call(app, "remember", content=f"turn {i} {n}", metadata={"session_id": f"talk {i}"})  # noqa: B023
                for n in range(3)
            )
        )
    split = query(
        shared,
        """SELECT m.session FROM memories m JOIN passages p ON p.memory = m.id WHERE m.session IS NOT NULL
           GROUP BY m.session HAVING count(DISTINCT p.session) > 1""",
    )
    assert split == []


def test_threads_update_usage_without_loss(app: App) -> None:
    """Every search strengthens its results in the background, in the same rows."""
    numbers = [call(app, "remember", content=f"the lantern number {i} by the door").id for i in range(5)]

    def work(thread: int) -> None:
        for i in range(8):
            call(app, "recall", query="lantern by the door")
            call(app, "update_memory", memory_id=numbers[i % 5], metadata={f"k{thread}-{i}": 1})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    facts = [call(app, "get_memory", memory_id=number).metadata for number in numbers]
    assert {key for one in facts for key in one} == {f"k{thread}-{i}" for thread in range(4) for i in range(8)}


def test_locked_sums_lose_no_call(server: postgres.Server) -> None:
    url = new_database(server)
    database = store.Postgres(url, defer_delay_s=0.05)
    ledger = CallLog(database)
    counted = "SELECT calls FROM usage"
    ledger.log_usage("test", 0.0, "recall", "test", TokenUsage(1, 1, 1))
    wait_until(lambda: query(url, counted))
    with psycopg.connect(url) as other:
        other.execute("UPDATE athena.usage SET calls = calls + 10")
        for _ in range(3):
            ledger.log_call(Call("recall", "test", Scope.from_name("test"), 0.0, None, ""), "done", 1.0)
            ledger.log_usage("test", 0.0, "recall", "test", TokenUsage(1, 1, 1))
        wait_until(lambda: query(url, "SELECT count(*) FROM calls") == [(3,)])
        assert query(url, counted) == [(1,)]  # it still waits for the other
    database.close()


def test_single_writes_leave_no_stale_count(server: postgres.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "TALLY_FOLD_WRITES", 4)  # smaller, to be quick
    url = new_database(server)
    for i in range(24):
        with open_app(url) as app:
            call(app, "remember", content=f"item {i}")
    assert query(url, "SELECT count(*) < 24, sum(memories)::int FROM tallies") == [(True, 24)]


FORKING = """
import os, sys
from athena import api
from athena.core.threads import run_sync
first = api.store("from the parent")
assert api.search("parent").total == 1

def forked(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def forking(script: str, url: str) -> list[str]:
    import os

    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING + textwrap.dedent(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=os.environ | {"ATHENA_DATABASE_URL": url}
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split()


def test_forked_parent_and_children_work(server: postgres.Server) -> None:
    url = new_database(server)
    printed = forking(
        """
        def child(n):
            assert api.search("parent").total >= 1
            for i in range(5):
                api.store(f"child {n} item {i}")
            api.close()

        children = [forked(lambda n=n: child(n)) for n in range(3)]
        for i in range(5):
            api.store(f"parent item {i}")
        assert [ended(pid) for pid in children] == [0, 0, 0]
        assert api.health().count == 21
        print(api.search("child 2 item 4", limit=1).memories[0].preview.replace(" ", "-"))
        """,
        url,
    )
    assert printed == ["child-2-item-4"]
    assert query(url, "SELECT count(*), max(occurrences) FROM memories") == [(21, 1)]


def test_exiting_child_keeps_parents_connections(server: postgres.Server) -> None:
    """Its exit handlers run and its modules are torn down, including inherited objects."""
    url = new_database(server)
    forking(
        """
        pid = os.fork()
        if pid == 0:
            api.store("from the child")
            sys.exit(0)
        assert ended(pid) == 0
        idle = os.fork()
        if idle == 0:
            sys.exit(0)  # never used what it inherited
        assert ended(idle) == 0
        for i in range(5):
            api.store(f"parent item {i}")
        """,
        url,
    )
    assert query(url, "SELECT count(*) FROM memories") == [(7,)]


def test_child_forked_during_writes_can_store(server: postgres.Server) -> None:
    url = new_database(server)
    forking(
        """
        import threading
        over = threading.Event()

        def writing(n):
            i = 0
            while not over.is_set():
                api.store(f"thread {n} item {i}")
                api.search("item")
                i += 1

        threads = [threading.Thread(target=writing, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for i in range(6):
            assert ended(forked(lambda: api.store(f"child {i}"))) == 0
        over.set()
        for thread in threads:
            thread.join()
        """,
        url,
    )
    assert query(url, "SELECT count(*) FROM memories WHERE content LIKE 'child%'") == [(6,)]
    with open_app(url) as app:
        assert call(app, "verify").ok
