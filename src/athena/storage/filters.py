"""Which memories count, as a value and as a condition in SQL."""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from athena.core.values import Scope

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which memories count, before any ranking."""

    scope: Scope
    tags: tuple[str, ...] = ()
    match: str = "any"  # or "all"
    memory_type: str | None = None
    since: float | None = None
    until: float | None = None
    session: str | None = None
    excluded_type: str | None = None  # a type that is left out

    @property
    def is_unrestricted(self) -> bool:
        return not self.tags and {self.memory_type, self.since, self.until, self.session, self.excluded_type} == {None}


def tag_key(tag: str) -> str:
    """Return what two tags have in common that differ only in case or form."""
    return unicodedata.normalize("NFC", tag).casefold()


def build_where_clause(only: Filter, numbers: list[int]) -> tuple[str, dict[str, Any]]:
    """Write a filter as a condition on `m`."""
    inside = ", ".join(map(str, numbers)) or "NULL"
    conditions = [f"m.scope IN ({inside})", "m.deleted IS NULL"]
    values: dict[str, Any] = {}
    if only.memory_type is not None:
        conditions.append("m.memory_type = :memory_type")
        values["memory_type"] = only.memory_type
    if only.excluded_type is not None:
        conditions.append("m.memory_type <> :without")
        values["without"] = only.excluded_type
    if only.session is not None:
        conditions.append("m.session = :session")
        values["session"] = only.session
    if only.since is not None:
        conditions.append("m.happened >= :since")
        values["since"] = only.since
    if only.until is not None:
        conditions.append("m.happened < :until")
        values["until"] = only.until
    if only.tags:
        names, bound = bind_list("tag", map(tag_key, only.tags))
        values |= bound
        every = f"GROUP BY t.memory HAVING count(*) >= {len(bound)}" if only.match == "all" else ""
        conditions.append(
            f"m.id IN (SELECT t.memory FROM tags t WHERE t.tag IN ({names}) AND t.scope IN ({inside}) {every})"
        )
    return " AND ".join(conditions), values


def bind_list(name: str, values: Iterable[Any]) -> tuple[str, dict[str, Any]]:
    """Return placeholders for `IN (...)` and their values."""
    bound = {f"{name}{i}": value for i, value in enumerate(values)}
    return ", ".join(f":{key}" for key in bound) or "NULL", bound


def split_batches(values: list[T], size: int = 500) -> Iterable[list[T]]:
    """Cut a list into pieces that one statement can bind."""
    return (values[i : i + size] for i in range(0, len(values), size))
