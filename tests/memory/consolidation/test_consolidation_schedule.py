"""Scheduled consolidation: at night, and after many events."""

import time
from typing import Any

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.memory.consolidation.run import consolidate_due_projects
from conftest import MODEL, Engine


class Clock:
    def __init__(self, hour: int) -> None:
        self.now = time.mktime((2026, 3, 10, hour, 30, 0, 0, 0, -1))

    def __call__(self) -> float:
        return self.now


def call(app: App, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context("shop", "python"), **arguments))


def test_project_is_consolidated_once_per_night(engine: Engine) -> None:
    clock = Clock(12)
    app = App(engine.in_memory(), MODEL, time=clock)
    call(app, "remember", content="something")
    assert run_sync(consolidate_due_projects(app.store, "minimal")) == []  # noon is no time for a scheduled run
    clock.now += 15 * 3_600
    assert run_sync(consolidate_due_projects(app.store, "off")) == []
    assert run_sync(consolidate_due_projects(app.store, "minimal")) == ["shop"]
    clock.now += 600
    assert run_sync(consolidate_due_projects(app.store, "minimal")) == []
    clock.now += 24 * 3_600
    assert run_sync(consolidate_due_projects(app.store, "minimal")) == ["shop"]
    assert call(app, "consolidation_status")[0].state == "done"
    app.close()


def test_many_events_trigger_daytime_run(engine: Engine) -> None:
    clock = Clock(12)
    app = App(engine.in_memory(), MODEL, time=clock)
    items = [{"event_type": "action", "content": f"step {number}"} for number in range(499)]
    call(app, "record_events", items=items)
    assert run_sync(consolidate_due_projects(app.store, "minimal")) == []
    call(app, "record_event", event_type="action", content="one more")
    assert run_sync(consolidate_due_projects(app.store, "minimal")) == ["shop"]
    assert run_sync(consolidate_due_projects(app.store, "minimal")) == []
    app.close()
