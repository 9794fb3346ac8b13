"""Tasks: create, list, update and complete them, with due times, priorities and dependencies.

A task is a memory of the kind `task`: its title and details are the content, its state is the memory_type, and the
rest is the plan in its metadata.
"""

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from athena.core import clock
from athena.core.hashing import create_serial
from athena.core.values import Call, Page, Scope
from athena.errors import Conflict, InvalidInput
from athena.memory import history_rows, inputs, rows, time, write
from athena.memory.index import ENCODE_DELAY_S, encode_in_background
from athena.memory.lookup import Ref, locate, refuse_changed, refuse_shared
from athena.memory.prepare import prepare_memory
from athena.memory.remember import remember
from athena.memory.rows import MemoryRow
from athena.memory.store import Store
from athena.memory.task_rows import MAX_TITLE_CHARS, find_unfinished_tasks, list_task_outlines
from athena.memory.values import (
    DETAILS_SEPARATOR,
    MOMENT_KEY,
    NO_DUE_TIME_S,
    PLAN_KEY,
    SERIAL_KEY,
    UNFINISHED_STATES,
    Completed,
    Draft,
    Freed,
    Kept,
    Memory,
    Task,
    clean_tags,
    clean_text,
    format_preview,
    get_task_plan,
    get_task_title,
    get_urgency_key,
    task_from_memory,
)
from athena.storage import calls, passages, scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter

When = str | float | None
Alter = Callable[[Transaction, MemoryRow], Awaitable[Draft | None]]
MAX_OUTCOME_CHARS = 10_000
CLEAR_VALUE = ""  # as an argument, removes the due time or the details
NOW_PATTERN = re.compile(
    r"\s*(?:now|0+(?:\.0*)?)\s*", re.IGNORECASE
)  # "0" means now; the phrase parser would read a date
TIME_HINT = """Write a time such as "tomorrow 9am", "next friday", "in 2 hours" or "2026-04-01 14:00"."""


def parse_due(value: str | float, name: str, now: float) -> float:
    """Return a future time in seconds."""
    return _read_time(
        lambda: time.parse_due_time(value, clock.to_local_time(now)) if isinstance(value, str) else value, value, name
    )


def parse_due_bound(value: When, name: str, now: float, *, end: bool) -> float | None:
    """Return the start of a future period in seconds, or with `end` its end."""
    if value is None:
        return None
    if isinstance(value, str) and NOW_PATTERN.fullmatch(value):
        return now

    def parse_value() -> float:
        if not isinstance(value, str):
            return value
        start, stop = time.parse_coming_period(value, clock.to_local_time(now))
        return stop if (end and not math.isinf(stop)) or math.isinf(start) else start

    return _read_time(parse_value, value, name)


def _read_time(parse: Callable[[], float], value: str | float, name: str) -> float:
    try:
        moment = float(parse())
    except (InvalidInput, OverflowError, ValueError, OSError):
        moment = math.inf
    if not clock.is_in_calendar(moment):
        raise InvalidInput(f"{name} is not a time: {value!r:.60}", hint=TIME_HINT)
    return moment


async def create_task(
    store: Store,
    title: str,
    details: str | None,
    tags: inputs.Tags,
    metadata: Mapping[str, Any] | None,
    due: When,
    depends_on: Sequence[Ref],
    plan: dict[str, Any],
    call: Call,
) -> Kept:
    """Store a new task; `plan` holds its kind and priority."""
    now, call = store.clock(), call.with_kind("task")
    text = _join_text(title, details)
    draft = await inputs.clean_long(len(text), inputs.create_draft, text, tags, "open", metadata)
    plan |= {"due": None if due is None else parse_due(due, "due", now)}
    if depends_on:
        plan["depends_on"] = await store.database.read(lambda tx: _locate_ids(tx, call.scope, depends_on))
    own_metadata = {SERIAL_KEY: create_serial(call.key)} | _to_plan_metadata(plan)
    draft = replace(draft, metadata=draft.metadata | own_metadata)
    [stored] = await remember(store, [draft], call, read_first=False)
    [task] = await store.database.read(lambda tx: _to_tasks(tx, call.scope, [stored], now))
    return Kept(**_to_task_fields(task), redacted=draft.redacted)


def _join_text(title: str, details: str | None) -> str:
    line = " ".join(clean_text(title, "title").split())
    if len(line) > MAX_TITLE_CHARS:
        raise InvalidInput(
            f"title has {len(line):,} characters; at most {MAX_TITLE_CHARS} are allowed",
            hint="put the rest into details",
        )
    if not details or not details.strip():
        return line
    return line + DETAILS_SEPARATOR + clean_text(details, "details").strip()


