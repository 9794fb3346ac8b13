"""`athena ingest`: its summary, and following changes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest
from document_tools import write_files

from wait_tools import LONG, wait_until

pytestmark = pytest.mark.sqlite_only("processes of their own")


def run_ingest(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"ATHENA_HOME": str(home)}
    command = [sys.executable, "-m", "athena", "ingest", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_summary_says_what_was_done_and_left_out(tmp_path: Path) -> None:
    files = {"a.md": "# One\n\nA fact.\n\n# Two\n\nMore.", "b.txt": "Another fact.", "bad.pdf": "no pdf"}
    folder = write_files(tmp_path / "d", {**files, **{f"{i}.png": b"\0" for i in range(25)}})
    done = run_ingest(tmp_path / "home", str(folder))
    assert done.stdout.strip() == f"{folder}: 2 documents, 3 pieces (2 new, 26 left out)"
    lines = done.stderr.splitlines()
    assert f"left out {folder}/bad.pdf: not a PDF" in lines
    assert "left out 5 more: not text (--json names them)" in lines
    (folder / "b.txt").unlink()
    (folder / "a.md").write_text("# One\n\nA new fact.\n\n# Two\n\nMore.")
    report = json.loads(run_ingest(tmp_path / "home", str(folder), "--json").stdout)
    assert (report["changed"], report["withdrawn"], len(report["skipped"])) == (1, 1, 26)


class Watcher:
    """`athena ingest --watch` of a folder, for `with`; at the end it gets Ctrl-C."""

    def __init__(self, folder: Path, home: Path, log: Path, exit_code: int = 0) -> None:
        self.folder, self.log, self.exit_code = folder, log, exit_code
        environ = os.environ | {"ATHENA_HOME": str(home), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "athena", "ingest", str(folder), "--watch"]
        # a shell's job in the background ignores it, and its children
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with open(log, "wb") as stream:
            self.process = subprocess.Popen(command, env=environ, stdout=stream, stderr=stream)

    def __enter__(self) -> Self:
        self.wait_for("watching")
        return self

    def wait_for(self, line: str) -> None:
        wait_until(lambda: line in self.log.read_text())

    def change_until(self, name: str, line: str) -> None:
        """Change a file, again if the watcher had not begun yet, until the summary says so."""

        def was_seen() -> bool:
            (self.folder / name).write_text(f"Fact {os.urandom(4).hex()}.")
            with suppress(AssertionError):
                return bool(wait_until(lambda: line in self.log.read_text(), 10))
            return False

        wait_until(was_seen)

    def __exit__(self, *_: object) -> None:
        if self.exit_code == 0:
            self.process.send_signal(signal.SIGINT)
        try:
            assert self.process.wait(LONG) == self.exit_code
        finally:
            self.process.kill()
            self.process.wait()


def test_watch_follows_changes(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "d", {"a.md": "A fact."})
    with Watcher(folder, tmp_path / "home", tmp_path / "out.txt") as watcher:
        watcher.change_until("a.md", "1 changed")
        watcher.change_until("b.md", "2 documents")
        (folder / "b.md").unlink()
        watcher.wait_for("1 withdrawn")


def test_watch_follows_a_folder_that_was_replaced(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "d", {"a.md": "A fact."})
    with Watcher(folder, tmp_path / "home", tmp_path / "out.txt") as watcher:
        watcher.change_until("a.md", "1 changed")
        shutil.rmtree(folder)
        write_files(folder, {"b.md": "Another fact."})
        watcher.wait_for("1 new, 1 withdrawn")
        watcher.change_until("c.md", "2 documents")


def test_watch_ends_without_its_folder(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "d", {"a.md": "A fact."})
    with Watcher(folder, tmp_path / "home", tmp_path / "out.txt", exit_code=3) as watcher:
        shutil.rmtree(folder)
        watcher.wait_for(f"{folder} is gone")
