"""What sessions were told, and why."""

from collections.abc import Sequence
from typing import Any

from athena.core.scope import Scope
from athena.memory import rows as memory_rows
from athena.memory.sessions.briefing_values import BriefingTurn, Told
from athena.memory.values import Memory
from athena.storage import scopes

BRIEFING_LOG_TTL_S = 90 * 86_400.0  # seconds


async def insert_briefing_items(scope: Scope, turn: BriefingTurn, told: Sequence[Told], at: float, tx: Any) -> bool:
    """Note what a session is told; `afresh`, what it was told before is out of its sight. False: another was first."""
    where = {"scope": scope.project, "session": turn.session}
    if turn.key is not None:
        await tx.execute(
            "DELETE FROM injections WHERE scope = :scope AND session = :session AND key = :key", key=turn.key, **where
        )
    rows = await tx.fetch(
        "SELECT event, memory FROM injections WHERE scope = :scope AND session = :session AND id > :after",
        after=turn.after,
        **where,
    )
    ours = {one.id for one in told}
    if any(event == turn.event or int(memory) in ours for event, memory in rows):
        return False
    if turn.afresh:
        await tx.execute(
            "UPDATE injections SET over = 1 WHERE scope = :scope AND session = :session AND over = 0", **where
        )
    if int(at * 1000) % 50 == 0:  # now and then
        await tx.execute(
            "DELETE FROM injections WHERE scope = :scope AND at < :old",
            scope=scope.project,
            old=at - BRIEFING_LOG_TTL_S,
        )
    for one in told:
        await tx.execute(
            """INSERT INTO injections (scope, session, at, event, memory, reason, score, tokens, key)
               VALUES (:scope, :session, :at, :event, :memory, :reason, :score, :tokens, :key)""",
            key=turn.key,
            at=at,
            event=turn.event,
            memory=one.id,
            reason=one.reason,
            score=one.score,
            tokens=one.tokens,
            **where,
        )
    return True


async def fetch_last_briefing_id(tx: Any, scope: Scope, session: str) -> int:
    """Return the number of the last thing that a session was told."""
    row = await tx.fetch_one(
        "SELECT max(id) FROM injections WHERE scope = :scope AND session = :session",
        scope=scope.project,
        session=session,
    )
    return int(row[0] or 0)


async def fetch_briefed_memories(tx: Any, scope: Scope, session: str, key: str | None) -> dict[int, float]:
    """Return what a session still has in sight, and since when; what was found for this very key was not heard."""
    others = "" if key is None else "AND (key IS NULL OR key <> :key)"
    rows = await tx.fetch(
        f"""SELECT memory, max(at) FROM injections WHERE scope = :scope AND session = :session AND over = 0
           {others} GROUP BY memory""",
        scope=scope.project,
        session=session,
        **({} if key is None else {"key": key}),
    )
    return {int(number): at for number, at in rows}


async def list_briefing_log(
    tx: Any, scope: Scope, session: str | None, limit: int, offset: int
) -> list[tuple[tuple[Any, ...], Memory | None]]:
    """Return what was told, the last first, each with the thing itself where it is still there."""
    only = "" if session is None else "AND session = :session"
    rows = await tx.fetch(
        f"""SELECT at, session, event, memory, reason, score, tokens FROM injections WHERE scope = :scope {only}
            ORDER BY id DESC LIMIT :limit OFFSET :offset""",
        scope=scope.project,
        limit=limit,
        offset=offset,
        **({} if session is None else {"session": session}),
    )
    found = await memory_rows.fetch_memories(
        tx, await scopes.fetch_all_visible_ids(tx, scope), {row[3] for row in rows}
    )
    return [(row, found.get(row[3])) for row in rows]


async def count_briefing_log(tx: Any, scope: Scope, session: str | None) -> int:
    only = "" if session is None else "AND session = :session"
    bound = {} if session is None else {"session": session}
    row = await tx.fetch_one(
        f"SELECT count(*) FROM injections WHERE scope = :scope {only}", scope=scope.project, **bound
    )
    return int(row[0])
