"""What must be in a store: the state that each key may have after what was acknowledged.

A writer reports each call before and after it. An acknowledged call has happened once; a call without an answer has
happened once or not at all, and as a whole.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.storage.database import Row, Transaction

KEY_PATTERN = re.compile(r"\bkey[a-z]+\d+\b")
LIVE_ROWS_SQL = """SELECT content, tags, memory_type, occurrences FROM memories WHERE deleted IS NULL"""
FILES_SQL = "SELECT path, content FROM files"

State = str | None  # None: it is not there


def format_state(content: str, tags: Iterable[str] = (), memory_type: str = "note", occurrences: int = 1) -> str:
    return f"{occurrences} {memory_type} {sorted(tags)} {content}"


def read_states(app: App) -> dict[str, list[str]]:
    """Return what a store has of each key; more than one state where it is there twice."""

    async def fetch_rows(tx: Transaction) -> tuple[list[Row], list[Row]]:
        return await tx.fetch(LIVE_ROWS_SQL), await tx.fetch(FILES_SQL)

    memories, files = run_sync(app.store.database.read(fetch_rows))
    states: dict[str, list[str]] = {}
    for content, tags, memory_type, occurrences in memories:
        if match := KEY_PATTERN.search(content):
            state = format_state(content, json.loads(tags), memory_type, occurrences)
            states.setdefault(match.group(), []).append(state)
    for path, content in files:
        states.setdefault(Path(path).stem, []).append(content)
    return states


class Change(NamedTuple):
    """A call that has begun: each key with its state before and after it."""

    before: dict[str, State]
    after: dict[str, State]


class Findings(NamedTuple):
    """What a comparison found wrong, each with the keys."""

    lost: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    torn: tuple[str, ...] = ()  # calls that happened in part
    alarms: tuple[str, ...] = ()  # problems that `verify` reports of a sound store
    silent: tuple[str, ...] = ()  # damage that changes content and that nothing finds
    grown: tuple[str, ...] = ()  # what did not stay flat
    raw: tuple[str, ...] = ()  # exceptions that are not Athena's

    def __bool__(self) -> bool:
        return any(self)


class Model:
    """The states that keys may have."""

    def __init__(self) -> None:
        self.states: dict[str, State] = {}
        self.open: list[Change] = []  # calls without an answer, and calls whose commit may not be durable yet
        self.acknowledged = 0
        self.kinds: Counter[str] = Counter()
        self.raw: list[str] = []

    def copy(self) -> "Model":
        other = Model()
        other.states, other.open = dict(self.states), list(self.open)
        return other

    def begin(self, after: Mapping[str, State]) -> Change:
        change = Change({key: self.states.get(key) for key in after}, dict(after))
        self.open.append(change)
        return change

    def acknowledge(self, change: Change, operation: str) -> None:
        self.open.remove(change)
        self.states.update(change.after)
        self.acknowledged += len(change.after)
        self.kinds[operation] += len(change.after)

    def read_journal(self, path: Path) -> None:
        """Apply what a writer has reported; its last line may be cut off."""
        running: dict[int, Change] = {}
        for line in path.read_bytes().split(b"\n")[:-1]:
            entry: dict[str, Any] = json.loads(line)
            if "begin" in entry:
                running[entry["call"]] = self.begin(entry["begin"])
            elif "raw" in entry:
                self.raw.append(entry["raw"])
            else:
                self.acknowledge(running.pop(entry["call"]), entry["operation"])

    def compare(self, app: App) -> Findings:
        """Compare with a store, whose own check must find nothing either; afterwards nothing is open any more."""
        found = read_states(app)
        doubled = [key for key, states in found.items() if len(states) > 1]
        single = {key: states[0] for key, states in found.items()}
        lost = []
        known = {key: {state} for key, state in self.states.items()}
        for change in self.open:
            for key, state in change.after.items():
                known.setdefault(key, {change.before[key]}).add(state)
        for key, states in known.items():
            if single.get(key) not in states:
                lost.append(f"{key}: {single.get(key)!r}, not {states!r}")
        torn = [", ".join(change.after) for change in self.open if self._is_torn(change, single)]
        lost += [f"{key}: nobody wrote it" for key in single.keys() - known.keys()]
        self.states.update({key: single.get(key) for key in known})
        self.open.clear()
        verdict = run_sync(app.catalog.get_operation("verify")(app.create_context("p", "python")))
        raw, self.raw = tuple(self.raw), []
        return Findings(tuple(lost), tuple(doubled), tuple(torn), tuple(verdict.problems), raw=raw)

    def _is_torn(self, change: Change, found: Mapping[str, State]) -> bool:
        """Return whether a call has certainly happened for one key and certainly not for another."""
        others = self.open.copy()
        others.remove(change)
        happened = False
        for key in change.after:
            without = {self.states.get(key), *(other.after[key] for other in others if key in other.after)}
            happened |= found.get(key) not in without
        return happened and any(
            found.get(key) != state and not any(key in other.after for other in others)
            for key, state in change.after.items()
        )
