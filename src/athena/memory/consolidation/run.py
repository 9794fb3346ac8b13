"""One consolidation: read, mine stage by stage, then keep all patterns and change memories in one transaction.

Until that transaction, a run leaves nothing but its progress: killed at any moment, the store is as before or as
after. A run over the same things as the last one of its strategy does nothing; one that was interrupted goes on behind
the last stage that was done.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from athena.core.call import Call
from athena.core.scope import Scope
from athena.memory import rows as memory_rows
from athena.memory.consolidation import apply, pattern_rows, read, run_rows
from athena.memory.consolidation.changing import Hand
from athena.memory.consolidation.findings import Pattern
from athena.memory.consolidation.read import Material
from athena.memory.consolidation.run_rows import Attempt
from athena.memory.consolidation.stages import READS, Mine
from athena.memory.consolidation.strategies import PLANS, Plan
from athena.memory.consolidation.values import Consolidated, Found, Status, Strategy
from athena.memory.consolidation.wording import reworded
from athena.memory.index import catch_up
from athena.memory.store import Store
from athena.storage import calls, scopes
from athena.storage.database import Transaction

DAY = 86_400.0
DUE = 500  # events since the last run that make another worth while
IDLE = 120.0  # seconds after which a run that said nothing is taken for dead
Tell = Callable[[str, int, int], None]  # which stage begins, how many are done, of how many


def silent(stage: str, done: int, total: int) -> None:
    """Tell nobody."""


async def consolidate(
    store: Store, strategy: Strategy, days_back: float, dry_run: bool, call: Call, tell: Tell = silent
) -> Consolidated:
    """Look at the last days; what it changes is undone as one change."""
    began = store.clock()
    plan, since = PLANS[strategy], began - days_back * DAY
    if dry_run:
        material = await read.read(store, call.scope, since)
        patterns, _ = await _mined(store, call.scope, material, plan, None, tell)
        done = await _tried(store, patterns, material, plan, call)
        return Consolidated(strategy, material.examined, **done, seconds=round(store.clock() - began, 3))
    if (earlier := await _replayed(store, strategy, call)) is not None:
        return earlier
    job = await _begun(store, call.scope, strategy, days_back, since, began)
    if job.ended is not None:
        return await _as_before(store, call.scope, job)
    material = await read.read(store, call.scope, since)
    patterns, resumed = await _mined(store, call.scope, material, plan, job, tell)
    patterns = await reworded(store, patterns)
    tell("changing", len(PLANS), len(PLANS))
    done = await _kept(store, job, patterns, material, plan, since, call)
    return Consolidated(strategy, material.examined, **done, resumed=resumed, seconds=round(store.clock() - began, 3))


async def _replayed(store: Store, strategy: str, call: Call) -> Consolidated | None:
    """Return what a run of the same key did, so that it is not taken for one over what has come since."""

    async def work(tx: Transaction) -> Consolidated | None:
        if (kept := await calls.receipt(tx, call)) is None:
            return None
        done = json.loads(kept)
        return Consolidated(strategy, done["examined"], **await _shown(tx, call.scope, done))

    return await store.database.read(work)


async def _begun(store: Store, scope: Scope, strategy: str, days: float, since: float, began: float) -> Attempt:
    """Note that a run begins, with what one that did not come to its end had found; or return the last, of the same."""

    async def work(tx: Transaction) -> Attempt:
        fingerprint = read.fingerprint(await read.prints(tx, scope, since))
        last = await run_rows.find(tx, scope, strategy, days)
        if last is not None and last.ended is not None and last.fingerprint == fingerprint:
            return last
        progress = last.progress if last is not None and last.ended is None else ""
        made = Attempt(strategy, days, began, began, None, "reading", fingerprint, 0, progress, "{}")
        await run_rows.put(tx, scope, made)
        return made

    return await store.database.write(work)


async def _as_before(store: Store, scope: Scope, job: Attempt) -> Consolidated:
    result = json.loads(job.result)

    async def work(tx: Transaction) -> list[Found]:
        found = await memory_rows.fetch(tx, await scopes.own(tx, scope.of("pattern")), result.get("patterns", ()))
        return [pattern_rows.shown(found[number]) for number in result.get("patterns", ()) if number in found]

    patterns = await store.database.read(work)
    return Consolidated(job.strategy, result.get("examined", 0), 0, 0, 0, 0, 0, tuple(patterns), skipped=True)


async def _mined(
    store: Store, scope: Scope, material: Material, plan: Plan, job: Attempt | None, tell: Tell
) -> tuple[list[Pattern], bool]:
    """Attempt the stages that are not done yet, and note after each how far it is."""
    mine = Mine(store, scope, material, plan)
    done = _progress(job.progress, material) if job else {}
    resumed = bool(done)
    for place, stage in enumerate(mine.stages):
        tell(stage, place, len(mine.stages) + 1)
        if stage in done:
            continue
        done[stage] = await mine.run(stage)
        if job is not None:
            now = job._replace(stage=stage, seen=store.clock(), progress=_told(done, material))
            await store.database.write(_noting(scope, now))
    return _apart([one for stage in mine.stages for one in done[stage]]), resumed


def _noting(scope: Scope, run: Attempt) -> Callable[[Transaction], Any]:
    async def work(tx: Transaction) -> None:
        last = await run_rows.find(tx, scope, run.strategy, run.days)
        if last is not None and last.fingerprint == run.fingerprint:  # else a purge took away what may be quoted here
            await run_rows.put(tx, scope, run)

    return work


def _told(done: dict[str, list[Pattern]], material: Material) -> str:
    """Write down what stages found, and in what."""
    return json.dumps(
        {name: [material.prints[READS[name]], [asdict(one) for one in found]] for name, found in done.items()}
    )


def _progress(text: str, material: Material) -> dict[str, list[Pattern]]:
    """Return what was found in the very same as there is now; what is of another kind may have changed."""
    stages = json.loads(text) if text else {}
    return {
        name: [_pattern(one) for one in found]
        for name, (seen, found) in stages.items()
        if seen == material.prints[READS[name]]
    }


def _pattern(fields: dict[str, Any]) -> Pattern:
    listed: dict[str, Any] = {name: tuple(fields[name]) for name in ("evidence", "features", "quotes")}
    return Pattern(**fields | listed)


def _apart(patterns: list[Pattern]) -> list[Pattern]:
    """Leave out near duplicates that are said to contradict each other."""
    opposed = {frozenset(one.evidence) for one in patterns if one.type == "contradiction"}
    return [one for one in patterns if one.type != "near_duplicate" or frozenset(one.evidence) not in opposed]


def _finished(job: Attempt, material: Material, left: str, done: dict[str, Any], now: float) -> Attempt:
    newest = max((event.id for event in material.events), default=0)
    ended = job._replace(seen=now, ended=now, stage="done", fingerprint=left, newest=newest, progress="")
    return ended._replace(result=json.dumps(done))


class _Tried(Exception):
    """What a run would do, thrown so that nothing of it is kept."""


async def _tried(store: Store, patterns: list[Pattern], material: Material, plan: Plan, call: Call) -> dict[str, Any]:
    """Do all that a run would do, note what that was, and take it back."""
    supported = apply.supported(patterns, material)

    async def work(tx: Transaction) -> None:
        hand = Hand(store, tx, await scopes.ensure(tx, call.scope), await calls.record(tx, call, "done"), store.clock())
        done = await apply.act(hand, call.scope, patterns, supported, plan)
        shown = await _shown(tx, call.scope, done)
        raise _Tried(shown | {"patterns": tuple(_unkept(one) if one.new else one for one in shown["patterns"])})

    try:
        await store.database.write(work)
    except _Tried as tried:
        found: dict[str, Any] = tried.args[0]
    return found


def _unkept(found: Found) -> Found:
    return replace(found, id=None, memory=None)  # numbers that are given to something else


async def _shown(tx: Transaction, scope: Scope, done: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of what a run did, and its patterns as they are now."""
    rows = await memory_rows.fetch(tx, await scopes.own(tx, scope.of("pattern")), done["patterns"])
    patterns = tuple(pattern_rows.shown(rows[n], new=n in done["new"]) for n in done["patterns"] if n in rows)
    counts = {name: done[name] for name in ("merged", "strengthened", "faded", "promoted")}
    return counts | {"new": len(done["new"]), "patterns": patterns}


