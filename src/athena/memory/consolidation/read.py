"""Reading what there is to consolidate, a few at a time and no more of each text than patterns need."""

import hashlib
import json
from typing import Any, NamedTuple

from athena.core.scope import Kind, Scope
from athena.memory.consolidation import run_rows
from athena.memory.consolidation.material import Event, Note
from athena.memory.sessions.values import alike
from athena.memory.store import Store
from athena.memory.values import OURS
from athena.storage import scopes
from athena.storage.database import Transaction

KINDS: tuple[Kind, ...] = ("memory", "event")  # that are looked at
BATCH = 1_000
MOST = 100_000  # of each kind; what is older than the newest so many is left out
LONGEST = 600  # characters of a text
PATTERN = f"{OURS}pattern"  # metadata of a memory that was made of a pattern: it is no evidence of anything


class Material(NamedTuple):
    events: list[Event]
    notes: list[Note]
    prints: dict[str, str]  # of each kind, what changes when any of it does

    @property
    def examined(self) -> int:
        return len(self.events) + len(self.notes)


async def read(store: Store, scope: Scope, since: float) -> Material:
    """Read a project's own events and memories since a moment, all as they are at one moment."""

    async def work(tx: Transaction) -> Material:
        events = [_event(*row) for row in await _rows(tx, scope.of("event"), since)]
        notes = [_note(*row) for row in await _rows(tx, scope, since)]
        return Material(events, [note for note in notes if note is not None], await prints(tx, scope, since))

    return await store.database.read(work)


async def _rows(tx: Transaction, scope: Scope, since: float) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    behind = (since, 0)
    for own in await scopes.own(tx, scope):
        while True:
            rows = await run_rows.page(tx, own, since, behind, BATCH, LONGEST)
            found = [*found, *rows][-MOST:]
            if len(rows) < BATCH:
                return found
            behind = (rows[-1][1], rows[-1][0])
    return found


def _event(number: int, at: float, kind: str, text: str, metadata: str, tags: str) -> Event:
    facts = json.loads(metadata)
    outcome, session = facts.get("outcome"), facts.get("session_id")
    return Event(
        number, at, kind, text,
        alike(outcome.casefold())[0] if isinstance(outcome, str) else None,
        str(session) if session is not None else None,
        tuple(json.loads(tags)),
    )  # fmt: skip


def _note(number: int, at: float, kind: str, text: str, metadata: str, tags: str) -> Note | None:
    return None if PATTERN in json.loads(metadata) else Note(number, at, text, tuple(json.loads(tags)), kind)


async def prints(tx: Transaction, scope: Scope, since: float) -> dict[str, str]:
    """Return of each kind what changes when anything changes that a run would look at."""
    figures = {kind: await run_rows.figures(tx, scope.of(kind), since) for kind in KINDS}
    return {kind: hashlib.sha256(json.dumps(found).encode()).hexdigest() for kind, found in figures.items()}


def fingerprint(prints: dict[str, str]) -> str:
    return " ".join(prints[kind] for kind in KINDS)
