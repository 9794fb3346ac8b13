"""What is still to do: tasks with due times, priorities and what they wait for."""

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from athena.core import clock
from athena.core.hashing import create_serial
from athena.core.values import Call, Page, Scope
from athena.errors import Conflict, InvalidInput
from athena.memory import history_rows, inputs, write
from athena.memory import rows as memory_rows
from athena.memory import values as model
from athena.memory.index import ENCODE_DELAY_S, encode_in_background
from athena.memory.lookup import Ref, locate
from athena.memory.prepare import prepare_memory
from athena.memory.remember import remember
from athena.memory.rows import MemoryRow
from athena.memory.store import Store
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
    get_urgency_key,
)
from athena.storage import calls, scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter

When = str | float | None
MAX_TITLE_CHARS = 300
MAX_OUTCOME_CHARS = 10_000
NOW_PATTERN = re.compile(r"\s*(?:now|0+(?:\.0*)?)\s*", re.IGNORECASE)  # a number of no unit would be a date
CLEAR_VALUE = ""  # what takes a due time or details away
TIME_HINT = """Write a time such as "tomorrow 9am", "next friday", "in 2 hours" or "2026-04-01 14:00"."""


def parse_due(value: str | float, name: str, now: float) -> float:
    """Read a time to come."""
    from athena.memory.time import phrase  # its tables are slow to load

    return _read_time(
        lambda: phrase.parse_due_time(value, clock.to_local_time(now)) if isinstance(value, str) else value, value, name
    )


def parse_due_bound(value: When, name: str, now: float, *, end: bool) -> float | None:
    """Read where a period to come begins, or where it ends."""
    from athena.memory.time import phrase  # its tables are slow to load

    if value is None:
        return None
    if isinstance(value, str) and NOW_PATTERN.fullmatch(value):
        return now
    return _read_time(
        lambda: (
            _pick_side(phrase.parse_coming_period(value, clock.to_local_time(now)), end)
            if isinstance(value, str)
            else value
        ),
        value,
        name,
    )


def _pick_side(period: tuple[float, float], end: bool) -> float:
    start, stop = period
    return stop if (end and not math.isinf(stop)) or math.isinf(start) else start


def _read_time(read: Callable[[], float], value: str | float, name: str) -> float:
    try:
        when = float(read())
        clock.to_local_time(when)
    except (InvalidInput, OverflowError, ValueError, OSError):
        raise InvalidInput(f"{name} is no time: {value!r:.60}", hint=TIME_HINT) from None
    return when


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
    """Keep a task; `plan` is its kind and priority."""
    now, call = store.clock(), call.with_kind("task")
    made = inputs.create_draft(_join_text(title, details), tags, "open", metadata)
    plan |= {"due": None if due is None else parse_due(due, "due", now)}
    if depends_on:
        plan["depends_on"] = await store.database.read(lambda tx: _locate_ids(tx, call.scope, depends_on))
    whole = replace(made, metadata=made.metadata | {SERIAL_KEY: create_serial(call.key)} | _to_plan_metadata(plan))
    kept = (await remember(store, [whole], call, read_first=False))[0]
    shown = await store.database.read(lambda tx: _to_tasks(tx, call.scope, [kept], now))
    return Kept(**_to_task_fields(shown[0]), redacted=made.redacted)


def _join_text(title: str, details: str | None) -> str:
    line = " ".join(clean_text(title, "title").split())
    if len(line) > MAX_TITLE_CHARS:
        raise InvalidInput(
            f"title has {len(line):,} characters; at most {MAX_TITLE_CHARS} are kept", hint="put the rest into details"
        )
    return (
        line
        if not details or not details.strip()
        else line + DETAILS_SEPARATOR + clean_text(details, "details").strip()
    )


def _to_plan_metadata(plan: dict[str, Any]) -> dict[str, Any]:
    """Return what the metadata keep of a plan: all of it, and when the task comes up."""
    kept = {name: value for name, value in plan.items() if value not in (None, [])}
    return {PLAN_KEY: kept, MOMENT_KEY: kept.get("due", NO_DUE_TIME_S)}


async def _locate_ids(tx: Transaction, scope: Scope, refs: Sequence[Ref]) -> list[int]:
    found = [(await locate(tx, scope, ref)).memory.id for ref in refs]
    return list(dict.fromkeys(found))


