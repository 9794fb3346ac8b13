"""Check the health of the store, collect its statistics, and verify that its parts agree."""

import math
from dataclasses import dataclass
from typing import Any

from athena.core import clock
from athena.core.threads import run_in_thread
from athena.core.values import CallProgress, Scope
from athena.core.version import __version__
from athena.errors import AthenaError
from athena.memory import check_rows, list_rows, statistics_rows, topic_rows
from athena.memory.index import Progress
from athena.memory.ranking import HALF_LIFE_S
from athena.memory.store import Store
from athena.memory.values import Memory, format_preview
from athena.storage import passages, runs, scopes, workspaces
from athena.storage.database import Transaction
from athena.storage.filters import Filter

SECONDS_PER_DAY = 86_400.0
MAX_MOST_RECALLED = 10
MAX_HEALTHY_BACKLOG = 64  # passages of memories without a vector; with more, the status is degraded
MAX_REPORTED_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class Health:
    status: str  # healthy, degraded, error
    count: int
    backend: str
    problems: tuple[str, ...]
    model: str
    awaiting_vectors: int
    location: str
    version: str
    reembedding: Progress | None  # of the passages whose vectors of an earlier model are replaced in the background


async def check_health(store: Store, scope: Scope) -> Health:
    """Check every part that a search needs."""
    problems: list[str] = []
    count = pending = pending_memories = 0
    reembedding = Progress(0, 0)
    status = "healthy"
    try:
        await run_in_thread(store.encoder.embedder.load)
    except AthenaError as error:
        problems.append(
            f"search by meaning is off, words still work: {error}" + (f" ({error.hint})" if error.hint else "")
        )
        status = "degraded"

    async def read_counts(tx: Transaction) -> tuple[int, int, int, Progress]:
        models = store.encoder.models
        return (
            await list_rows.count_memories(tx, Filter(scope)),
            await passages.count_pending(tx, models),
            await passages.count_pending(tx, models, memories=True),
            Progress(*await passages.count_replaced(tx, models)),
        )

    try:
        count, pending, pending_memories, reembedding = await store.database.read(read_counts)
    except AthenaError as error:
        problems.append(str(error))
        status = "error"
    try:
        if warning := await store.database.check_writable():
            problems.append(warning)
            status = "degraded" if status == "healthy" else status
    except AthenaError as error:
        problems.append(f"nothing can be stored: {error}" + (f" ({error.hint})" if error.hint else ""))
        status = "error"
    # Only memories count, since events are encoded when there is time; a running encoder needs no help.
    if pending_memories and status == "healthy" and not store.encoder.backlog_lock.locked():
        problems.append(f"{pending_memories:,} passages are found by words only until `athena reembed` has run")
        status = "degraded" if pending_memories > MAX_HEALTHY_BACKLOG else "healthy"
    database = store.database
    problems += [database.slowdown_reason] if database.slowdown_reason else []
    return Health(
        status,
        count,
        database.engine,
        tuple(problems),
        store.encoder.name,
        pending,
        database.describe_location(),
        __version__,
        reembedding if reembedding.remaining else None,
    )


async def collect_stats(store: Store, scope: Scope) -> dict[str, Any]:
    """Count what this project can see."""
    now = store.clock()
    today = clock.to_local_time(now).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    ages = {"today": today, "7 days": now - 7 * SECONDS_PER_DAY, "30 days": now - 30 * SECONDS_PER_DAY}

    async def read_figures(tx: Transaction) -> dict[str, Any]:
        visible = await scopes.fetch_visible_ids(tx, scope)
        recalled = await topic_rows.list_most_recalled(tx, visible, now, HALF_LIFE_S, MAX_MOST_RECALLED)
        figures: dict[str, Any] = {
            "most_recalled": [_format_recalled(*row) for row in recalled],
            "bytes": await store.database.measure_size(tx),
        }
        figures["workspaces"], _ = await workspaces.fetch_workspace_usage(tx, scope, excluded_name="")
        figures["waiting_programs"] = await runs.count_runs(tx, scope, "needs_approval")
        return await statistics_rows.compute_statistics(tx, scope, ages) | figures

    return await store.database.read(read_figures)


def _format_recalled(strength: float, used: float, memory: Memory) -> dict[str, Any]:
    return {
        "id": memory.id,
        "hash": memory.hash,
        "preview": format_preview(memory.content, 80),
        "strength": round(strength, 4),
        "used": used,
    }


@dataclass(frozen=True, slots=True)
class Verdict:
    ok: bool
    checked: dict[str, int]
    problems: tuple[str, ...]


async def verify_store(store: Store, progress: CallProgress) -> Verdict:
    """Check that rows, full text, vectors and counts agree, and that each text matches its digest."""

    database = store.database

    async def check_parts(tx: Transaction) -> tuple[dict[str, int], list[str]]:
        progress.enter_stage("checking the tables")
        tx.chars_left = math.inf  # it drops what it has checked
        problems = await database.find_problems(tx)
        if problems:
            return {}, problems
        if not database.fulltext.check_needs_write_lock:
            problems += await database.fulltext.find_problems(tx)
        problems += await database.vectors.find_problems(tx)
        problems += await check_rows.find_inconsistencies(tx)
        memories, memory_problems = await check_rows.check_memories(tx, progress)
        passage_count = await check_rows.count_passages(tx)
        behind = await passages.count_stale(tx)  # to be encoded again with new neighbours
        return {"memories": memories, "passages": passage_count, "behind": behind}, problems + memory_problems

    counts: dict[str, int] = {}
    problems: list[str] = []
    try:
        counts, problems = await database.read(check_parts)
        if counts and database.fulltext.check_needs_write_lock:
            progress.enter_stage("checking the full-text index")
            problems += await database.write(database.fulltext.find_problems)
    except AthenaError as error:
        problems.append(str(error))
    except ValueError as error:  # e.g. a text that is none any more; its bytes may be private
        problems.append(f"a row cannot be read ({type(error).__name__})")
    return Verdict(not problems, counts, tuple(problems[:MAX_REPORTED_PROBLEMS]))
