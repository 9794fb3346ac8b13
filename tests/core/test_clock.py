"""A clock that is wrong by any time breaks nothing."""

from typing import Any

import pytest

from athena.app.compose import App
from athena.core.clock import to_local_time
from athena.core.threads import run_sync
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL

YEAR_S = 365.25 * 86_400


@pytest.mark.parametrize("years", [-3_000, 8_028, 8_031, 20_000, 1e9])
def test_time_outside_of_calendar_is_its_end(years: float) -> None:
    assert to_local_time(years * YEAR_S).year in (1, 9_998, 9_999)


@pytest.mark.parametrize("years", [8_031.0, 20_000.0])
def test_operations_work_beyond_year_9999(years: float) -> None:
    app = App(Sqlite(IN_MEMORY_PATH), MODEL, time=lambda: years * YEAR_S)

    def call(name: str, **arguments: Any) -> Any:
        return run_sync(app.catalog.get_operation(name)(app.create_context("test", "python"), **arguments))

    stored = call("remember", content="the lamp is lit")
    assert [hit.id for hit in call("recall", query="lamp")] == [stored.id]
    assert [memory.id for memory in call("list_memories")] == [stored.id]
    assert call("stats")["memories"] == 1
    assert stored.hash in call("briefing").text
    assert call("verify").problems == ()
    app.close()
