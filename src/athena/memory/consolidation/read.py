"""Reading what there is to consolidate, a few at a time and no more of each text than patterns need."""

import hashlib
import json
from typing import Any, NamedTuple

from athena.core.values import Kind, Scope
from athena.memory.consolidation import rows as consolidation_rows
from athena.memory.consolidation.values import Event, MinedMemory
from athena.memory.sessions.values import list_outcome_synonyms
from athena.memory.store import Store
from athena.memory.values import RESERVED_PREFIX
from athena.storage import scopes
from athena.storage.database import Transaction

INPUT_KINDS: tuple[Kind, ...] = ("memory", "event")  # that are looked at
ROW_BATCH_SIZE = 1_000
MAX_ROWS_PER_KIND = 100_000  # of each kind; what is older than the newest so many is left out
MAX_INPUT_TEXT_CHARS = 600  # characters of a text
PATTERN_KEY = (
    f"{RESERVED_PREFIX}pattern"  # metadata of a memory that was made of a pattern: it is no evidence of anything
)


class ConsolidationInput(NamedTuple):
    events: list[Event]
    memories: list[MinedMemory]
    fingerprints: dict[str, str]  # of each kind, what changes when any of it does

    @property
    def examined(self) -> int:
        return len(self.events) + len(self.memories)


async def read_input(store: Store, scope: Scope, since: float) -> ConsolidationInput:
    """Read a project's own events and memories since a moment, all as they are at one moment."""

    async def read_snapshot(tx: Transaction) -> ConsolidationInput:
        events = [_parse_event(*row) for row in await _read_rows(tx, scope.with_kind("event"), since)]
        notes = [_parse_memory(*row) for row in await _read_rows(tx, scope, since)]
        return ConsolidationInput(
            events, [note for note in notes if note is not None], await compute_fingerprints(tx, scope, since)
        )

    return await store.database.read(read_snapshot)


async def _read_rows(tx: Transaction, scope: Scope, since: float) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    behind = (since, 0)
    for own in await scopes.fetch_own_ids(tx, scope):
        while True:
            rows = await consolidation_rows.list_rows_since(
                tx, own, since, behind, ROW_BATCH_SIZE, MAX_INPUT_TEXT_CHARS
            )
            found = [*found, *rows][-MAX_ROWS_PER_KIND:]
            if len(rows) < ROW_BATCH_SIZE:
                return found
            behind = (rows[-1][1], rows[-1][0])
    return found


def _parse_event(number: int, at: float, kind: str, text: str, metadata: str, tags: str) -> Event:
    facts = json.loads(metadata)
    outcome, session = facts.get("outcome"), facts.get("session_id")
    return Event(
        number, at, kind, text,
        list_outcome_synonyms(outcome.casefold())[0] if isinstance(outcome, str) else None,
        str(session) if session is not None else None,
        tuple(json.loads(tags)),
    )  # fmt: skip


def _parse_memory(number: int, at: float, kind: str, text: str, metadata: str, tags: str) -> MinedMemory | None:
    return None if PATTERN_KEY in json.loads(metadata) else MinedMemory(number, at, text, tuple(json.loads(tags)), kind)


async def compute_fingerprints(tx: Transaction, scope: Scope, since: float) -> dict[str, str]:
    """Return of each kind what changes when anything changes that a run would look at."""
    figures = {
        kind: await consolidation_rows.fetch_change_figures(tx, scope.with_kind(kind), since) for kind in INPUT_KINDS
    }
    return {kind: hashlib.sha256(json.dumps(found).encode()).hexdigest() for kind, found in figures.items()}


def join_fingerprints(prints: dict[str, str]) -> str:
    return " ".join(prints[kind] for kind in INPUT_KINDS)
