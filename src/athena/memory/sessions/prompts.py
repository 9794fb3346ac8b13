"""Compose the reminder for a prompt: memories that are surely about the same, mostly none.

A topic comes up once per session: if the session already got the best memory for a prompt, the reminder is empty.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from athena.core.threads import run_in_thread
from athena.core.values import Scope
from athena.memory.sessions import rows
from athena.memory.sessions.briefing import MAX_BRIEFING_CHARS, record_briefing
from athena.memory.sessions.events import clean_session_id
from athena.memory.sessions.select import (
    BriefingItem,
    find_specific_words,
    is_relevant,
    merge_items,
    recall_without_use,
    select_items,
)
from athena.memory.sessions.values import EMPTY_BRIEFING, Briefing, BriefingTurn
from athena.memory.sessions.voice import BriefingText, Header, Heading, Line, SafeText
from athena.memory.store import Store
from athena.memory.values import Hit
from athena.storage.database import Transaction

REMINDER_BUDGET_TOKENS = 200
MAX_REMINDERS = 3
MAX_REMINDER_CHARS = 400
MAX_PROMPT_CHARS = 2_000  # half from the beginning, half from the end
MIN_SPECIFIC_WORDS = 3  # with fewer a prompt names no topic
MIN_RELATIVE_SCORE = 0.85  # of the best hit's score


async def compose_reminder(
    store: Store,
    scope: Scope,
    prompt: str,
    session_id: str | None,
    budget: int = REMINDER_BUDGET_TOKENS,
    key: str | None = None,
    *,
    is_preview: bool = False,
) -> Briefing:
    """Return the memories that matter for a prompt and that the session did not get yet.

    A preview does not count as told to the session.
    """
    text = prompt
    if len(prompt) > MAX_PROMPT_CHARS:
        text = f"{prompt[: MAX_PROMPT_CHARS // 2]} {prompt[-MAX_PROMPT_CHARS // 2 :]}"
    words = find_specific_words(text)
    if len(words) < MIN_SPECIFIC_WORDS or text.lstrip().startswith(("/", "!", "<")):  # commands and markup
        return EMPTY_BRIEFING
    session = clean_session_id(session_id) if session_id else None
    seen, last_log_id = await store.database.read(partial(_read_log, scope, session, key)) if session else ({}, 0)
    hits = await recall_without_use(store, scope, text, MAX_REMINDERS + 2)
    # hits may be long
    relevant = await run_in_thread(_select_relevant, hits, words, store.encoder.is_working)
    fresh = [hit for hit in relevant if hit.id not in seen and hit.contradicted_by is None]
    if not fresh or relevant[0].id in seen:  # the session knows the topic
        return EMPTY_BRIEFING
    best = [hit for hit in fresh[:MAX_REMINDERS] if hit.score >= MIN_RELATIVE_SCORE * fresh[0].score]
    items = await run_in_thread(lambda: [_create_item(hit) for hit in best])
    selected, reminder = select_items(merge_items(items), budget, MAX_BRIEFING_CHARS, _format_reminder)
    turn = BriefingTurn(session, "remind", last_log_id, key=key) if session and not is_preview else None
    return await record_briefing(store, scope, selected, reminder, turn)


def _select_relevant(hits: Iterable[Hit], words: set[str], has_model: bool) -> list[Hit]:
    return [hit for hit in hits if is_relevant(hit, words, has_model)]


async def _read_log(scope: Scope, session: str, key: str | None, tx: Transaction) -> tuple[dict[int, float], int]:
    seen = await rows.fetch_briefed_memories(tx, scope, session, key)
    return seen, await rows.fetch_last_briefing_id(tx, scope, session)


def _create_item(hit: Hit) -> BriefingItem:
    reason = f"fits the prompt, score {hit.score:.2f}"
    text = SafeText(Line(hit.content, hit.author), MAX_REMINDER_CHARS)
    return BriefingItem(Heading.NONE, "memory", hit.id, hit.hash, text, "", reason, hit.score, full_text=hit.content)


def _format_reminder(items: Sequence[BriefingItem]) -> BriefingText:
    return BriefingText(Header.REMINDER, [(Heading.NONE, [item.line for item in items])])
