"""Regressions in which data could be lost, leaked or duplicated."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from athena import api
from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import Conflict, Unavailable


def call(app: App, name: str, project: str = "p", key: str | None = None, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(project, "python", key), **arguments))


def test_secret_across_chunks_is_redacted(app: App, tmp_path: Path) -> None:
    lines = "\n".join("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ" + f"{i:012d}" for i in range(60))
    mark = "-----{} PRIVATE KEY-----"
    (tmp_path / "key.md").write_text(f"# Key\n\n{mark.format('BEGIN')}\n{lines}\n{mark.format('END')}\n")
    assert call(app, "ingest_document", path=str(tmp_path / "key.md")).redacted == ("private-key",)
    assert not [m for m in call(app, "list_memories", k=100) if "MIIEvQ" in m.content]


def test_repeated_ingest_key_changes_nothing(app: App, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.md").write_text(f"text of file {name}")
    for _ in range(2):
        assert call(app, "ingest_document", key="k1", path=str(tmp_path)).documents == 2
    assert sorted(m.content for m in call(app, "list_memories")) == ["text of file a", "text of file b"]


def test_ingest_is_undone_as_whole(app: App, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.md").write_text(f"text of file {name}")
    call(app, "ingest_document", path=str(tmp_path))
    (tmp_path / "a.md").write_text("edited text")
    (tmp_path / "b.md").unlink()
    call(app, "ingest_document", path=str(tmp_path))
    assert [m.content for m in call(app, "list_memories")] == ["edited text"]
    call(app, "undo")
    assert sorted(m.content for m in call(app, "list_memories")) == ["text of file a", "text of file b"]
    call(app, "undo")
    assert call(app, "list_memories") == []


def test_project_document_keeps_global_copy(app: App, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("one\n\n" + "x" * 1_600 + "\n\ntwo")
    call(app, "ingest_document", "user", path=str(tmp_path / "a.md"))
    call(app, "ingest_document", "p", path=str(tmp_path / "a.md"))
    assert len(call(app, "get_document", "other", source=str(tmp_path / "a.md"))) == 3


def test_chunks_keep_their_order(app: App, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# B\n\nsecond")
    call(app, "ingest_document", path=str(tmp_path / "a.md"))
    (tmp_path / "a.md").write_text("# A\n\nfirst\n\n# B\n\nsecond")
    call(app, "ingest_document", path=str(tmp_path / "a.md"))
    assert call(app, "get_document", source=str(tmp_path / "a.md")) == ["# A\nfirst", "# B\nsecond"]


def test_undone_change_stays_in_history(app: App) -> None:
    one = call(app, "remember", content="first")
    call(app, "update_memory", memory_id=one.id, content="second")
    call(app, "undo")
    texts = [(c.before or {}).get("content") for c in call(app, "memory_history", memory_id=one.id)]
    assert "second" in texts


def test_undo_respects_other_projects_change(app: App) -> None:
    shared = call(app, "remember", "user", content="first")
    call(app, "update_memory", "a", memory_id=shared.id, content="by a")
    call(app, "update_memory", "b", memory_id=shared.id, content="by b")
    with pytest.raises(Conflict, match="changed since"):
        call(app, "undo", "a")
    assert call(app, "get_memory", memory_id=shared.id).content == "by b"


def test_undo_after_purge_raises_conflict(app: App) -> None:
    call(app, "remember", content="keep me")
    doomed = call(app, "remember", content="secret thing")
    call(app, "purge", memory_ids=[doomed.id], expect=1)
    assert "cannot be undone" in call(app, "undo")[0].action
    assert [m.content for m in call(app, "list_memories")] == ["keep me"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("it is -5 degrees", "it is 5 degrees"),
        ("a < b holds", "a > b holds"),
        ("the plan 👍", "the plan 👎"),
        ("x != y", "x == y"),
    ],
)
def test_opposites_are_never_merged(app: App, one: str, other: str) -> None:
    call(app, "remember_batch", items=[one, other])
    for strategy in ("speed", "balanced", "quality"):
        assert call(app, "consolidate", strategy=strategy).merged == 0


def test_sessions_and_documents_never_merge(app: App, tmp_path: Path) -> None:
    for session in ("s1", "s2"):
        call(app, "remember", content="Thanks a lot!", metadata={"session_id": session})
        (tmp_path / f"{session}.md").write_text("Licensed under the same terms.")
    call(app, "ingest_document", path=str(tmp_path))
    assert call(app, "consolidate", strategy="quality").merged == 0
    assert len(call(app, "list_documents")) == 2


def test_relation_hides_other_project(app: App) -> None:
    shared = call(app, "remember", "user", content="known everywhere")
    mine = call(app, "remember", "a", content="mine alone")
    call(app, "relate_memories", "a", memory_id=shared.id, other_id=mine.id, relation="secret plan")
    assert call(app, "get_memory", "b", memory_id=shared.id).related == ()
    assert len(call(app, "get_memory", "a", memory_id=shared.id).related) == 1


def test_forgotten_twins_are_restored_separately(app: App) -> None:
    one = call(app, "remember", content="x")
    call(app, "update_memory", memory_id=one.id, content="y")
    two = call(app, "remember", content="x")
    call(app, "forget", memory_id=two.id)
    call(app, "update_memory", memory_id=one.id, content="x")
    call(app, "forget", memory_id=one.id)
    assert call(app, "restore_memory", memory_id=two.id) is True
    with pytest.raises(Conflict):
        call(app, "restore_memory", memory_id=one.id)
    assert call(app, "verify").ok


def test_search_pages_do_not_repeat(app: App) -> None:
    call(app, "remember_batch", items=[f"note {i} about the {'harbour' if i % 3 else 'garden'}" for i in range(400)])
    seen: list[int] = []
    for offset in range(0, 400, 10):
        seen += [hit.id for hit in call(app, "recall", query="a harbour note", k=10, offset=offset)]
    assert len(set(seen)) == len(seen) == 400
    totals = {call(app, "recall", query="harbour", k=k, min_score=0.5).total for k in (1, 5, 300)}
    assert len(totals) == 1


def test_password_in_metadata_is_redacted(app: App) -> None:
    stored = call(app, "remember", content="x", metadata={"password": "Tr0ub4dor" + "&3xyz"})
    assert stored.metadata == {"password": "[SECRET:password]"}


@pytest.mark.sqlite_only("files")
def test_removed_store_file_fails_writes(app: App) -> None:
    call(app, "remember", content="x")
    os.unlink(app.store.database.describe_location())
    with pytest.raises(Unavailable, match="was removed while it was open"):
        call(app, "remember", content="y")


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.usefixtures("engine")
def test_atexit_handler_can_store() -> None:
    done = run(
        "import atexit\n"
        "atexit.register(lambda: print(api.store('last words')))\n"
        "from athena import api\n"
        "api.store('first words')\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert api.search("last words").memories[0].preview == "last words"


@pytest.mark.usefixtures("engine")
def test_child_forked_during_search_exits() -> None:
    done = run(
        "import os, sys, threading, time\n"
        "from athena import api\n"
        "from athena.storage.sqlite import connection\n"
        "connection.BUSY_TIMEOUT_S = 100\n"
        "api.store('x')\n"
        "threading.Thread(target=lambda: [api.search('x') for _ in range(200)], daemon=True).start()\n"
        "for _ in range(3):\n"
        "    began = time.monotonic()\n"
        "    if (child := os.fork()) == 0:\n"
        "        sys.exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "    assert time.monotonic() - began < 30\n"
    )
    assert done.returncode == 0, done.stderr
