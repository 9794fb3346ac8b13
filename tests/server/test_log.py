"""The log of a server: with DEBUG=1 it tells of every call, without what is private."""

import asyncio
import json
from typing import Any

import pytest

from athena.app.compose import App
from athena.errors import NotFound
from athena.server.admission import CallDispatcher

pytestmark = pytest.mark.sqlite_only("the log is that of the dispatcher")


@pytest.mark.parametrize("debug", ["1", "0", ""])
def test_debug_makes_log_tell_of_calls(
    app: App, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], debug: str
) -> None:
    monkeypatch.setenv("DEBUG", debug)
    dispatcher = CallDispatcher(app.catalog, is_stopping=lambda: False, max_concurrent=2)

    async def call(name: str, /, **arguments: Any) -> Any:
        operation = dispatcher.load_catalog().get_operation(name)
        return await dispatcher.dispatch(operation, arguments, app.create_context("p", "mcp"))

    async def work() -> None:
        await call("remember", content="the harbour opens at nine")
        with pytest.raises(NotFound):
            await call("neighbors", name="ann@example.org")

    asyncio.run(work())
    log = capsys.readouterr().err
    if debug != "1":
        assert log == ""
        return
    first, second = map(json.loads, log.splitlines())
    assert {key: first[key] for key in ("event", "operation", "surface", "outcome")} == {
        "event": "call",
        "operation": "remember",
        "surface": "mcp",
        "outcome": "done",
    }
    assert first["ms"] > 0
    assert (second["outcome"], second["error"][:9]) == ("not_found", "NotFound:")
    assert "harbour" not in log
    assert "ann@example.org" not in log
