"""Splitting texts into passages."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from athena.memory.prepare import MAX_PASSAGE_WORDS, PASSAGE_WORD_PATTERN, split_passages


def test_short_note_is_one_passage() -> None:
    text = "Deploys run on Fridays. Ask Maria first."
    (passage,) = split_passages(text)
    assert passage.extract_from(text) == text
    assert passage.words == 7


def test_sentences_are_packed_whole() -> None:
    sentence = "one two three four five six seven eight nine ten."
    text = " ".join([sentence] * 20)
    found = [passage.extract_from(text) for passage in split_passages(text)]
    assert [len(piece.split()) for piece in found] == [90, 90, 20]
    assert all(piece.endswith(".") for piece in found)


def test_text_without_sentences_splits_by_words() -> None:
    text = "word " * 1_000
    assert [passage.words for passage in split_passages(text)] == [90] * 11 + [10]


@given(st.text(alphabet=st.sampled_from("ab .!?;\n\té数\u2028"), max_size=2_000))
def test_passages_keep_words_within_limit(text: str) -> None:
    passages = split_passages(text)
    assert [word for passage in passages for word in passage.extract_from(text).split()] == text.split()
    assert all(passage.words <= MAX_PASSAGE_WORDS for passage in passages)
    assert all(passage.words == len(PASSAGE_WORD_PATTERN.findall(passage.extract_from(text))) for passage in passages)
    assert all(a.start + a.length <= b.start for a, b in pairwise(passages))
