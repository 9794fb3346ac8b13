"""Record events for tests of consolidation."""

import uuid
from collections.abc import Iterable
from typing import Any

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.core.values import Call
from athena.memory.consolidation.values import MinedEvent
from athena.memory.remember import remember
from athena.memory.values import SERIAL_KEY, Draft

PROJECT = "test"


def call(app: App, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(PROJECT, "python"), **arguments))


def record_events(app: App, events: Iterable[MinedEvent], shift: float = 0.0) -> list[int]:
    """Record events with shifted times and return their ids."""
    drafts = [
        Draft(
            one.text,
            one.tags,
            one.event_type,
            {"session_id": one.session, "outcome": one.outcome, "date": one.at + shift, SERIAL_KEY: uuid.uuid4().hex},
        )
        for one in events
    ]
    recorded = Call("record_event", "test", app.create_context(PROJECT, "python").scope, app.store.clock()).with_kind(
        "event"
    )
    return [stored.id for stored in run_sync(remember(app.store, drafts, recorded, read_first=False))]
