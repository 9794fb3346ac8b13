"""Reading what there is to consolidate, a few at a time and no more of each text than patterns need."""

import hashlib
import json
from typing import Any, NamedTuple

from athena.memory.consolidation.material import Event, Note
from athena.memory.store import Store
from athena.model.memory import OURS
from athena.model.scope import Scope
from athena.storage import consolidations, scopes
from athena.storage.database import Transaction

BATCH = 1_000
MOST = 100_000  # of each kind; what is older than the newest so many is left out
LONGEST = 600  # characters of a text
PATTERN = f"{OURS}pattern"  # metadata of a memory that was made of a pattern: it is no evidence of anything


class Material(NamedTuple):
    events: list[Event]
    notes: list[Note]

    @property
    def examined(self) -> int:
        return len(self.events) + len(self.notes)


async def read(store: Store, scope: Scope, since: float) -> Material:
    """Read a project's own events and memories since a moment."""
    events = [_event(*row) for row in await _rows(store, scope.of("event"), since)]
    notes = [_note(*row) for row in await _rows(store, scope, since)]
    return Material(events, [note for note in notes if note is not None])


async def _rows(store: Store, scope: Scope, since: float) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    behind = (since, 0)
    while True:

        async def work(tx: Transaction, behind: tuple[float, int] = behind) -> list[tuple[Any, ...]]:
            numbers = await scopes.own(tx, scope)
            return await consolidations.page(tx, numbers[0], since, behind, BATCH, LONGEST) if numbers else []

        rows = await store.database.read(work)
        found = [*found, *rows][-MOST:]
        if len(rows) < BATCH:
            return found
        behind = (rows[-1][1], rows[-1][0])


def _event(number: int, at: float, kind: str, text: str, metadata: str, tags: str) -> Event:
    facts = json.loads(metadata)
    outcome, session = facts.get("outcome"), facts.get("session_id")
    return Event(
        number, at, kind, text,
        outcome.lower() if isinstance(outcome, str) else None,
        str(session) if session is not None else None,
        tuple(json.loads(tags)),
    )  # fmt: skip


def _note(number: int, at: float, kind: str, text: str, metadata: str, tags: str) -> Note | None:
    return None if PATTERN in json.loads(metadata) else Note(number, at, text, tuple(json.loads(tags)), kind)


async def fingerprint(tx: Transaction, scope: Scope, since: float) -> str:
    """Return what changes when anything changes that a run would look at."""
    figures = [await consolidations.figures(tx, one, since) for one in (scope, scope.of("event"))]
    return hashlib.sha256(json.dumps(figures).encode()).hexdigest()
