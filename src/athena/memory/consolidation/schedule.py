"""When consolidation runs by itself: at night, and after much has happened."""

from typing import Literal

from athena.core import clock
from athena.core.call import Call
from athena.core.scope import Scope
from athena.errors import AthenaError
from athena.memory.consolidation.run import consolidate, is_due, list_run_status
from athena.memory.store import Store
from athena.storage import scopes
from athena.storage.database import Transaction

AutomaticStrategy = Literal["off", "minimal", "speed", "balanced", "quality"]
NIGHT_HOURS = range(2, 5)  # hours, here
MIN_NIGHT_GAP_S = 20 * 3_600.0  # seconds between two nights
SCHEDULED_DAYS_BACK = 7


async def consolidate_due_projects(store: Store, strategy: AutomaticStrategy) -> list[str]:
    """Consolidate the projects whose time has come, and return their names."""
    if strategy == "off":
        return []

    async def list_projects(tx: Transaction) -> list[str]:
        return [name for name, _, _ in await scopes.list_projects(tx)]

    done = []
    for project in await store.database.read(list_projects):
        scope = Scope(project)
        if await is_due(store, scope) or await _is_night_run_due(store, scope, strategy):
            try:
                await consolidate(
                    store, strategy, SCHEDULED_DAYS_BACK, False, Call("consolidate", "server", scope, store.clock())
                )
            except AthenaError:  # the next round tries again; its status says how far this one came
                continue
            done.append(project)
    return done


async def _is_night_run_due(store: Store, scope: Scope, strategy: str) -> bool:
    now = store.clock()
    if clock.to_local_time(now).hour not in NIGHT_HOURS:
        return False
    runs = [one for one in await list_run_status(store, scope) if one.strategy == strategy]
    return not runs or now - runs[0].began > MIN_NIGHT_GAP_S
