"""A purge removes exactly what a person was shown, and shows all that it takes along."""

from pathlib import Path
from typing import Any

import pytest

from athena.app.compose import App
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.errors import Conflict, Denied, NotFound
from conftest import Engine

SCRATCH = "scratch note of the agent"
PLAN = "The recovery plan: restore from the vault in Oslo, then rotate all keys."
QUEUE = "We decided to use Redis for the job queue. next: write the migration of the Zebrano table"
DONE = "All 12 tests pass. The exporter was moved to the second machine."


def call(app: App, surface: str, operation: str, /, **arguments: Any) -> Any:
    return run_sync(invoke(app.catalog, operation, arguments, app.create_context("p", surface)))


def approve_seen(app: App, run_id: str, subject: str) -> Any:
    """Approve what a person has seen."""
    [leave] = app.approver.grant([subject])
    operation = app.catalog.get_operation("approve_run")
    return run_sync(operation(app.create_context("p", "cli", approval=leave), run_id=run_id))


def change_set(app: App, scratch: int, plan: int) -> None:
    call(app, "program", "restore_memory", memory_id=scratch)
    call(app, "program", "forget", memory_id=plan)


def change_text(app: App, scratch: int, plan: int) -> None:
    """Let the number that the purge names stand for a person's text."""
    call(app, "program", "restore_memory", memory_id=scratch)
    call(app, "program", "update_memory", memory_id=scratch, content="Of no use to anybody")
    call(app, "program", "forget", memory_id=scratch)


WAYS = {
    "all forgotten": ("memory.purge(expect=1)", change_set),
    "by number": ("memory.purge([1], expect=1)", change_text),
}


@pytest.mark.both_engines
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("moment", ["before the answer", "after it"])
def test_approved_purge_removes_exactly_what_was_shown(app: App, way: str, moment: str) -> None:
    code, change = WAYS[way]
    scratch = call(app, "mcp", "remember", content=SCRATCH)
    plan = call(app, "cli", "remember", content=PLAN)
    call(app, "mcp", "forget", memory_id=scratch.id)
    waits = call(app, "mcp", "execute_code", code=code)
    assert waits.status == "needs_approval"
    subject = run_sync(app.programs.review_run(app.create_context("p", "cli"), waits.run_id)).subject
    if moment == "before the answer":
        change(app, scratch.id, plan.id)
        with pytest.raises(Denied):
            approve_seen(app, waits.run_id, subject)
    else:
        assert approve_seen(app, waits.run_id, subject).status == "done"
        with pytest.raises(NotFound):
            call(app, "cli", "restore_memory", memory_id=scratch.id)
    assert call(app, "cli", "verify").ok
    plans = [memory.content for memory in call(app, "cli", "list_purgeable", memory_ids=[plan.id]).memories]
    assert plans == [PLAN]


@pytest.mark.both_engines
def test_purge_by_digest_removes_exactly_these(app: App) -> None:
    scratch, plan = call(app, "mcp", "remember", content=SCRATCH), call(app, "cli", "remember", content=PLAN)
    call(app, "mcp", "forget", memory_id=scratch.id)
    seen = call(app, "cli", "list_purgeable")
    assert (seen.count, [memory.content for memory in seen.memories]) == (1, [SCRATCH])
    change_set(app, scratch.id, plan.id)
    with pytest.raises(Conflict, match="not what was shown"):
        call(app, "cli", "purge", digest=seen.digest, expect=1)
    call(app, "cli", "restore_memory", memory_id=plan.id)
    call(app, "mcp", "forget", memory_id=scratch.id)
    assert call(app, "cli", "purge", digest=seen.digest) == 1
    assert [memory.content for memory in call(app, "cli", "list_memories")] == [PLAN]


@pytest.mark.both_engines
def test_name_that_means_more_since_removes_nothing(app: App) -> None:
    """Its number and its hash name one memory when a program asks, and two when a person looks."""
    note = call(app, "cli", "remember", content=SCRATCH)
    code = f"memory.purge(memory_ids=[{note.id}, '{note.hash}'], expect=1)"
    waits = call(app, "mcp", "execute_code", code=code)
    call(app, "program", "update_memory", memory_id=note.id, content="Of no use to anybody")
    call(app, "mcp", "remember", content=SCRATCH)
    subject = run_sync(app.programs.review_run(app.create_context("p", "cli"), waits.run_id)).subject
    assert approve_seen(app, waits.run_id, subject).error.type == "ToolError"
    assert len(call(app, "cli", "list_memories")) == 2


@pytest.fixture
def dropped(app: App) -> tuple[App, Any]:
    """Drop what a session said, which its episode told."""
    messages = [{"role": "user", "text": QUEUE}, {"role": "assistant", "text": DONE}]
    call(app, "hook", "learn", session_id="s1", messages=messages)
    [episode] = call(app, "cli", "recall_events", event_type="episode")
    assert "Zebrano" in episode.content
    [item] = [item for item in call(app, "cli", "list_learned") if "Zebrano" in item.content]
    call(app, "cli", "drop_learned", memory_ids=[item.hash])
    return app, item


@pytest.mark.both_engines
def test_purge_keeps_the_episode_that_told_of_it_once(dropped: tuple[App, Any], engine: Engine, tmp_path: Path) -> None:
    """Only its history repeats what is removed, so only that goes."""
    app, _ = dropped
    [before] = call(app, "cli", "recall_events", event_type="episode")
    assert call(app, "cli", "purge", expect=call(app, "cli", "purge", dry_run=True)) == 2  # and the rule
    [after] = call(app, "cli", "recall_events", event_type="episode")
    assert (after.id, after.content) == (before.id, before.content)
    assert "second machine" in after.content
    assert call(app, "cli", "verify").ok
    app.close()
    assert b"Zebrano" not in engine.read_all_bytes(tmp_path)


@pytest.mark.both_engines
def test_purge_takes_the_episode_that_tells_of_it_again(
    dropped: tuple[App, Any], engine: Engine, tmp_path: Path
) -> None:
    """An undone drop brings its words back into the episode, which then counts as a row that goes along."""
    app, item = dropped
    call(app, "cli", "undo")
    [episode] = call(app, "cli", "recall_events", event_type="episode")
    assert "Zebrano" in episode.content
    shown = call(app, "cli", "list_purgeable", memory_ids=[item.id])
    assert episode.id in {memory.id for memory in shown.memories}
    call(app, "cli", "purge", memory_ids=[item.id], digest=shown.digest)
    assert call(app, "cli", "recall_events", event_type="episode") == []
    app.close()
    assert b"Zebrano" not in engine.read_all_bytes(tmp_path)
