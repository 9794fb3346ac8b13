"""What is still to do: tasks with due times, priorities and what they wait for."""

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from athena.core import clock
from athena.core.call import Call
from athena.core.hashing import serial
from athena.core.page import Page
from athena.core.scope import Scope
from athena.errors import Conflict, InvalidInput
from athena.memory import history, inputs, write_rows
from athena.memory import rows as memory_rows
from athena.memory import task_rows as storage
from athena.memory import task_values as model
from athena.memory.index import SOON, catch_up
from athena.memory.lookup import Ref, locate
from athena.memory.prepare import prepare
from athena.memory.rows import Kept as Row
from athena.memory.store import Store
from athena.memory.task_values import GAP, PLAN, SOMEDAY, UNFINISHED, Completed, Freed, Kept, Task, pressing
from athena.memory.values import MOMENT, SERIAL, Draft, Filter, Memory, clean_tags, clean_text, preview
from athena.memory.write import remember
from athena.storage import calls, scopes
from athena.storage.database import Transaction

When = str | float | None
LONGEST_TITLE = 300
LONGEST_OUTCOME = 10_000
NOW = re.compile(r"\s*(?:now|0+(?:\.0*)?)\s*", re.IGNORECASE)  # a number of no unit would be a date
NOTHING = ""  # what takes a due time or details away
HINT = """Write a time such as "tomorrow 9am", "next friday", "in 2 hours" or "2026-04-01 14:00"."""


def moment(value: str | float, name: str, now: float) -> float:
    """Read a time to come."""
    from athena.memory.time import phrase  # its tables are slow to load

    return _read(lambda: phrase.due(value, clock.local(now)) if isinstance(value, str) else value, value, name)


def bound(value: When, name: str, now: float, *, end: bool) -> float | None:
    """Read where a period to come begins, or where it ends."""
    from athena.memory.time import phrase  # its tables are slow to load

    if value is None:
        return None
    if isinstance(value, str) and NOW.fullmatch(value):
        return now
    return _read(
        lambda: _side(phrase.coming(value, clock.local(now)), end) if isinstance(value, str) else value, value, name
    )


def _side(period: tuple[float, float], end: bool) -> float:
    start, stop = period
    return stop if (end and not math.isinf(stop)) or math.isinf(start) else start


def _read(read: Callable[[], float], value: str | float, name: str) -> float:
    try:
        when = float(read())
        clock.local(when)
    except (InvalidInput, OverflowError, ValueError, OSError):
        raise InvalidInput(f"{name} is no time: {value!r:.60}", hint=HINT) from None
    return when


