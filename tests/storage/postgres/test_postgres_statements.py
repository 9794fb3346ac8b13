"""What the server is asked: counts of terms from ranks, lists as arrays, and figures that are kept for a minute."""

from collections.abc import Generator
from typing import Any

import numpy as np
import postgres
import pytest
from postgres_tools import call, new_database_with_tables, open_app, query

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.storage.database import IndexedPassage, Transaction
from athena.storage.filters import bind_list
from athena.storage.postgres import formats, fulltext
from athena.storage.postgres.fulltext import PostgresFullText
from athena.storage.postgres.selection import estimate_term_passages
from athena.storage.postgres.vectors import PostgresVectorIndex


@pytest.fixture
def url(server: postgres.Server) -> str:
    return new_database_with_tables(server)


@pytest.fixture
def app(url: str) -> Generator[App]:
    with open_app(url) as made:
        yield made


@pytest.mark.parametrize("scopes", [1, 2, 3])
def test_rank_tells_count_and_label(url: str, scopes: int) -> None:
    counts = [0, 1, 2, 3, 7, 40, 200, 250]
    cases = [(count, label) for count in counts for label in (False, True) if count or label]
    texts = [
        PostgresFullText().to_tsvector(1, IndexedPassage(1, "harbour " * count + "boat", "harbour" if label else ""))
        for count, label in cases
    ]
    asked = " | ".join(f"'{scope}/harbour'" for scope in range(1, scopes + 1))
    rank = formats.TERM_RANK_SQL.format(i=0).replace(":query0", "%s")
    rows = query(url, f"SELECT {rank.replace('lexemes', 't::tsvector')} FROM unnest(%s::text[]) AS t", asked, texts)
    found, labels = formats.split_ranks(np.array([row[0] for row in rows], np.float32), scopes)
    assert list(zip(found.tolist(), labels.tolist(), strict=True)) == cases


@pytest.mark.parametrize("count", [1, 3, 60, 300])
def test_lists_of_every_length_are_bound(app: App, count: int) -> None:
    async def read_lists(tx: Transaction) -> tuple[list[Any], list[Any], list[Any]]:
        numbers, bound = bind_list("id", range(count))
        words, bound_words = bind_list("word", (f"it's {i}" for i in range(count)))
        generate = "SELECT n FROM generate_series(0, 999) AS n WHERE"
        return (
            await tx.fetch(f"{generate} n IN ({numbers})", **bound),
            await tx.fetch(f"{generate} 'it''s ' || n IN ({words})", **bound_words),
            await tx.fetch(f"{generate} n NOT IN ({numbers}) AND n < 500", **bound),
        )

    of_numbers, of_words, others = run_sync(app.store.database.read(read_lists))
    assert of_numbers == of_words == [(i,) for i in range(count)]
    assert others == [(i,) for i in range(count, 500)]


def test_server_is_asked_once_how_common_a_term_is(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    async def count_estimates(tx: Any, selection: Any, terms: Any) -> list[int]:
        asked.append([term.stem for term in terms])
        return await estimate_term_passages(tx, selection, terms)

    monkeypatch.setattr(fulltext, "MAX_TERM_PASSAGES", 0)
    monkeypatch.setattr(fulltext, "estimate_term_passages", count_estimates)
    call(app, "remember", content="The harbour has a crane")
    for _ in range(2):
        assert call(app, "recall", query="harbour crane")[0].content == "The harbour has a crane"
    call(app, "recall", query="crane driver")
    assert asked == [["harbour", "crane"], ["driver"]]
    monkeypatch.setattr(fulltext, "TERM_COUNT_LEASE_S", -1.0)
    app.store.database.fulltext._term_counts.clear()  # type: ignore[attr-defined]
    for _ in range(2):
        call(app, "recall", query="crane")
    assert asked[2:] == [["crane"], ["crane"]]


def test_sample_follows_a_growing_store(app: App) -> None:
    index = app.store.database.vectors
    assert isinstance(index, PostgresVectorIndex)
    for size in (1, 2, 5):
        while len(call(app, "list_memories")) < size:
            call(app, "remember", content=f"Note {len(call(app, 'list_memories'))} about a harbour")
        call(app, "recall", query="harbour")
        newest = list(index._samples.values())[-1][0]
        assert len(newest) == size
        assert np.allclose(np.linalg.norm(newest, axis=1), 1, atol=1e-3)
