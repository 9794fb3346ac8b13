"""All operations, by name, in the order they are declared."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from athena.core.operation import Caller, Effect, Operation
from athena.errors import InvalidInput, NotFound

AnyOperation = Operation[Any, ..., Any]
MIN_SUGGESTION_SCORE = 2.0  # how well something has to fit a wrong name to be suggested: more than a word in passing


class Catalog:
    """Operations by name. `version` grows with every change, and `watch` is asked for changes before a look."""

    def __init__(self, *modules: ModuleType) -> None:
        self._by_name: dict[str, AnyOperation] = {}
        self._descriptions: dict[str, str] = {}
        self._unavailable: dict[str, tuple[str, str]] = {}  # what cannot be called now: why, and what to do
        self._note = ""
        self._version = 0
        self.refresh_hook: Callable[[], None] | None = None
        for module in modules:
            self._descriptions[module.__name__.rpartition(".")[2]] = (module.__doc__ or "").strip()
            for value in vars(module).values():
                if isinstance(value, Operation):
                    self.add(value)

    def add(self, operation: AnyOperation) -> None:
        if operation.name in self._by_name:
            raise ValueError(f"two operations are called {operation.name!r}")
        self._by_name[operation.name] = operation
        self._version += 1

    def replace_category(
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
        self._descriptions = self._descriptions | {category: about}
        places = {name: place for place, name in enumerate(self._descriptions)}  # one that changes keeps its own
        ordered = sorted((left | added).items(), key=lambda pair: places.get(pair[1].category, -1))
        self._by_name = dict(ordered)
        self._unavailable = self._unavailable_elsewhere(category) | dict(away or {})
        self._version += 1

    def remove_category(self, category: str) -> None:
        """Forget a category with its operations."""
        self._unavailable = self._unavailable_elsewhere(category)
        self._descriptions = {name: about for name, about in self._descriptions.items() if name != category}
        self._by_name = {name: one for name, one in self._by_name.items() if one.category != category}
        self._version += 1

    def _unavailable_elsewhere(self, category: str) -> dict[str, tuple[str, str]]:
        return {name: why for name, why in self._unavailable.items() if name.partition(".")[0] != category}

    def set_note(self, text: str) -> None:
        """Have something said to whoever asks for what is not there."""
        if text != self._note:
            self._note = text
            self._version += 1

    @property
    def problem(self) -> str:
        """What is wrong with all of it, for whoever asks for what is not there."""
        return self._refresh()._note

    @property
    def unavailable(self) -> dict[str, tuple[str, str]]:
        """What cannot be called now, by name or category: why, and what to do."""
        return dict(self._refresh()._unavailable)

    def _create_not_found(self, name: str, message: str, hint: str) -> NotFound:
        if found := self._unavailable.get(name) or self._unavailable.get(name.partition(".")[0]):
            message, hint = found
        return NotFound(message, hint="; ".join(filter(None, [self._note, hint])))

    def copy(self, effects: Iterable[Effect] = frozenset(Effect)) -> "Catalog":
        """Return a catalog of its own with the same operations, or those with these effects."""
        made = Catalog()
        made._descriptions = dict(self._refresh()._descriptions)
        made._unavailable, made._note = self._unavailable, self._note
        wanted = frozenset(effects)
        made._by_name = {name: one for name, one in self._by_name.items() if one.effect in wanted}
        made._version = self._version
        return made

    def exclude_effect(self, effect: Effect) -> "Catalog":
        """Return a catalog that lacks the operations of one kind."""
        return self.copy(frozenset(Effect) - {effect})

    def _refresh(self) -> "Catalog":
        """Have changes brought in before a look."""
        if self.refresh_hook is not None:
            self.refresh_hook()
        return self

    @property
    def version(self) -> int:
        return self._refresh()._version

    def __iter__(self) -> Iterator[AnyOperation]:
        return iter(self._refresh()._by_name.values())

    def __len__(self) -> int:
        return len(self._refresh()._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._refresh()._by_name

    @property
    def categories(self) -> dict[str, str]:
        """Each category with what it is for."""
        return dict(self._refresh()._descriptions)

    def get_operation(self, name: str) -> AnyOperation:
        """Return the operation called `name`, bare or as `category.name`; else say which ones are near."""
        if "." in name:
            self._refresh()  # our own, which have no dot, never change
        if found := self._by_name.get(name):
            return found
        category, _, bare = name.rpartition(".")
        for operation in self:
            if category == operation.category and bare in (operation.bare_name, operation.short_name):
                return operation
        alike = [one.name for score, one in self.rank_operations(name)[:3] if score >= MIN_SUGGESTION_SCORE]
        near = list(dict.fromkeys([*self._suggest_names(bare), *alike]))[:3]
        hint = f"did you mean {' or '.join(near)}?" if near else "search_tools finds one by what it does"
        raise self._create_not_found(name, f"there is no operation {name!r:.80}", hint)

    def _suggest_names(self, name: str) -> list[str]:
        from difflib import get_close_matches  # only on a miss

        bare = {operation.bare_name: operation.name for operation in reversed(self._by_name.values())}
        return [bare[one] for one in get_close_matches(name[:60], bare, 2, 0.75)]

    def list_operations(self, category: str | None) -> list[AnyOperation]:
        """Return the operations of one category, or all."""
        if category is not None and (category not in self.categories or category in self._unavailable):
            there = f"there are {', '.join(self._descriptions)}"
            raise self._create_not_found(category, f"there is no category {category!r:.80}", there)
        return [o for o in self if category in (None, o.category)]

    def search(self, query: str, limit: int = 10) -> list[AnyOperation]:
        """Rank operations by the words they share with the query: name first, then summary, then the rest."""
        return [operation for _, operation in self.rank_operations(query)[:limit]]

    def rank_operations(self, query: str) -> list[tuple[float, AnyOperation]]:
        """Return the operations that share words with the query, the best first, with how well they fit."""
        wanted = stem_words(query)
        scored = [(_score_operation(wanted, operation), operation) for operation in self]
        return sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: -pair[0])


def stem_words(text: str) -> set[str]:
    """Cut a text into bare word stems, so that 'memories' meets 'memory' and 'deleting' meets 'delete'."""
    found = re.findall(r"[a-z0-9]+", text.lower())
    return {re.sub(r"(ies|ing|ed|es|s|y|e)$", "", word) if len(word) > 3 else word for word in found}


def score_match(wanted: set[str], names: str, summary: str, rest: str) -> float:
    """Tell how well something fits the words that are wanted."""
    weights = ((stem_words(names.replace("_", " ")), 4.0), (stem_words(summary), 2.0), (stem_words(rest), 0.5))
    return sum(
        weight * len(wanted & having) / math.sqrt(math.sqrt(len(having))) for having, weight in weights if having
    )


def _score_operation(wanted: set[str], operation: AnyOperation) -> float:
    names = " ".join((operation.name, operation.short_name, operation.category))
    rest = f"{operation.documentation.details} {' '.join(p.name + ' ' + p.help for p in operation.parameters)}"
    return score_match(wanted, names, operation.summary, rest)


async def invoke(catalog: Catalog, name: str, raw: Mapping[str, Any], caller: Caller) -> Any:
    operation = catalog.get_operation(name)
    if not isinstance(raw, Mapping):
        raise InvalidInput(f"{name}: the arguments must be a JSON object", hint=operation.signature)
    return await operation(caller, **raw)
