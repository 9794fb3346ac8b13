"""Count the tokens that were used, and estimate what the same work would have cost with direct tool calls.

The method, which the docs state: an agent with direct tools reads the definitions of all tools once a session, and
every argument and result passes through its context. A program reads results without showing them to the model; its
own text and what it prints are not known here and not counted. Sessions are not distinguished: each day with calls
counts as one session. Calls from the command line are left out.
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

CLI_SURFACE = "cli"  # a person reads its results, not a model
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


def _count_definition_tokens(catalog: Catalog) -> int:
    """Count the tokens of all definitions exactly, since a person reads the result."""
    count = tokens.load_exact_counter()
    return sum(count(format_definition(catalog, operation.name)) for operation in catalog)


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
