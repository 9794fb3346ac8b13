import difflib

import pytest

from athena.core.words import (
    MAX_ALIGNED_NAMES,
    MAX_COMPARED_NAME_CHARS,
    MAX_COMPARED_NAMES,
    STOP_WORDS,
    find_similar_name,
    find_similar_names,
    stem_content_words,
    stem_word,
    stem_words,
    tokenize,
)


def test_tokenize_splits_at_punctuation_and_underscores() -> None:
    assert tokenize("list_open Issues, p99: don't  re-run ÄPFEL 42") == [
        "list", "open", "issues", "p99", "don't", "re", "run", "äpfel", "42",
    ]  # fmt: skip
    assert tokenize("") == []


@pytest.mark.parametrize(
    "forms",
    [
        "memory memories",
        "delete deletes deleted deleting",
        "plan plans planning planned",
        "tag tags",
        "note notes",
        "create creates created creating",
        "issue issues",
        "deploy deploys deployed deployment deployments",
        "search searches searched searching",
    ],
)
def test_word_forms_share_stem(forms: str) -> None:
    assert len({stem_word(form) for form in forms.split()}) == 1


@pytest.mark.parametrize("pair", ["port part", "pass path", "plus plug", "list lint"])
def test_different_words_keep_different_stems(pair: str) -> None:
    one, other = pair.split()
    assert stem_word(one) != stem_word(other)


def test_content_words_drop_stop_words() -> None:
    assert stem_words("what is due") == ["what", "is", "due"]
    assert stem_content_words("What is due?") == ["due"]
    assert {"the", "of", "not"} <= STOP_WORDS


def test_similar_names_are_those_of_difflib() -> None:
    names = ["recall", "recall_events", "remember", "reports/week.json", "list_tags", "forget"]
    for wrong in ("recal", "remembr", "report/week.json", "tags_list", "xyz", ""):
        assert find_similar_names(wrong, names, 3) == difflib.get_close_matches(wrong, names, 3), wrong
    assert find_similar_name("recal", names) == "recall"
    assert find_similar_names("a" * 200 + "/week.jsn", ["a" * 200 + "/week.json", "a" * 200 + "/other"]) == [
        "a" * 200 + "/week.json"
    ]


def test_search_for_similar_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others choose all of the names: one pair of 200 and 400 characters takes 0.1 s, and there are 1,000 files."""
    compared: list[str] = []
    aligned: list[str] = []

    class CountingMatcher(difflib.SequenceMatcher[str]):
        def set_seqs(self, a: str, b: str) -> None:  # type: ignore[override]
            compared.append(b)
            super().set_seqs(a, b)

        def set_seq1(self, a: str) -> None:  # type: ignore[override]
            compared.append(a)
            super().set_seq1(a)

        def ratio(self) -> float:
            aligned.append(compared[-1])
            return super().ratio()

    monkeypatch.setattr(difflib, "SequenceMatcher", CountingMatcher)
    names = [f"{number:011b}".replace("1", "a").replace("0", "b") * 40 for number in range(2 * MAX_COMPARED_NAMES)]
    assert find_similar_names("ab" * 250, names)
    assert 0 < len(aligned) <= MAX_ALIGNED_NAMES
    assert len(set(compared)) <= MAX_COMPARED_NAMES + 2  # the wrong one, and none at first
    assert max(map(len, compared)) <= MAX_COMPARED_NAME_CHARS