async def _to_tasks(tx: Transaction, scope: Scope, found: Iterable[Memory], now: float) -> list[Task]:
    rows = list(found)
    needed = {number for row in rows for number in model.get_task_plan(row).get("depends_on", ())}
    waiting = (
        await memory_rows.find_unfinished_tasks(tx, await scopes.fetch_visible_ids(tx, scope), needed)
        if needed
        else set()
    )
    return [model.task_from_memory(row, waiting, now) for row in rows]


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
    """Return tasks of a state, without one those that are not finished, the most pressing first."""
    now = store.clock()
    until, since = (
        parse_due_bound(due_before, "due_before", now, end=True),
        parse_due_bound(due_after, "due_after", now, end=False),
    )
    if since is not None and until is None:
        until = NO_DUE_TIME_S  # what has no due time is not due after any
    only = Filter(scope.with_kind("task"), clean_tags(tags), since=since, until=until)
    states = UNFINISHED_STATES if state in (None, "blocked") else (state,)

    async def read_tasks(tx: Transaction) -> list[Task]:
        return await _to_tasks(
            tx, only.scope, await memory_rows.list_tasks_in_states(tx, only, filter(None, states)), now
        )

    found = await store.database.read(read_tasks)
    if state == "blocked":
        found = [one for one in found if one.blocked]
    if set(states) <= set(UNFINISHED_STATES):
        found.sort(key=get_urgency_key)
    else:
        found.sort(key=lambda one: (one.finished or one.updated, one.id), reverse=True)
    return Page(found[offset : offset + limit], len(found))


async def list_due(store: Store, scope: Scope, within: str, limit: int) -> Page[Task]:
    """Return what is overdue or due soon: what can be done before what is blocked."""
    now = store.clock()
    until = now if NOW_PATTERN.fullmatch(within) else parse_due(within, "within", now)
    return await list_tasks(store, scope, None, None, until + 1, None, limit, 0)


Alter = Callable[[Transaction, MemoryRow], Awaitable[Draft | None]]


async def _revise_task(store: Store, ref: Ref, alter: Alter, call: Call) -> Task:
    """Make of a task what `alter` returns, in one transaction with all that it looks at."""
    now = store.clock()

    async def write_revision(tx: Transaction) -> tuple[Task, bool]:
        async def apply_change(number: int) -> int:
            kept = await locate(tx, call.scope, ref)
            made = await alter(tx, kept)
            if made is not None:
                await history_rows.insert_change(
                    tx, kept.scope, kept.memory.id, number, now, "updated", kept.to_snapshot()
                )
                await write.rewrite_memory(store, tx, kept, prepare_memory(made, kept.memory.created), now)
            return kept.memory.id

        number = int(await calls.run_once(tx, call, apply_change))
        found = await memory_rows.fetch_memories(tx, await scopes.fetch_visible_ids(tx, call.scope), [number])
        return (await _to_tasks(tx, call.scope, found.values(), now))[0], await store.database.vectors.has_missing(tx)

    made, behind = await store.database.write(write_revision)
    if behind and store.encoder.is_working:
        encode_in_background(store, ENCODE_DELAY_S)
    return made


def _create_revision(memory: Memory, state: str, plan: dict[str, Any]) -> Draft:
    metadata = memory.metadata | _to_plan_metadata(plan)
    return Draft(memory.content, memory.tags, state, metadata, memory.importance)


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
) -> Kept:
    """Change what is given of a task; its state before stays in its history."""
    now, call = store.clock(), call.with_kind("task")
    given = {"title": title, "details": details, "tags": tags, "metadata": metadata, "due": due, "state": state}
    if not any(value is not None for value in (*given.values(), *plan.values(), depends_on)):
        raise InvalidInput("nothing to change", hint="give title, due, details, priority, state, tags or depends_on")
    when = parse_due(due, "due", now) if due not in (None, CLEAR_VALUE) else None
    redacted: list[str] = []

    async def alter_task(tx: Transaction, kept: MemoryRow) -> Draft:
        memory = kept.memory
        old = model.task_from_memory(memory, set(), now)
        text = _join_text(old.title if title is None else title, old.details if details is None else details)
        facts = {**old.metadata, **(metadata or {})}
        made = inputs.create_draft(text, memory.tags if tags is None else tags, state or old.state, _drop_nulls(facts))
        redacted[:] = made.redacted
        new = model.get_task_plan(memory) | {name: value for name, value in plan.items() if value is not None}
        if due is not None:
            new["due"] = when
        if depends_on is not None:
            new["depends_on"] = await _locate_ids(tx, call.scope, depends_on)
            await _refuse_cycle(tx, call.scope, memory, new["depends_on"])
        if not force and made.memory_type != old.state:
            await _refuse_blocked(tx, call.scope, memory, made.memory_type, new.get("depends_on", ()))
        new |= _set_finished(old, made.memory_type, now)
        serial_of = {SERIAL_KEY: memory.metadata[SERIAL_KEY]}
        return replace(made, metadata=made.metadata | serial_of | _to_plan_metadata(new), importance=memory.importance)

    return Kept(**_to_task_fields(await _revise_task(store, ref, alter_task, call)), redacted=tuple(redacted))


