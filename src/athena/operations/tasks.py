"""Plan what is still to do."""

from typing import Annotated, Any, Literal

from athena.core.operation import EVERYONE, Effect, operation
from athena.core.types import Param
from athena.memory import tasks as planning
from athena.memory.values import Completed, Kept, Task, TaskKind, TaskPriority, TaskState
from athena.operations import params
from athena.operations.context import Context

TaskRef = Annotated[int | str, Param("The task's id, its hash, or the beginning of its hash.")]
Due = Annotated[
    str | float | None,
    Param("When, e.g. 'tomorrow 9am', 'next friday', 'in 2 hours', '2026-04-01'; a day is due at its end."),
]
Needs = Annotated[list[int | str] | None, Param("Ids of tasks that must be finished first.", most=100)]
Facts = Annotated[dict[str, Any] | None, Param("Anything else worth knowing.")]
Force = Annotated[bool, Param("Begin or finish it though it waits for others.")]
Details = Annotated[str | None, Param("All that the title does not say.")]


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="remind me to do it; I have to do this by Friday; put it on my to-do list; don't let me forget to; "
    "new task; add to my tasks; I must not miss this; set a reminder; plan to do it next week; I need to "
    "remember to; put a goal on the list; note a to-do; set myself a deadline",
)
async def create_task(
    ctx: Context,
    title: Annotated[str, Param("What is to be done, in one line.", least=1)],
    due: Due = None,
    details: Details = None,
    priority: Annotated[TaskPriority, Param("How much it matters.")] = "normal",
    depends_on: Needs = None,
    tags: params.Tags = None,
    metadata: Facts = None,
    kind: Annotated[TaskKind, Param("Something to do, to reach, or to be reminded of.")] = "task",
) -> Kept:
    """Plan a task, a goal or a reminder.

    >>> tasks.create_task(title="Renew the certificate", due="next friday", priority="high")
    """
    plan = {"priority": priority, "kind": kind}
    return await planning.create_task(ctx.store, title, details, tags, metadata, due, depends_on or (), plan, ctx.call)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="what is on my to-do list; what is left to do; which tasks are open; what should I work on; show my "
    "to-dos; my pending work; what do I still have to do; list the goals; everything I planned",
)
async def list_tasks(
    ctx: Context,
    state: Annotated[
        Literal["open", "in_progress", "blocked", "done", "cancelled"] | None,
        Param("Only in this state; blocked ones are open or in progress as well. By default all not finished."),
    ] = None,
    tags: params.Tags = None,
    due_before: Annotated[str | float | None, Param("Due until the end of then, e.g. 'tomorrow', 'friday'.")] = None,
    due_after: Annotated[str | float | None, Param("Due from the beginning of then on.")] = None,
    limit: params.Limit = 50,
    offset: params.Offset = 0,
) -> list[Task]:
    """List tasks, the most pressing first; finished ones the last first.

    >>> tasks.list_tasks(due_before="next week")
    """
    return await planning.list_tasks(ctx.store, ctx.scope, state, tags, due_before, due_after, limit, offset)


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="move the deadline of the task; change the priority of a to-do; the task takes longer; postpone the "
    "to-do; give me two more days for it; make the task more important; rename the task; change the due "
    "date",
)
async def update_task(
    ctx: Context,
    task_id: TaskRef,
    title: Annotated[str | None, Param("The new title.", least=1)] = None,
    due: Annotated[str | float | None, Param("The new time; an empty text takes it away.")] = None,
    details: Annotated[str | None, Param("The new details; an empty text takes them away.")] = None,
    priority: Annotated[TaskPriority | None, Param("How much it matters.")] = None,
    state: Annotated[TaskState | None, Param("The new state.")] = None,
    depends_on: Annotated[
        list[int | str] | None, Param("Ids of what must be finished first, instead.", most=100)
    ] = None,
    tags: Annotated[str | list[str] | None, Param("The new tags, instead of the old ones.")] = None,
    metadata: Annotated[dict[str, Any] | None, Param("Added to the old; a null removes a key.")] = None,
    kind: Annotated[TaskKind | None, Param("Something to do, to reach, or to be reminded of.")] = None,
    force: Force = False,
    expect_updated: params.ExpectUpdated = None,
) -> Kept:
    """Change a task; `undo` takes it back.

    >>> tasks.update_task(task_id=1, state="in_progress")
    """
    plan, more = {"priority": priority, "kind": kind}, (due, depends_on, state)
    changes = (title, details, tags, metadata, *more, plan)
    return await planning.update_task(ctx.store, task_id, *changes, force, ctx.call, expect_updated)


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="I have done that, tick it off; mark the to-do as finished; this task is done; finished with it, "
    "cross it off; that to-do is taken care of; check off the item; done with this",
)
async def complete_task(
    ctx: Context,
    task_id: TaskRef,
    outcome: Annotated[str | None, Param("What came of it.", least=1)] = None,
    force: Force = False,
) -> Completed:
    """Complete a task and return which tasks can be begun now; `undo` opens it again.

    >>> tasks.complete_task(task_id=1, outcome="done on staging and production")
    """
    return await planning.complete_task(ctx.store, task_id, outcome, force, ctx.call)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="what is overdue; what is due this week; what is most urgent today; which deadlines are near; am I "
    "late with anything; what needs my attention today; what has to be finished soon; missed deadlines",
)
async def due_tasks(
    ctx: Context,
    within: Annotated[
        str, Param("How far to look ahead, e.g. '1 day', '2 weeks', 'friday'; '0' is now.", least=1)
    ] = "1 day",
    limit: params.Limit = 20,
) -> list[Task]:
    """List what is overdue or due soon, by priority; what waits for something else comes last.

    >>> tasks.due_tasks(within="3 days")
    """
    return await planning.list_due(ctx.store, ctx.scope, within, limit)