async def create(
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
    now, call = store.clock(), call.of("task")
    made = inputs.clean(_text(title, details), tags, "open", metadata)
    plan |= {"due": None if due is None else moment(due, "due", now)}
    if depends_on:
        plan["depends_on"] = await store.database.read(lambda tx: _numbers(tx, call.scope, depends_on))
    whole = replace(made, metadata=made.metadata | {SERIAL: serial(call.key)} | _planned(plan))
    kept = (await remember(store, [whole], call, read_first=False))[0]
    shown = await store.database.read(lambda tx: _shown(tx, call.scope, [kept], now))
    return Kept(**_fields(shown[0]), redacted=made.redacted)


def _text(title: str, details: str | None) -> str:
    line = " ".join(clean_text(title, "title").split())
    if len(line) > LONGEST_TITLE:
        raise InvalidInput(
            f"title has {len(line):,} characters; at most {LONGEST_TITLE} are kept", hint="put the rest into details"
        )
    return line if not details or not details.strip() else line + GAP + clean_text(details, "details").strip()


def _planned(plan: dict[str, Any]) -> dict[str, Any]:
    """Return what the metadata keep of a plan: all of it, and when the task comes up."""
    kept = {name: value for name, value in plan.items() if value not in (None, [])}
    return {PLAN: kept, MOMENT: kept.get("due", SOMEDAY)}


async def _numbers(tx: Transaction, scope: Scope, refs: Sequence[Ref]) -> list[int]:
    found = [(await locate(tx, scope, ref)).memory.id for ref in refs]
    return list(dict.fromkeys(found))


async def _shown(tx: Transaction, scope: Scope, found: Iterable[Memory], now: float) -> list[Task]:
    rows = list(found)
    needed = {number for row in rows for number in model.plan(row).get("depends_on", ())}
    waiting = await storage.unfinished(tx, await scopes.visible(tx, scope), needed) if needed else set()
    return [model.task(row, waiting, now) for row in rows]


def _fields(task: Task) -> dict[str, Any]:
    return {name: getattr(task, name) for name in Task.__dataclass_fields__}


async def listed(
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
    until, since = bound(due_before, "due_before", now, end=True), bound(due_after, "due_after", now, end=False)
    if since is not None and until is None:
        until = SOMEDAY  # what has no due time is not due after any
    only = Filter(scope.of("task"), clean_tags(tags), since=since, until=until)
    states = UNFINISHED if state in (None, "blocked") else (state,)

    async def work(tx: Transaction) -> list[Task]:
        return await _shown(tx, only.scope, await storage.of_states(tx, only, filter(None, states)), now)

    found = await store.database.read(work)
    if state == "blocked":
        found = [one for one in found if one.blocked]
    if set(states) <= set(UNFINISHED):
        found.sort(key=pressing)
    else:
        found.sort(key=lambda one: (one.finished or one.updated, one.id), reverse=True)
    return Page(found[offset : offset + limit], len(found))


async def due(store: Store, scope: Scope, within: str, limit: int) -> Page[Task]:
    """Return what is overdue or due soon: what can be done before what is blocked."""
    now = store.clock()
    until = now if NOW.fullmatch(within) else moment(within, "within", now)
    return await listed(store, scope, None, None, until + 1, None, limit, 0)


Alter = Callable[[Transaction, Row], Awaitable[Draft | None]]


async def _revise(store: Store, ref: Ref, alter: Alter, call: Call) -> Task:
    """Make of a task what `alter` returns, in one transaction with all that it looks at."""
    now = store.clock()

    async def work(tx: Transaction) -> tuple[Task, bool]:
        async def change(number: int) -> int:
            kept = await locate(tx, call.scope, ref)
            made = await alter(tx, kept)
            if made is not None:
                await history.add(tx, kept.scope, kept.memory.id, number, now, "updated", kept.snapshot())
                await write_rows.rewrite(store, tx, kept, prepare(made, kept.memory.created), now)
            return kept.memory.id

        number = int(await calls.once(tx, call, change))
        found = await memory_rows.fetch(tx, await scopes.visible(tx, call.scope), [number])
        return (await _shown(tx, call.scope, found.values(), now))[0], await store.database.vectors.any_missing(tx)

    made, behind = await store.database.write(work)
    if behind and store.encoder.works:
        catch_up(store, SOON)
    return made


def _altered(memory: Memory, state: str, plan: dict[str, Any]) -> Draft:
    metadata = memory.metadata | _planned(plan)
    return Draft(memory.content, memory.tags, state, metadata, memory.importance)


async def update(
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
    now, call = store.clock(), call.of("task")
    given = {"title": title, "details": details, "tags": tags, "metadata": metadata, "due": due, "state": state}
    if not any(value is not None for value in (*given.values(), *plan.values(), depends_on)):
        raise InvalidInput("nothing to change", hint="give title, due, details, priority, state, tags or depends_on")
    when = moment(due, "due", now) if due not in (None, NOTHING) else None
    redacted: list[str] = []

    async def alter(tx: Transaction, kept: Row) -> Draft:
        memory = kept.memory
        old = model.task(memory, set(), now)
        text = _text(old.title if title is None else title, old.details if details is None else details)
        facts = {**old.metadata, **(metadata or {})}
        made = inputs.clean(text, memory.tags if tags is None else tags, state or old.state, _without_nulls(facts))
        redacted[:] = made.redacted
        new = model.plan(memory) | {name: value for name, value in plan.items() if value is not None}
        if due is not None:
            new["due"] = when
        if depends_on is not None:
            new["depends_on"] = await _numbers(tx, call.scope, depends_on)
            await _refuse_cycle(tx, call.scope, memory, new["depends_on"])
        if not force and made.memory_type != old.state:
            await _refuse_blocked(tx, call.scope, memory, made.memory_type, new.get("depends_on", ()))
        new |= _ending(old, made.memory_type, now)
        serial_of = {SERIAL: memory.metadata[SERIAL]}
        return replace(made, metadata=made.metadata | serial_of | _planned(new), importance=memory.importance)

    return Kept(**_fields(await _revise(store, ref, alter, call)), redacted=tuple(redacted))


def _without_nulls(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if value is not None}


def _ending(old: Task, state: str, now: float) -> dict[str, Any]:
    """Return when a task was finished, if it is; one that goes on has no end and no outcome."""
    if state in UNFINISHED:
        return {"finished": None, "outcome": None}
    return {} if old.state == state else {"finished": now}


async def _refuse_cycle(tx: Transaction, scope: Scope, memory: Memory, needs: list[int]) -> None:
    """Refuse to let a task wait for itself, through whatever others, and say through which."""
    visible = await scopes.visible(tx, scope)
    way: dict[int, tuple[int, ...]] = {number: (memory.id, number) for number in needs}
    titles = {memory.id: model.title(memory)}
    reached = list(needs)
    while reached:
        number = reached.pop()
        for kept in await memory_rows.find(tx, visible, "m.id = :id", id=number):
            await memory_rows.hold(tx, kept)  # so that nobody closes the circle at the same time
            titles[number] = model.title(kept.memory)
            if number == memory.id:
                said = " > ".join(f"{one} {preview(titles[one], 40)!r}" for one in way[number])
                raise Conflict(f"these tasks would wait for each other: {said}", hint="leave one of them out")
            for other in model.plan(kept.memory).get("depends_on", ()):
                if other not in way:
                    way[other] = (*way[number], other)
                    reached.append(other)


async def _refuse_blocked(tx: Transaction, scope: Scope, memory: Memory, state: str, needs: Iterable[int]) -> None:
    """Refuse to begin or finish a task that waits for others, and name those."""
    if state not in ("in_progress", "done"):
        return
    visible = await scopes.visible(tx, scope)
    waiting = await storage.unfinished(tx, visible, needs) if needs else set()
    if waiting:
        rows = await memory_rows.fetch(tx, visible, sorted(waiting))
        said = ", ".join(f"{number} {preview(model.title(row), 40)!r}" for number, row in sorted(rows.items()))
        raise Conflict(
            f"task {memory.id} {preview(model.title(memory), 40)!r} waits for {said}",
            hint="finish that first, or repeat with force=true",
        )


async def complete(store: Store, ref: Ref, outcome: str | None, force: bool, call: Call) -> Completed:
    """Say that a task is done, and return what can be begun now; done already, nothing changes."""
    now, call = store.clock(), call.of("task")
    said, redacted = (None, ()) if outcome is None else inputs.fact("outcome", outcome, LONGEST_OUTCOME)

    async def alter(tx: Transaction, kept: Row) -> Draft | None:
        if kept.memory.memory_type == "done" and said is None:
            return None
        if not force and kept.memory.memory_type in UNFINISHED:
            await _refuse_blocked(tx, call.scope, kept.memory, "done", model.plan(kept.memory).get("depends_on", ()))
        finished = {"finished": now} if kept.memory.memory_type != "done" else {}
        return _altered(kept.memory, "done", model.plan(kept.memory) | finished | ({"outcome": said} if said else {}))

    done = await _revise(store, ref, alter, call)

    async def freed(tx: Transaction) -> list[Task]:
        waiting = await storage.of_states(tx, Filter(call.scope), UNFINISHED)
        after = [one for one in waiting if done.id in model.plan(one).get("depends_on", ())]
        return [one for one in await _shown(tx, call.scope, after, now) if not one.blocked]

    unblocked = await store.database.read(freed)
    freed_ones = tuple(Freed(one.id, one.title) for one in unblocked)
    return Completed(**_fields(done), unblocked=freed_ones, redacted=redacted)
