"""What was spent, and what the same work would have cost with every tool and every result in the model's context.

The method, which the docs state: an agent with direct tools reads the definitions of all tools once a session, and
every argument and result passes through its context. A program reads results without showing them to the model; what
it prints of them, and its own text, are not known here and not counted. Sessions are not told apart: each day with
calls counts as one, and reads the definitions once.
"""

import json
from dataclasses import dataclass

from athena import tokens
from athena.kernel.catalog import Catalog
from athena.memory.store import Store
from athena.storage import usage
from athena.storage.database import Transaction
from athena.storage.usage import Used


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
class Savings:
    calls: int
    days: int
    definitions: int  # tokens of all tool definitions, which an agent with direct tools reads in each session
    spent: int
    direct: int
    saved: int
    percent: float
    operations: tuple[Spending, ...]


async def savings(store: Store, catalog: Catalog) -> Savings:
    async def work(tx: Transaction) -> tuple[list[Used], int]:
        return await usage.summed(tx)

    used, days = await store.database.read(work)
    definitions = sum(tokens.count(definition(catalog, name)) for name in (one.name for one in catalog))
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
    )


def definition(catalog: Catalog, name: str) -> str:
    """Write an operation as a client with direct tools would load it."""
    one = catalog.find(name)
    described = f"{one.summary} {one.documentation.details}".strip()
    return json.dumps({"name": one.name, "description": described, "inputSchema": one.arguments_schema})
