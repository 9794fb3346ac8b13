"""Operations end with the program that called them, and odd last values do not fail a run that has written."""

from pathlib import Path

import pytest

from athena.core.threads import check_stopped, run_in_thread, run_sync
from athena.errors import LimitExceeded
from http_tools import run_server
from wait_tools import wait_until

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
    for number in range(600):
        (folder / f"{number}.md").write_text(f"# Note {number}\n" + f"The harbour {number} opens at seven. " * 60)
    with run_server(tmp_path) as server:
        code = f"documents.ingest_document(path={str(folder)!r})"
        run = server.call("execute_code", code=code, timeout_s=1.0)
        assert (run["success"], run["error"]["type"]) == (False, "TimeoutError")
        counts: list[int] = []

        def is_still() -> bool:
            counts.append(server.count())
            return len(counts) > 20 and len(set(counts[-20:])) == 1

        wait_until(is_still)
        assert counts[-1] < 600, "it did not go on to the last file"
        documents = server.call("list_documents")
        pieces = {document["source"]: document["pieces"] for document in documents}
        assert len(set(pieces.values())) <= 1, "each document is whole"
        later = server.call("execute_code", code="1 + 1")
        assert later["result"] == 2
