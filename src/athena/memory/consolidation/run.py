"""One consolidation: read, mine stage by stage, then keep all patterns and change memories in one transaction.

Until that transaction, a run leaves nothing but its progress: killed at any moment, the store is as before or as
after. A run over the same things as the last one of its strategy does nothing; one that was interrupted goes on behind
the last stage that was done.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from athena.memory.consolidation import changing, keeping, reading
from athena.memory.consolidation.changing import Hand
from athena.memory.consolidation.keeping import Found
from athena.memory.consolidation.mining import Mine
from athena.memory.consolidation.pattern import Pattern
from athena.memory.consolidation.reading import Material
from athena.memory.consolidation.signature import signature
from athena.memory.consolidation.strategies import PLANS, Plan, Strategy
from athena.memory.consolidation.wording import reworded
from athena.memory.store import Store
from athena.memory.vectorise import catch_up
from athena.model.call import Call
from athena.model.scope import Scope
from athena.storage import calls, consolidations, memories, scopes
from athena.storage.consolidations import Attempt
from athena.storage.database import Transaction

DAY = 86_400.0
DUE = 500  # events since the last run that make another worth while
IDLE = 120.0  # seconds after which a run that said nothing is taken for dead
Tell = Callable[[str, int, int], None]  # which stage begins, how many are done, of how many


@dataclass(frozen=True, slots=True)
class Consolidated:
    strategy: str
    examined: int  # events and memories
    merged: int
    strengthened: int
    faded: int
    promoted: int
    new: int  # patterns that no run found before
    patterns: tuple[Found, ...]
    skipped: bool = False  # nothing had changed since the last run
    resumed: bool = False  # the last run was interrupted, this one went on
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """How the last run of a strategy went, or how the one in progress stands."""

    strategy: str
    days_back: float
    state: str  # running, interrupted, done
    stage: str
    began: float
    ended: float | None
    seconds: float
    found: dict[str, int]


def silent(stage: str, done: int, total: int) -> None:
    """Tell nobody."""


async def consolidate(
    store: Store, strategy: Strategy, days_back: float, dry_run: bool, call: Call, tell: Tell = silent
) -> Consolidated:
    """Look at the last days; what it changes is undone as one change."""
    began = store.clock()
    plan, since = PLANS[strategy], began - days_back * DAY
    if dry_run:
        material = await reading.read(store, call.scope, since)
        patterns, _ = await _mined(store, call.scope, material, plan, None, tell)
        done = await _tried(store, patterns, material, plan, call)
        return Consolidated(strategy, material.examined, **done, seconds=round(store.clock() - began, 3))
    job = await _begun(store, call.scope, strategy, days_back, since, began)
    if job.ended is not None:
        return await _as_before(store, call.scope, job)
    material = await reading.read(store, call.scope, since)
    patterns, resumed = await _mined(store, call.scope, material, plan, job, tell)
    patterns = await reworded(store, patterns)
    tell("changing", len(PLANS), len(PLANS))
    done = await _kept(store, job, patterns, material, plan, since, call)
    return Consolidated(strategy, material.examined, **done, resumed=resumed, seconds=round(store.clock() - began, 3))


async def _begun(store: Store, scope: Scope, strategy: str, days: float, since: float, began: float) -> Attempt:
    """Note that a run begins; return the last one instead if it saw the very same, or did not come to its end."""

    async def work(tx: Transaction) -> Attempt:
        fingerprint = await reading.fingerprint(tx, scope, since)
        last = await consolidations.find(tx, scope, strategy, days)
        if last is not None and last.fingerprint == fingerprint:
            if last.ended is None:
                await consolidations.put(tx, scope, last._replace(seen=began))
            return last
        made = Attempt(strategy, days, began, began, None, "reading", fingerprint, 0, "", "{}")
        await consolidations.put(tx, scope, made)
        return made

    return await store.database.write(work)


async def _as_before(store: Store, scope: Scope, job: Attempt) -> Consolidated:
    result = json.loads(job.result)

    async def work(tx: Transaction) -> list[Found]:
        found = await memories.fetch(tx, await scopes.own(tx, scope.of("pattern")), result.get("patterns", ()))
        return [keeping.shown(found[number]) for number in result.get("patterns", ()) if number in found]

    patterns = await store.database.read(work)
    return Consolidated(job.strategy, result.get("examined", 0), 0, 0, 0, 0, 0, tuple(patterns), skipped=True)


async def _mined(
    store: Store, scope: Scope, material: Material, plan: Plan, job: Attempt | None, tell: Tell
) -> tuple[list[Pattern], bool]:
    """Attempt the stages that are not done yet, and note after each how far it is."""
    mine = Mine(store, scope, material, plan)
    done: dict[str, list[Pattern]] = _progress(job.progress) if job else {}
    resumed = bool(done)
    for place, stage in enumerate(mine.stages):
        tell(stage, place, len(mine.stages) + 1)
        if stage in done:
            continue
        done[stage] = await mine.run(stage)
        if job is not None:
            text = json.dumps({name: [asdict(one) for one in found] for name, found in done.items()})
            await store.database.write(_noting(scope, job._replace(stage=stage, seen=store.clock(), progress=text)))
    return _apart([one for stage in mine.stages for one in done[stage]]), resumed


def _noting(scope: Scope, run: Attempt) -> Callable[[Transaction], Any]:
    async def work(tx: Transaction) -> None:
        await consolidations.put(tx, scope, run)

    return work


def _progress(text: str) -> dict[str, list[Pattern]]:
    stages = json.loads(text) if text else {}
    return {name: [_pattern(one) for one in found] for name, found in stages.items()}


def _pattern(fields: dict[str, Any]) -> Pattern:
    listed: dict[str, Any] = {name: tuple(fields[name]) for name in ("evidence", "features", "quotes")}
    return Pattern(**fields | listed)


def _apart(patterns: list[Pattern]) -> list[Pattern]:
    """Leave out near duplicates that are said to contradict each other."""
    opposed = {frozenset(one.evidence) for one in patterns if one.type == "contradiction"}
    return [one for one in patterns if one.type != "near_duplicate" or frozenset(one.evidence) not in opposed]


class _Tried(Exception):
    """What a run would do, thrown so that nothing of it is kept."""


async def _tried(store: Store, patterns: list[Pattern], material: Material, plan: Plan, call: Call) -> dict[str, Any]:
    """Do all that a run would do, note what that was, and take it back."""
    supported = _supported(patterns, material)

    async def work(tx: Transaction) -> None:
        hand = Hand(store, tx, await scopes.ensure(tx, call.scope), await calls.record(tx, call, "done"), store.clock())
        done = await _change(hand, call.scope, patterns, supported, plan)
        rows = await memories.fetch(tx, await scopes.own(tx, call.scope.of("pattern")), done["patterns"])
        shown = (keeping.shown(rows[n], new=n in done["new"]) for n in done["patterns"] if n in rows)
        raise _Tried(_counts(done) | {"patterns": tuple(_unkept(one) if one.new else one for one in shown)})

    try:
        await store.database.write(work)
    except _Tried as tried:
        found: dict[str, Any] = tried.args[0]
    return found


def _unkept(found: Found) -> Found:
    return replace(found, id=None, memory=None)  # numbers that are given to something else


def _counts(done: dict[str, Any]) -> dict[str, Any]:
    return {name: done[name] for name in ("merged", "strengthened", "faded", "promoted")} | {"new": len(done["new"])}


async def _kept(
    store: Store, job: Attempt, patterns: list[Pattern], material: Material, plan: Plan, since: float, call: Call
) -> dict[str, Any]:
    """Keep the patterns and change memories; all of it happens or none."""
    supported = _supported(patterns, material)

    async def work(tx: Transaction) -> tuple[dict[str, Any], bool]:
        async def change(number: int) -> dict[str, Any]:
            await consolidations.put(
                tx, call.scope, job._replace(seen=store.clock())
            )  # one run of a project at a time gets here
            hand = Hand(store, tx, await scopes.ensure(tx, call.scope), number, store.clock())
            done = await _change(hand, call.scope, patterns, supported, plan)
            return done | {"examined": material.examined}

        done = await calls.once(tx, call, change)
        newest = max((event.id for event in material.events), default=0)
        print_ = await reading.fingerprint(tx, call.scope, since)
        ended = store.clock()
        finished = job._replace(seen=ended, ended=ended, stage="done", fingerprint=print_, newest=newest, progress="")
        await consolidations.put(tx, call.scope, finished._replace(result=json.dumps(done)))
        rows = await memories.fetch(tx, await scopes.own(tx, call.scope.of("pattern")), done["patterns"])
        shown = [keeping.shown(rows[n], new=n in done["new"]) for n in done["patterns"] if n in rows]
        found = _counts(done) | {"patterns": tuple(shown)}
        return found, await store.database.vectors.any_missing(tx)

    found, behind = await store.database.write(work)
    if behind and store.encoder.works:
        catch_up(store)
    return found


async def _change(
    hand: Hand, scope: Scope, patterns: list[Pattern], supported: dict[str, list[int]], plan: Plan
) -> dict[str, Any]:
    """Do what the patterns call for; return counts and numbers, and no words."""
    done: dict[str, Any] = {"merged": 0, "strengthened": 0, "faded": 0, "promoted": 0, "patterns": [], "new": []}
    own = await scopes.ensure(hand.tx, scope.of("pattern"))
    for pattern in patterns:
        known = await keeping.known(hand.tx, scope, pattern)
        fresh = known is None or known.deleted is not None
        more: dict[str, Any] = {}
        if (
            plan.merges
            and pattern.details.get("same")
            and (gone := await changing.merge(hand, pattern.details["same"]))
        ):
            done["merged"] += gone
            more["merged"] = True
        if plan.acts is not None and pattern.confidence >= plan.acts:
            if fresh:
                if pattern.type == "contradiction":
                    done["faded"] += await changing.fade(hand, pattern)
                for number in supported.get(keeping.key(pattern), ()):
                    done["strengthened"] += await changing.strengthen(hand, number)
            if changing.is_lesson(pattern):
                earlier = known.memory.metadata.get("memory") if known is not None else None
                more["memory"] = await changing.promote(hand, pattern, earlier)
                done["promoted"] += fresh
        number, what = await keeping.keep(hand.store, hand.tx, own, pattern, known, more, hand.call)
        done["patterns"].append(number)
        done["new"] += [number] if what == "new" else []
    return done


def _supported(patterns: list[Pattern], material: Material) -> dict[str, list[int]]:
    """Return for each pattern the memories that it bears out: what is said twice, is newer, or recurs."""
    found: dict[str, list[int]] = {}
    words = [(note.id, signature(note.text)) for note in material.notes]
    for pattern in patterns:
        if pattern.type == "near_duplicate":
            found[keeping.key(pattern)] = [pattern.evidence[0]]
        elif pattern.type == "contradiction":
            found[keeping.key(pattern)] = [pattern.evidence[-1]]
        elif pattern.type == "recurring":
            core = frozenset(pattern.about.partition(": ")[2].split())
            found[keeping.key(pattern)] = [n for n, said in words if core <= said] if len(core) > 1 else []
    return found


async def status(store: Store, scope: Scope) -> list[Status]:
    """Return the last run of each strategy, the latest first."""
    now = store.clock()
    found = await store.database.read(lambda tx: consolidations.of_project(tx, scope))
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
        return await consolidations.count_after(
            tx, scope.of("event"), await consolidations.newest_event(tx, scope), DUE
        )

    return await store.database.read(work) >= DUE
