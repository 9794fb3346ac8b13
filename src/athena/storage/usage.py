"""How many tokens went in and out, by day, operation and surface."""

from typing import Any, NamedTuple

DAY_S = 86_400


class TokenUsage(NamedTuple):
    """What one call moved: its arguments, its whole result, and what of that a model was shown."""

    given: int
    returned: int
    shown: int


class UsageRow(NamedTuple):
    """The calls of one operation by one surface, summed up."""

    operation: str
    surface: str
    calls: int
    given: int
    returned: int
    shown: int


async def add_usage(
    tx: Any, project: str, day: int, operation: str, surface: str, spent: TokenUsage, calls: int = 1
) -> None:
    """Add calls of an operation on a day, and what they moved together."""
    await tx.execute(
        """INSERT INTO usage (scope, day, operation, surface, calls, given, returned, shown)
           VALUES (:scope, :day, :operation, :surface, :calls, :given, :returned, :shown)
           ON CONFLICT (scope, day, operation, surface) DO UPDATE SET calls = usage.calls + excluded.calls,
               given = usage.given + excluded.given, returned = usage.returned + excluded.returned,
               shown = usage.shown + excluded.shown""",
        scope=project,
        day=day,
        operation=operation,
        surface=surface,
        calls=calls,
        **spent._asdict(),
    )


async def count_recent_calls(tx: Any, project: str, now: float, days: int) -> dict[str, int]:
    """Return how often each operation was called with success in a project, in the last days."""
    rows = await tx.fetch(
        """SELECT operation, sum(calls) FROM usage WHERE scope = :scope AND day >= :first GROUP BY operation""",
        scope=project,
        first=int(now // DAY_S) - days,
    )
    return {row[0]: int(row[1]) for row in rows}


async def sum_usage(tx: Any, without: str) -> tuple[list[UsageRow], int]:
    """Return what was used but by one surface, the most first, and on how many days anything was."""
    rows = await tx.fetch(
        """SELECT operation, surface, sum(calls), sum(given), sum(returned), sum(shown) FROM usage
           WHERE surface <> :without GROUP BY operation, surface
           ORDER BY sum(given) + sum(returned) DESC, operation, surface""",
        without=without,
    )
    (days,) = await tx.fetch_one("SELECT count(DISTINCT day) FROM usage WHERE surface <> :without", without=without)
    return [UsageRow(row[0], row[1], *map(int, row[2:])) for row in rows], int(days)
