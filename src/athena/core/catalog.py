"""All operations, by name, in the order they are declared."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from athena.core.operation import Effect, Operation
from athena.errors import NotFound

AnyOperation = Operation[Any, ..., Any]
ALIKE = 2.0  # how well something has to fit a wrong name to be suggested: more than a word in passing


class Catalog:
    """Operations by name. `version` grows with every change, and `watch` is asked for changes before a look."""

    def __init__(self, *modules: ModuleType) -> None:
        self._by_name: dict[str, AnyOperation] = {}
        self._about: dict[str, str] = {}
        self._away: dict[str, tuple[str, str]] = {}  # what cannot be called now: why, and what to do
        self._note = ""
        self._version = 0
        self.watch: Callable[[], None] | None = None
        for module in modules:
            self._about[module.__name__.rpartition(".")[2]] = (module.__doc__ or "").strip()
            for value in vars(module).values():
                if isinstance(value, Operation):
                    self.add(value)

    def add(self, operation: AnyOperation) -> None:
        if operation.name in self._by_name:
            raise ValueError(f"two operations are called {operation.name!r}")
        self._by_name[operation.name] = operation
        self._version += 1

    def put(
        self,
        category: str,
        about: str,
        operations: Iterable[AnyOperation],
        away: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        """Let a category hold these operations and no others; whoever looks meanwhile sees all or none of them.

        `away` tells of those that cannot be called now, or of the whole category, why that is and what to do.
        """
        left = {name: one for name, one in self._by_name.items() if one.category != category}
        added = {one.name: one for one in operations}
        if any(one.category != category for one in added.values()) or added.keys() & left.keys():
            raise ValueError(f"these operations do not belong to {category!r} alone")
        self._about = self._about | {category: about}
        places = {name: place for place, name in enumerate(self._about)}  # one that changes keeps its own
        ordered = sorted((left | added).items(), key=lambda pair: places.get(pair[1].category, -1))
        self._by_name = dict(ordered)
        self._away = self._others_away(category) | dict(away or {})
        self._version += 1

    def remove(self, category: str) -> None:
        """Forget a category with its operations."""
        self._away = self._others_away(category)
        self._about = {name: about for name, about in self._about.items() if name != category}
        self._by_name = {name: one for name, one in self._by_name.items() if one.category != category}
        self._version += 1

    def _others_away(self, category: str) -> dict[str, tuple[str, str]]:
        return {name: why for name, why in self._away.items() if name.partition(".")[0] != category}

    def note(self, text: str) -> None:
        """Have something said to whoever asks for what is not there."""
        if text != self._note:
            self._note = text
            self._version += 1

    @property
    def trouble(self) -> str:
        """What is wrong with all of it, for whoever asks for what is not there."""
        return self._known()._note

    @property
    def away(self) -> dict[str, tuple[str, str]]:
        """What cannot be called now, by name or category: why, and what to do."""
        return dict(self._known()._away)

    def _lacking(self, name: str, message: str, hint: str) -> NotFound:
        if found := self._away.get(name) or self._away.get(name.partition(".")[0]):
            message, hint = found
        return NotFound(message, hint="; ".join(filter(None, [self._note, hint])))

    def copy(self, effects: Iterable[Effect] = frozenset(Effect)) -> "Catalog":
        """Return a catalog of its own with the same operations, or those with these effects."""
        made = Catalog()
        made._about = dict(self._known()._about)
        made._away, made._note = self._away, self._note
        wanted = frozenset(effects)
        made._by_name = {name: one for name, one in self._by_name.items() if one.effect in wanted}
        made._version = self._version
        return made

    def without(self, effect: Effect) -> "Catalog":
        """Return a catalog that lacks the operations of one kind."""
        return self.copy(frozenset(Effect) - {effect})

    def _known(self) -> "Catalog":
        """Have changes brought in before a look."""
        if self.watch is not None:
            self.watch()
        return self

    @property
    def version(self) -> int:
        return self._known()._version

    def __iter__(self) -> Iterator[AnyOperation]:
        return iter(self._known()._by_name.values())

    def __len__(self) -> int:
        return len(self._known()._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._known()._by_name

    @property
    def categories(self) -> dict[str, str]:
        """Each category with what it is for."""
        return dict(self._known()._about)

    def find(self, name: str) -> AnyOperation:
        """Return the operation called `name`, bare or as `category.name`; else say which ones are near."""
        if "." in name:
            self._known()  # our own, which have no dot, never change
        if found := self._by_name.get(name):
            return found
        category, _, bare = name.rpartition(".")
        for operation in self:
            if category == operation.category and bare in (operation.bare, operation.short):
                return operation
        alike = [one.name for score, one in self.scored(name)[:3] if score >= ALIKE]
        near = list(dict.fromkeys([*self._close(bare), *alike]))[:3]
        hint = f"did you mean {' or '.join(near)}?" if near else "search_tools finds one by what it does"
        raise self._lacking(name, f"there is no operation {name!r:.80}", hint)

    def _close(self, name: str) -> list[str]:
        from difflib import get_close_matches  # only on a miss

        bare = {operation.bare: operation.name for operation in reversed(self._by_name.values())}
        return [bare[one] for one in get_close_matches(name[:60], bare, 2, 0.75)]

    def listed(self, category: str | None) -> list[AnyOperation]:
        """Return the operations of one category, or all."""
        if category is not None and (category not in self.categories or category in self._away):
            there = f"there are {', '.join(self._about)}"
            raise self._lacking(category, f"there is no category {category!r:.80}", there)
        return [o for o in self if category in (None, o.category)]

    def search(self, query: str, limit: int = 10) -> list[AnyOperation]:
        """Rank operations by the words they share with the query: name first, then summary, then the rest."""
        return [operation for _, operation in self.scored(query)[:limit]]

    def scored(self, query: str) -> list[tuple[float, AnyOperation]]:
        """Return the operations that share words with the query, the best first, with how well they fit."""
        wanted = words(query)
        scored = [(_score(wanted, operation), operation) for operation in self]
        return sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: -pair[0])


def words(text: str) -> set[str]:
    """Cut a text into bare word stems, so that 'memories' meets 'memory' and 'deleting' meets 'delete'."""
    found = re.findall(r"[a-z0-9]+", text.lower())
    return {re.sub(r"(ies|ing|ed|es|s|y|e)$", "", word) if len(word) > 3 else word for word in found}


def fit(wanted: set[str], names: str, summary: str, rest: str) -> float:
    """Tell how well something fits the words that are wanted."""
    weights = ((words(names.replace("_", " ")), 4.0), (words(summary), 2.0), (words(rest), 0.5))
    return sum(
        weight * len(wanted & having) / math.sqrt(math.sqrt(len(having))) for having, weight in weights if having
    )


def _score(wanted: set[str], operation: AnyOperation) -> float:
    names = " ".join((operation.name, operation.short, operation.category))
    rest = f"{operation.documentation.details} {' '.join(p.name + ' ' + p.help for p in operation.parameters)}"
    return fit(wanted, names, operation.summary, rest)
