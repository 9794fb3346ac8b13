"""Tasks as rows: their state is the row's type, their due time when the row happens."""

from collections.abc import Iterable
from typing import Any

from athena.memory import rows as memory_rows
from athena.memory.rows import FROM_MEMORIES, MEMORY_COLUMNS
from athena.memory.task_values import UNFINISHED_STATES
from athena.memory.values import Filter, Memory
from athena.storage import scopes
from athena.storage.database import bind_list


async def list_tasks_in_states(tx: Any, only: Filter, states: Iterable[str]) -> list[Memory]:
    """Return the tasks in one of some states, the earliest due first."""
    condition, values = memory_rows.build_where_clause(only, await scopes.fetch_visible_ids(tx, only.scope))
    wanted = tuple(states)
    names, bound = bind_list("state", wanted)
    # Said in the words of the index of what is unfinished, so that the finished ones cost nothing.
    index = f"AND m.memory_type IN {UNFINISHED_STATES!r}" if set(wanted) <= set(UNFINISHED_STATES) else ""
    rows = await tx.fetch(
        f"SELECT {MEMORY_COLUMNS} {FROM_MEMORIES} WHERE {condition} {index} AND m.memory_type IN ({names}) ORDER BY m.happened, m.id",
        **values | bound,
    )
    return [memory_rows.memory_from_row(row) for row in rows]


async def find_unfinished_tasks(tx: Any, scope_numbers: list[int], numbers: Iterable[int]) -> set[int]:
    """Return which of these tasks are still to be done."""
    found = await memory_rows.fetch_memories(tx, scope_numbers, numbers)
    return {number for number, one in found.items() if one.memory_type in UNFINISHED_STATES}
