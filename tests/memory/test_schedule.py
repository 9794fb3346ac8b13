"""Consolidation that nobody asked for: at night, and after much has happened."""

import time
from typing import Any

from athena.app.compose import App
from athena.core.threads import drive
from athena.embedding.minilm import MiniLM
from athena.memory.consolidation.schedule import tend
from conftest import Engine


class Clock:
    def __init__(self, hour: int) -> None:
        self.now = time.mktime((2026, 3, 10, hour, 30, 0, 0, 0, -1))

    def __call__(self) -> float:
        return self.now


def call(app: App, name: str, **arguments: Any) -> Any:
    return drive(app.catalog.find(name)(app.context("shop", "test"), **arguments))


def test_a_project_is_tended_once_a_night(engine: Engine) -> None:
    clock = Clock(12)
    app = App(engine.in_memory(), MiniLM(), time=clock)
    call(app, "remember", content="something")
    assert drive(tend(app.store, "minimal")) == []  # it is noon
    clock.now += 15 * 3_600
    assert drive(tend(app.store, "off")) == []
    assert drive(tend(app.store, "minimal")) == ["shop"]
    clock.now += 600
    assert drive(tend(app.store, "minimal")) == []
    clock.now += 24 * 3_600
    assert drive(tend(app.store, "minimal")) == ["shop"]
    assert call(app, "consolidation_status")[0].state == "done"
    app.close()


def test_much_that_happened_is_enough_by_day(engine: Engine) -> None:
    clock = Clock(12)
    app = App(engine.in_memory(), MiniLM(), time=clock)
    items = [{"event_type": "action", "content": f"step {number}"} for number in range(499)]
    call(app, "record_events", items=items)
    assert drive(tend(app.store, "minimal")) == []
    call(app, "record_event", event_type="action", content="one more")
    assert drive(tend(app.store, "minimal")) == ["shop"]
    assert drive(tend(app.store, "minimal")) == []
    app.close()
