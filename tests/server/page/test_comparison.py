"""Differences between versions are right, and bounded whatever a program wrote."""

from hypothesis import given
from hypothesis import strategies as st

from athena.server.page.comparison import MAX_STEPS, Comparer
from athena.server.page.memories import describe_history

WORDS = st.lists(st.sampled_from("abcd"), max_size=12).map(" ".join)


@given(WORDS, WORDS, st.sampled_from([0, 30, MAX_STEPS]))
def test_pieces_are_both_texts(old: str, new: str, steps: int) -> None:
    pieces = Comparer(steps).compare_texts(old, new)
    assert "".join(piece.text for piece in pieces if piece.kind != "added") == old
    assert "".join(piece.text for piece in pieces if piece.kind != "removed") == new


def test_few_words_differ() -> None:
    pieces = Comparer().compare_texts("Deploys run on Fridays at 15:00", "Deploys run on Mondays at 15:00")
    assert [(piece.kind, piece.text) for piece in pieces] == [
        ("same", "Deploys run on "),
        ("removed", "Fridays"),
        ("added", "Mondays"),
        ("same", " at 15:00"),
    ]


def test_history_of_unlike_texts_is_cheap() -> None:
    """2,000 words of two letters, changed 50 times, held the server for minutes."""
    texts = [" ".join("ab"[(i * (k + 7) + i * i) % (k + 2) % 2] for i in range(2_000)) for k in range(50)]
    change = {"at": 0, "action": "updated", "operation": "update_memory", "by": "program"}
    changes = [change | {"before": {"content": text}} for text in texts]
    steps = describe_history(changes, {"content": "c"})
    assert len(steps) == 50
    assert sum(len(step["text"]) for step in steps[10:]) <= 4 * 40, "the later ones are not compared word by word"
