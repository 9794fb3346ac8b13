"""What writers do: calls of every kind, each reported before and after it."""

import hashlib
import json
import os
import random
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from athena.errors import AthenaError
from campaign.model import Change, Model, State, format_state

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Call = Callable[..., Any]  # takes an operation's name and arguments
WORDS = [
    "harbour",
    "violin",
    "glacier",
    "meadow",
    "engine",
    "lantern",
    "orchard",
    "compass",
    "kettle",
    "marble",
    "deploy",
    "Ann",
    "@bob",
    "#parser",
]
TYPES = ("note", "note", "decision", "preference")


class HashEmbedder:
    """An embedding model that costs nothing: a text's vector comes from its hash."""

    name = "campaign/hash/1"
    compatible_models = ()
    dimensions = 16

    def load(self) -> None:
        pass

    def embed(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        import numpy as np

        digests = b"".join(hashlib.sha256(text.encode()).digest()[: self.dimensions] for text in texts)
        matrix = np.frombuffer(digests, np.int8).reshape(len(texts), self.dimensions).astype(np.float32) + 0.5
        unit: NDArray[np.float32] = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        return unit


class JumpingClock:
    """A clock that jumps by hours, months and decades, forward and back."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._now = rng, 1_794_700_800.0

    def __call__(self) -> float:
        if self._rng.random() < 0.02:
            self._now = max(0.0, self._now + self._rng.choice((3_600.0, 2e6, 3e8)) * self._rng.choice((-1, 1)))
        self._now += 0.01
        return self._now


class Journal(Protocol):
    """Takes reports of calls."""

    def begin(self, after: dict[str, State]) -> Any: ...

    def acknowledge(self, change: Any, operation: str) -> None: ...

    def report_raw(self, error: str) -> None: ...


class FileJournal:
    """Reports calls in a file: what is written to it outlives a killed process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._calls = 0

    def begin(self, after: dict[str, State]) -> int:
        self._calls += 1
        self._write({"call": self._calls, "begin": after})
        return self._calls

    def acknowledge(self, change: int, operation: str) -> None:
        self._write({"call": change, "operation": operation})

    def report_raw(self, error: str) -> None:
        self._write({"raw": error})

    def _write(self, entry: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(entry).encode() + b"\n")


class ModelJournal:
    """Reports calls to a model in this process. A relaxed call is acknowledged by the next one that is not."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._relaxed: list[tuple[Change, str]] = []
        self.is_relaxed = False

    def begin(self, after: dict[str, State]) -> Change:
        return self._model.begin(after)

    def acknowledge(self, change: Change, operation: str) -> None:
        self._relaxed.append((change, operation))
        if not self.is_relaxed:
            for one in self._relaxed:
                self._model.acknowledge(*one)
            self._relaxed.clear()

    def report_raw(self, error: str) -> None:
        self._model.raw.append(error)


class Writer:
    """Writes, changes and forgets memories, tasks, entities and files under keys of its own."""

    def __init__(self, name: str, rng: random.Random, call: Call, journal: Journal, batch: int = 40) -> None:
        self._name, self._rng, self.call, self._journal, self._batch = name, rng, call, journal, batch
        self._count = 0
        self._known: dict[str, tuple[int, str, list[str], str, int]] = {}  # id, content, tags, type, occurrences
        self._forgotten: dict[str, tuple[int, str, list[str], str, int]] = {}
        self._tasks: dict[str, tuple[int, str]] = {}
        self.steps: dict[str, tuple[int, Callable[[], None]]] = {
            "remember_batch": (30, self.remember_batch),
            "remember": (10, self.remember),
            "remember again": (4, self.remember_again),
            "update_memory": (10, self.update_memory),
            "forget_batch": (8, self.forget_batch),
            "restore_memory": (4, self.restore_memory),
            "create_task": (4, self.create_task),
            "complete_task": (3, self.complete_task),
            "create_entities": (4, self.create_entities),
            "write_file": (4, self.write_file),
            "reads": (8, self.read),
        }

    def take_step(self) -> bool:
        """Make a call; False where it failed with an error of Athena's."""
        names = list(self.steps)
        name = self._rng.choices(names, [self.steps[one][0] for one in names])[0]
        try:
            self.steps[name][1]()
        except AthenaError:
            return False
        except Exception:  # noqa: BLE001  # what the campaign looks for
            self._journal.report_raw(f"{name}: {traceback.format_exc()}")
            return False
        return True

    def _report(self, operation: str, after: dict[str, State], **arguments: Any) -> Any:
        change = self._journal.begin(after)
        result = self.call(operation, **arguments)
        self._journal.acknowledge(change, operation)
        return result

    def _create_key(self) -> str:
        self._count += 1
        return f"key{self._name}{self._count}"

    def _create_text(self, key: str) -> str:
        words = " ".join(self._rng.choices(WORDS, k=self._rng.choice((4, 8, 8, 30))))
        return f"{key} {words} {self._rng.randrange(1000)}"

    def _create_item(self) -> dict[str, Any]:
        tags = self._rng.sample(("deploy", "lamps", "Harbour", "a b"), self._rng.choice((0, 1, 2)))
        key = self._create_key()
        return {"content": self._create_text(key), "tags": tags, "memory_type": self._rng.choice(TYPES)}

    def remember_batch(self) -> None:
        items = [self._create_item() for _ in range(self._rng.randrange(2, self._batch))]
        keys = [item["content"].split()[0] for item in items]
        after = {key: format_state(**item) for key, item in zip(keys, items, strict=True)}
        results = self._report("remember_batch", dict(after), items=items)
        for key, item, result in zip(keys, items, results, strict=True):
            self._known[key] = result["id"], item["content"], item["tags"], item["memory_type"], 1

    def remember(self) -> None:
        item = self._create_item()
        key = item["content"].split()[0]
        result = self._report("remember", {key: format_state(**item)}, **item)
        self._known[key] = result["id"], item["content"], item["tags"], item["memory_type"], 1

    def remember_again(self) -> None:
        """Store a text that is known, or that was forgotten: it counts once more."""
        source = self._rng.choice((self._known, self._forgotten))
        if not source:
            return self.remember()
        key = self._rng.choice(list(source))
        memory_id, content, tags, memory_type, times = source.pop(key)
        state = format_state(content, tags, memory_type, times + 1)
        self._report("remember", {key: state}, content=content, tags=tags, memory_type=memory_type)
        self._known[key] = memory_id, content, tags, memory_type, times + 1
        return None

    def update_memory(self) -> None:
        if not self._known:
            return self.remember()
        key = self._rng.choice(list(self._known))
        memory_id, content, tags, memory_type, times = self._known.pop(key)
        changes: dict[str, Any] = {"content": content, "tags": tags, "memory_type": memory_type}
        name = self._rng.choice(list(changes))
        changes[name] = {"content": self._create_text(key), "tags": ["new tag", key], "memory_type": "fact"}[name]
        state = format_state(**changes, occurrences=times)
        self._report("update_memory", {key: state}, memory_id=memory_id, **{name: changes[name]})
        self._known[key] = memory_id, changes["content"], changes["tags"], changes["memory_type"], times
        return None

    def forget_batch(self) -> None:
        keys = self._rng.sample(list(self._known), min(len(self._known), self._rng.randrange(1, 8)))
        if not keys:
            return self.remember()
        gone = {key: self._known.pop(key) for key in keys}
        self._report("forget_batch", dict.fromkeys(keys), memory_ids=[known[0] for known in gone.values()])
        self._forgotten |= gone
        return None

    def restore_memory(self) -> None:
        if not self._forgotten:
            return self.remember()
        key = self._rng.choice(list(self._forgotten))
        memory_id, content, tags, memory_type, times = known = self._forgotten.pop(key)
        state = format_state(content, tags, memory_type, times)
        self._report("restore_memory", {key: state}, memory_id=memory_id)
        self._known[key] = known
        return None

    def create_task(self) -> None:
        key = self._create_key()
        title = self._create_text(key)
        result = self._report("create_task", {key: format_state(title, memory_type="open")}, title=title)
        self._tasks[key] = result["id"], title

    def complete_task(self) -> None:
        if not self._tasks:
            return self.create_task()
        key = self._rng.choice(list(self._tasks))
        task_id, title = self._tasks.pop(key)
        self._report("complete_task", {key: format_state(title, memory_type="done")}, task_id=task_id)
        return None

    def create_entities(self) -> None:
        key = self._create_key()
        text = self._create_text(key)
        entity = {"name": f"person {self._count} of {self._name}", "entityType": "person", "observations": [text]}
        self._report("create_entities", {key: format_state(text, memory_type="observation")}, entities=[entity])

    def write_file(self) -> None:
        key = self._create_key()
        text = self._create_text(key)
        self._report("write_file", {key: text}, path=f"{key}.txt", content=text, workspace="shared")

    def read(self) -> None:
        word = self._rng.choice(WORDS)
        name, arguments = self._rng.choice(
            (
                ("recall", {"query": f"the {word} number {self._rng.randrange(100)}"}),
                ("list_memories", {"k": 20}),
                ("search_by_tag", {"tags": "deploy"}),
                ("stats", {}),
                ("list_tasks", {}),
                ("search_nodes", {"query": word}),
                ("health", {}),
            )
        )
        self.call(name, **arguments)
