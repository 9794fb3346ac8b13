"""Acknowledged writes survive the death of the process."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.storage.database import Transaction
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL, rounds
from wait_tools import LONG

WRITER = """
import sys
from athena.app.compose import App
from athena.embedding.minilm import MiniLM
from athena.storage.sqlite.store import Sqlite
from athena.core.threads import run_sync
app = App(Sqlite(sys.argv[1]), MiniLM())
context, remember = app.create_context("p", "python"), app.catalog.get_operation("remember")
nouns = "harbour violin glacier meadow engine lantern orchard compass kettle marble".split()
print("ready", flush=True)
sys.stdin.readline()
for i in range(int(sys.argv[3])):
    one, two = nouns[i % 10], nouns[i // 10 % 10]
    text = f"{sys.argv[2]}{i:03d}unique the {one} number {i} of {sys.argv[2]} stands by the {two}"
    stored = run_sync(remember(context, content=text))
    sys.stdout.write(f"{stored.hash} {text}\\n")
    sys.stdout.flush()
app.close()
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(rounds(2, 30)))
def test_acknowledged_memories_survive_kill(tmp_path: Path, number: int) -> None:
    path = tmp_path / "athena.db"
    many = rounds(80, 500)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), name, str(many)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in ("left", "right")
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    kill_after(writers[0], random.Random(number).uniform(0.02, many / 200))
    said = [writer.communicate(timeout=300)[0].splitlines() for writer in writers]
    assert writers[1].returncode == 0
    acknowledged = [line.partition(" ") for lines in said for line in lines if len(line) > 40]
    assert len(acknowledged) >= many

    app = App(Sqlite(path), MODEL)
    context = app.create_context("p", "python")

    def call(name: str, **arguments: Any) -> Any:
        return run_sync(app.catalog.get_operation(name)(context, **arguments))

    assert call("verify").ok
    found = {memory.hash: memory for memory in call("list_memories", k=10_000)}
    texts = [memory.content for memory in found.values()]
    assert len(texts) == len(set(texts))
    vectors = MODEL.embed([text for _, _, text in acknowledged])
    for (short, _, text), vector in zip(acknowledged, vectors, strict=True):
        assert found[short].content == text, "by hash"
        assert call("recall", query=text.split()[0], k=1)[0].hash == short, "by word"
        assert run_sync(app.store.database.read(_nearest(app, vector))) == found[short].id, "by meaning"
    app.close()


def _nearest(app: App, vector: Any) -> Any:
    from athena.storage import scopes
    from athena.storage.filters import Filter

    async def work(tx: Transaction) -> int:
        vectors, encoder = app.store.database.vectors, app.store.encoder
        scope = app.create_context("p", "python").scope
        scope_ids = await scopes.fetch_visible_ids(tx, scope)
        among = await vectors.select_candidates(tx, Filter(scope), scope_ids, encoder.models, encoder.dimensions)
        near = await vectors.search_nearest(tx, among, vector, 1, None)
        return int(near.memories[near.cosines.argmax()])

    return work


def kill_after(process: subprocess.Popen[str], seconds: float) -> None:
    """Kill a process with SIGKILL after a delay, or return early if it ends before."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    process.wait(LONG)
