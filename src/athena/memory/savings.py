"""Count the tokens that were used, and estimate what the same work would have cost with direct tool calls.

The method, which the docs state: an agent with direct tools reads the definitions of all tools once a session, and
every argument and result passes through its context. A program reads results without showing them to the model; its
own text and what it prints are not known here and not counted. Sessions are not distinguished: each day with calls
counts as one session. Calls from the command line are left out. Over MCP a model reads the text that was sent, which is
shorter than the JSON of the result.
"""

import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from athena.core import tokens
from athena.core.catalog import Catalog
from athena.core.threads import run_in_thread
from athena.core.values import HOOK_EVENTS, HOOK_SURFACE, Call, Scope
from athena.memory.store import Store
from athena.storage import calls, usage
from athena.storage.database import Transaction
from athena.storage.usage import UsageRow

CLI_SURFACE = "cli"  # a person reads its results, not a model
MAX_COUNTED_DEFINITIONS = 5_000  # whose tokens are remembered: to count those of all takes seconds
_counted: dict[str, int] = {}  # tokens by definition
_counting = threading.Lock()
MAX_TIMED_CALLS = 20_000  # the newest, that a report of the use covers
MAX_HOOK_EVENTS = 10_000  # the newest, that the summary covers


@dataclass(frozen=True, slots=True)
class Spending:
    """The tokens of one operation on one surface."""

    operation: str
    surface: str
    calls: int
    given: int
    returned: int
    shown: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A hook event, by the process that answered it: `daemon`, or `process` if none was running."""

    event: str
    link: str
    calls: int
    median_ms: float
    slowest_ms: float


@dataclass(frozen=True, slots=True)
class Savings:
    calls: int
    days: int
    definitions: int  # tokens of all tool definitions, which an agent with direct tools reads once a session
    spent: int
    direct: int
    saved: int
    percent: float
    operations: tuple[Spending, ...]
    hooks: tuple[Answered, ...] = ()


def record_hook(store: Store, scope: Scope, event: str, link: str, seconds: float) -> None:
    """Record in the background which process answered a hook event and how long that took."""
    call = Call(event, HOOK_SURFACE, scope, store.clock() - seconds)

    async def write_call(tx: Transaction) -> None:
        await calls.record_call(tx, call, link, seconds * 1000)

    store.database.defer_write(write_call)


async def compute_savings(store: Store, catalog: Catalog) -> Savings:
    async def read_usage(tx: Transaction) -> tuple[list[UsageRow], int, list[tuple[str, str, float]]]:
        hook_calls = await calls.list_recent_calls(tx, HOOK_SURFACE, HOOK_EVENTS, MAX_HOOK_EVENTS)
        return *await usage.sum_usage(tx, CLI_SURFACE), hook_calls

    rows, days, hook_calls = await store.database.read(read_usage)
    definitions = await run_in_thread(_count_definition_tokens, catalog)
    spent = sum(row.shown for row in rows)
    direct = definitions * days + sum(row.given + row.returned for row in rows)
    saved = max(0, direct - spent)
    return Savings(
        sum(row.calls for row in rows),
        days,
        definitions,
        spent,
        direct,
        saved,
        round(100 * saved / direct, 1) if direct else 0.0,
        tuple(Spending(*row) for row in rows),
        _summarize_hooks(hook_calls),
    )


@dataclass(frozen=True, slots=True)
class UseShare:
    """The use of one day (in days since 1970), operation, project or client."""

    name: str
    calls: int
    tokens: int  # that callers sent and got
    read: int  # of these, by a model


@dataclass(frozen=True, slots=True)
class CallSpeed:
    """How long calls took, of one operation or on one day (in days since 1970)."""

    name: str
    calls: int
    median_ms: float
    slow_ms: float  # one call of twenty takes longer


@dataclass(frozen=True, slots=True)
class UseReport:
    """How agents and applications used Athena in the last days, in all projects."""

    days: tuple[UseShare, ...]
    operations: tuple[UseShare, ...]
    projects: tuple[UseShare, ...]
    clients: tuple[UseShare, ...]
    speeds: tuple[CallSpeed, ...]  # by operation
    daily_speeds: tuple[CallSpeed, ...]  # by day


async def report_use(store: Store, days: int) -> UseReport:
    now = store.clock()

    async def read_report(tx: Transaction) -> UseReport:
        first = int(now // usage.DAY_S) - days + 1
        shares = [
            tuple(UseShare(*share) for share in await usage.list_usage(tx, column, first, CLI_SURFACE))
            for column in ("day", "operation", "scope", "surface")
        ]
        durations = await calls.list_durations(tx, now - days * usage.DAY_S, MAX_TIMED_CALLS)
        speeds = summarize_durations((name, ms) for name, _, ms in durations)
        daily = summarize_durations((str(int(at // usage.DAY_S)), ms) for _, at, ms in durations)
        return UseReport(shares[0], shares[1], shares[2], shares[3], speeds, daily)

    return await store.database.read(read_report)


def summarize_durations(durations: Iterable[tuple[str, float]]) -> tuple[CallSpeed, ...]:
    """Return how long calls took by name, the most frequent first."""
    by_name: dict[str, list[float]] = {}
    for name, ms in durations:
        by_name.setdefault(name, []).append(ms)
    speeds = []
    for name, all_ms in by_name.items():
        ordered = sorted(all_ms)
        median, slow = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
        speeds.append(CallSpeed(name, len(ordered), round(median, 2), round(slow, 2)))
    return tuple(sorted(speeds, key=lambda speed: -speed.calls))


def _count_definition_tokens(catalog: Catalog) -> int:
    """Count the tokens of all definitions exactly, since a person reads the result."""
    texts = [format_definition(catalog, operation.name) for operation in catalog.exclude_personal()]
    with _counting:
        if missing := [text for text in texts if text not in _counted]:
            if len(_counted) > MAX_COUNTED_DEFINITIONS:
                _counted.clear()
                missing = texts
            count = tokens.load_exact_counter()
            _counted.update({text: count(text) for text in missing})
        return sum(_counted[text] for text in texts)


def format_definition(catalog: Catalog, name: str) -> str:
    """Return the definition of an operation as a client with direct tools would load it."""
    operation = catalog.get_operation(name)
    description = f"{operation.summary} {operation.documentation.details}".strip()
    return json.dumps({"name": operation.name, "description": description, "inputSchema": operation.arguments_schema})


def _summarize_hooks(hook_calls: list[tuple[str, str, float]]) -> tuple[Answered, ...]:
    durations: dict[tuple[str, str], list[float]] = {}
    for event, link, ms in hook_calls:
        durations.setdefault((event, link), []).append(ms)
    return tuple(
        Answered(event, link, len(all_ms), round(sorted(all_ms)[len(all_ms) // 2], 1), round(max(all_ms), 1))
        for (event, link), all_ms in sorted(durations.items())
    )
