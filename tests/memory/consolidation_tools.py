"""Events as they are kept, for tests of consolidation."""

import uuid
from collections.abc import Iterable
from typing import Any

from athena.app.compose import App
from athena.core.call import Call
from athena.core.threads import drive
from athena.memory.consolidation.material import Event
from athena.memory.values import SERIAL, Draft
from athena.memory.write import remember

PROJECT = "test"


def call(app: App, name: str, **arguments: Any) -> Any:
    return drive(app.catalog.find(name)(app.context(PROJECT, "test"), **arguments))


def record(app: App, events: Iterable[Event], shift: float = 0.0) -> list[int]:
    """Keep events, moved in time, and return their numbers."""
    drafts = [
        Draft(
            one.text,
            one.tags,
            one.event_type,
            {"session_id": one.session, "outcome": one.outcome, "date": one.at + shift, SERIAL: uuid.uuid4().hex},
        )
        for one in events
    ]
    made = Call("record_event", "test", app.context(PROJECT, "test").scope, app.store.clock()).of("event")
    return [stored.id for stored in drive(remember(app.store, drafts, made, read_first=False))]
