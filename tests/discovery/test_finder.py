"""Tool search: the right tool among hundreds, first by words and soon also by meaning."""

import os
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import tool_requests
from athena.core.catalog import Catalog
from athena.core.foreign_operation import ForeignOperation
from athena.core.threads import run_sync
from athena.discovery import entry
from athena.discovery.finder import ToolFinder
from athena.discovery.vectors import ADAPTER_FILE, ToolVectors, collect_texts
from athena.embedding.encoder import Encoder, adapt_encoder
from athena.embedding.minilm import MiniLM
from athena.errors import Unavailable
from athena.operations import CATALOG
from conftest import FULL, MODEL
from discovery_tools import make_tool
from tool_vectors import name_cache_file
from wait_tools import wait_until

TOP = 3
ENOUGH = 0.95  # share of requests that must succeed, whoever wrote them
FLOORS = {"held_out": 0.98, "strangers_held_out": 0.97, "strangers_dev": 0.98}  # slightly below the measured values
WORDS = 0.9  # share by words alone


def make_entries(*tools: ForeignOperation) -> tuple[entry.ToolEntry, ...]:
    return tuple(entry.create_operation_entry(one, "") for one in tools)


class Letters:
    """An embedder whose vectors count letters; it records its input and fails on demand."""

    name = "letters"
    dimensions = 32
    compatible_models = ()

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.broken = False

    def load(self) -> None: ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.broken:
            raise Unavailable("broken")
        self.texts += texts
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for row, text in enumerate(texts):
            for letter in text.lower():
                vectors[row, ord(letter) % self.dimensions] += 1
        unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit


# --- recall ---------------------------------------------------------------------------------------------------------


def cached_vectors() -> str | None:
    """Return the file with the vectors of an earlier run, for the same model and code; `make test-full` uses none."""
    if FULL:
        return None
    return str(name_cache_file())


@pytest.fixture(scope="module")
def warm_finder() -> Generator[tuple[ToolFinder, tuple[entry.ToolEntry, ...]]]:
    """Return a finder that has embedded all tools."""
    every = entry.list_catalog_entries(tool_requests.catalog())
    finder = ToolFinder(Encoder(MODEL), cached_vectors())
    finder.warm_up(every)
    wait_until(lambda: finder.vectors.is_ready, 300)  # the model reads hundreds of tools
    yield finder, every
    finder.stop()


def top_three_share(
    finder: ToolFinder, every: tuple[entry.ToolEntry, ...], part: str, *, words_only: bool = False
) -> float:
    asked = tool_requests.requests(part)
    hits = 0
    for said, right in asked:
        found = [one.path for one in run_sync(finder.rank(every, said, words_only=words_only))]
        hits += bool(set(found[:TOP]) & set(right))
    return hits / len(asked)


def test_fixtures_have_hundreds_of_tools() -> None:
    paths = {one.path for one in tool_requests.catalog()}
    assert len(paths) >= 300
    halves = [tool_requests.requests(half) for half in ("dev", "held_out")]
    assert sum(map(len, halves)) >= 120
    assert abs(len(halves[0]) - len(halves[1])) <= 1
    for part in ("dev", "held_out", "more", "strangers_dev", "strangers_held_out"):
        requests = tool_requests.requests(part)
        assert requests
        for _, right in requests:
            assert any(path in paths for path in right)


def test_right_tool_is_among_first_three(warm_finder: tuple[ToolFinder, tuple[entry.ToolEntry, ...]]) -> None:
    finder, every = warm_finder
    for part, enough in FLOORS.items():
        assert top_three_share(finder, every, part) >= enough, part
        assert top_three_share(finder, every, part, words_only=True) >= WORDS, part
    if FULL:
        for part in ("dev", "more"):
            assert top_three_share(finder, every, part) >= ENOUGH, part
            assert top_three_share(finder, every, part, words_only=True) >= WORDS, part


def test_new_tool_is_found_at_once(
    warm_finder: tuple[ToolFinder, tuple[entry.ToolEntry, ...]],
) -> None:
    finder, every = warm_finder
    more = every + make_entries(CAT, DOG, CAR)
    assert run_sync(finder.rank(more, "hungry kitten"))[0].path == "pets.feed_cat"  # at once: new tools are few
    assert run_sync(finder.rank(more, "the puppy wants to go out"))[0].path != "pets.feed_cat"


