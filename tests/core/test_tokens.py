"""Tokens are counted as o200k does, offline."""

import json

import pytest

from athena.core import tokens

PROSE = "The staging database is read-only for people, and deploys run on Fridays at three. " * 20
LINES = "7d49c4b4 0.35 2026-11-15 [deploy] Deploys run on Fridays at 15:00\n" * 20
RECORDS = json.dumps([{"id": i, "hash": f"{i * 7919:08x}", "content": "Deploys run on Fridays"} for i in range(50)])
OTHERS = "我们决定在星期五部署。数据库是只读的。" * 20


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("hello world", 2), ("Deploys run on Fridays at 15:00", 10), ("naïve café", 4), ("\n\n\n", 1)],
)
def test_count_matches_published_vocabulary(text: str, count: int) -> None:
    assert tokens.count_tokens_exactly(text) == count


@pytest.mark.parametrize("text", [PROSE, LINES, RECORDS, OTHERS], ids=["prose", "lines", "records", "Chinese"])
def test_estimate_is_close_to_count(text: str) -> None:
    assert tokens.estimate_tokens(text) == pytest.approx(tokens.count_tokens_exactly(text), rel=0.25)


def test_long_word_is_counted_quickly() -> None:
    assert tokens.count_tokens_exactly("x" * 1_000_000) > 0


def test_value_estimate_matches_its_json() -> None:
    value = json.loads(RECORDS)
    assert tokens.estimate_json_tokens(value) == pytest.approx(tokens.count_tokens_exactly(RECORDS), rel=0.35)
    assert tokens.estimate_json_tokens(value * 40) == pytest.approx(40 * tokens.estimate_json_tokens(value), rel=0.1)


def test_oversized_text_is_read_only_partly(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Counting:
        def encode_ordinary(self, piece: str) -> list[int]:
            seen.append(len(piece))
            return [0] * (len(piece) // 8)

    monkeypatch.setattr(tokens, "_encoding", Counting())
    assert not tokens.fits_token_limit("x" * 2_000_000, 100)
    assert len(tokens.truncate_to_tokens("x" * 2_000_000, 100)) in range(600, 900)
    assert sum(seen) < 50_000
