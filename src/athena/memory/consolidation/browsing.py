"""Looking at the patterns that were found."""

from typing import Any

from athena.errors import NotFound
from athena.memory.consolidation import keeping
from athena.memory.consolidation.reading import KINDS
from athena.memory.find import Ref, locate
from athena.memory.store import Store
from athena.model.memory import preview
from athena.model.page import Page
from athena.model.pattern import Evidence, Found, WithEvidence
from athena.model.scope import Scope
from athena.storage import memories, patterns, scopes
from athena.storage.database import Transaction


async def listed(store: Store, scope: Scope, kind: str | None, least: float, limit: int, offset: int) -> Page[Found]:
    """Return patterns, the surest first."""

    async def work(tx: Transaction) -> Page[Found]:
        numbers = await scopes.visible(tx, scope.of("pattern"))
        rows, total = await patterns.listed(tx, numbers, kind, least, limit, offset)
        return Page([keeping.shown(row) for row in rows], total)

    return await store.database.read(work)


async def show(store: Store, ref: Ref, scope: Scope) -> WithEvidence:
    async def work(tx: Transaction) -> WithEvidence:
        found = keeping.shown((await locate(tx, scope.of("pattern"), ref)).memory)
        if not await patterns.stands(tx, found.id or 0):
            raise NotFound(f"what pattern {ref!r:.40} rests on is gone", hint="list_patterns shows those that stand")
        rests: list[Evidence] = []
        for kind in KINDS:
            rows = await memories.fetch(tx, await scopes.visible(tx, scope.of(kind)), found.evidence)
            rests += [
                Evidence(m.id, kind, preview(m.content), m.created, m.metadata.get("outcome")) for m in rows.values()
            ]
        fields: dict[str, Any] = {name: getattr(found, name) for name in Found.__dataclass_fields__}
        return WithEvidence(**fields, found_in=tuple(sorted(rests, key=lambda one: one.id)))

    return await store.database.read(work)
