"""What the latest programs of this process are, for a person who looks: their text, what they print, their answer.

It is in memory only: the store keeps a program's text no longer than it is needed.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace

from athena.core import tokens
from athena.core.redaction import redact, redact_json
from athena.core.types import to_json
from athena.programs.run_record import parse_result
from athena.programs.sandbox.run import ActiveRun, drop_cut_word
from athena.programs.values import ProgramCaller, Result, WatchedProgram
from athena.storage import runs

MAX_WATCHED_RUNS = 100
MAX_SOURCE_CHARS = 200_000
MAX_LINE_CHARS = 160


@dataclass(slots=True)
class _Entry:
    row: runs.RunRow
    source: str
    active: ActiveRun | None  # until it has ended: it holds the variables, too
    output: str = ""
    calls: dict[str, int] = field(default_factory=dict)
    result: Result | None = None
    has_ended: bool = False  # and is stored, so that it is found there

    def update(self) -> None:
        """Copy what the run has printed and called so far, and let go of it after its end."""
        if (active := self.active) is None:
            return
        is_done = active.is_done
        self.output = active.output.text
        self.calls = {
            path: counts["done"] + counts["failed"] + counts["unknown"]
            for path, counts in active.calls.counts_by_path.items()
        }
        if is_done:
            self.active = None


class RunWatch:
    """The latest runs of this process, by project and id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()

    def add(self, project: str, row: runs.RunRow, source: str, active: ActiveRun) -> None:
        with self._lock:
            for entry in self._entries.values():
                entry.update()
            self._entries[project, row.id] = _Entry(row, source[:MAX_SOURCE_CHARS], active)
            self._entries.move_to_end((project, row.id))
            while len(self._entries) > MAX_WATCHED_RUNS:
                self._entries.popitem(last=False)

    def set_result(self, project: str, result: Result) -> None:
        with self._lock:
            if (entry := self._entries.get((project, result.run_id))) is not None:
                entry.update()
                entry.result, entry.has_ended = result, True

    def end(self, project: str, run_id: str) -> None:
        """Note that a run has ended without a result."""
        with self._lock:
            if (entry := self._entries.get((project, run_id))) is not None:
                entry.update()
                entry.has_ended = True

    def forget(self, project: str, run_id: str) -> None:
        with self._lock:
            self._entries.pop((project, run_id), None)

    def forget_ended(self, project: str) -> None:
        with self._lock:
            for (name, run_id), entry in list(self._entries.items()):
                if name == project and (entry.active is None or entry.active.is_done):
                    del self._entries[name, run_id]

    def list_running(self, project: str) -> list[runs.RunRow]:
        return [entry.row for entry in self._list_entries(project) if not entry.has_ended]

    def _list_entries(self, project: str) -> list[_Entry]:
        with self._lock:
            return [entry for (name, _), entry in self._entries.items() if name == project]

    def list_programs(self, project: str) -> list[WatchedProgram]:
        """Return the first line of each program, and its tokens, the latest first."""
        return [_describe_briefly(entry) for entry in reversed(self._list_entries(project))]

    async def read(self, context: ProgramCaller, run_id: str) -> WatchedProgram | None:
        """Return a program whole, as far as it is; secrets and personal values are not shown."""
        with self._lock:
            entry = self._entries.get((context.scope.project, run_id))
            if entry is not None:
                entry.update()
        if entry is None:
            return None
        output = await context.hide_values(drop_cut_word(entry.output))
        answer = entry.result and parse_result(redact_json(to_json(entry.result))[0])
        return replace(
            _describe_briefly(entry), source=redact(entry.source).text, output=redact(output).text, calls=entry.calls,
            answer=answer,
        )  # fmt: skip


def _describe_briefly(entry: _Entry) -> WatchedProgram:
    lines = (line.strip() for line in entry.source.splitlines())
    first = next((line for line in lines if line and not line.startswith(("#", "import ", "from "))), "")
    read = 0 if entry.result is None else tokens.estimate_json_tokens(to_json(entry.result))
    written = tokens.estimate_json_tokens(entry.source)
    return WatchedProgram(entry.row.id, redact(first).text[:MAX_LINE_CHARS], written, read)