# --- lexical, then semantic -----------------------------------------------------------------------------------------

CAT = make_tool("pets.feed_cat", "Give the cat its dinner")
DOG = make_tool("pets.walk_dog", "Go round the block with the dog")
CAR = make_tool("garage.wash_car", "Clean the car", colour="Which one.")


def test_first_answer_lexical_then_semantic() -> None:
    finder, every = (
        ToolFinder(Encoder(MODEL)),
        make_entries(CAT, DOG, CAR, *(make_tool(f"a.t{n}", f"Thing {n}") for n in range(9))),
    )
    assert run_sync(finder.rank(every, "hungry kitten")) == []
    finder.warm_up(every)
    wait_until(lambda: finder.vectors.is_ready)
    assert run_sync(finder.rank(every, "hungry kitten"))[0].path == "pets.feed_cat"
    assert run_sync(finder.rank(every, "hungry kitten", words_only=True)) == []
    finder.stop()


def test_meaning_decides_where_no_tool_has_many_words() -> None:
    things = (make_tool(f"a.t{n}", f"Thing {n}") for n in range(9))
    finder, every = ToolFinder(Encoder(MODEL)), make_entries(CAT, DOG, CAR, *things)
    finder.warm_up(every)
    wait_until(lambda: finder.vectors.is_ready)
    request = "hungry kitten meows loudly near my apartment block"
    assert run_sync(finder.rank(every, request))[0].path == "pets.feed_cat"
    assert run_sync(finder.rank(every, request, words_only=True))[0].path == "pets.walk_dog"
    assert run_sync(finder.rank(every, "round the block with the kitten"))[0].path == "pets.walk_dog"
    finder.stop()


def test_all_fields_and_synonyms_count() -> None:
    every = make_entries(CAT, DOG, CAR, make_tool("mail.send_email", "Sends a new email"))
    finder = ToolFinder(Encoder(Letters()))
    for said, path in (("cats", "pets.feed_cat"), ("the block", "pets.walk_dog"), ("colours", "garage.wash_car")):
        assert run_sync(finder.rank(every, said, words_only=True))[0].path == path
    assert run_sync(finder.rank(every, "tell Bob by mail", words_only=True))[0].path == "mail.send_email"
    ours = entry.list_catalog_entries(CATALOG)
    for said, path in (
        ("remember something about the user", "memory.remember"),
        ("please forget what I said about tea", "memory.forget"),
        ("what does find_path do", "graph.find_path"),
    ):
        assert run_sync(finder.rank(ours, said, words_only=True))[0].path == path
    assert run_sync(finder.rank(every, "?!", words_only=True)) == []
    assert run_sync(finder.rank((), "cats")) == []
    for odd in ("cat \ud800", "cat\x00s", "cat " + "a@" * 9_000, "cat " + "a-" * 9_000, "cat " + "/a" * 9_000):
        assert run_sync(finder.rank(every, odd, words_only=True))[0].path == "pets.feed_cat"


def test_used_tool_ranks_before_equal() -> None:
    every = make_entries(
        make_tool("a.make_tea", "Make tea"), make_tool("b.make_tea", "Make tea"), make_tool("c.make_tea", "Make tea")
    )
    finder = ToolFinder(Encoder(Letters()))
    assert run_sync(finder.rank(every, "make tea", {"b.make_tea": 3}, words_only=True))[0].path == "b.make_tea"
    assert (
        run_sync(finder.rank(every, "make tea", {"c.make_tea": 30, "a.make_tea": 1}, words_only=True))[0].path
        == "c.make_tea"
    )


def warm_up_and_stop(finder: ToolFinder, every: tuple[entry.ToolEntry, ...]) -> None:
    finder.warm_up(every)
    wait_until(lambda: finder.vectors.is_ready)
    finder.stop()  # waits until the file is written