def _to_plan_metadata(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a plan: its fields that are set, and the time by which tasks sort."""
    fields = {name: value for name, value in plan.items() if value not in (None, [])}
    return {PLAN_KEY: fields, MOMENT_KEY: fields.get("due", NO_DUE_TIME_S)}


async def _locate_ids(tx: Transaction, scope: Scope, refs: Sequence[Ref]) -> list[int]:
    ids = [(await locate(tx, scope, ref)).memory.id for ref in refs]
    return list(dict.fromkeys(ids))


async def _to_tasks(tx: Transaction, scope: Scope, memories: Iterable[Memory], now: float) -> list[Task]:
    memories = list(memories)
    dependencies = {task_id for memory in memories for task_id in get_task_plan(memory).get("depends_on", ())}
    unfinished: set[int] = set()
    if dependencies:
        unfinished = await find_unfinished_tasks(tx, await scopes.fetch_visible_ids(tx, scope), dependencies)
    return [task_from_memory(memory, unfinished, now) for memory in memories]


def _to_task_fields(task: Task) -> dict[str, Any]:
    return {name: getattr(task, name) for name in Task.__dataclass_fields__}


async def list_tasks(
    store: Store,
    scope: Scope,
    state: str | None,
    tags: inputs.Tags,
    due_before: When,
    due_after: When,
    limit: int,
    offset: int,
) -> Page[Task]:
    """Return the tasks in a state, by default the unfinished ones, the most urgent first."""
    now = store.clock()
    until = parse_due_bound(due_before, "due_before", now, end=True)
    since = parse_due_bound(due_after, "due_after", now, end=False)
    if since is not None and until is None:
        until = NO_DUE_TIME_S  # a task without a due time is not due after any time
    criteria = Filter(scope.with_kind("task"), clean_tags(tags), since=since, until=until)
    states = UNFINISHED_STATES if state is None or state == "blocked" else (state,)

    async def read_page(tx: Transaction) -> Page[Task]:
        tasks = await _to_tasks(tx, criteria.scope, await list_task_outlines(tx, criteria, states), now)
        if state == "blocked":
            tasks = [task for task in tasks if task.blocked]
        if set(states) <= set(UNFINISHED_STATES):
            tasks.sort(key=get_urgency_key)
        else:
            tasks.sort(key=lambda task: (task.finished or task.updated, task.id), reverse=True)
        ids = [task.id for task in tasks[offset : offset + limit]]  # only these are read whole
        memories = await rows.fetch_memories(tx, await scopes.fetch_visible_ids(tx, criteria.scope), ids)
        return Page(await _to_tasks(tx, criteria.scope, [memories[task_id] for task_id in ids], now), len(tasks))

    return await store.database.read(read_page)


async def list_due(store: Store, scope: Scope, within: str, limit: int) -> Page[Task]:
    """Return the tasks that are overdue or due soon, blocked ones last."""
    now = store.clock()
    until = now if NOW_PATTERN.fullmatch(within) else parse_due(within, "within", now)
    return await list_tasks(store, scope, None, None, until + 1, None, limit, 0)


async def update_task(
    store: Store,
    ref: Ref,
    title: str | None,
    details: str | None,
    tags: inputs.Tags,
    metadata: Mapping[str, Any] | None,
    due: When,
    depends_on: Sequence[Ref] | None,
    state: str | None,
    plan: dict[str, Any],
    force: bool,
    call: Call,
    expect_updated: float | None = None,
) -> Kept:
    """Change those fields of a task that are not None; history keeps the old state.

    With `expect_updated`, the time of the last change that the caller knows of, raise Conflict after a later one.
    """
    now, call = store.clock(), call.with_kind("task")
    fields = (title, details, tags, metadata, due, state, depends_on, *plan.values())
    if all(field is None for field in fields):
        raise InvalidInput("nothing to change", hint="give title, due, details, priority, state, tags or depends_on")
    new_due = parse_due(due, "due", now) if due is not None and due != CLEAR_VALUE else None
    redacted: list[str] = []

    async def alter_task(tx: Transaction, row: MemoryRow) -> Draft:
        refuse_changed(row, expect_updated)
        memory = row.memory
        old = task_from_memory(memory, set(), now)
        text = _join_text(old.title if title is None else title, old.details if details is None else details)
        new_metadata = {key: value for key, value in {**old.metadata, **(metadata or {})}.items() if value is not None}
        draft = inputs.create_draft(text, memory.tags if tags is None else tags, state or old.state, new_metadata)
        redacted[:] = draft.redacted
        new_plan = get_task_plan(memory) | {name: value for name, value in plan.items() if value is not None}
        if due is not None:
            new_plan["due"] = new_due
        if depends_on is not None:
            new_plan["depends_on"] = await _locate_ids(tx, call.scope, depends_on)
            await _refuse_cycle(tx, call.scope, memory, new_plan["depends_on"])
        if not force and draft.memory_type != old.state:
            await _refuse_blocked(tx, call.scope, memory, draft.memory_type, new_plan.get("depends_on", ()))
        new_plan |= _set_finished(old, draft.memory_type, now)
        own_metadata = {SERIAL_KEY: memory.metadata[SERIAL_KEY]} | _to_plan_metadata(new_plan)
        draft = replace(draft, importance=memory.importance, author=memory.author)
        return replace(draft, metadata=draft.metadata | own_metadata)

    task = await _revise_task(store, ref, alter_task, call)
    return Kept(**_to_task_fields(task), redacted=tuple(redacted))


def _set_finished(old: Task, state: str, now: float) -> dict[str, Any]:
    """Return the plan's fields that a new state sets: an unfinished task has neither end nor outcome."""
    if state in UNFINISHED_STATES:
        return {"finished": None, "outcome": None}
    return {} if old.state == state else {"finished": now}


async def complete_task(store: Store, ref: Ref, outcome: str | None, force: bool, call: Call) -> Completed:
    """Set a task to done, and return it with the tasks that are no longer blocked; a done task does not change."""
    now, call = store.clock(), call.with_kind("task")
    new_outcome, redacted = (None, ()) if outcome is None else inputs.clean_field("outcome", outcome, MAX_OUTCOME_CHARS)

    async def mark_done(tx: Transaction, row: MemoryRow) -> Draft | None:
        plan, state = get_task_plan(row.memory), row.memory.memory_type
        if state == "done" and new_outcome is None:
            return None
        if not force and state in UNFINISHED_STATES:
            await _refuse_blocked(tx, call.scope, row.memory, "done", plan.get("depends_on", ()))
        if state != "done":
            plan = plan | {"finished": now}
        if new_outcome:
            plan = plan | {"outcome": new_outcome}
        metadata = row.memory.metadata | _to_plan_metadata(plan)
        return Draft.from_memory(row.memory, memory_type="done", metadata=metadata)

    done = await _revise_task(store, ref, mark_done, call)

    async def read_unblocked(tx: Transaction) -> list[Task]:
        unfinished = await list_task_outlines(tx, Filter(call.scope), UNFINISHED_STATES)
        dependents = [memory for memory in unfinished if done.id in get_task_plan(memory).get("depends_on", ())]
        return [task for task in await _to_tasks(tx, call.scope, dependents, now) if not task.blocked]

    unblocked = tuple(Freed(task.id, task.title) for task in await store.database.read(read_unblocked))
    return Completed(**_to_task_fields(done), unblocked=unblocked, redacted=redacted)


async def _revise_task(store: Store, ref: Ref, alter: Alter, call: Call) -> Task:
    """Replace a task with what `alter` returns, in the transaction in which `alter` reads."""
    now = store.clock()

    async def write_revision(tx: Transaction) -> tuple[Task, bool]:
        async def apply_change(call_id: int) -> int:
            row = refuse_shared(await locate(tx, call.scope, ref), call)
            draft = await alter(tx, row)
            if draft is not None:
                if draft.content != row.memory.content:
                    draft = replace(draft, author=call.author)
                await history_rows.insert_row_change(tx, row, call_id, now, "updated")
                await write.rewrite_memory(store, tx, row, prepare_memory(draft, row.memory.created), now)
            return row.memory.id

        task_id = int(await calls.run_once(tx, call, apply_change))
        memories = await rows.fetch_memories(tx, await scopes.fetch_visible_ids(tx, call.scope), [task_id])
        tasks = await _to_tasks(tx, call.scope, memories.values(), now)
        return tasks[0], await passages.has_missing(tx)

    task, has_missing = await store.database.write(write_revision)
    if has_missing and store.encoder.is_working:
        encode_in_background(store, ENCODE_DELAY_S)
    return task


async def _refuse_cycle(tx: Transaction, scope: Scope, memory: Memory, depends_on: list[int]) -> None:
    """Raise Conflict, naming the tasks, if a task would depend on itself, directly or through others."""
    visible = await scopes.fetch_visible_ids(tx, scope)
    paths: dict[int, tuple[int, ...]] = {task_id: (memory.id, task_id) for task_id in depends_on}
    titles = {memory.id: get_task_title(memory)}
    to_visit = list(depends_on)
    while to_visit:
        task_id = to_visit.pop()
        for row in await rows.find_rows_by_id(tx, visible, task_id):
            await rows.lock_memory(tx, row)  # so that no concurrent call closes the cycle
            titles[task_id] = get_task_title(row.memory)
            if task_id == memory.id:
                cycle = " > ".join(_format_task(step, titles[step]) for step in paths[task_id])
                raise Conflict(f"these tasks would wait for each other: {cycle}", hint="leave one of them out")
            for dependency in get_task_plan(row.memory).get("depends_on", ()):
                if dependency not in paths:
                    paths[dependency] = (*paths[task_id], dependency)
                    to_visit.append(dependency)


async def _refuse_blocked(tx: Transaction, scope: Scope, memory: Memory, state: str, depends_on: Iterable[int]) -> None:
    """Raise Conflict if a task is begun or finished before its dependencies are."""
    if state not in ("in_progress", "done") or not depends_on:
        return
    visible = await scopes.fetch_visible_ids(tx, scope)
    unfinished = await find_unfinished_tasks(tx, visible, depends_on)
    if unfinished:
        blocking = sorted((await rows.fetch_memories(tx, visible, unfinished, longest=2 * MAX_TITLE_CHARS)).items())
        listed = ", ".join(_format_task(task_id, get_task_title(task)) for task_id, task in blocking)
        raise Conflict(
            f"task {_format_task(memory.id, get_task_title(memory))} waits for {listed}",
            hint="finish that first, or repeat with force=true",
        )


def _format_task(task_id: int, title: str) -> str:
    return f"{task_id} {format_preview(title, 40)!r}"
