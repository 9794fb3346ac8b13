"""SQL of tasks: memories of the kind task, whose memory_type is their state."""

from collections.abc import Iterable

from athena.memory.rows import FROM_MEMORIES, MEMORY_COLUMNS, fetch_memories, memory_from_row
from athena.memory.values import UNFINISHED_STATES, Memory
from athena.storage import scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter, bind_list, build_where_clause


async def list_tasks_in_states(tx: Transaction, criteria: Filter, states: Iterable[str]) -> list[Memory]:
    """Return the tasks in the given states, the earliest due first."""
    condition, values = build_where_clause(criteria, await scopes.fetch_visible_ids(tx, criteria.scope))
    states = tuple(states)
    placeholders, bound = bind_list("state", states)
    # Repeats the condition of the partial index memories_unfinished, so that finished tasks cost nothing.
    index = f"AND m.memory_type IN {UNFINISHED_STATES!r}" if set(states) <= set(UNFINISHED_STATES) else ""
    rows = await tx.fetch(
        f"""SELECT {MEMORY_COLUMNS} {FROM_MEMORIES} WHERE {condition} {index} AND m.memory_type IN ({placeholders})
            ORDER BY m.happened, m.id""",
        **values | bound,
    )
    return [memory_from_row(row) for row in rows]


async def find_unfinished_tasks(tx: Transaction, scope_ids: list[int], ids: Iterable[int]) -> set[int]:
    """Return which of these tasks are not finished."""
    tasks = await fetch_memories(tx, scope_ids, ids)
    return {task_id for task_id, task in tasks.items() if task.memory_type in UNFINISHED_STATES}
