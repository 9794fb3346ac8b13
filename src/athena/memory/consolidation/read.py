"""Read the events and memories of a consolidation in batches, with no more of each text than patterns need."""

import hashlib
import json
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from athena.core.values import Kind, Scope
from athena.memory.consolidation import rows as consolidation_rows
from athena.memory.consolidation.values import MinedEvent, MinedMemory
from athena.memory.sessions.values import list_outcome_synonyms
from athena.memory.store import Store
from athena.memory.values import RESERVED_PREFIX
from athena.storage import scopes
from athena.storage.database import Transaction

INPUT_KINDS: tuple[Kind, ...] = ("memory", "event")
T = TypeVar("T")
ROW_BATCH_SIZE = 500
MAX_ROWS_PER_KIND = 100_000  # the newest
MAX_INPUT_TEXT_CHARS = 600
PATTERN_KEY = f"{RESERVED_PREFIX}pattern"  # marks a memory that was promoted from a pattern: not evidence for others


class ConsolidationInput(NamedTuple):
    events: list[MinedEvent]
    memories: list[MinedMemory]
    fingerprints: dict[str, str]  # by kind; changes when any row of that kind does

    @property
    def examined(self) -> int:
        return len(self.events) + len(self.memories)


async def read_input(store: Store, scope: Scope, since: float) -> ConsolidationInput:
    """Read the events and memories of a project since a time, in one transaction."""

    async def read_snapshot(tx: Transaction) -> ConsolidationInput:
        events = await _read_rows(tx, scope.with_kind("event"), since, _parse_event)
        memories = await _read_rows(tx, scope, since, _parse_memory)
        fingerprints = await compute_fingerprints(tx, scope, since)
        return ConsolidationInput(events, [memory for memory in memories if memory is not None], fingerprints)

    return await store.database.read(read_snapshot)


async def _read_rows(tx: Transaction, scope: Scope, since: float, parse: Callable[..., T]) -> list[T]:
    rows: list[T] = []
    after, limit = (since, 0), tx.chars_left
    for scope_id in await scopes.fetch_own_ids(tx, scope):
        while True:
            batch = await consolidation_rows.list_rows_since(
                tx, scope_id, since, after, ROW_BATCH_SIZE, MAX_INPUT_TEXT_CHARS
            )
            tx.chars_left = limit  # the metadata are dropped
            rows = [*rows, *(parse(*row) for row in batch)][-MAX_ROWS_PER_KIND:]
            if len(batch) < ROW_BATCH_SIZE:
                return rows
            after = (batch[-1][1], batch[-1][0])
    return rows


def _parse_event(event_id: int, at: float, event_type: str, text: str, metadata: str, tags: str) -> MinedEvent:
    facts = json.loads(metadata)
    outcome, session = facts.get("outcome"), facts.get("session_id")
    return MinedEvent(
        event_id, at, event_type, text,
        list_outcome_synonyms(outcome.casefold())[0] if isinstance(outcome, str) else None,
        str(session) if session is not None else None,
        tuple(json.loads(tags)),
    )  # fmt: skip


def _parse_memory(
    memory_id: int, at: float, memory_type: str, text: str, metadata: str, tags: str
) -> MinedMemory | None:
    if PATTERN_KEY in json.loads(metadata):
        return None
    return MinedMemory(memory_id, at, text, tuple(json.loads(tags)), memory_type)


async def compute_fingerprints(tx: Transaction, scope: Scope, since: float) -> dict[str, str]:
    """Return a hash for each kind that changes whenever a row that a run would read does."""
    figures = {
        kind: await consolidation_rows.fetch_change_figures(tx, scope.with_kind(kind), since) for kind in INPUT_KINDS
    }
    return {kind: hashlib.sha256(json.dumps(values).encode()).hexdigest() for kind, values in figures.items()}


def join_fingerprints(fingerprints: dict[str, str]) -> str:
    return " ".join(fingerprints[kind] for kind in INPUT_KINDS)
