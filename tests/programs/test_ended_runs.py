"""Operations end with the program that called them, and odd last values do not fail a run that has written."""

import time
from pathlib import Path

import pytest

from athena.core.threads import check_stopped, run_in_thread, run_sync
from athena.errors import LimitExceeded
from http_tools import run_server

pytestmark = pytest.mark.sqlite_only("the server has a file of its own")


def test_stopped_work_ends_at_next_step() -> None:
    steps: list[int] = []

    async def work() -> None:
        for step in range(10):
            await run_in_thread(steps.append, step)

    with pytest.raises(LimitExceeded, match="the run has ended"):
        run_sync(work(), is_stopped=lambda: len(steps) == 3)
    assert steps == [0, 1, 2]
    check_stopped()  # the mark ends with the work


def test_ingestion_ends_with_its_program(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    for number in range(1_500):
        (folder / f"{number}.md").write_text(f"# Note {number}\n" + f"The harbour {number} opens at seven. " * 20)
    with run_server(tmp_path, ATHENA_DOCUMENTS_ROOTS=str(folder)) as server:
        code = f"documents.ingest_document(path={str(folder)!r})"
        run = server.call("execute_code", code=code, timeout_s=1.0)
        assert (run["success"], run["error"]["type"]) == (False, "TimeoutError")
        at_end = server.count()
        time.sleep(2.0)  # it went on for 20 s once
        pieces_of_one = 2
        assert server.count() <= at_end + pieces_of_one, "only the document under way may still be stored"
        documents = server.call("list_documents")
        pieces = {document["source"]: document["pieces"] for document in documents}
        assert len(set(pieces.values())) <= 1, "each document is whole"
        later = server.call("execute_code", code="1 + 1")
        assert later["result"] == 2
