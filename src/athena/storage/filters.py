"""The filter of a search, as a value and as a condition in SQL; bound lists and batches for SQL."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from athena.core.text import normalize_text
from athena.core.values import Scope

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Filter:
    """The memories that a search may return, before any ranking."""

    scope: Scope
    tags: tuple[str, ...] = ()
    match: str = "any"  # or "all"
    memory_type: str | None = None
    since: float | None = None
    until: float | None = None
    session: str | None = None
    excluded_type: str | None = None
    excluded_marks: tuple[str, ...] = ()  # values of `private` that the run has not read

    @property
    def is_unrestricted(self) -> bool:
        values = {self.memory_type, self.since, self.until, self.session, self.excluded_type}
        return not self.tags and not self.excluded_marks and values == {None}


def tag_key(tag: str) -> str:
    """Return the form under which a tag is stored and compared, without case."""
    return normalize_text("NFC", tag).casefold()


def build_where_clause(memory_filter: Filter, scope_ids: list[int]) -> tuple[str, dict[str, Any]]:
    """Write a filter as a condition on `memories m`, with the values it binds."""
    scope_list = ", ".join(map(str, scope_ids)) or "NULL"
    rest, values = build_condition(memory_filter)
    conditions = [f"m.scope IN ({scope_list})", rest]
    if memory_filter.tags:
        names, bound = bind_list("tag", map(tag_key, memory_filter.tags))
        values |= bound
        all_tags = f"GROUP BY t.memory HAVING count(*) >= {len(bound)}" if memory_filter.match == "all" else ""
        conditions.append(
            f"m.id IN (SELECT t.memory FROM tags t WHERE t.tag IN ({names}) AND t.scope IN ({scope_list}) {all_tags})"
        )
    return " AND ".join(conditions), values


def build_condition(memory_filter: Filter) -> tuple[str, dict[str, Any]]:
    """Write what a filter says about a memory itself, without scopes and tags."""
    conditions = ["m.deleted IS NULL"]
    values: dict[str, Any] = {}
    if memory_filter.memory_type is not None:
        conditions.append("m.memory_type = :memory_type")
        values["memory_type"] = memory_filter.memory_type
    if memory_filter.excluded_type is not None:
        conditions.append("m.memory_type <> :excluded_type")
        values["excluded_type"] = memory_filter.excluded_type
    if memory_filter.session is not None:
        conditions.append("m.session = :session")
        values["session"] = memory_filter.session
    if memory_filter.since is not None:
        conditions.append("m.happened >= :since")
        values["since"] = memory_filter.since
    if memory_filter.until is not None:
        conditions.append("m.happened < :until")
        values["until"] = memory_filter.until
    if memory_filter.excluded_marks:
        names, bound = bind_list("mark", memory_filter.excluded_marks)
        conditions.append(f"m.private NOT IN ({names})")
        values |= bound
    return " AND ".join(conditions), values


def bind_list(name: str, values: Iterable[Any]) -> tuple[str, dict[str, Any]]:
    """Return placeholders for `IN (...)` and their values."""
    items = list(values)
    placeholders, keys = _name_placeholders(name, len(items))
    return placeholders, dict(zip(keys, items, strict=True))


@lru_cache(maxsize=256)
def _name_placeholders(name: str, count: int) -> tuple[str, list[str]]:
    keys = [f"{name}{i}" for i in range(count)]
    return ", ".join(f":{key}" for key in keys) or "NULL", keys


def split_batches(values: list[T], size: int = 500) -> Iterable[list[T]]:
    """Split a list into batches that one statement can bind."""
    return (values[i : i + size] for i in range(0, len(values), size))
