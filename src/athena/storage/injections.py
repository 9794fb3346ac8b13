"""What sessions were told, and why."""

from collections.abc import Iterable
from typing import Any

from athena.model.briefing import Told
from athena.model.memory import Memory
from athena.model.scope import Scope
from athena.storage import memories, scopes

KEPT = 90 * 86_400.0  # seconds


async def add(scope: Scope, session: str, event: str, told: Iterable[Told], at: float, afresh: bool, tx: Any) -> None:
    """Note what a session is told; `afresh`, what it was told before is out of its sight."""
    where = {"scope": scope.project, "session": session}
    if afresh:
        await tx.execute(
            "UPDATE injections SET over = 1 WHERE scope = :scope AND session = :session AND over = 0", **where
        )
    if int(at * 1000) % 50 == 0:  # now and then
        await tx.execute(
            "DELETE FROM injections WHERE scope = :scope AND at < :old", scope=scope.project, old=at - KEPT
        )
    for one in told:
        await tx.execute(
            """INSERT INTO injections (scope, session, at, event, memory, reason, score, tokens)
               VALUES (:scope, :session, :at, :event, :memory, :reason, :score, :tokens)""",
            at=at,
            event=event,
            memory=one.id,
            reason=one.reason,
            score=one.score,
            tokens=one.tokens,
            **where,
        )


async def seen(tx: Any, scope: Scope, session: str) -> dict[int, float]:
    """Return what a session still has in sight, and when it was told it."""
    rows = await tx.fetch(
        """SELECT memory, max(at) FROM injections WHERE scope = :scope AND session = :session AND over = 0
           GROUP BY memory""",
        scope=scope.project,
        session=session,
    )
    return {int(number): at for number, at in rows}


async def latest(
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
    found = await memories.fetch(tx, await scopes.every_visible(tx, scope), {row[3] for row in rows})
    return [(row, found.get(row[3])) for row in rows]


async def count(tx: Any, scope: Scope, session: str | None) -> int:
    only = "" if session is None else "AND session = :session"
    bound = {} if session is None else {"session": session}
    row = await tx.fetch_one(
        f"SELECT count(*) FROM injections WHERE scope = :scope {only}", scope=scope.project, **bound
    )
    return int(row[0])
