"""A task: something still to do, or that was to be done."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from athena.memory.values import RESERVED_PREFIX, Memory, strip_reserved_keys

TaskKind = Literal["task", "goal", "reminder"]
TaskState = Literal["open", "in_progress", "done", "cancelled"]
TaskPriority = Literal["low", "normal", "high", "urgent"]
UNFINISHED_STATES: tuple[TaskState, ...] = ("open", "in_progress")
TASK_PRIORITIES: tuple[TaskPriority, ...] = get_args(TaskPriority)
PLAN_KEY = f"{RESERVED_PREFIX}plan"  # what the metadata keep of a task beside its text and state
NO_DUE_TIME_S = 253_402_300_799.0  # the last second of the year 9999: when a task without a due time comes up
DETAILS_SEPARATOR = "\n\n"  # between a task's title and its details


@dataclass(frozen=True, slots=True)
class Task:
    id: int
    hash: str
    title: str
    details: str | None
    kind: TaskKind
    state: TaskState
    priority: TaskPriority
    due: float | None
    overdue: bool
    depends_on: tuple[int, ...]
    blocked: bool  # whether it waits for one of them
    blocked_by: tuple[int, ...]  # those of them that are not finished
    tags: tuple[str, ...]
    outcome: str | None
    finished: float | None
    metadata: dict[str, Any]
    created: float
    updated: float
    project: str


@dataclass(frozen=True, slots=True)
class Kept(Task):
    """A task as it is now kept."""

    redacted: tuple[str, ...] = ()  # the kinds of secrets that were taken out of the text


@dataclass(frozen=True, slots=True)
class Freed:
    """A task that waits for nothing any more."""

    id: int
    title: str


@dataclass(frozen=True, slots=True)
class Completed(Task):
    """A task that is done, and what can be begun now."""

    unblocked: tuple[Freed, ...] = ()
    redacted: tuple[str, ...] = ()  # the kinds of secrets that were taken out of the outcome


def get_task_plan(memory: Memory) -> dict[str, Any]:
    """Return what is kept of a task beside its text."""
    made: dict[str, Any] = memory.metadata.get(PLAN_KEY, {})
    return made


def get_task_title(memory: Memory) -> str:
    return memory.content.partition(DETAILS_SEPARATOR)[0]


def task_from_memory(memory: Memory, unfinished: set[int], now: float) -> Task:
    """Return a task, where `unfinished` are those that others may wait for."""
    m, p = memory, get_task_plan(memory)
    name, _, details = m.content.partition(DETAILS_SEPARATOR)
    state: TaskState = m.memory_type  # type: ignore[assignment]  # nothing else is written there
    due, needs = p.get("due"), tuple(p.get("depends_on", ()))
    waits_for = tuple(one for one in needs if one in unfinished) if state in UNFINISHED_STATES else ()
    return Task(
        id=m.id,
        hash=m.hash,
        title=name,
        details=details or None,
        kind=p.get("kind", "task"),
        state=state,
        priority=p.get("priority", "normal"),
        due=due,
        overdue=due is not None and due < now and state in UNFINISHED_STATES,
        depends_on=needs,
        blocked=bool(waits_for),
        blocked_by=waits_for,
        tags=m.tags,
        outcome=p.get("outcome"),
        finished=p.get("finished"),
        metadata=strip_reserved_keys(m.metadata),
        created=m.created,
        updated=m.updated,
        project=m.project,
    )


def get_urgency_key(one: Task) -> tuple[bool, int, float, int]:
    """Order tasks: what can be done first, then what matters more, then what is due earlier."""
    return one.blocked, -TASK_PRIORITIES.index(one.priority), NO_DUE_TIME_S if one.due is None else one.due, one.id
