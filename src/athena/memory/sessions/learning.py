"""Review what learning stored: list, confirm, drop and correct it, and rule out more like it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from athena.core.home.paths import USER_PROJECT
from athena.core.values import Call, Page, Scope
from athena.errors import InvalidInput, NotFound
from athena.memory import history_rows, inputs, link_rows, rows, write
from athena.memory.edit import forget_rows, update_memory
from athena.memory.edit_hooks import EditHooks
from athena.memory.index import encode_missing
from athena.memory.lookup import Ref, create_changed, locate_shown
from athena.memory.prepare import PreparedMemory, add_vectors, prepare_memory
from athena.memory.remember import WriteContext, upsert_memory
from athena.memory.rows import CONTRADICTED_BY, MERGED_INTO, QUOTED_BEFORE_RELATION, QUOTES_RELATION, MemoryRow
from athena.memory.sessions import learning_rows
from athena.memory.sessions.commands import is_about
from athena.memory.sessions.events import clean_session_id
from athena.memory.sessions.learning_rows import AUTO_TAG, CONFIRMED_IMPORTANCE, CONFIRMED_KEY, EXAMPLE_KEY, RULE_KIND
from athena.memory.sessions.learning_rules import LearningRule, Mode, is_same_statement, list_rules, save_rule
from athena.memory.sessions.offers import Offer, find_offers
from athena.memory.sessions.questions import list_rival_ids, settle_questions
from athena.memory.sessions.values import (
    IDLE_KEY,
    IDLE_TEXT,
    MAX_DECIDED_CHARS,
    SAID_KEY,
    get_said_time,
)
from athena.memory.sessions.voice import shorten_text
from athena.memory.store import Store
from athena.memory.values import Draft, Memory, Stored, extend_memory
from athena.storage import calls, privacy, scopes
from athena.storage.database import Transaction
from athena.storage.filters import tag_key

SOURCE_PREFIX = "session "  # of the source that learning writes
EMPTY_PART_PATTERN = re.compile(r"\b(Next|Decided|Ended):(?=\s*(?:(?:Work|Ended|Decided):|$))")
MAX_LISTED = 10_000
MAX_TOPIC_CHARS = 100
MIN_TOPIC_SHARE = 0.75  # of the words of a topic that a memory of an earlier session must have
MAX_NOTICED = 200  # new memories of which a notice says how many may hold everywhere
NOTICE_MAX_AGE_S = 7 * 86_400.0  # older memories come from an import of past sessions, or were never announced


@dataclass(frozen=True, slots=True)
class LearnedItem:
    """A memory that Athena stored without a request, and why."""

    id: int
    hash: str
    content: str
    kind: str  # decision, convention, preference, fact, fix, todo
    role: str  # who said it: user, assistant, or whoever else stored it as learned
    confidence: float | None  # from 0 to 1
    session_id: str | None
    turn: int | None  # the number of the user's turn in the session
    words: str | None  # what it was taken from, where that differs from the memory
    created: float
    importance: float
    offer: Offer | None = None  # why it may hold in all projects: it says so, or was said in another one too


def _to_item(memory: Memory, offer: Offer | None = None) -> LearnedItem:
    facts = memory.metadata
    source, turn, confidence, words = (facts.get(key) for key in ("source", "turn", "confidence", "words"))
    is_session = isinstance(source, str) and source.startswith(SOURCE_PREFIX)
    return LearnedItem(
        memory.id,
        memory.hash,
        memory.content,
        memory.memory_type,
        _get_role(memory),
        float(confidence) if isinstance(confidence, int | float) else None,
        str(source).removeprefix(SOURCE_PREFIX) if is_session else None,
        turn if isinstance(turn, int) else None,
        words if isinstance(words, str) and words != memory.content else None,
        memory.created,
        memory.importance,
        offer,
    )


def _get_role(memory: Memory) -> str:
    """Return who said it; of what a program wrote there, only what claims no person's words."""
    if memory.author == "person":
        return "user"
    is_answer = memory.author == "agent" and memory.metadata.get("role") == "assistant"
    return "assistant" if is_answer else memory.author


async def list_learned(
    store: Store, scope: Scope, session_id: str | None, limit: int, offset: int
) -> Page[LearnedItem]:
    """Return what learning stored in a project, the newest first; of one session, by how its id begins."""

    async def read_items(tx: Transaction) -> Page[LearnedItem]:
        memories = await learning_rows.list_learned_memories(tx, scope, MAX_LISTED, 0)
        if session_id is not None:
            memories = [one for one in memories if (_to_item(one).session_id or "").startswith(session_id)]
        page = memories[offset : offset + limit]
        offers = await find_offers(tx, scope, page)
        return Page([_to_item(memory, offers.get(memory.id)) for memory in page], len(memories))

    return await store.database.read(read_items)


