"""Ask the person once which of two statements holds, where nothing says that the newer one replaces the older one.

Learning links such a pair; both stay. The next briefing asks, and a person who keeps one of the two settles it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from athena.core import tokens
from athena.core.threads import run_in_thread
from athena.core.values import Scope
from athena.core.words import STOP_WORDS, stem_word, tokenize
from athena.errors import AthenaError
from athena.memory import link_rows, rows, topic_rows
from athena.memory.consolidation.contradictions import are_consistent
from athena.memory.rows import ASKED, CONTRADICTED_BY, UNDECIDED
from athena.memory.sessions import learning_rows
from athena.memory.sessions.learning_rows import AUTO_TAG, MAX_LEARNED_CHARS
from athena.memory.sessions.select import BriefingItem, select_items
from athena.memory.sessions.voice import BriefingLine, BriefingText, Heading, Line, SafeText
from athena.memory.store import Store
from athena.memory.values import Memory
from athena.storage import scopes
from athena.storage.database import Transaction
from athena.storage.filters import tag_key

MIN_UNDECIDED = 0.2  # probability of a replacement from which on two statements may be about the same
MAX_OTHER_WORDS = 2  # of each statement that the other does not have
MAX_ASKED = 2  # questions of a briefing
MAX_BUDGET_SHARE = 0.25  # of a briefing's tokens
MAX_QUOTED_CHARS = 120
QUESTION_REASON = "which of two holds"


def contradict(text: str, other: str) -> bool:
    """Return whether two statements about the same thing cannot both hold: other values, or the opposite."""
    words, other_words = _find_subject_words(text), _find_subject_words(other)
    shared = words & other_words
    if not shared or 2 * len(shared) < min(len(words), len(other_words)):
        return False
    counts = len(words - shared), len(other_words - shared)
    return not are_consistent(text, other) or (min(counts) > 0 and max(counts) <= MAX_OTHER_WORDS)


def _find_subject_words(text: str) -> set[str]:
    return {stem_word(word) for word in tokenize(text) if word not in STOP_WORDS and not word.isdigit()}


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """Two statements of a person of which one may have replaced the other."""

    hash: str
    content: str
    older_hash: str
    older_content: str
    asked: bool  # a briefing has asked
    created: float  # when the newer one was stored


class _Pair(NamedTuple):
    newer: Memory
    older: Memory
    asked: bool


@dataclass(frozen=True, slots=True)
class QuestionItem(BriefingItem):
    """A question of a briefing; its id, hash and text are those of the newer statement."""

    older: SafeText | None = None
    older_hash: str = ""
    older_id: int = 0

    @property
    def line(self) -> BriefingLine:
        return BriefingLine(self.text, self.hash, older=self.older, older_name=self.older_hash)


async def record_questions(scope: Scope, pairs: Sequence[tuple[int, int]], at: float, tx: Transaction) -> None:
    """Link each older memory to the newer one that may replace it, unless a briefing has asked about the two."""
    for scope_id in await scopes.fetch_own_ids(tx, scope.with_kind("memory")):
        memories = await rows.fetch_memories(tx, [scope_id], {memory_id for pair in pairs for memory_id in pair})
        for older, newer in pairs:
            if older in memories and newer in memories and older != newer:
                asked = await link_rows.list_linked_ids(tx, scope_id, older, ASKED)
                if newer not in asked:
                    await link_rows.insert_link(tx, scope_id, older, newer, UNDECIDED, at)


async def _list_pairs(tx: Transaction, scope: Scope, ids: Sequence[int] | None = None) -> list[_Pair]:
    """Return the open pairs of a project, the newest first; with `ids` those whose newer memory is one of them."""
    scope_ids = await scopes.fetch_own_ids(tx, scope.with_kind("memory"))
    links = await learning_rows.list_questions(tx, scope_ids, (UNDECIDED, ASKED), ids)
    both = sorted({memory_id for memory, other, _ in links for memory_id in (memory, other)})
    memories = await rows.fetch_memories(tx, scope_ids, both, longest=MAX_LEARNED_CHARS)
    replaced = await topic_rows.fetch_contradictions(tx, scope_ids, both)
    pairs = [
        _Pair(memories[newer], memories[older], relation == ASKED)
        for older, newer, relation in links
        if older in memories and newer in memories and not {older, newer} & replaced.keys()
    ]
    return sorted(
        (
            pair
            for pair in pairs
            if pair.newer.author == pair.older.author == "person"
            and tag_key(AUTO_TAG) in map(tag_key, pair.newer.tags)  # a person who confirmed it has answered
        ),
        key=lambda pair: (-pair.newer.id, -pair.older.id),
    )


async def list_questions(store: Store, scope: Scope) -> list[OpenQuestion]:
    """Return the open questions of a project, the newest first."""
    pairs = await store.database.read(partial(_list_pairs, scope=scope))
    return [
        OpenQuestion(
            newer.hash, newer.content, older.hash, older.content, asked, newer.created,
        )
        for newer, older, asked in pairs
    ]  # fmt: skip


async def list_rival_ids(tx: Transaction, scope: Scope, memory_id: int) -> list[int]:
    """Return the memories that are asked about together with this one."""
    pairs = await _list_pairs(tx, scope)
    both = [(pair.newer.id, pair.older.id) for pair in pairs]
    return [newer if older == memory_id else older for newer, older in both if memory_id in (newer, older)]


async def settle_questions(
    tx: Transaction, scope_id: int, kept_id: int, rival_ids: Sequence[int], call_id: int, now: float
) -> None:
    """Link the memories that a person did not keep as replaced; `undo` of the call takes that back."""
    for rival_id in rival_ids:
        await link_rows.insert_recorded_link(tx, scope_id, rival_id, kept_id, CONTRADICTED_BY, now, call_id)


async def select_and_ask(
    store: Store,
    scope: Scope,
    items: Sequence[BriefingItem],
    budget: int,
    max_json_chars: int,
    format_items: Callable[[Sequence[BriefingItem]], BriefingText],
    session: str | None,
    key: str | None,
    *,
    is_preview: bool = False,
) -> tuple[list[BriefingItem], BriefingText | None]:
    """Return the best items that fit beside the questions about them, and the text of both; a question comes once.

    A preview leaves the question for the session that will be asked.
    """
    questions = await store.database.read(partial(_find_question_items, scope, items, session, key))
    size = sum(tokens.count_tokens(question.line) for question in questions)
    questions = questions if size <= MAX_BUDGET_SHARE * budget else []

    def format_with_questions(selected: Sequence[BriefingItem]) -> BriefingText:
        return format_items([*selected, *questions])

    # hundreds of items for a large budget take a second
    selected, text = await run_in_thread(select_items, items, budget, max_json_chars, format_with_questions)
    if text is None or not questions or is_preview:
        return selected, text
    with suppress(AthenaError):  # a read-only store still gives briefings
        await store.database.write(partial(_mark_asked, scope, questions, store.clock()))
    return _add_reasons(selected, questions), text


def _add_reasons(selected: Sequence[BriefingItem], questions: Sequence[QuestionItem]) -> list[BriefingItem]:
    """Return the items for the log, which has each memory once: a question is logged with the line of its memory."""
    asked = {question.id: question for question in questions}
    return [
        replace(item, reason=f"{item.reason}; {QUESTION_REASON}") if asked.pop(item.id, None) else item
        for item in selected
    ] + list(asked.values())


async def _find_question_items(
    scope: Scope, items: Sequence[BriefingItem], session: str | None, key: str | None, tx: Transaction
) -> list[QuestionItem]:
    pairs = await _list_pairs(tx, scope, [item.id for item in items if item.kind == "memory"])
    repeated: set[int] = set()
    if session is not None and key is not None and any(pair.asked for pair in pairs):
        # the answer of the first try never arrived
        repeated = await learning_rows.list_logged_ids(tx, scope.project, session, key, QUESTION_REASON)
    wanted = [pair for pair in pairs if not pair.asked or pair.newer.id in repeated]
    by_newer = {pair.newer.id: pair for pair in reversed(wanted)}
    return [_create_question(pair.newer, pair.older) for pair in wanted if by_newer[pair.newer.id] is pair][:MAX_ASKED]


def _create_question(newer: Memory, older: Memory) -> QuestionItem:
    text, older_text = (SafeText(Line(memory.content, "person"), MAX_QUOTED_CHARS) for memory in (newer, older))
    return QuestionItem(
        Heading.QUESTIONS,
        "question",
        newer.id,
        newer.hash,
        text,
        "",
        QUESTION_REASON,
        1.0,
        older=older_text,
        older_hash=older.hash,
        older_id=older.id,
    )


async def _mark_asked(scope: Scope, questions: Sequence[QuestionItem], at: float, tx: Transaction) -> None:
    for scope_id in await scopes.fetch_own_ids(tx, scope.with_kind("memory")):
        for question in questions:
            await link_rows.insert_link(tx, scope_id, question.older_id, question.id, ASKED, at)
            await link_rows.delete_link(tx, scope_id, question.older_id, question.id, UNDECIDED)
