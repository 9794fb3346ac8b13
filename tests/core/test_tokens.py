"""Tokens are estimated everywhere, and counted as o200k does where somebody asks for it."""

import base64
import json
import random
import subprocess
import sys
from pathlib import Path

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
    assert tokens.count_tokens(text) == pytest.approx(tokens.count_tokens_exactly(text), rel=0.25)


def test_long_word_is_counted_quickly() -> None:
    assert tokens.count_tokens_exactly("x" * 1_000_000) > 0


def test_value_estimate_matches_its_json() -> None:
    value = json.loads(RECORDS)
    assert tokens.estimate_json_tokens(value) == pytest.approx(tokens.count_tokens_exactly(RECORDS), rel=0.35)
    assert tokens.estimate_json_tokens(value * 40) == pytest.approx(40 * tokens.estimate_json_tokens(value), rel=0.1)


def test_value_of_many_long_texts_is_read_only_partly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call estimates its arguments and its result, and no other call runs meanwhile."""
    lengths: list[int] = []

    def estimate(text: str) -> float:
        lengths.append(len(text))
        return len(text) / 4

    monkeypatch.setattr(tokens, "_estimate", estimate)
    text = "some words of a text " * 1_000
    for value in ({str(i): text for i in range(700)}, [{"a": [text] * 30}] * 30, {"a": {"b": [text] * 9}}):
        lengths.clear()
        total = len(json.dumps(value))
        assert tokens.estimate_json_tokens(value) == pytest.approx(total / 4, rel=0.1)
        assert sum(lengths) <= tokens.MAX_COUNTED_VALUE_CHARS


def test_oversized_text_is_read_only_partly(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    estimate = tokens._estimate

    def counting(text: str) -> float:
        seen.append(len(text))
        return estimate(text)

    monkeypatch.setattr(tokens, "_estimate", counting)
    assert not tokens.fits_token_limit("word " * 400_000, 100)
    assert len(tokens.truncate_to_tokens("word " * 400_000, 100)) in range(400, 600)
    assert sum(seen) < 50_000


def random_texts() -> dict[str, str]:
    chance = random.Random(7)
    letters = "".join(chance.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(2_000))
    return {
        "hex": " ".join(f"{chance.getrandbits(128):032x}" for _ in range(40)),
        "base64": base64.b64encode(chance.randbytes(2_000)).decode(),
        "letters": letters,
        "ASCII": "".join(chr(chance.randint(32, 126)) for _ in range(2_000)),
        "Unicode": "".join(
            chr(chance.choice((chance.randint(0x80, 0x7FF), chance.randint(0x800, 0xD7FF)))) for _ in range(500)
        ),
        "emoji": "".join(chr(0x1F600 + i % 80) for i in range(500)),
        "Japanese": "デプロイは金曜日に行います。データベースは読み取り専用です。" * 10,
        "Korean": "배포는 금요일에 실행됩니다. 데이터베이스는 읽기 전용입니다." * 10,
        "marks": "->=={}()[];:\n" * 100,
        "indented": "def f():\n    if x:\n        return [1, 2, 3]\n" * 40,
    }


@pytest.mark.parametrize(("name", "text"), random_texts().items(), ids=list(random_texts()))
def test_budget_holds_for_unusual_texts(name: str, text: str) -> None:
    """What fills a reduced budget by the estimate stays within the budget by the count, or nearly so."""
    assert tokens.reduce_budget(tokens.count_tokens_exactly(text)) <= tokens.count_tokens(text) * 1.05


def test_estimate_of_docs_within_tenth() -> None:
    pages = [path.read_text()[:8_000] for path in sorted((Path(__file__).parents[2] / "docs").rglob("*.md"))]
    assert pages
    errors = sorted(abs(tokens.count_tokens(page) / tokens.count_tokens_exactly(page) - 1) for page in pages)
    assert errors[len(errors) * 9 // 10] < 0.1


def test_nothing_but_savings_loads_the_table() -> None:
    program = (
        "import sys\n"
        "from athena import testing, api\n"
        "with testing.isolated():\n"
        "    api.store('Deploys run on Fridays'); api.search('deploys'); api.call('search_tools', query='due tasks')\n"
        "    api.call('briefing')\n"
        "    assert 'tiktoken' not in sys.modules\n"
        "    assert api.call('token_savings')['definitions'] > 0\n"
        "    assert 'tiktoken' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


LANGUAGES = {
    "Traditional Chinese": "我們決定在星期五部署新版本，因為資料庫在週末會進行維護。請記得更新設定檔並通知所有的同事。",
    "Japanese": "金曜日に新しいバージョンをデプロイすることにしました。週末に保守があるためです。",
    "Russian": "Мы решили развернуть новую версию в пятницу, потому что база данных будет обслуживаться в выходные.",
    "Polish": "Postanowiliśmy wdrożyć nową wersję w piątek, ponieważ baza danych będzie konserwowana. ",
    "Korean": "금요일에 새 버전을 배포하기로 결정했습니다. 주말에 데이터베이스 유지 보수가 있기 때문입니다. ",
}


@pytest.mark.parametrize("text", LANGUAGES.values(), ids=list(LANGUAGES))
def test_truncated_language_fits_budget(text: str) -> None:
    shown = tokens.truncate_to_tokens(text * 200, tokens.reduce_budget(2_000))
    assert 800 < tokens.count_tokens_exactly(shown) <= 2_000


@pytest.mark.parametrize(
    "text",
    [" " * 8_000 + "\U00013000" * 50_000, "=" * 8_000 + "龘" * 30_000, "[" * 40_000, "\n" * 40_000, "ƀ" * 30_000],
    ids=["hieroglyphs", "rare Chinese", "brackets", "lines", "rare Latin"],
)
def test_hostile_text_hardly_exceeds_budget(text: str) -> None:
    """A cheap beginning does not hide what follows it, and no single character is much too cheap."""
    shown = tokens.truncate_to_tokens(text, tokens.reduce_budget(2_000))
    assert tokens.count_tokens_exactly(shown) <= 2.5 * 2_000
    assert not tokens.fits_token_limit(text, 2_000)
