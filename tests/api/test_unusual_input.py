"""Unusual but valid input is stored unchanged or cleaned, and is found again."""

import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from athena import api
from athena.app import connect
from athena.app.compose import App
from athena.core.threads import run_sync
from athena.memory.values import MAX_CONTENT_BYTES


def verify_passes() -> bool:
    verdict = run_sync(connect.AppConnection(connect.shared_app, None, "python").call("verify", {})).data
    return bool(verdict["ok"])


@pytest.mark.both_engines
@pytest.mark.parametrize(
    "text",
    [
        "control \x01\x02\x07\x08\x0b\x0c\x1b[31m\x7f\x85\x9b characters",
        "right \u202eto left\u202c and \u2066isolates\u2069",
        "emoji 👩‍👩‍👧‍👦 🇩🇪 ❤️",
        "combining e\u0301 and composed \xe9",
        "東京タワーの近くに住んでいます",
        "  leading and trailing  \n\n",
        "lines\r\nof\rall\nkinds\u2028and\u2029more",
        "\ufeffa byte order mark, \ufffe and \uffff",
        "beyond \U0010ffff and \U00020000",
        "a'; DROP TABLE memories; --",
        '"; {} %s %(x)s :name ?1 \\u0000 \\x00',
        "x" * 100_000,
        "-",
        "%",
        "0",
        "a" * 300 + " " + "b" * 300,
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_text_round_trips_unchanged(isolated: App, text: str) -> None:
    api.store("something else")
    short = api.store(text)
    assert api.get(short).content == text
    assert short == hashlib.sha256(text.encode()).hexdigest()[:8]
    assert short in {m.hash for m in api.search(text[:1_000]).memories}
    assert verify_passes()


@pytest.mark.both_engines
def test_nul_is_removed(isolated: App) -> None:
    short = api.store("a\0b\0", tags=["t\0ag"], memory_type="no\0te", metadata={"key": "val\0ue"})
    memory = api.get(short)
    assert (memory.content, list(memory.tags), memory.memory_type, memory.metadata) == (
        "ab",
        ["tag"],
        "note",
        {"key": "value"},
    )
    assert short == api.store("ab")
    assert api.search("a\0b").memories[0].hash == short
    assert verify_passes()


@pytest.mark.parametrize("value", [r"C:\u0000", r"a\u0000b", "\\", r"\\u0000", '"', "\\u0041", "\n"])
def test_metadata_round_trips_unchanged(isolated: App, value: str) -> None:
    short = api.store("with a path", metadata={"path": value, value: "as a key"})
    assert api.get(short).metadata == {"path": value, value: "as a key"}


def test_lone_surrogates_are_replaced(isolated: App) -> None:
    short = api.store("half \ud800 and \udfff", tags=["t\ud800"])
    assert api.get(short).content == "half \ufffd and \ufffd"
    assert api.search("half \ud83d").memories[0].hash == short
    assert api.get(api.store("whole \ud83d\ude00")).content == "whole 😀"
    assert verify_passes()


def test_empty_tags_are_dropped(isolated: App) -> None:
    assert list(api.get(api.store("tagged", ["", " ", "a", "\0", "a "])).tags) == ["a"]
    assert list(api.get(api.store("tagged twice", ",,a,, b,")).tags) == ["a", "b"]
    assert list(api.get(api.store("not tagged", "")).tags) == []


@pytest.mark.both_engines
@pytest.mark.parametrize(
    "query",
    [
        '"deploy',
        '"deploy" "friday',
        "deploy*",
        "*deploy",
        "NEAR(deploy friday)",
        "NEAR(deploy friday, 5",
        "text:deploy",
        "label : deploy",
        "words MATCH deploy",
        "deploy AND OR NOT",
        "AND deploy",
        "^deploy",
        "-deploy",
        "+deploy",
        "(deploy",
        "deploy)",
        "{deploy",
        "deploy'; DROP TABLE memories; --",
        ":deploy ?1 @x $y",
        "deploy\\",
        "deploy\n\r\t",
        "DEPLOY",
        "dépløy deploy",
    ],
)
def test_query_is_never_search_syntax(isolated: App, query: str) -> None:
    short = api.store("We deploy every week", tags="release")
    api.store_batch(["The cat sleeps in the sun", "Ann likes green tea"])
    results = api.search(query)
    assert results.memories[0].hash == short
    assert results.memories[0].score > 0.1
    assert results.query == query


@pytest.mark.parametrize("query", ["the of and", "?!.,;:", "👩‍👩‍👧‍👦", "\u202e", "\x01", "'", "a", "NOT"])
def test_unusual_query_gets_answer(isolated: App, query: str) -> None:
    api.store_batch(["We deploy every week", "The cat sleeps in the sun"])
    results = api.search(query, limit=5)
    assert (len(results.memories), results.total) == (2, 2)
    assert all(0 <= m.score <= 1 for m in results.memories)
    assert len(api.recall(query).memories) == 2


@pytest.mark.both_engines
@pytest.mark.parametrize("query", ["word " * 4_000, "x" * 20_000])
def test_long_query_gets_answer(isolated: App, query: str) -> None:
    api.store_batch(["We deploy every week", "The cat sleeps in the sun"])
    results = api.search(query, min_score=0)
    assert (len(results.memories), results.total) == (2, 2)
    assert all(0 <= m.score <= 1 for m in results.memories)
    assert len(api.recall(query).memories) == api.search(query).total


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("私は東京タワーの近くに住んでいます", "東京タワー"),
        ("我们每个星期五部署服务器", "星期五"),
        ("ฉันอาศัยอยู่ในกรุงเทพ", "กรุงเทพ"),
        ("Мы разворачиваем по пятницам", "пятницам"),
        ("नमस्ते दुनिया", "दुनिया"),
        ("릴리스는 금요일에 합니다", "금요일에"),
        ("Der Zug fährt über Köln", "koln"),
        ("party 🎉 at noon", "🎉 party"),
    ],
)
def test_words_of_any_script_are_found(isolated: App, text: str, query: str) -> None:
    api.store_batch(
        ["今天天气很好", "猫が寝ています", "Кошка спит", "고양이가 잔다", "The cat sleeps", "แมวนอน", "बिल्ली सोती है"]
    )
    short = api.store(text)
    memory = api.search(query).memories[0]
    assert memory.hash == short
    assert memory.score > 0.5