def _drop_nulls(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if value is not None}


def _set_finished(old: Task, state: str, now: float) -> dict[str, Any]:
    """Return when a task was finished, if it is; one that goes on has no end and no outcome."""
    if state in UNFINISHED_STATES:
        return {"finished": None, "outcome": None}
    return {} if old.state == state else {"finished": now}


async def _refuse_cycle(tx: Transaction, scope: Scope, memory: Memory, needs: list[int]) -> None:
    """Refuse to let a task wait for itself, through whatever others, and say through which."""
    visible = await scopes.fetch_visible_ids(tx, scope)
    way: dict[int, tuple[int, ...]] = {number: (memory.id, number) for number in needs}
    titles = {memory.id: model.get_task_title(memory)}
    reached = list(needs)
    while reached:
        number = reached.pop()
        for kept in await memory_rows.find_memory_rows(tx, visible, "m.id = :id", id=number):
            await memory_rows.lock_memory(tx, kept)  # so that nobody closes the circle at the same time
            titles[number] = model.get_task_title(kept.memory)
            if number == memory.id:
                said = " > ".join(f"{one} {format_preview(titles[one], 40)!r}" for one in way[number])
                raise Conflict(f"these tasks would wait for each other: {said}", hint="leave one of them out")
            for other in model.get_task_plan(kept.memory).get("depends_on", ()):
                if other not in way:
                    way[other] = (*way[number], other)
                    reached.append(other)


async def _refuse_blocked(tx: Transaction, scope: Scope, memory: Memory, state: str, needs: Iterable[int]) -> None:
    """Refuse to begin or finish a task that waits for others, and name those."""
    if state not in ("in_progress", "done"):
        return
    visible = await scopes.fetch_visible_ids(tx, scope)
    waiting = await memory_rows.find_unfinished_tasks(tx, visible, needs) if needs else set()
    if waiting:
        rows = await memory_rows.fetch_memories(tx, visible, sorted(waiting))
        said = ", ".join(
            f"{number} {format_preview(model.get_task_title(row), 40)!r}" for number, row in sorted(rows.items())
        )
        raise Conflict(
            f"task {memory.id} {format_preview(model.get_task_title(memory), 40)!r} waits for {said}",
            hint="finish that first, or repeat with force=true",
        )


async def complete_task(store: Store, ref: Ref, outcome: str | None, force: bool, call: Call) -> Completed:
    """Say that a task is done, and return what can be begun now; done already, nothing changes."""
    now, call = store.clock(), call.with_kind("task")
    said, redacted = (None, ()) if outcome is None else inputs.clean_field("outcome", outcome, MAX_OUTCOME_CHARS)

    async def mark_done(tx: Transaction, kept: MemoryRow) -> Draft | None:
        if kept.memory.memory_type == "done" and said is None:
            return None
        if not force and kept.memory.memory_type in UNFINISHED_STATES:
            await _refuse_blocked(
                tx, call.scope, kept.memory, "done", model.get_task_plan(kept.memory).get("depends_on", ())
            )
        finished = {"finished": now} if kept.memory.memory_type != "done" else {}
        return _create_revision(
            kept.memory, "done", model.get_task_plan(kept.memory) | finished | ({"outcome": said} if said else {})
        )

    done = await _revise_task(store, ref, mark_done, call)

    async def read_freed(tx: Transaction) -> list[Task]:
        waiting = await memory_rows.list_tasks_in_states(tx, Filter(call.scope), UNFINISHED_STATES)
        after = [one for one in waiting if done.id in model.get_task_plan(one).get("depends_on", ())]
        return [one for one in await _to_tasks(tx, call.scope, after, now) if not one.blocked]

    unblocked = await store.database.read(read_freed)
    freed_ones = tuple(Freed(one.id, one.title) for one in unblocked)
    return Completed(**_to_task_fields(done), unblocked=freed_ones, redacted=redacted)
