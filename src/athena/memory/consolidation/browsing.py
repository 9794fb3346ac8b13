"""Looking at the patterns that were found."""

from typing import Any

from athena.core.page import Page
from athena.core.scope import Scope
from athena.errors import NotFound
from athena.memory import rows as memory_rows
from athena.memory.consolidation import pattern_rows
from athena.memory.consolidation import rows as consolidation_rows
from athena.memory.consolidation.read import KINDS
from athena.memory.consolidation.values import Evidence, Found, WithEvidence
from athena.memory.lookup import Ref, locate
from athena.memory.store import Store
from athena.memory.values import preview
from athena.storage import scopes
from athena.storage.database import Transaction


async def listed(store: Store, scope: Scope, kind: str | None, least: float, limit: int, offset: int) -> Page[Found]:
    """Return patterns, the surest first."""

    async def work(tx: Transaction) -> Page[Found]:
        numbers = await scopes.visible(tx, scope.of("pattern"))
        rows, total = await consolidation_rows.listed(tx, numbers, kind, least, limit, offset)
        return Page([pattern_rows.shown(row) for row in rows], total)

    return await store.database.read(work)


async def show(store: Store, ref: Ref, scope: Scope) -> WithEvidence:
    async def work(tx: Transaction) -> WithEvidence:
        found = pattern_rows.shown((await locate(tx, scope.of("pattern"), ref)).memory)
        if not await consolidation_rows.stands(tx, found.id or 0):
            raise NotFound(f"what pattern {ref!r:.40} rests on is gone", hint="list_patterns shows those that stand")
        rests: list[Evidence] = []
        for kind in KINDS:
            rows = await memory_rows.fetch(tx, await scopes.visible(tx, scope.of(kind)), found.evidence)
            rests += [
                Evidence(m.id, kind, preview(m.content), m.created, m.metadata.get("outcome")) for m in rows.values()
            ]
        fields: dict[str, Any] = {name: getattr(found, name) for name in Found.__dataclass_fields__}
        return WithEvidence(**fields, found_in=tuple(sorted(rests, key=lambda one: one.id)))

    return await store.database.read(work)
