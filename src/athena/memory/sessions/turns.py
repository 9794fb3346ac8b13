"""The turns of a conversation: what a person typed, with the answer before it and the one after it."""

import re
from collections.abc import Sequence

from athena.core.redaction.questions import asks_for_secret
from athena.memory.sessions.extract import remove_echoes
from athena.memory.sessions.values import Utterance

MAX_TURN_CHARS = 8_000  # what is longer was pasted
MAX_ECHOED_TURNS = 5
MAX_DELAY_WORDS = 4  # of a turn that may put an answer off
MAX_REPLY_CHARS = 120  # of the answer after a turn
CODE_PATTERN = re.compile(r"\d{3}|[^\W\d_]-?\d")  # in a turn that gives the answer: 4711, Bluefish-77


def list_turns(messages: Sequence[Utterance]) -> list[tuple[str, str]]:
    """Return the user's turns, each with the answer before it, without what that repeats of the turns before.

    A turn is empty if anything that was answered since the last one asks for a secret: whatever it says may be one. A
    short turn ("one second") leaves the question open.
    """
    turns: list[tuple[str, str]] = []
    answer = ""
    is_asked = False
    for role, text in messages:
        if role == "user":
            prompts = [turn for turn, _ in turns[-MAX_ECHOED_TURNS:]]
            turns.append(("" if is_asked else text[:MAX_TURN_CHARS], remove_echoes(answer[-MAX_TURN_CHARS:], prompts)))
            is_asked = is_asked and len(text.split()) <= MAX_DELAY_WORDS and not CODE_PATTERN.search(text)
        else:
            answer = text or answer
            is_asked = is_asked or asks_for_secret(text)
    return turns


def list_replies(messages: Sequence[Utterance]) -> list[str]:
    """Return for each of the user's turns how the answer after it begins, which may name what the turn changed."""
    replies: list[str] = []
    for role, text in messages:
        if role == "user":
            replies.append("")
        elif replies and not replies[-1]:
            replies[-1] = text[:MAX_REPLY_CHARS]
    return replies