async def keep_learned(store: Store, ref: Ref, call: Call) -> Stored:
    """Confirm a memory: it counts as a person's from now on, and for more; what it is asked about with is replaced."""

    async def read_row(tx: Transaction) -> tuple[MemoryRow, list[int]]:
        row = await locate_shown(tx, call.scope, ref)
        rival_ids = await list_rival_ids(tx, call.scope, row.memory.id)
        return (row if rival_ids else await _locate_learned(tx, call.scope, ref)), rival_ids

    row, rival_ids = await store.database.read(read_row)
    changes, seen = _confirm(row.memory, call), row.memory.updated
    stored = await update_memory(store, row.memory.id, changes, call, expect_updated=seen)

    async def write_settled(tx: Transaction) -> None:
        call_id = await history_rows.fetch_last_call_id(tx, row.scope, row.memory.id)
        await settle_questions(tx, row.scope, row.memory.id, rival_ids, call_id, store.clock())

    if rival_ids:
        await store.database.write(write_settled)
    return stored


async def keep_everywhere(store: Store, ref: Ref, call: Call) -> Stored:
    """Confirm a memory and move it to the project `user`, which all projects see."""
    now = store.clock()
    before = await store.database.read(partial(_locate_learned, scope=call.scope, ref=ref, confirmed=True))
    if before.memory.project == USER_PROJECT:
        return await keep_learned(store, ref, call)
    [prepared] = await add_vectors(store.encoder, [_prepare_confirmed(before.memory, call, now)], set())

    async def write_moved(tx: Transaction) -> Stored:
        async def move_row(call_id: int) -> list[Any]:
            with privacy.mark_copies():
                row = await _locate_learned(tx, call.scope, before.memory.id, confirmed=True)
                if row.digest != before.digest:
                    raise create_changed(row)
                new = prepared if row == before else _prepare_confirmed(row.memory, call, now)
                user_scope = await scopes.ensure_scope(tx, Scope(USER_PROJECT))
                memory_id, outcome = await upsert_memory(store, tx, WriteContext(user_scope, call_id, now), new)
            rival_ids = await list_rival_ids(tx, call.scope, row.memory.id)
            for older in [*await link_rows.list_linking_ids(tx, row.scope, row.memory.id, CONTRADICTED_BY), *rival_ids]:
                await link_rows.insert_link(tx, user_scope, older, memory_id, CONTRADICTED_BY, now)
            await history_rows.insert_row_change(tx, row, call_id, now, "forgotten")
            await write.hide_memory(store, tx, row, now)
            await link_rows.insert_link(tx, row.scope, row.memory.id, memory_id, MERGED_INTO, now)
            return [memory_id, outcome]

        memory_id, outcome = await calls.run_once(tx, call, move_row)
        user_ids = await scopes.fetch_own_ids(tx, Scope(USER_PROJECT))
        memory = (await rows.fetch_memories(tx, user_ids, [memory_id], include_deleted=True)).get(memory_id)
        if memory is None:  # the same call again, after a purge
            raise NotFound("the memory that this call kept was purged since", hint="use a new key to keep another")
        return extend_memory(Stored, memory, outcome, ())

    stored = await store.database.write(write_moved)
    await encode_missing(store)
    return stored


def _prepare_confirmed(memory: Memory, call: Call, now: float) -> PreparedMemory:
    changes = _confirm(memory, call)
    changes["metadata"] = {**memory.metadata, **changes["metadata"]}
    changes["metadata"].pop(SAID_KEY, None)  # it is new there, as of now
    return prepare_memory(Draft.from_memory(memory, **changes), now)


async def edit_learned(store: Store, ref: Ref, content: str, call: Call) -> Stored:
    """Correct a memory, which also confirms it; learning does not store again what it said before."""
    cleaned, redacted = inputs.clean_changes(content, None, None, None, None)
    row = await store.database.read(partial(_locate_learned, scope=call.scope, ref=ref))
    if cleaned["content"] == row.memory.content:
        raise InvalidInput("this is what it says already", hint=f"to confirm it: athena learned keep {ref}")
    changes, seen = _confirm(row.memory, call) | cleaned, row.memory.updated
    stored = await update_memory(store, row.memory.id, changes, call, redacted, seen)

    async def write_rule(tx: Transaction) -> None:
        call_id = await history_rows.fetch_last_call_id(tx, row.scope, row.memory.id)
        await save_rule(store, tx, call.scope, row, "same", None, call_id)

    await store.database.write(write_rule)
    return stored


def _confirm(memory: Memory, call: Call) -> dict[str, Any]:
    """Return the changes that turn a learned memory into one that a person vouches for."""
    return {
        "tags": tuple(tag for tag in memory.tags if tag_key(tag) != tag_key(AUTO_TAG)),
        "importance": max(memory.importance, CONFIRMED_IMPORTANCE),
        "metadata": {CONFIRMED_KEY: True},
        "author": "person" if call.author == "person" else memory.author,
    }


