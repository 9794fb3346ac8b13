"""Long texts are searched for secrets on another thread: on the event loop they would hold up every other call."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import athena
from athena.core import redaction
from athena.memory.inputs import LONG_TEXT_CHARS

LONG = "a line of a long text\n" * (LONG_TEXT_CHARS // 10)
ENTITY = {"name": "n", "entityType": "t", "observations": [LONG]}
CALLS: dict[str, dict[str, Any]] = {
    "remember": {"content": LONG},
    "remember_batch": {"items": [LONG]},
    "record_event": {"event_type": "x", "content": LONG},
    "record_events": {"items": [{"event_type": "x", "content": LONG}]},
    "create_task": {"title": "x", "details": LONG},
    "create_entities": {"entities": [ENTITY]},
    "create_entity": {"name": "n", "entity_type": "t", "observations": [LONG]},
    "write_file": {"path": "a.txt", "content": LONG},
    "ingest_document": {"path": "long.txt"},
}


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("name", CALLS)
def test_event_loop_searches_no_long_text(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "long.txt").write_text(LONG)
    monkeypatch.chdir(tmp_path)
    find = redaction.find_secrets
    searched: list[int] = []

    def find_secrets(text: str, *args: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            searched.append(len(text))
        return find(text, *args)

    monkeypatch.setattr(redaction, "find_secrets", find_secrets)

    async def call() -> None:
        async with athena.open() as memory:
            await memory.call(name, **CALLS[name])

    asyncio.run(call())
    assert max(searched, default=0) <= LONG_TEXT_CHARS
