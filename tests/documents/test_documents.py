"""Ingesting documents and folders: what is kept, what is brought up to date, what is shown."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from document_tools import build_docx, build_pdf, write_files

from athena import api
from athena.app.compose import App
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.core.tokens import count_tokens
from athena.documents import ingest as ingestion
from athena.documents.split import MAX_PIECE_CHARS, split_blocks
from athena.errors import InvalidInput, NotFound
from athena.memory import values as memory_values
from athena.server.mcp.text import format_result
from conftest import Engine, rounds


def ingest(path: Path, **arguments: Any) -> dict[str, Any]:
    result: dict[str, Any] = api.call("ingest_document", path=str(path), **arguments)
    return result


def list_rows(folder: Path) -> list[tuple[str, str, int, float]]:
    """Return each piece of the documents: its document, text, id and time of change."""
    memories = api.call("list_memories", k=1_000, memory_type="document")
    rows = [(str(m["metadata"]["source"]), m["content"], m["id"], m["updated"]) for m in memories]
    return sorted(row for row in rows if row[0].startswith(str(folder)))


def test_repeated_ingestion_happens_once(isolated: App, tmp_path: Path) -> None:
    """With its idempotency key: what was forgotten since then, or changed in the file, stays as it is."""
    folder = write_files(tmp_path / "notes", {"a.md": "Run the blue script.", "b.md": "Use the red lever."})

    def ingest_once() -> None:
        context = isolated.create_context("test", "http", "the-key")
        run_sync(invoke(isolated.catalog, "ingest_document", {"path": str(folder)}, context))

    ingest_once()
    api.call("delete_document", source=str(folder / "a.md"))
    (folder / "b.md").write_text("Use the green lever, which is longer.")
    ingest_once()
    assert [text for _, text, _, _ in list_rows(folder)] == ["Use the red lever."]
    ingest(folder)
    assert [text for _, text, _, _ in list_rows(folder)] == ["Use the green lever, which is longer."]


def test_folder_is_ingested_and_updated(isolated: App, tmp_path: Path) -> None:
    folder = write_files(
        tmp_path / "notes",
        {
            "deploy.md": "# Deploying\n\nRun the blue script on Fridays.\n\n# Rollback\n\nUse the red lever.",
            "team.txt": "Maria leads the infrastructure group.",
            "image.png": b"\x89PNG\0\0",
            "empty.txt": " \n",
        },
    )
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


@pytest.mark.both_engines
def test_same_file_again_does_nothing(isolated: App, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "d", {"a.md": "# A\n\nFirst.\n\n# B\n\nSecond.", "b.csv": "x,y\n1,2\n"})
    first = ingest(folder)
    assert (first["new"], first["unchanged"], first["pieces"]) == (2, 0, 3)
    before = list_rows(folder)
    again = ingest(folder)
    assert (again["new"], again["changed"], again["unchanged"], again["pieces"]) == (0, 0, 2, 3)
    os.utime(folder / "a.md", (1, 1))
    assert ingest(folder)["unchanged"] == 2, "only its time differs"
    assert list_rows(folder) == before


@pytest.mark.both_engines
def test_changed_file_updates_only_what_changed(isolated: App, tmp_path: Path) -> None:
    sections = [f"# Part {i}\n\nFact number {i} about the lamp factory." for i in range(6)]
    folder = write_files(tmp_path / "d", {"a.md": "\n\n".join(sections)})
    ingest(folder)
    before = {text: (row_id, updated) for _, text, row_id, updated in list_rows(folder)}
    changed = [sections[0], "# New\n\nA section that was put in.", *sections[1:3], *sections[4:]]
    write_files(folder, {"a.md": "\n\n".join(changed)})
    assert ingest(folder)["changed"] == 1
    after = {text: (row_id, updated) for _, text, row_id, updated in list_rows(folder)}
    kept = {*before} & {*after}
    assert len(kept) == 5
    same = [text for text in kept if before[text] == after[text]]
    assert len(same) == len(kept), "what stays keeps its id and its time"
    order = api.call("get_document", source=str(folder / "a.md"))
    assert [text.split("\n")[0] for text in order] == [
        "# Part 0",
        "# New",
        "# Part 1",
        "# Part 2",
        "# Part 4",
        "# Part 5",
    ]
    api.call("undo")
    assert len(api.call("get_document", source=str(folder / "a.md"))) == 6, "undo brings the earlier pieces back"
    assert ingest(folder)["changed"] == 1, "and the file is read again"


def test_long_document_is_written_in_parts(isolated: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingestion, "MAX_TRANSACTION_PIECES", 10)
    sections = [f"# Part {i}\n\nFact {i}." for i in range(45)]
    folder = write_files(tmp_path / "d", {"a.md": "\n\n".join(sections)})
    assert ingest(folder)["pieces"] == 45
    expected = [section.replace("\n\n", "\n") for section in sections]
    assert api.call("get_document", source=str(folder / "a.md")) == expected
    history = api.call("memory_history", memory_id=list_rows(folder)[7][2])
    assert [change["action"] for change in history] == ["remembered"]
    assert ingest(folder)["unchanged"] == 1
    write_files(folder, {"a.md": "\n\n".join([*sections[20:], *sections[:10]])})
    assert ingest(folder)["changed"] == 1
    assert api.call("get_document", source=str(folder / "a.md")) == [*expected[20:], *expected[:10]]
    api.call("undo")
    assert api.call("get_document", source=str(folder / "a.md")) == expected


@pytest.mark.both_engines
@pytest.mark.parametrize("limit", [2_000, 10_000])
def test_document_that_cannot_be_stored_stops_no_other(
    isolated: App, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(memory_values, "MAX_SESSION_BYTES", limit)
    chance = random.Random(3)
    names = ["".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(80)) for _ in range(13)]
    deep = os.path.join(*names, "deep.md")
    folder = write_files(tmp_path / "d", {"aa.md": "The first says hello.", deep: "Deep.", "zz.md": "The last."})
    is_kept = engine.kind == "sqlite" and limit > 2_000
    for new in (2 + is_kept, 0):
        result = ingest(folder)
        assert (result["documents"], result["new"], len(result["skipped"])) == (2 + is_kept, new, not is_kept)
        assert is_kept or ("the path of a document" if limit == 2_000 else "PostgreSQL") in result["skipped"][0]
    with pytest.raises(InvalidInput, match="session_id"):
        api.call("record_event", event_type="x", content="y", metadata={"session_id": "x" * (limit + 1)})


def test_gone_file_is_withdrawn(isolated: App, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "d", {"a.md": "One fact.", "b.md": "Two facts.", "sub/c.md": "Three facts."})
    ingest(folder)
    (folder / "a.md").unlink()
    assert ingest(folder)["withdrawn"] == 1
    (folder / "b.md").unlink()
    assert ingest(folder / "b.md")["withdrawn"] == 1, "a file that is gone may be named"
    assert [document["source"] for document in api.call("list_documents")] == [str(folder / "sub/c.md")]
    with pytest.raises(NotFound, match="no file or folder"):
        ingest(folder / "b.md")
    api.call("undo")
    assert len(api.call("list_documents")) == 2


@pytest.mark.skipif(sys.platform == "darwin", reason="names are UTF-8 there")
def test_file_whose_name_is_no_text_stays(isolated: App, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    with open(name, "w", encoding="utf-8") as file:
        file.write("The door opens at nine.")
    os.utime(name, (1_700_000_000, 1_700_000_000))
    first, again = ingest(tmp_path), ingest(tmp_path)
    assert (first["new"], first["withdrawn"]) == (1, 0)
    assert (again["unchanged"], again["withdrawn"]) == (1, 0)
    os.unlink(name)
    assert ingest(tmp_path)["withdrawn"] == 1


def test_document_is_named_by_path_or_id(isolated: App, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "d", {"a.md": "One fact."})
    (document_id,) = ingest(folder)["ids"]
    assert api.call("get_document", source=document_id) == ["One fact."]
    assert api.call("get_document", source="a.md") == ["One fact."], "no other path ends so"
    assert api.call("delete_document", source=document_id) == 1
    assert api.call("list_documents") == []


SECTIONS = [f"# Part {name}\n\nThe {name} part is about the lamp number {number}." for number, name in enumerate("abc")]


@pytest.mark.both_engines
@pytest.mark.parametrize("index", [0, 1])
def test_forgotten_piece_stays_forgotten_when_its_file_changes(isolated: App, tmp_path: Path, index: int) -> None:
    folder = write_files(tmp_path / "d", {"a.md": "\n\n".join(SECTIONS)})
    ingest(folder)
    text = f"The {'abc'[index]} part"
    [piece] = [row for row in list_rows(folder) if text in row[1]]
    api.call("forget", memory_id=piece[2])
    write_files(folder, {"a.md": "\n\n".join([*SECTIONS, "# Part d\n\nAnother line."])})
    for _ in range(2):
        report = ingest(folder)
        assert [text in row[1] for row in list_rows(folder)] == [False] * 3
        assert (report["documents"], report["pieces"]) == (1, 3)
    assert ingest(folder)["unchanged"] == 1
    write_files(folder, {"a.md": "\n\n".join(SECTIONS)})
    report = ingest(folder)
    assert report["skipped"] == [f"{folder}/a.md: a piece was forgotten here; restore_memory brings back what was"]
    assert len(list_rows(folder)) == 2
    assert api.call("restore_memory", memory_id=piece[2])
    write_files(folder, {"a.md": "\n\n".join([*SECTIONS, "# Part e\n\nOne more."])})
    assert (ingest(folder)["skipped"], len(list_rows(folder))) == ([], 4)


@pytest.mark.both_engines
def test_what_a_file_has_again_comes_back(isolated: App, tmp_path: Path) -> None:
    """An ingestion forgets what a file has no more; that is no wish of anybody."""
    folder = write_files(tmp_path / "d", {"a.md": "\n\n".join(SECTIONS)})
    ingest(folder)
    api.call("forget", memory_id=list_rows(folder)[1][2])
    api.call("undo")
    write_files(folder, {"a.md": SECTIONS[0]})
    ingest(folder)
    write_files(folder, {"a.md": "\n\n".join(SECTIONS)})
    assert (ingest(folder)["skipped"], len(list_rows(folder))) == ([], 3)


@pytest.mark.both_engines
def test_deleted_document_comes_back_by_its_own_name_alone(isolated: App, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "d", {"a.md": "\n\n".join(SECTIONS), "b.md": "Another one."})
    ingest(folder)
    api.call("delete_document", source=str(folder / "a.md"))
    report = ingest(folder)
    assert (report["documents"], len(report["skipped"])) == (1, 1)
    assert "3 pieces were forgotten here" in report["skipped"][0]
    assert (ingest(folder / "a.md")["documents"], len(list_rows(folder))) == (1, 4)


def test_forgotten_piece_of_a_long_document_stays_forgotten(isolated: App, tmp_path: Path) -> None:
    """Its pieces are written in several transactions."""
    sections = [f"# Part {n}\n\nFact number {n} about the lamp factory." for n in range(300)]
    folder = write_files(tmp_path / "d", {"a.md": "\n\n".join(sections)})
    ingest(folder)
    [piece] = [row for row in list_rows(folder) if "number 7 about" in row[1]]
    api.call("forget", memory_id=piece[2])
    write_files(folder, {"a.md": "\n\n".join([*sections, "# Last\n\nThe end."])})
    assert (len(ingest(folder)["skipped"]), len(list_rows(folder))) == (1, 300)


def test_path_is_that_of_the_caller(isolated: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("left", "right"):
        ingest(write_files(tmp_path / name, {"a.md": f"The {name} one."}))
    monkeypatch.chdir(tmp_path / "right")
    assert api.call("get_document", source="a.md") == ["The right one."]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound):  # two end so
        api.call("delete_document", source="a.md")


def test_missing_path_is_error(isolated: App, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no file or folder"):
        api.ingest(tmp_path / "missing")


def test_gitignore_rules_hold(isolated: App, tmp_path: Path) -> None:
    folder = write_files(
        tmp_path / "repo",
        {
            ".git/HEAD": "ref",
            ".gitignore": "*.log\n/build/\n!keep.log\nsecret-*\n",
            "a.md": "Kept.",
            "x.log": "Ignored.",
            "keep.log": "Kept, too.",
            "build/out.md": "Ignored.",
            "docs/build/out.md": "Kept: the rule is for the root.",
            "docs/.gitignore": "draft.md\n",
            "docs/draft.md": "Ignored.",
            "docs/final.md": "Kept.",
            "docs/secret-plan.md": "Ignored.",
        },
    )
    ingest(folder)
    names = {os.path.relpath(d["source"], folder) for d in api.call("list_documents")} - {
        ".gitignore",
        "docs/.gitignore",
    }
    assert names == {"a.md", "keep.log", "docs/build/out.md", "docs/final.md"}
    assert ingest(folder / "docs")["new"] == 0, "the rules above a folder hold in it"
    assert ingest(folder / "build")["new"] == 1, "a folder that is named is read"
    assert ingest(folder / "x.log")["new"] == 1


def test_recall_shows_page_and_headings(isolated: App, tmp_path: Path) -> None:
    filler = [(10, f"Line {i} about other things of no use.") for i in range(20)]
    pages = [
        [(20, "Preface"), *filler],
        [(20, "Installing"), (14, "macOS"), (10, "Drag the app into the folder."), *filler],
    ]
    folder = write_files(tmp_path / "d", {"guide.pdf": build_pdf(pages)})
    ingest(folder)
    hit = api.call("recall", query="drag the app", k=1)[0]
    assert (hit["metadata"]["page"], hit["metadata"]["heading"]) == (2, "Installing > macOS")
    assert not any(key.startswith("athena:") for key in hit["metadata"])
    assert "(guide.pdf p. 2, Installing > macOS)" in str(api.search("drag the app", limit=1))
    context = isolated.create_context(hit["project"], "mcp")
    hits = run_sync(invoke(isolated.catalog, "recall", {"query": "drag the app", "k": 1}, context))
    shown = format_result(isolated.catalog.get_operation("recall"), {}, hits)
    assert "(guide.pdf p. 2, Installing > macOS)" in shown


def test_headings_find_a_piece(isolated: App, tmp_path: Path) -> None:
    sections = {"Zeppelin": "It is filled every morning.", "Submarine": "It is filled every evening."}
    text = "# Vehicles\n\n" + "\n\n".join(f"## {name}\n\n### Care\n\n{fact}" for name, fact in sections.items())
    ingest(write_files(tmp_path / "d", {"a.md": text}))
    for name, fact in sections.items():
        assert fact in api.search(f"care of the {name.lower()}", limit=1)[0].content


def test_hit_leads_to_its_neighbours(isolated: App, tmp_path: Path) -> None:
    sections = [f"# Step {i}\n\nTurn valve {name}." for i, name in enumerate(["red", "green", "blue", "black"])]
    folder = write_files(tmp_path / "d", {"a.md": "\n\n".join(sections)})
    ingest(folder)
    hit = api.call("recall", query="blue valve", k=1)[0]
    texts = api.call("get_document", source=hit["metadata"]["source"], around=hit["id"])
    assert [text.split()[-1] for text in texts] == ["green.", "blue.", "black."]
    assert len(api.call("get_document", source=str(folder / "a.md"), around=list_rows(folder)[0][2])) == 2
    with pytest.raises(NotFound, match="no piece of"):
        api.call("get_document", source=str(folder / "a.md"), around=10_000)


def test_time_in_question_does_not_hide_documents(isolated: App, tmp_path: Path) -> None:
    text = "# Ferry\n\n## Winter\n\nThe ferry leaves at 7:40.\n\n## Summer\n\nThe ferry leaves at 6:10."
    ingest(write_files(tmp_path / "d", {"a.md": text}))
    hit = api.search("when does the ferry leave in winter", limit=1)[0]
    assert "7:40" in hit.content
    assert not api.search("which tests failed last winter").memories, "but only what answers"
    assert not api.search("when does the ferry leave in winter", memory_type="note").memories


def test_secret_across_paragraphs_is_removed(isolated: App, tmp_path: Path) -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7bq8pLkXv2\n\nq9J3kT5wYzQ1nB7cV0mXsD4fG6hJ8kL"
    key += "\n-----END RSA PRIVATE KEY-----"
    result = ingest(write_files(tmp_path / "d", {"a.md": f"# Keys\n\nBefore.\n\n{key}\n\nAfter."}))
    text = "\n".join(api.call("get_document", source=result["ids"][0]))
    assert result["redacted"] == ["private-key"]
    assert "MIIEp" not in text
    assert "q9J3k" not in text
    assert "Before." in text
    assert "After." in text


def test_secret_in_a_tag_of_a_document_is_removed(isolated: App, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "d", {"a.md": "The shop sells lamps."})
    result = ingest(folder, tags=["shop", "the key is AKIAQ3EGRIYVZ5XK7M2P"])

    async def read_rows(tx: Any) -> str:
        return repr([tuple(row) for row in await tx.fetch("SELECT metadata, tags FROM memories")])

    stored = run_sync(isolated.store.database.read(read_rows))
    assert result["ids"]
    assert "shop" in stored
    assert "AKIAQ3EGRIYVZ5XK7M2P" not in stored


def test_model_gets_counts_and_ids_and_no_text(isolated: App, tmp_path: Path) -> None:
    files = {f"{i}.md": f"The canary number {i} sings." for i in range(50)}
    files |= {f"{i}.bin": "\0" for i in range(50)}
    folder = write_files(tmp_path / "repo", {".git/HEAD": "x", **files})
    context = isolated.create_context(str(folder), "mcp")
    result = run_sync(invoke(isolated.catalog, "ingest_document", {"path": str(folder)}, context))
    assert (result.documents, len(result.ids), len(result.skipped)) == (50, 10, 11)
    assert "sings" not in format_result(isolated.catalog.get_operation("ingest_document"), {}, result)


@pytest.mark.sqlite_only("counts tokens")
def test_ingestion_costs_an_agent_few_tokens(isolated: App, tmp_path: Path) -> None:
    """PDFs of known length: what the agent sends and gets, against the text that it would read and hand over."""
    rng = random.Random(22)
    words = Path(__file__).read_text().split()
    texts = []
    folder = tmp_path / "repo"
    (folder / ".git").mkdir(parents=True)
    for number in range(count := rounds(12, 50)):
        lines = [" ".join(rng.choices(words, k=12))[:90] for _ in range(30)]
        texts.append("\n".join(lines))
        (folder / f"{number}.pdf").write_bytes(build_pdf([[(10, line) for line in lines]]))
    arguments = {"path": str(folder)}
    context = isolated.create_context(str(folder), "mcp")
    result = run_sync(invoke(isolated.catalog, "ingest_document", arguments, context))
    shown = format_result(isolated.catalog.get_operation("ingest_document"), arguments, result)
    assert result.documents == count
    spent = count_tokens(json.dumps({"name": "ingest_document", "arguments": arguments})) + count_tokens(shown)
    assert spent < 300
    assert sum(map(count_tokens, texts)) > 20 * spent


def test_pieces_begin_with_heading_and_have_limit() -> None:
    blocks: list[list[str | int]] = [["heading", 1, "One"]]
    blocks += [["text", f"Paragraph {i} of the first part. " * 10] for i in range(12)]
    pieces = split_blocks([*blocks, ["heading", 1, "Two"], ["text", "Short."]])
    assert all(piece.text.startswith("# One") for piece in pieces[:-1])
    assert (pieces[-1].text, pieces[-1].heading) == ("# Two\nShort.", "Two")
    assert len(pieces) > 2
    assert all(len(piece.text) <= MAX_PIECE_CHARS for piece in pieces)


def test_text_without_breaks_is_split() -> None:
    pieces = split_blocks([["text", "".join(map(str, range(4_000)))]])
    assert "".join(piece.text for piece in pieces) == "".join(map(str, range(4_000)))


KILLED_RUN = """
import sys
from athena import api
print(api.call("ingest_document", path=sys.argv[1]), flush=True)
"""


@pytest.mark.sqlite_only("processes of their own")
def test_killed_ingestion_goes_on(isolated: App, tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"{i:02}.md": f"# Note {i}\n\nFact {i} of the set." for i in range(30)}
    files |= {"a.docx": build_docx([("", "A docx fact.")]), "b.pdf": build_pdf([[(10, "A pdf fact.")]])}
    folder = write_files(tmp_path / "d", files)
    command = [sys.executable, "-c", KILLED_RUN, str(folder)]

    def use_home(name: str) -> dict[str, str]:
        return os.environ | {"ATHENA_HOME": str(tmp_path / name), "ATHENA_DB_PATH": str(tmp_path / name / "athena.db")}

    began = time.monotonic()
    subprocess.run(command, env=use_home("undisturbed"), stdout=subprocess.DEVNULL, check=True, timeout=60)
    whole_s = time.monotonic() - began
    ingest(folder)
    expected = [row[:2] for row in list_rows(folder)]
    rng = random.Random(22)
    for number in range(rounds(2, 50)):
        environ = use_home(f"home{number}")
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.2, whole_s))
        process.kill()
        process.wait()
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
        assert "'documents': 32" in done.stdout
        listed = "import json; from athena import api; print(json.dumps(api.call('list_memories', k=1000)))"
        shown = subprocess.run([sys.executable, "-c", listed], env=environ, capture_output=True, check=True, timeout=60)
        memories = json.loads(shown.stdout)
        assert sorted((str(m["metadata"]["source"]), m["content"]) for m in memories) == expected
