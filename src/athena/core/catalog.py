"""The catalog: all operations by name, in the order they are declared.

A catalog imports the modules of its categories one after the other, when a name is not among those it knows yet: a
process that only searches imports one of them, which takes a third of the time.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

from athena.core.operation import ONLY_PERSONS, Caller, Effect, Operation
from athena.core.words import find_similar_names
from athena.errors import InvalidInput, NotFound

AnyOperation = Operation[Any, ..., Any]
MAX_SUGGESTIONS = 3
MIN_OPERATION_SIMILARITY = 0.7  # difflib's ratio
# Categories under the names of the layers of memory, which clients of the first Athena know.
LAYER_NAMES = {
    "episodic": "events",
    "semantic": "memory",
    "procedural": "skills",
    "prospective": "tasks",
    "knowledge_graph": "graph",
    "working": "workspace",
    "meta_memory": "meta",
}


class Catalog:
    """Operations by name. `version` grows with every change; `refresh` brings in the changes of connected servers."""

    def __init__(self, package: str = "", categories: Iterable[str] = ()) -> None:
        """Create a catalog of the operations in these modules of a package; each is a category."""
        self._package = package
        self._unread = tuple(categories)  # modules that were not imported yet
        self._reading_lock = threading.RLock()
        self._by_name: dict[str, AnyOperation] = {}
        self._descriptions: dict[str, str] = dict.fromkeys(self._unread, "")
        self._unavailable: dict[str, tuple[str, str]] = {}
        self._problem = ""
        self._version = 0
        self.refresh_hook: Callable[[], None] | None = None

    def _read_next(self) -> bool:
        """Import the next module and add its operations; return False if there is none."""
        with self._reading_lock:
            if not self._unread:
                return False
            category, *rest = self._unread
            module = import_module(f"{self._package}.{category}")
            added = {value.name: value for value in vars(module).values() if isinstance(value, Operation)}
            if taken := added.keys() & self._by_name.keys():
                raise ValueError(f"two operations are called {min(taken)!r}")
            # new dictionaries: other threads may look through the old ones
            self._descriptions = self._descriptions | {category: (module.__doc__ or "").strip()}
            self._by_name = self._by_name | added
            self._unread = tuple(rest)
            return True

    def _read_all(self) -> dict[str, AnyOperation]:
        while self._unread:
            self._read_next()
        return self._by_name

    def refresh(self) -> None:
        """Bring in what has changed on disk since the last call: the operations of connected servers.

        Surfaces call it before they look for a server's operation or list the catalog. Our own operations never change.
        """
        if self.refresh_hook is not None:
            self.refresh_hook()

    def add(self, operation: AnyOperation) -> None:
        if operation.name in self:
            raise ValueError(f"two operations are called {operation.name!r}")
        self._by_name = self._by_name | {operation.name: operation}
        self._version += 1

    def replace_category(
        self,
        category: str,
        description: str,
        operations: Iterable[AnyOperation],
        unavailable: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        """Let a category hold these operations and no others; a concurrent reader sees all of them or none.

        `unavailable` maps the names of operations that cannot be called now, or the category, to (reason, hint).
        """
        others = {name: operation for name, operation in self._read_all().items() if operation.category != category}
        added = {operation.name: operation for operation in operations}
        if any(operation.category != category for operation in added.values()) or added.keys() & others.keys():
            raise ValueError(f"these operations do not belong to {category!r} alone")
        self._descriptions = self._descriptions | {category: description}
        positions = {name: index for index, name in enumerate(self._descriptions)}  # a changed category keeps its own
        ordered = sorted((others | added).items(), key=lambda pair: positions.get(pair[1].category, -1))
        self._by_name = dict(ordered)
        self._unavailable = self._unavailable_outside(category) | dict(unavailable or {})
        self._version += 1

    def remove_category(self, category: str) -> None:
        """Remove a category with its operations."""
        self._by_name = {name: op for name, op in self._read_all().items() if op.category != category}
        self._unavailable = self._unavailable_outside(category)
        self._descriptions = {name: about for name, about in self._descriptions.items() if name != category}
        self._version += 1

    def _unavailable_outside(self, category: str) -> dict[str, tuple[str, str]]:
        return {name: why for name, why in self._unavailable.items() if name.partition(".")[0] != category}

    def set_problem(self, text: str) -> None:
        """Set the problem of the servers' configuration; every "not found" error mentions it."""
        if text != self._problem:
            self._problem = text
            self._version += 1

    @property
    def problem(self) -> str:
        return self._problem

    @property
    def unavailable(self) -> dict[str, tuple[str, str]]:
        """Operations and categories that cannot be called now: name to (reason, hint)."""
        return dict(self._unavailable)

    @property
    def version(self) -> int:
        return self._version

    @property
    def categories(self) -> dict[str, str]:
        """Each category with its description."""
        self._read_all()
        return dict(self._descriptions)

    @property
    def category_names(self) -> frozenset[str]:
        return frozenset(self._descriptions)

    def __iter__(self) -> Iterator[AnyOperation]:
        return iter(self._read_all().values())

    def __len__(self) -> int:
        return len(self._read_all())

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def _find(self, name: str) -> AnyOperation | None:
        while (operation := self._by_name.get(name)) is None and self._read_next():
            pass
        return operation or self._by_name.get(name)  # another thread may have read the last module meanwhile

    def copy(self, effects: Iterable[Effect] = frozenset(Effect)) -> "Catalog":
        """Return a separate catalog with the same operations, or those with these effects."""
        copy = Catalog(self._package)
        copy._version = self._version  # first: a change meanwhile makes the copy look old, not the change look known
        wanted = frozenset(effects)
        with self._reading_lock:
            if wanted != frozenset(Effect):
                self._read_all()
            copy._unread = self._unread
            copy._descriptions = dict(self._descriptions)
            copy._unavailable, copy._problem = self._unavailable, self._problem
            copy._by_name = {name: operation for name, operation in self._by_name.items() if operation.effect in wanted}
        return copy

    def exclude_personal(self) -> "Catalog":
        """Return a catalog without the operations that are for a person alone."""
        copy = self.copy()
        copy._by_name = {name: op for name, op in copy._read_all().items() if op.callers != ONLY_PERSONS}
        return copy

    def resolve_category(self, name: str) -> str:
        """Return a category by its name or by that of its layer; any other name as it is."""
        return name if name in self._descriptions else LAYER_NAMES.get(name.lower().replace("-", "_"), name)

    def get_operation(self, name: str) -> AnyOperation:
        """Return the operation called `name`, bare or as `category.name`; if there is none, suggest similar names."""
        if operation := self._find(name):
            return operation
        category, _, bare = name.rpartition(".")
        category = self.resolve_category(category)
        for operation in self:
            names = operation.names if category else operation.aliases
            if category in ("", operation.category) and bare in names:
                return operation
        similar = self._suggest_names(category, bare)
        hint = f"did you mean {' or '.join(similar)}?" if similar else "search_tools finds one by what it does"
        raise self._create_not_found(name, f"there is no operation {name!r:.80}", hint)

    def _suggest_names(self, category: str, bare: str) -> list[str]:
        """Return the operations whose names look like this one, those of the same category first."""
        names: dict[str, str] = {}
        for operation in sorted(self, key=lambda operation: operation.category != category):
            for name in operation.names:
                names.setdefault(name, operation.name)
        close = find_similar_names(bare, names, MAX_SUGGESTIONS, MIN_OPERATION_SIMILARITY)
        return list(dict.fromkeys(names[name] for name in close))

    def _create_not_found(self, name: str, message: str, hint: str) -> NotFound:
        if reason := self._unavailable.get(name) or self._unavailable.get(name.partition(".")[0]):
            message, hint = reason
        return NotFound(message, hint="; ".join(filter(None, [self._problem, hint])))

    def list_operations(self, category: str | None) -> list[AnyOperation]:
        """Return the operations of one category, or all."""
        category = None if category is None else self.resolve_category(category)
        if category is not None and (category not in self._descriptions or category in self._unavailable):
            hint = f"there are {', '.join(self._descriptions)}"
            raise self._create_not_found(category, f"there is no category {category!r:.80}", hint)
        return [operation for operation in self if category in (None, operation.category)]


async def invoke(catalog: Catalog, name: str, arguments: Mapping[str, Any], caller: Caller) -> Any:
    """Call an operation by its name."""
    if "." in name:  # may be a server's; our own names have no dot and never change
        catalog.refresh()
    operation = catalog.get_operation(name)
    if not isinstance(arguments, Mapping):
        raise InvalidInput(f"{name}: the arguments must be a JSON object", hint=operation.signature)
    return await operation(caller, **arguments)
