"""SQL of token usage: tokens in and out by project, day, operation and surface."""

from typing import NamedTuple

from athena.storage.database import Transaction

DAY_S = 86_400
PRIVATE_SURFACE = "private"  # calls of runs that have read something private: no program may tell how many


class TokenUsage(NamedTuple):
    """The tokens of one call: its arguments, its whole result, and the part of it that a model saw."""

    given: int
    returned: int
    shown: int


class UsageRow(NamedTuple):
    """The sums over all calls of one operation by one surface."""

    operation: str
    surface: str
    calls: int
    given: int
    returned: int
    shown: int


async def add_usage(
    tx: Transaction, project: str, day: int, operation: str, surface: str, spent: TokenUsage, calls: int = 1
) -> None:
    """Add calls of an operation on a day, and their tokens."""
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


async def has_calls(tx: Transaction, surface: str) -> bool:
    return bool(await tx.fetch("SELECT 1 FROM usage WHERE surface = :surface LIMIT 1", surface=surface))


async def count_recent_calls(tx: Transaction, project: str, now: float, days: int) -> dict[str, int]:
    """Count a project's successful calls of the last days by operation, without those of marked runs."""
    rows = await tx.fetch(
        """SELECT operation, sum(calls) FROM usage WHERE scope = :scope AND day >= :first AND surface <> :private
           GROUP BY operation""",
        scope=project,
        private=PRIVATE_SURFACE,
        first=int(now // DAY_S) - days,
    )
    return {row[0]: int(row[1]) for row in rows}


class UsageShare(NamedTuple):
    """The usage of one day, operation, project or surface."""

    name: str
    calls: int
    tokens: int  # that a caller sent and got
    shown: int  # that a model read


async def list_usage(tx: Transaction, column: str, first_day: int, excluded_surface: str) -> list[UsageShare]:
    """Return the usage since a day by `day`, `operation`, `scope` or `surface`, of all surfaces but one."""
    if column not in ("day", "operation", "scope", "surface"):
        raise ValueError(column)
    rows = await tx.fetch(
        f"""SELECT {column}, sum(calls), sum(given) + sum(returned), sum(shown) FROM usage
            WHERE day >= :first AND surface <> :excluded GROUP BY {column} ORDER BY {column}""",
        first=first_day,
        excluded=excluded_surface,
    )
    return [UsageShare(str(row[0]), int(row[1]), int(row[2]), int(row[3])) for row in rows]


async def sum_usage(tx: Transaction, excluded_surface: str) -> tuple[list[UsageRow], int]:
    """Return the usage of all surfaces but one, the largest first, and on how many days there was any."""
    rows = await tx.fetch(
        """SELECT operation, surface, sum(calls), sum(given), sum(returned), sum(shown) FROM usage
           WHERE surface <> :excluded GROUP BY operation, surface
           ORDER BY sum(given) + sum(returned) DESC, operation, surface""",
        excluded=excluded_surface,
    )
    (days,) = await tx.fetch_required(
        "SELECT count(DISTINCT day) FROM usage WHERE surface <> :excluded", excluded=excluded_surface
    )
    return [UsageRow(row[0], row[1], *map(int, row[2:])) for row in rows], int(days)
