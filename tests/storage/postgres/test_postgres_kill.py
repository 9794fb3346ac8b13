"""Acknowledged writes are stored once, however often the server dies."""

import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import postgres
import pytest
from postgres_tools import DURABLE, call, new_database, open_app, query, read_line, start_script, write_line

from conftest import rounds
from wait_tools import LONG, wait_until

WRITER = """
import sys, threading
from athena.app.compose import App
from athena.embedding.minilm import MiniLM
from athena.errors import Unavailable
from athena.storage.postgres.store import Postgres
from athena.core.threads import run_sync
url, name = sys.argv[1:]
app = App(Postgres(url), MiniLM())
context = app.create_context("test", "python")
remember, recall = app.catalog.get_operation("remember"), app.catalog.get_operation("recall")
nouns = "harbour violin glacier meadow engine lantern orchard compass kettle marble".split()
run_sync(recall(context, query="warm up"))
print("ready", flush=True)
sys.stdin.readline()
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
i = 0
while not over.is_set():
    i += 1
    one, two = nouns[i % 10], nouns[i // 10 % 10]
    text = f"{name}{i:05d} the {one} number {i} of {name} stands by the {two}"
    try:
        if name == "reader":
            run_sync(recall(context, query=f"the {one} by the {two}"))
            print("found", flush=True)
        else:
            run_sync(remember(context, content=text))
            print("kept", text, flush=True)
    except Unavailable as error:
        print("unavailable" if error.retry else "hopeless", error, flush=True)
app.close()
"""


@pytest.mark.timeout(900)
def test_acknowledged_memories_survive_server_kill() -> None:
    chance = random.Random(7)
    with postgres.running(DURABLE) as server:
        url = new_database(server)
        with open_app(url):
            pass  # created before it is used
        processes = {name: start_script(WRITER, url, name) for name in ("left", "right", "reader")}
        for process in processes.values():
            assert read_line(process) == "ready"
        for process in processes.values():
            write_line(process, "go")
        for _ in range(rounds(2, 20)):
            time.sleep(chance.uniform(0.3, 1.2))
            server.kill()
            time.sleep(chance.choice([0, 0, 0.2, 1.5]))
            server.start()
        done = """SELECT (SELECT count(*) FROM memories) >= 30
                     AND (SELECT count(*) FROM calls WHERE operation = 'recall') >= 15"""
        wait_until(lambda: query(url, done) == [(True,)])
        for process in processes.values():
            write_line(process, "enough")
        said = {name: _remaining_output(process) for name, process in processes.items()}

        outcomes = {name: {line.split()[0] for line in lines} for name, lines in said.items()}
        assert outcomes["reader"] <= {"found", "unavailable"}
        assert outcomes["left"] | outcomes["right"] <= {"kept", "unavailable"}
        acknowledged = [line.removeprefix("kept ") for n in ("left", "right") for line in said[n] if line[0] == "k"]
        assert len(acknowledged) >= 20
        assert len(said["reader"]) >= 10

        rows = query(
            url,
            """SELECT content, occurrences, (SELECT count(*) FROM history h WHERE h.memory = m.id) FROM memories m""",
        )
        assert {(times, steps) for _, times, steps in rows} == {(1, 1)}, "nothing is doubled"
        assert len({content for content, _, _ in rows}) == len(rows)
        assert not set(acknowledged) - {content for content, _, _ in rows}
        with open_app(url) as app:
            verdict = call(app, "verify")
            assert verdict.problems == ()
            assert verdict.checked["memories"] == len(rows)
            assert call(app, "health").count == len(rows)
            for text in acknowledged[:5] + acknowledged[-20:]:
                assert call(app, "recall", query=text.split()[0], k=1)[0].content == text


def _remaining_output(process: subprocess.Popen[str]) -> list[str]:
    """Return the remaining output of a process; assert that it succeeded without messages."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err == ""
    return out.splitlines()


@pytest.mark.timeout(300)
def test_large_writes_are_atomic_on_kill() -> None:
    """A batch is one transaction with many pipelined statements."""
    with postgres.running(DURABLE) as server:
        url = new_database(server)
        with open_app(url, patience=LONG) as app, ThreadPoolExecutor(1) as pool:
            call(app, "remember", content="warm up")
            for number in range(rounds(2, 15)):
                texts = [f"batch {number} item {i} about the {i % 7} lanterns" for i in range(40)]
                storing = pool.submit(call, app, "remember_batch", items=texts)
                time.sleep(random.Random(number).uniform(0.02, 0.4))
                server.kill()
                server.start()
                assert {one.outcome for one in storing.result(60)} == {"new"}
            rows = query(
                url,
                """SELECT split_part(content, ' ', 2)::int, count(*), max(occurrences) FROM memories
                   WHERE content LIKE 'batch%' GROUP BY 1 ORDER BY 1""",
            )
            assert rows == [(number, 40, 1) for number in range(rounds(2, 15))]
            assert call(app, "verify").problems == ()
