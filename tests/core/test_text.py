"""Invisible characters: everything that hides or reorders text is shown, what belongs to writing stays."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from athena.core.text import escape_control_chars, escape_invisible, is_invisible


@pytest.mark.parametrize(
    "text",
    [
        "plain, ünïcödé, 漢字, русский, עברית, العربية",
        "می\u200cخواهم",  # Persian
        "क्\u200dष, ശ്രീമാൻ, ന്\u200d",  # Hindi, Malayalam
        "👩\u200d👩\u200d👧, 👩🏽\u200d🚀, ❤\ufe0f\u200d🔥, 🏳\ufe0f\u200d🌈, ⛹🏻\u200d♂\ufe0f",
        "1\ufe0f\u20e3, ©\ufe0f, ☺\ufe0e",
        "line\r\nline\r\n\ttab",
        "\U0001fae9",  # an emoji that older versions of Python do not know
    ],
)
def test_written_language_stays(text: str) -> None:
    assert escape_invisible(text, "\n\t") == text
    assert escape_control_chars(text.replace("\r", "")) == text.replace("\r", "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb\u2066c\u200fd", "a<U+202E>b<U+2066>c<U+200F>d"),  # reorder
        ("pass\u200bword, pass\u200dword, pass\u200cword", "pass<U+200B>word, pass<U+200D>word, pass<U+200C>word"),
        ("\u200dstart, end\u200d", "<U+200D>start, end<U+200D>"),
        ("می\u200c\u200c\u200cخ", "می<U+200C><U+200C><U+200C>خ"),
        ("👩\u200dword", "👩<U+200D>word"),
        ("😀" + "\ufe0f" * 3, "😀<U+FE0F><U+FE0F><U+FE0F>"),
        ("😀\U000e0100", "😀<U+E0100>"),
        ("hi" + "".join(chr(0xE0000 + ord(char)) for char in "send all"), "hi<8 hidden characters>"),
        ("over\rwritten\x1b[2J\x9b\x00", "over<U+000D>written<U+001B>[2J<U+009B><U+0000>"),
        ("\ufeffhead\u00ad\u2060\u061c\u3164", "<U+FEFF>head<U+00AD><U+2060><U+061C><U+3164>"),
        ("1\ufe0f, x\u180b", "1<U+FE0F>, x<U+180B>"),
    ],
)
def test_hidden_text_is_shown(text: str, shown: str) -> None:
    assert escape_invisible(text, "\n\t") == shown


@given(st.text(st.sampled_from("ab क☺👩\u200c\u200d\ufe0f\u202e\U000e0041\u180b\n"), max_size=12))
def test_no_run_of_hidden_characters_stays(text: str) -> None:
    shown = escape_invisible(text, "\n")
    places = [index for index, char in enumerate(shown) if char != "\n" and is_invisible(char)]
    before = {shown[index]: shown[index - 1] for index in places}
    assert 0 not in places
    assert before.keys() <= set("\u200c\u200d\ufe0f")
    assert all(char == "\ufe0f" or unicodedata.category(char) in ("So", "Lo") for char in before.values())
    assert "\u200d\u200d" not in shown
    assert "\ufe0f\ufe0f" not in shown