async def drop_learned(store: Store, refs: Sequence[Ref], call: Call) -> list[LearnedItem]:
    """Forget memories that learning stored; it does not store the same statements again."""
    return await _refuse_memories(store, refs, call, "same", call.scope, None)


async def refuse_alike(store: Store, ref: Ref, call: Call, topic: str | None, *, everywhere: bool) -> LearningRule:
    """Forget a memory that learning stored, and refuse statements like it from now on."""
    words = None if topic is None else inputs.clean_field("topic", topic, MAX_TOPIC_CHARS)[0]
    scope = Scope(USER_PROJECT) if everywhere else call.scope
    [item] = await _refuse_memories(store, [ref], call, "like", scope, words)
    rules = await list_rules(store, call.scope, with_dropped=False)
    return next(rule for rule in reversed(rules) if rule.example == item.content and rule.kind == item.kind)


async def _refuse_memories(
    store: Store, refs: Sequence[Ref], call: Call, mode: Mode, rule_scope: Scope, topic: str | None
) -> list[LearnedItem]:
    now = store.clock()

    async def write_refused(tx: Transaction) -> list[LearnedItem]:
        async def hide_rows(call_id: int) -> list[int]:
            located = {(row := await _locate_learned(tx, call.scope, ref)).memory.id: row for ref in refs}
            for row in located.values():
                await history_rows.insert_row_change(tx, row, call_id, now, "forgotten")
                await write.hide_memory(store, tx, row, now)
                await save_rule(store, tx, rule_scope, row, mode, topic, call_id)
                await _clean_episodes(store, tx, call.scope, row, call_id)
            return list(located)

        ids = await calls.run_once(tx, call, hide_rows)
        scope_ids = await scopes.fetch_visible_ids(tx, call.scope)
        memories = await rows.fetch_memories(tx, scope_ids, ids, include_deleted=True)
        return [_to_item(memories[memory_id]) for memory_id in ids if memory_id in memories]

    return await store.database.write(write_refused)


class Forgetting(NamedTuple):
    """What a person takes back of what learning stored: all about a topic, a statement, or all that one turn left."""

    at: float  # when the person said so
    topic: frozenset[str] = frozenset()
    text: str = ""
    source: tuple[str, int, float] | None = None  # session, number and time of the turn; without a time 0

    def is_meant(self, memory: Memory, last: float) -> bool:
        """Return whether it takes back a memory that was said, changed or confirmed at `last`."""
        if last > self.at:
            return False
        if self.source is not None:
            session, turn, said = self.source
            item = _to_item(memory)
            return get_said_time(memory) == said if said else (item.session_id, item.turn) == (session, turn)
        if self.topic:
            return memory.author == "person" and is_about(memory.content, self.topic, MIN_TOPIC_SHARE)
        return memory.author == "person" and is_same_statement(memory.content, self.text)


async def forget_retracted(store: Store, retracted: Sequence[Forgetting], session: str, call: Call) -> int:
    """Forget what learning stored and a person takes back; return how many memories.

    What this session told of itself before goes with what an earlier turn of it said: its next episode tells all.
    """

    async def write_forgotten(tx: Transaction) -> int:
        async def hide_rows(call_id: int) -> int:
            learned = await learning_rows.list_learned_memories(tx, call.scope, MAX_LISTED, 0)
            last = await learning_rows.fetch_last_times(tx, call.scope, learned)
            meant = {one.id: [each.at for each in retracted if each.is_meant(one, last[one.id])] for one in learned}
            times = {memory_id: max(said) for memory_id, said in meant.items() if said}
            scope_ids = await scopes.fetch_own_ids(tx, call.scope.with_kind("memory"))
            for row in await rows.list_rows_by_id(tx, scope_ids, list(times)):
                await history_rows.insert_row_change(tx, row, call_id, store.clock(), "forgotten")
                await write.hide_memory(store, tx, row, times[row.memory.id])
                await _clean_episodes(store, tx, call.scope, row, call_id)
            if any(not one.topic for one in retracted):
                event_ids = await scopes.fetch_own_ids(tx, call.scope.with_kind("event"))
                for row in await rows.list_session_memories(tx, event_ids, session, "episode"):
                    await history_rows.insert_row_change(tx, row, call_id, store.clock(), "forgotten")
                    await write.hide_memory(store, tx, row, store.clock())
            return len(times)

        return int(await calls.run_once(tx, call, hide_rows))

    return await store.database.write(write_forgotten)