def test_reversed_time_range_finds_nothing(isolated: App) -> None:
    api.store("something")
    found = api.search("something", since="today", until="last year")
    assert (found.memories, found.total, found.query) == ((), 0, "something")
    assert api.search("something", since=2.0, until=1.0).memories == ()


def test_longest_text_is_stored_whole(isolated: App) -> None:
    for text in ("x" * MAX_CONTENT_BYTES, "é" * (MAX_CONTENT_BYTES // 2)):
        short = api.store(text)
        assert api.get(short).content == text
    assert api.delete(short)
    assert api.restore(short)
    assert verify_passes()


@pytest.mark.usefixtures("engine")
def test_update_of_long_memory_saves_ram() -> None:
    """A text of half a megabyte has 800 passages; none of them may hold a copy of the whole text."""
    script = """
        import os, resource, sys
        from athena import api

        def peak():
            size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return size // 1024 if sys.platform == "darwin" else size

        text = "The quick brown fox jumps over the lazy dog near the river bank today. " * 7_000
        short = api.store(text)
        before = peak()
        assert api.update(short, tags="a") == api.store(text, "b") == short
        assert api.delete(short)
        assert api.restore(short)
        print((peak() - before) // 1024, flush=True)
        os._exit(0)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150, f"{int(done.stdout)} MB more"


def test_batch_accepts_any_iterable(isolated: App) -> None:
    made: Any = (f"item {i}" for i in range(3))
    hashes = api.store_batch(made)
    assert len(hashes) == 3
    assert [one.total for one in api.search_batch(iter(["item", "items"]))] == [3, 3]
    assert api.delete_batch(iter(hashes)) == 3


def test_ingest_accepts_undecodable_file_name(isolated: App, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "fine.txt").write_text("The cat sleeps")
    try:
        (folder / os.fsdecode(b"caf\xe9.txt")).write_text("The dog barks")
    except OSError:
        pytest.skip("this file system takes no such name")
    found = api.ingest(folder)
    assert found.documents + len(found.skipped) == 2
    assert found.documents >= 1
    assert verify_passes()


def test_undecodable_folder_name_is_project(isolated: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        (folder / ".git").mkdir(parents=True)
    except OSError:
        pytest.skip("this file system takes no such name")
    monkeypatch.delenv("ATHENA_PROJECT")
    monkeypatch.chdir(folder)
    short = api.store("lives here")
    assert [m.hash for m in api.search("lives").memories] == [short]
    monkeypatch.chdir(tmp_path)
    assert api.search("lives").memories == ()


def test_surrogate_in_metadata_is_replaced(isolated: App) -> None:
    memory = api.get(api.store("odd \ud800 text", metadata={"a\ud800": ["b\ud800"]}))
    assert (memory.content, memory.metadata) == ("odd \ufffd text", {"a\ufffd": ["b\ufffd"]})
