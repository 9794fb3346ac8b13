"""What a search returns: a sequence of memories that costs few tokens to print, and typed results everywhere."""

import hashlib
import inspect
import json
import os
import pickle
import pydoc
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typed_operations

import athena.results
from athena import AsyncAthenaClient, AthenaClient, api
from athena.app.compose import App
from athena.core.threads import run_sync
from athena.core.tokens import count_tokens_exactly
from athena.errors import Conflict
from athena.operations import CATALOG
from conftest import FULL

MAX_TOKENS_OF_FIVE = 220
NOTES = [
    "The staging database is read-only for people; only the deploy job may write to it, with a token of its own.",
    "We chose PostgreSQL for its JSON columns and because the team has run it for years; MySQL was the other choice.",
    "Deploys run on Fridays at 15:00 after the tests have passed on the main branch; Ann presses the button and waits.",
    "The customer import fails when a CSV file has a byte order mark, so strip it first with utf-8-sig, then read it.",
    "Rate limits: the public API allows 100 requests a minute for each key, and bursts of 20; above that it says 429.",
    "Short note about the tests",
]


@pytest.fixture
def found(isolated: App) -> api.CompactSearchResult:
    api.remember_batch([{"content": note, "tags": ["deploy", "db"]} for note in NOTES])
    return api.search("deploys of the database and tests", min_score=0)


def test_result_is_a_sequence_of_its_memories(found: api.CompactSearchResult) -> None:
    assert len(found) == 5
    assert [memory.hash for memory in found] == [memory.hash for memory in found.memories]
    assert found[0] is found.memories[0]
    assert found[-1] in found
    assert [memory.score for memory in found[:2]] == [found[0].score, found[1].score]
    assert found
    assert not api.search("anything", tags="absent")
    assert (found.total, found.query) == (6, "deploys of the database and tests")
    assert {memory.content for memory in found} <= set(NOTES)


def test_result_compares_pickles_and_replaces(found: api.CompactSearchResult) -> None:
    copy = pickle.loads(pickle.dumps(found))
    assert copy == found
    assert hash(copy) == hash(found)
    assert [memory.content for memory in copy] == [memory.content for memory in found]
    assert found != found._replace(query="other")
    assert found._replace(total=9)._asdict() == {"memories": found.memories, "total": 9, "query": found.query}
    assert found == found.memories
    assert found[0]._replace(score=0.5).content == found[0].preview


def test_hit_has_the_whole_text(isolated: App) -> None:
    text = "All about deploys.\n" + "They run on Fridays. " * 100
    api.remember(text)
    hit = api.recall("deploys")[0]
    assert hit.content == text
    assert len(hit.preview) <= 200
    assert pickle.loads(pickle.dumps(hit)).content == text
    assert hit == api.CompactMemory(*hit)


def test_five_results_cost_few_tokens(found: api.CompactSearchResult) -> None:
    for text in (str(found), repr(found), repr(list(found)), repr(found[:5])):
        assert count_tokens_exactly(text) <= MAX_TOKENS_OF_FIVE, text
    first = found[0]
    assert str(found).startswith(f"{first.hash} {first.score:.2f} ".replace(" 0.", " ."))
    assert "[deploy, db]" in str(found)


def test_old_memory_shows_its_year() -> None:
    memory = api.CompactMemory("7d49c4b4", "Deploys run on Fridays", (), 1_600_000_000.0, 1.0)
    assert str(memory) == "7d49c4b4 1.00 2020-09-13 Deploys run on Fridays"
    assert repr(memory) == f"<{memory}>"


def test_digits_of_a_hash_are_not_read_as_an_id(isolated: App) -> None:
    digests = {text: hashlib.sha256(text.encode()).hexdigest() for text in (f"note {i}" for i in range(1_000))}
    text, prefix = next((text, digest[:4]) for text, digest in digests.items() if digest[:4].isdigit())
    key, other = api.remember(text), api.get(api.remember("another note"))
    move = "UPDATE memories SET id = :id WHERE id = :old"  # in a large store some memory has this number
    run_sync(isolated.store.database.write(lambda tx: tx.execute(move, id=int(prefix), old=other.id)))
    assert api.get(int(prefix)).content == "another note"
    with pytest.raises(Conflict, match=key):
        api.get(prefix)
    assert api.get(key[:6]).content == text


def test_generated_modules_are_up_to_date() -> None:
    written = typed_operations.render()
    assert {path: path.read_text("utf-8") for path in written} == written, "run python scripts/typed_operations.py"


def test_sample_for_type_checkers_names_every_operation() -> None:
    """mypy reads it with `make check`: it asserts the type of every result, which Any would not pass."""
    sample = typed_operations.SAMPLE.read_text("utf-8")
    for operation in typed_operations.offered():
        assert sample.count(f'call("{operation.name}")') == 2
    assert " Any" not in sample.partition("def check_client")[2]


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed; nothing is fetched for a test")
def test_pyright_finds_the_same_types(tmp_path: Path) -> None:
    root = typed_operations.SOURCE.parents[1]
    folders = {"include": [root / "examples", typed_operations.SAMPLE], "extraPaths": [root / "src", root / "examples"]}
    settings = {name: [os.path.relpath(path, tmp_path) for path in paths] for name, paths in folders.items()}
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    command = ["pyright", "--project", str(config), "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3_000:]


@pytest.mark.parametrize("client", [AthenaClient, AsyncAthenaClient])
def test_client_has_a_typed_method_for_every_operation(client: type[Any]) -> None:
    names = {**vars(athena.results), "Sequence": list, "Callable": Any, "Any": Any}
    for operation in typed_operations.offered():
        if operation.name in typed_operations.OTHER_METHODS:
            continue
        method = getattr(client, operation.name)
        hints = get_type_hints(method, names)
        assert Any not in (hints["return"], *getattr(hints["return"], "__args__", ())), operation.name
        assert [name for name in inspect.signature(method).parameters if name in operation.parameter_names] == list(
            operation.parameter_names
        )
        text = pydoc.plain(pydoc.render_doc(method))
        for parameter in operation.parameters:
            assert f"{parameter.name}: {parameter.help}"[:60] in text.replace("\n    ", "\n"), operation.name
        for alias in operation.aliases:
            assert getattr(client, alias) is method
    assert len(CATALOG) > len(typed_operations.offered()) - 1


@pytest.mark.skipif(not FULL, reason="in make test-full: a type checker takes half a minute")
def test_type_checker_knows_every_result(tmp_path: Path) -> None:
    lines = ["from athena import AsyncAthenaClient, AthenaClient, api", "client = AthenaClient()"]
    awaited = ["    other = AsyncAthenaClient()"]
    for operation in typed_operations.offered():
        arguments = "".join(f", {name}={value!r}" for name, value in operation.example_arguments.items())
        lines.append(f"reveal_type(api.call({operation.name!r}{arguments}))")
        if operation.name not in typed_operations.OTHER_METHODS:
            lines.append(f"reveal_type(client.{operation.name}({arguments[2:]}))")
            awaited.append(f"    reveal_type(await other.{operation.name}({arguments[2:]}))")
    sample = tmp_path / "sample.py"
    sample.write_text("\n".join([*lines, "async def main() -> None:", *awaited]) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(sample)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=os.environ | {"MYPYPATH": "src"})
    revealed = re.findall(r"Revealed type is \"(.*)\"", done.stdout)
    assert "error:" not in done.stdout, done.stdout
    assert len(revealed) == len(lines) - 2 + len(awaited) - 1
    assert not [kind for kind in revealed if "Any" in kind]
