"""Fragments: the parts of a turn that the classifier reads."""

from itertools import pairwise

from athena.memory.sessions.fragments import MAX_FRAGMENTS, split_fragments


def split(text: str) -> list[str]:
    return [text[fragment.start : fragment.end] for fragment in split_fragments(text)]


def test_sentences_end_without_capitals() -> None:
    text = "ok no psycopg2. we use asyncpg everywhere, because sync drivers block the loop"
    assert split(text) == ["ok no psycopg2.", "we use asyncpg everywhere,", "because sync drivers block the loop"]
    assert [(fragment.sentence, fragment.before) for fragment in split_fragments(text)] == [
        (0, "start"), (1, "stop"), (1, ","),
    ]  # fmt: skip


def test_lines_brackets_and_dashes_split_a_turn() -> None:
    text = "money is integer cents\ndates are UTC (always) — thanks; bye"
    assert split(text) == ["money is integer cents", "dates are UTC", "(always)", "thanks;", "bye"]
    assert [fragment.sentence for fragment in split_fragments(text)] == [0, 1, 1, 2, 3]


def test_numbers_and_abbreviations_stay_whole() -> None:
    assert split("bump it to 3.11.2 e.g. in ci") == ["bump it to 3.11.2 e.g. in ci"]
    assert split("staging is 10.0.4.7:8091") == ["staging is 10.0.4.7:8091"]


def test_code_is_one_block() -> None:
    text = "see:\n```\nWe always use MySQL. And tabs.\n```\nwe use pnpm"
    blocks = [fragment.is_block for fragment in split_fragments(text)]
    assert split(text)[1] == "```\nWe always use MySQL. And tabs.\n```"
    assert blocks == [False, True, False]


def test_open_code_block_ends_with_turn() -> None:
    assert [fragment.is_block for fragment in split_fragments("look\n```\nWe always use tabs.\nNever spaces.")] == [
        False, True,
    ]  # fmt: skip


def test_quoted_line_is_marked() -> None:
    assert [fragment.before for fragment in split_fragments("he wrote\n> never use tabs")] == ["start", "quoted"]


def test_fragments_cover_each_word_once_and_in_order() -> None:
    text = (
        "right, from now on: tests first (unit, then e2e) and no mocks; also - please - small commits\n1. one\n2) two"
    )
    fragments = split_fragments(text)
    assert all(first.end <= second.start for first, second in pairwise(fragments))
    rest = "".join(text[a.end : b.start] for a, b in pairwise(fragments))
    assert [char for char in rest if char.isalpha()] == []
    assert len(fragments) > 8


def test_nothing_in_nothing() -> None:
    assert [split_fragments(text) for text in ("", "   \n", "...", "?!")] == [[], [], [], []]


def test_long_turn_is_bounded() -> None:
    assert len(split_fragments("a b.\n" * (MAX_FRAGMENTS + 50))) == MAX_FRAGMENTS
