"""The turns of a session: what the user said each time and the answer before it, and which were learned from before.

A session that goes on comes again from its beginning, also as a copy under another id. What was learned from before is
only context then: a person may have changed, forgotten or purged since what it left.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from athena.core import redaction
from athena.core.redaction.questions import asks_for_secret
from athena.core.threads import run_long_in_thread
from athena.core.values import Scope
from athena.memory.sessions import learning_rows
from athena.memory.sessions.classifier import MAX_ANSWER_CHARS
from athena.memory.sessions.commands import MIN_WORDS
from athena.memory.sessions.extract import remove_echoes
from athena.memory.sessions.proposals import SENTENCE_PATTERN
from athena.memory.sessions.values import Utterance
from athena.memory.sessions.wording import ASKED_PATTERN
from athena.memory.store import Store
from athena.storage import scopes
from athena.storage.database import Transaction

MAX_TURN_CHARS = 8_000  # what is longer was pasted
MAX_READ_CHARS = 30_000  # of a conversation that the model reads, with the ends of answers: a second of CPU
MAX_ECHOED_TURNS = 5
MAX_DELAY_WORDS = 4  # of a turn that may put an answer off
CODE_PATTERN = re.compile(r"\d{3}|[^\W\d_]-?\d")  # in a turn that gives the answer: 4711, Bluefish-77
MAX_MARKED_CHARS = 1_000  # of a turn, by which it is known again: finding secrets in all of a long one takes long
MARK_DIGITS = 14  # hexadecimal; fits into a BIGINT

Sign = Callable[[str], str]  # returns a keyed hash: nobody can guess from it what was purged


class SessionTurns(NamedTuple):
    """The user's turns of a session."""

    marks: tuple[int, ...]  # by which each is known again, and at last how far the answer to the last one was read
    times: tuple[float | None, ...]  # when each was said
    old: frozenset[int]  # the numbers, from 1, of those that were learned from before
    first_new: int  # the place of the first message that is new: the answer to an old turn may have grown
    now: float

    def get_time(self, turn: int | None) -> float:
        """Return when a turn was said; one without a time now, or before all others if it is old."""
        at = None if turn is None else self.times[turn - 1]
        return min(at, self.now) if at is not None else 0.0 if turn in self.old else self.now


async def read_turns(
    store: Store, scope: Scope, session: str, messages: Sequence[Utterance], sign: Sign
) -> SessionTurns:
    """Return the turns of a session with those that were learned from before in this project."""
    marks = await run_long_in_thread(_mark_turns, session, messages, sign)
    places = [i for i, message in enumerate(messages) if message.role == "user"]

    async def read_known(tx: Transaction) -> tuple[frozenset[int], int]:
        scope_ids = await scopes.fetch_own_ids(tx, scope)
        known = await learning_rows.list_learned_turns(tx, scope_ids, marks)
        old = frozenset(number for number, mark in enumerate(marks, 1) if mark in known)
        if not old:
            return old, 0
        last = max(old)
        end = [*places, len(messages)][last]
        parts = {_mark_answer(marks[last - 1], n, sign): n for n in range(1, end - places[last - 1])}
        read = await learning_rows.list_learned_turns(tx, scope_ids, list(parts))
        new = [place for number, place in enumerate(places, 1) if number not in old]
        return old, min([*new, places[last - 1] + 1 + max((parts[mark] for mark in read), default=0)])

    old, first_new = await store.database.read(read_known)
    if places and (answers := len(messages) - places[-1] - 1):
        marks.append(_mark_answer(marks[-1], answers, sign))
    return SessionTurns(tuple(marks), tuple(messages[i].at for i in places), old, first_new, store.clock())


async def save_turns(scope: Scope, turns: SessionTurns, tx: Transaction) -> None:
    """Record that all turns were learned from."""
    await learning_rows.insert_learned_turns(tx, await scopes.ensure_scope(tx, scope), turns.marks)


def _mark_turns(session: str, messages: Sequence[Utterance], sign: Sign) -> list[int]:
    """Return a keyed hash of each turn: of time, length and beginning without secrets, which a copy of it has as well.

    Without a time it is of the session, the beginning and how often all of it was said.
    """
    marks: list[int] = []
    counts: Counter[str] = Counter()
    for role, text, at in messages:
        if role == "user":
            counts[text] += 1
            moment = f"{session}\n{counts[text]}" if at is None else f"{at:.3f} {len(text)}"
            marks.append(_create_mark(f"{moment}\n{redaction.redact(text[:MAX_MARKED_CHARS]).text}", sign))
    return marks


def _mark_answer(turn: int, messages: int, sign: Sign) -> int:
    """Return a hash of the first messages after a turn; their texts may be cleaned otherwise the next time."""
    return _create_mark(f"{turn} {messages}", sign)


def _create_mark(text: str, sign: Sign) -> int:
    return int(sign(text).rpartition(":")[2][:MARK_DIGITS], 16)


def list_turns(messages: Sequence[Utterance]) -> list[tuple[str, str]]:
    """Return the user's turns, each with the answer before it, without what that repeats of the turns before.

    A turn is empty if anything that was answered since the last one asks for a secret: whatever it says may be one. A
    short turn ("one second") leaves the question open.
    """
    turns: list[tuple[str, str]] = []
    answer = ""
    is_asked = False
    for role, text, _ in messages:
        if role == "user":
            prompts = [turn for turn, _ in turns[-MAX_ECHOED_TURNS:]]
            turns.append(("" if is_asked else text[:MAX_TURN_CHARS], remove_echoes(answer[-MAX_TURN_CHARS:], prompts)))
            is_asked = is_asked and len(text.split()) <= MAX_DELAY_WORDS and not CODE_PATTERN.search(text)
        else:
            answer = text or answer
            is_asked = is_asked or asks_for_secret(text)
    return turns


def choose_turns(turns: Sequence[tuple[str, str]], old: Collection[int] = ()) -> set[int]:
    """Return the numbers of the turns that the model reads: of too many the new ones, and those that a person typed."""
    telling = [i for i, turn in enumerate(turns, 1) if not _is_empty(*turn)]
    chosen: set[int] = set()
    chars_left = MAX_READ_CHARS
    for i in sorted(telling, key=lambda i: (i in old, len(turns[i - 1][0]), -i)):
        text, answer = turns[i - 1]
        chars_left -= len(text) + min(len(answer), MAX_ANSWER_CHARS)
        if chars_left < 0:
            break
        chosen.add(i)
    return chosen


def _is_empty(text: str, answer: str) -> bool:
    """Return whether a turn is one question, or too short for a statement."""
    text = text.strip()
    if text.endswith("?") and ASKED_PATTERN.match(text) and len(SENTENCE_PATTERN.findall(text)) == 1:
        return True
    has_number = any(map(str.isdigit, text))
    return len(text.split()) < MIN_WORDS - has_number and not answer.rstrip().endswith("?")
