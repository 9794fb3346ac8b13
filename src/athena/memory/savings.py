"""What was spent, and what the same work would have cost with every tool and every result in the model's context.

The method, which the docs state: an agent with direct tools reads the definitions of all tools once a session, and
every argument and result passes through its context. A program reads results without showing them to the model; what
it prints of them, and its own text, are not known here and not counted. Sessions are not told apart: each day with
calls counts as one, and reads the definitions once. What people do at a terminal is left out.
"""

import json
from dataclasses import dataclass

from athena.core import tokens
from athena.core.catalog import Catalog
from athena.core.threads import run_in_thread
from athena.core.values import HOOK_EVENTS, HOOK_SURFACE, Call, Scope
from athena.memory.store import Store
from athena.storage import calls, usage
from athena.storage.database import Transaction
from athena.storage.usage import UsageRow

CLI_SURFACE = "cli"  # the surface that a person reads, and no model
MAX_HOOK_EVENTS = 10_000  # events that are looked at


@dataclass(frozen=True, slots=True)
class Spending:
    """One operation on one surface."""

    operation: str
    surface: str
    calls: int
    given: int
    returned: int
    shown: int


@dataclass(frozen=True, slots=True)
class Answered:
    """One event of sessions, by whoever answered it: `daemon`, or `process` without one."""

    event: str
    link: str
    calls: int
    median_ms: float
    slowest_ms: float


@dataclass(frozen=True, slots=True)
class Savings:
    calls: int
    days: int
    definitions: int  # tokens of all tool definitions, which an agent with direct tools reads in each session
    spent: int
    direct: int
    saved: int
    percent: float
    operations: tuple[Spending, ...]
    hooks: tuple[Answered, ...] = ()  # of the last 10,000 events


def record_hook(store: Store, scope: Scope, event: str, link: str, seconds: float) -> None:
    """Note who answered an event of a session and how long that took, without being waited for."""
    call = Call(event, HOOK_SURFACE, scope, store.clock() - seconds)

    async def write_call(tx: Transaction) -> None:
        await calls.record_call(tx, call, link, seconds * 1000)

    store.database.defer_write(write_call)


def _summarize_hooks(last: list[tuple[str, str, float]]) -> tuple[Answered, ...]:
    took: dict[tuple[str, str], list[float]] = {}
    for event, link, ms in last:
        took.setdefault((event, link), []).append(ms)
    return tuple(
        Answered(event, link, len(all_ms), round(sorted(all_ms)[len(all_ms) // 2], 1), round(max(all_ms), 1))
        for (event, link), all_ms in sorted(took.items())
    )


async def compute_savings(store: Store, catalog: Catalog) -> Savings:
    async def read_usage(tx: Transaction) -> tuple[list[UsageRow], int, list[tuple[str, str, float]]]:
        return *await usage.sum_usage(tx, CLI_SURFACE), await calls.list_recent_calls(
            tx, HOOK_SURFACE, HOOK_EVENTS, MAX_HOOK_EVENTS
        )

    used, days, last = await store.database.read(read_usage)
    definitions = await run_in_thread(_count_definition_tokens, catalog)
    spent = sum(one.shown for one in used)
    direct = definitions * days + sum(one.given + one.returned for one in used)
    saved = max(0, direct - spent)
    return Savings(
        sum(one.calls for one in used),
        days,
        definitions,
        spent,
        direct,
        saved,
        round(100 * saved / direct, 1) if direct else 0.0,
        tuple(Spending(*one) for one in used),
        _summarize_hooks(last),
    )


def _count_definition_tokens(catalog: Catalog) -> int:
    """Count exactly, since a person is shown the result; the table is dropped again, so that a daemon stays small."""
    count = tokens.load_exact_counter()
    return sum(count(format_definition(catalog, operation.name)) for operation in catalog)


def format_definition(catalog: Catalog, name: str) -> str:
    """Write an operation as a client with direct tools would load it."""
    one = catalog.get_operation(name)
    described = f"{one.summary} {one.documentation.details}".strip()
    return json.dumps({"name": one.name, "description": described, "inputSchema": one.arguments_schema})