def test_definitions_are_embedded_once(tmp_path: Path) -> None:
    file, every = tmp_path / "vectors.npy", make_entries(CAT, DOG, CAR)
    first, second, third, fourth = Letters(), Letters(), Letters(), Letters()
    warm_up_and_stop(ToolFinder(Encoder(first), str(file)), every)
    assert len([text for text in first.texts if "ready" not in text]) == 3
    warm_up_and_stop(ToolFinder(Encoder(second), str(file)), every)
    assert second.texts == ["ready"]
    warm_up_and_stop(
        ToolFinder(Encoder(third), str(file)),
        make_entries(CAT, DOG, make_tool("garage.wash_car", "Clean the car well")),
    )
    assert len(third.texts) == 2
    assert sorted(os.listdir(tmp_path)) == ["vectors.npy"]
    file.write_bytes(file.read_bytes()[:100])
    warm_up_and_stop(ToolFinder(Encoder(fourth), str(file)), every)
    assert len(fourth.texts) == 4


def test_token_signs_are_stored(tmp_path: Path) -> None:
    file, every = str(tmp_path / "vectors.npy"), make_entries(CAT, DOG, CAR)
    first, second = ToolVectors(Encoder(MODEL), file), ToolVectors(Encoder(MODEL), file)
    texts = collect_texts(every, first)
    for vectors in (first, second):
        vectors.schedule_build(texts.texts_by_key, 0.0)
        wait_until(lambda: vectors.is_ready)  # noqa: B023  # called at once
        vectors.stop()
    question = MODEL.encode_question("my kitten is hungry")
    words = [(3, 9, 1.0), (13, 19, 1.0)]
    built, loaded = (vectors.compare_tokens(question, words, texts.token_keys) for vectors in (first, second))
    assert built is not None
    assert loaded is not None
    assert loaded.tolist() == built.tolist()
    assert built.argmax() == 0
    assert second.compare_tokens(question, words, ["unknown"]) is None


def test_search_works_without_model(tmp_path: Path) -> None:
    broken = Letters()
    broken.broken = True
    encoder, every = Encoder(broken), make_entries(CAT, DOG, CAR)
    finder = ToolFinder(encoder, str(tmp_path / "not there" / "vectors.npy"))
    finder.warm_up(every)
    wait_until(lambda: encoder.last_error)
    assert run_sync(finder.rank(every, "wash the car"))[0].path == "garage.wash_car"
    finder.stop()


def test_catalog_reports_its_changes() -> None:
    catalog: Catalog = CATALOG.copy()
    before = entry.list_catalog_entries(catalog)
    assert entry.list_catalog_entries(catalog) is before
    catalog.replace_category("pets", "Animals.", [CAT])
    assert [one.path for one in entry.list_catalog_entries(catalog)[len(before) :]] == ["pets.feed_cat"]


# --- the adapter ----------------------------------------------------------------------------------------------------


def test_broken_adapter_breaks_tool_search_by_meaning_alone(tmp_path: Path) -> None:
    file = tmp_path / ADAPTER_FILE.name
    encoder = Encoder(MODEL)
    file.write_bytes(ADAPTER_FILE.read_bytes()[:-1])
    for has_checksums in (True, False):
        checksums = tmp_path / "SHA256SUMS"
        checksums.write_bytes(ADAPTER_FILE.with_name(checksums.name).read_bytes())
        if not has_checksums:
            checksums.unlink()
        adapted = adapt_encoder(encoder, file)
        assert run_sync(adapted.encode_question("hungry kitten")) is None
        assert not adapted.is_working
        assert "cannot be loaded" in str(adapted.last_error)
    assert encoder.is_working
    assert run_sync(encoder.encode_question("hungry kitten")) is not None


def test_vectors_belong_to_the_adapter(tmp_path: Path) -> None:
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  {ADAPTER_FILE.name}\n")
    encoder = Encoder(MODEL)
    adapted, other = (adapt_encoder(encoder, file) for file in (ADAPTER_FILE, tmp_path / ADAPTER_FILE.name))
    keys = {ToolVectors(one).compute_key("a text") for one in (encoder, adapted, other)}
    assert len(keys) == 3


def test_adapter_is_for_the_bundled_model_alone(tmp_path: Path) -> None:
    for embedder in (Letters(), MiniLM(folder=tmp_path)):
        encoder = Encoder(embedder)
        assert adapt_encoder(encoder, ADAPTER_FILE) is encoder
