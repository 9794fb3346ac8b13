"""Ingesting documents and folders."""

from pathlib import Path

import pytest

from athena import api
from athena.app.compose import App
from athena.errors import NotFound
from athena.memory.documents.read import MAX_PIECE_CHARS, split_document


def test_folder_is_ingested_and_updated(isolated: App, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "deploy.md").write_text(
        "# Deploying\n\nRun the blue script on Fridays.\n\n# Rollback\n\nUse the red lever."
    )
    (folder / "team.txt").write_text("Maria leads the infrastructure group.")
    (folder / "image.png").write_bytes(b"\x89PNG\0\0")
    (folder / "empty.txt").write_text(" \n")
    result = api.ingest(folder, tags="docs")
    assert (result.documents, result.pieces) == (2, 3)
    assert sorted(reason.rpartition(": ")[2] for reason in result.skipped) == ["empty", "not text"]
    assert "red lever" in api.search("how to roll back", limit=1).memories[0].preview
    assert api.ingest(folder, tags="docs").pieces == 3
    assert api.health().count == 3, "the same folder again adds nothing"
    (folder / "deploy.md").write_text("# Deploying\n\nRun the green script on Mondays.")
    api.ingest(folder / "deploy.md")
    texts = [memory.preview for memory in api.search_iter("script")]
    assert any("green script" in text for text in texts)
    assert not any("blue script" in text or "red lever" in text for text in texts)


def test_missing_path_is_error(isolated: App, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no file or folder"):
        api.ingest(tmp_path / "missing")


def test_chunks_have_heading_and_limit() -> None:
    text = (
        "# One\n\n" + "\n\n".join(f"Paragraph {i} of the first part. " * 10 for i in range(12)) + "\n\n# Two\n\nShort."
    )
    pieces = split_document(text)
    assert all(piece.startswith("# One") for piece in pieces[:-1])
    assert pieces[-1] == "# Two\nShort."
    assert all(len(piece) <= MAX_PIECE_CHARS + 250 for piece in pieces)


def test_text_without_breaks_is_split() -> None:
    assert "".join(split_document("x" * 10_000)).count("x") >= 1_600
