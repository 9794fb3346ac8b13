import pytest

from athena.core.words import STOP_WORDS, stem_content_words, stem_word, stem_words, tokenize


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