async def _kept(
    store: Store, job: Attempt, patterns: list[Pattern], material: Material, plan: Plan, since: float, call: Call
) -> dict[str, Any]:
    """Keep the patterns and change memories; all of it happens or none."""
    supported = apply.supported(patterns, material)

    async def work(tx: Transaction) -> tuple[dict[str, Any], bool]:
        async def change(number: int) -> dict[str, Any]:
            await run_rows.put(
                tx, call.scope, job._replace(seen=store.clock())
            )  # one run of a project at a time gets here
            as_read = await read.prints(tx, call.scope, since) == material.prints
            hand = Hand(store, tx, await scopes.ensure(tx, call.scope), number, store.clock())
            done = await apply.act(hand, call.scope, patterns, supported, plan)
            done |= {"examined": material.examined}
            # What was written since the reading is for the next run, which must not take it for seen.
            left = read.fingerprint(await read.prints(tx, call.scope, since)) if as_read else ""
            await run_rows.put(tx, call.scope, _finished(job, material, left, done, store.clock()))
            return done

        done = await calls.once(tx, call, change)
        return await _shown(tx, call.scope, done), await store.database.vectors.any_missing(tx)

    found, behind = await store.database.write(work)
    if behind and store.encoder.works:
        catch_up(store)
    return found


async def status(store: Store, scope: Scope) -> list[Status]:
    """Return the last run of each strategy, the latest first."""
    now = store.clock()
    found = await store.database.read(lambda tx: run_rows.of_project(tx, scope))
    return [_status(run, now) for run in found]


def _status(run: Attempt, now: float) -> Status:
    state = "done" if run.ended is not None else "running" if now - run.seen < IDLE else "interrupted"
    result = json.loads(run.result)
    found = {name: len(v) if isinstance(v, list) else int(v) for name, v in result.items()}
    seconds = round((run.ended or run.seen) - run.began, 3)
    return Status(run.strategy, run.days, state, run.stage, run.began, run.ended, seconds, found)


async def due(store: Store, scope: Scope) -> bool:
    """Tell whether enough has happened since the last run that another is worth while."""

    async def work(tx: Transaction) -> int:
        return await run_rows.count_after(tx, scope.of("event"), await run_rows.newest_event(tx, scope), DUE)

    return await store.database.read(work) >= DUE