async def _clean_episodes(store: Store, tx: Transaction, scope: Scope, row: MemoryRow, call_id: int) -> None:
    """Take a refused statement out of the episodes of its session, which briefings tell."""
    session = _to_item(row.memory).session_id
    scope_ids = await scopes.fetch_own_ids(tx, scope.with_kind("event"))
    if session is None or not scope_ids:
        return
    text, now = row.memory.content, store.clock()
    for episode in await rows.list_session_memories(tx, scope_ids, session, "episode"):
        rest = episode.memory.content
        for quotation in (text, shorten_text(text, MAX_DECIDED_CHARS), shorten_text(text)):
            rest = rest.replace(quotation, "")
        if rest == episode.memory.content:
            continue
        rest = " ".join(EMPTY_PART_PATTERN.sub("", rest).split())
        facts = episode.memory.metadata | ({} if rest else {IDLE_KEY: True})
        draft = Draft.from_memory(episode.memory, content=rest or IDLE_TEXT, metadata=facts)
        prepared = prepare_memory(draft, episode.memory.created)._replace(happened=episode.happened)
        await history_rows.insert_row_change(tx, episode, call_id, now, "updated")
        await write.rewrite_memory(store, tx, episode, prepared, now)
        link = episode.scope, episode.memory.id, row.memory.id
        await link_rows.delete_link(tx, *link, QUOTES_RELATION)
        await link_rows.insert_link(tx, *link, QUOTED_BEFORE_RELATION, now)


class LearningEditHooks(EditHooks):
    """Purge a memory together with the rules that a person made of it."""

    async def list_dependent_ids(self, tx: Transaction, row: MemoryRow) -> list[int]:
        """Return the rules whose example is this memory: they repeat its text.

        A purge of all that was forgotten does not ask: a rule holds until a person removes it.
        """
        rules = await learning_rows.list_rule_memories(tx, Scope(row.memory.project), include_deleted=True)
        return [rule.id for rule in rules if rule.metadata.get(EXAMPLE_KEY) == row.memory.id]


async def remove_rule(store: Store, number: int, call: Call) -> int:
    """Remove a rule of the project or of the user; `undo` brings it back."""

    async def find_rule(tx: Transaction) -> list[int]:
        visible = await scopes.fetch_visible_ids(tx, call.scope.with_kind(RULE_KIND))
        matches = [number for row in await rows.find_rows_by_id(tx, visible, number) if row.deleted is None]
        if not matches:
            raise NotFound(f"there is no rule {number}", hint="athena learned rules lists them")
        return matches

    return await forget_rows(store, find_rule, call)


async def _locate_learned(tx: Transaction, scope: Scope, ref: Ref, confirmed: bool = False) -> MemoryRow:
    """Return the memory that `ref` names; raise InvalidInput unless learning stored it and nobody confirmed it.

    With `confirmed` it may be confirmed.
    """
    row = await locate_shown(tx, scope, ref)
    is_confirmed = confirmed and row.memory.metadata.get(CONFIRMED_KEY) is True
    if tag_key(AUTO_TAG) not in map(tag_key, row.memory.tags) and not is_confirmed:
        raise InvalidInput(
            f"memory {row.memory.hash} was stored or confirmed by somebody, not by learning alone",
            hint=f"athena forget {row.memory.hash} or athena edit {row.memory.hash}",
        )
    return row


async def get_last_episode_time(store: Store, scope: Scope, session_id: str) -> float | None:
    """Return until when a session was learned from, or None."""
    return await store.database.read(
        partial(learning_rows.fetch_last_episode_time, scope=scope, session=clean_session_id(session_id))
    )


class Notice(NamedTuple):
    """How many memories learning stored since the last notice, and how many of them may hold in all projects."""

    kept: int
    offered: int


async def take_notice(store: Store, scope: Scope) -> Notice:
    """Return what learning stored since the last notice in this project, and count it as announced."""
    since = store.clock() - NOTICE_MAX_AGE_S

    async def count_new(tx: Transaction) -> tuple[int, int, Notice]:
        scope_ids = await scopes.fetch_own_ids(tx, scope.with_kind("memory"))
        if not scope_ids:
            return 0, 0, Notice(0, 0)
        announced = await learning_rows.fetch_announced_id(tx, scope_ids[0])
        ids = await learning_rows.list_new_ids(tx, scope_ids[0], announced, since)
        new = await rows.fetch_memories(tx, scope_ids, ids[:MAX_NOTICED], longest=learning_rows.MAX_LEARNED_CHARS)
        offers = await find_offers(tx, scope, list(new.values()))
        return scope_ids[0], max(ids, default=announced), Notice(len(ids), len(offers))

    scope_id, last_id, notice = await store.database.read(count_new)
    if notice.kept:
        await store.database.write(partial(learning_rows.save_announced_id, scope_id=scope_id, memory_id=last_id))
    return notice
