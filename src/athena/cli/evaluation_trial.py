"""Putting a collection into a store of its own and asking its questions, through the operations that users have."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from athena.app.compose import App, open_postgres
from athena.cli.evaluation_collection import Collection
from athena.cli.evaluation_measures import Answered
from athena.core.scope import Scope
from athena.core.threads import run_sync
from athena.embedding.embedder import Embedder
from athena.memory import rows
from athena.memory.ranking import Weights
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.store import Sqlite

MAX_RESULTS = 20
REMEMBER_BATCH_SIZE = 500

# What the ranking is without each of its terms, and what it is with few of them.
VARIANTS = {
    "all terms": Weights(),
    "without tokens": Weights(tokens=0),
    "without meaning": Weights(meaning=0),
    "without words": Weights(words=0),
    "without length": Weights(length=0),
    "without role": Weights(role=0),
    "without personal": Weights(personal=0),
    "without session": Weights(session=0),
    "without feedback": Weights(feedback=0),
    "without recency and strength": Weights(recency=0, strength=0),
    "words alone": Weights(1, *[0] * 9),
    "meaning alone": Weights(0, 0.2, *[0] * 8),
}

ProgressPrinter = Callable[[str], None]


class Trial:
    """A collection in a store."""

    def __init__(self, app: App, project: str, collection: Collection, numbers: dict[int, list[str]]) -> None:
        self._app, self._project, self._collection, self._item_ids = app, project, collection, numbers

    def ask_questions(self, weights: Weights) -> list[Answered]:
        """Ask every question once, of memories that nobody has recalled yet."""
        self._app.store = self._app.store._replace(weights=weights)
        for _ in range(2):  # once more, for what was noted behind the first
            run_sync(self._app.store.database.write(lambda tx: rows.reset_strength(tx, Scope.from_name(self._project))))
        return [
            self._ask_question(question.text, question.gold, question.category)
            for question in self._collection.questions
        ]

    def _ask_question(self, text: str, gold: frozenset[str], category: str) -> Answered:
        began = time.perf_counter()
        hits = _call_operation(self._app, self._project, "recall", query=text, k=MAX_RESULTS)
        took = time.perf_counter() - began
        ranks = tuple(rank for rank, hit in enumerate(hits) for item in self._item_ids.get(hit.id, ()) if item in gold)
        return Answered(category, ranks, len(gold), took)


@contextmanager
def open_trial(
    collection: Collection, embedder: Embedder, say: ProgressPrinter, url: str | None = None
) -> Iterator[Trial]:
    """Remember a collection's items in memory or in an own project of a database, and wait until all is indexed."""
    app = App(Sqlite(IN_MEMORY_PATH) if url is None else open_postgres(url), embedder)
    project = f"evaluation {secrets.token_hex(4)}"
    try:
        numbers: dict[int, list[str]] = {}
        for at in range(0, len(collection.items), REMEMBER_BATCH_SIZE):
            items = collection.items[at : at + REMEMBER_BATCH_SIZE]
            for item, stored in zip(
                items, _call_operation(app, project, "remember_batch", items=[i.to_draft() for i in items]), strict=True
            ):
                numbers.setdefault(stored.id, []).append(item.id)
            say(
                f"{collection.name}: {min(at + REMEMBER_BATCH_SIZE, len(collection.items))} of {len(collection.items)} items"
            )
        while (left := _call_operation(app, project, "reembed", limit=256)).remaining:
            say(f"{collection.name}: {left.remaining} passages to be read with their neighbours")
        yield Trial(app, project, collection, numbers)
    finally:
        app.close()


def _call_operation(app: App, project: str, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(project, "evaluation"), **arguments))
