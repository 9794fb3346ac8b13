"""Time spent in named functions of a call; nested time counts once."""

import inspect
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any


class Parts:
    """Seconds spent in each watched function, over all threads."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._guard = threading.Lock()
        self._inside = threading.local()
        self._restore = ExitStack()

    def __enter__(self) -> "Parts":
        return self

    def __exit__(self, *_: object) -> None:
        self._restore.close()

    def watch(self, name: str, owner: Any, attribute: str) -> None:
        """Time a function or method until the block ends; raise if it does not exist."""
        self.replace(owner, attribute, self.timed(name, getattr(owner, attribute)))

    def replace(self, owner: Any, attribute: str, function: Callable[..., Any]) -> None:
        """Replace a function or method until the block ends."""
        if attribute in vars(owner):
            self._restore.callback(setattr, owner, attribute, getattr(owner, attribute))
        else:  # a method: look it up on the class
            self._restore.callback(delattr, owner, attribute)
        setattr(owner, attribute, function)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function wrapped in a timer."""
        if inspect.iscoroutinefunction(function):

            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with self._clock(name):
                    return await function(*args, **kwargs)

            return awaited

        def called(*args: Any, **kwargs: Any) -> Any:
            with self._clock(name):
                return function(*args, **kwargs)

        return called

    @contextmanager
    def _clock(self, name: str) -> Generator[None]:
        outer = getattr(self._inside, "nested", 0.0)
        self._inside.nested = 0.0
        began = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - began
            with self._guard:
                self.spent[name] = self.spent.get(name, 0.0) + elapsed - self._inside.nested
            self._inside.nested = outer + elapsed


def watch_search(parts: Parts, app: Any) -> None:
    """Time the parts of every search."""
    from athena.memory import recall, rows

    database = app.store.database
    parts.watch("model", app.store.encoder.embedder, "encode_question")
    parts.watch("news", database.vectors, "select_candidates")
    parts.watch("words", database.fulltext, "search_text")
    parts.watch("vectors", database.vectors, "search_nearest")
    parts.watch("rows", rows, "fetch_memories")
    parts.watch("tokens", database.vectors, "load_tokens")
    parts.watch("likeness", recall, "score_by_tokens")
