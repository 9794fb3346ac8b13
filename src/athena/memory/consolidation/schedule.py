"""When consolidation runs by itself: at night, and after much has happened."""

from typing import Literal

from athena.core import clock
from athena.core.call import Call
from athena.core.scope import Scope
from athena.errors import AthenaError
from athena.memory.consolidation.run import consolidate, due, status
from athena.memory.store import Store
from athena.storage import scopes
from athena.storage.database import Transaction

Automatic = Literal["off", "minimal", "speed", "balanced", "quality"]
NIGHT = range(2, 5)  # hours, here
APART = 20 * 3_600.0  # seconds between two nights
DAYS = 7


async def tend(store: Store, strategy: Automatic) -> list[str]:
    """Consolidate the projects whose time has come, and return their names."""
    if strategy == "off":
        return []

    async def known(tx: Transaction) -> list[str]:
        return [name for name, _, _ in await scopes.counted(tx)]

    done = []
    for project in await store.database.read(known):
        scope = Scope(project)
        if await due(store, scope) or await _night(store, scope, strategy):
            try:
                await consolidate(store, strategy, DAYS, False, Call("consolidate", "server", scope, store.clock()))
            except AthenaError:  # the next round tries again; its status says how far this one came
                continue
            done.append(project)
    return done


async def _night(store: Store, scope: Scope, strategy: str) -> bool:
    now = store.clock()
    if clock.local(now).hour not in NIGHT:
        return False
    runs = [one for one in await status(store, scope) if one.strategy == strategy]
    return not runs or now - runs[0].began > APART
