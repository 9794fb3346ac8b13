"""SQL of tasks: memories of the kind task, whose memory_type is their state."""

from collections.abc import Iterable
from dataclasses import replace

from athena.core.values import Author
from athena.memory import rows as memory_rows
from athena.memory import values
from athena.storage import privacy, scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter, bind_list, build_where_clause, split_batches

OUTLINES_AT_ONCE = 200
MAX_TITLE_CHARS = 300


async def list_task_outlines(tx: Transaction, criteria: Filter, states: Iterable[str]) -> list[values.Memory]:
    """Return the tasks in the given states, each with its title and its plan alone, the earliest due first."""
    condition, bound_values = build_where_clause(criteria, await scopes.fetch_visible_ids(tx, criteria.scope))
    states = tuple(states)
    placeholders, bound = bind_list("state", states)
    # Repeats the condition of the partial index memories_unfinished, so that finished tasks cost nothing.
    index = f"AND m.memory_type IN {values.UNFINISHED_STATES!r}" if set(states) <= set(values.UNFINISHED_STATES) else ""
    columns = memory_rows.MEMORY_COLUMNS.replace("m.content", "substr(m.content, 1, :longest)")
    outlines: list[values.Memory] = []
    beyond, limit = "", tx.chars_left
    while True:
        rows = await tx.fetch(
            f"""SELECT {columns}, m.happened {memory_rows.FROM_MEMORIES}
                WHERE {condition} {index} AND m.memory_type IN ({placeholders}) {beyond}
                ORDER BY m.happened, m.id LIMIT {OUTLINES_AT_ONCE}""",
            longest=2 * MAX_TITLE_CHARS,
            **bound_values | bound,
        )
        memories = [memory_rows.memory_from_row(row) for row in rows]
        outlines += [
            replace(task, tags=(), metadata={values.PLAN_KEY: values.get_task_plan(task) | {"outcome": None}})
            for task in memories
        ]
        tx.chars_left = limit - len(outlines) * 2 * MAX_TITLE_CHARS  # the rest of the metadata is dropped
        if len(rows) < OUTLINES_AT_ONCE:
            return outlines
        beyond = "AND (m.happened, m.id) > (:at, :number)"
        bound_values |= {"at": rows[-1][memory_rows.MEMORY_COLUMN_COUNT], "number": rows[-1][0]}


async def find_unfinished_tasks(tx: Transaction, scope_ids: list[int], ids: Iterable[int]) -> set[int]:
    """Return which of these tasks are not finished."""
    unfinished: set[int] = set()
    for batch in split_batches(list(ids)):
        names, bound = bind_list("id", batch)
        rows = await tx.fetch(
            f"""SELECT id, memory_type, private FROM memories WHERE scope IN ({memory_rows.join_ids(scope_ids)})
                AND id IN ({names}) AND deleted IS NULL""",
            **bound,
        )
        for task_id, state, private in rows:
            privacy.note_read(private)
            unfinished |= {task_id} if state in values.UNFINISHED_STATES else set()
    return unfinished


async def list_urgent_tasks(
    tx: Transaction, criteria: Filter, now: float, limit: int, longest: int
) -> list[tuple[values.Task, Author]]:
    """Return the beginnings of the most urgent unfinished tasks, with their authors."""
    outlines = await list_task_outlines(tx, criteria, values.UNFINISHED_STATES)
    scope_ids = await scopes.fetch_visible_ids(tx, criteria.scope)
    needed = {task_id for outline in outlines for task_id in values.get_task_plan(outline).get("depends_on", ())}
    unfinished = await find_unfinished_tasks(tx, scope_ids, needed)
    outlines.sort(key=lambda outline: values.get_urgency_key(values.task_from_memory(outline, unfinished, now)))
    if len(outlines) > limit:  # nobody else crowds out what a person has to do
        outlines = sorted(outlines, key=lambda outline: outline.author != "person")[:limit]
    tasks = await memory_rows.fetch_memories(tx, scope_ids, [outline.id for outline in outlines], longest=longest)
    return [(values.task_from_memory(tasks[each.id], unfinished, now), each.author) for each in outlines]
