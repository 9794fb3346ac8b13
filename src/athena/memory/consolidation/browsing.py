"""Looking at the patterns that were found."""

from typing import Any

from athena.core.page import Page
from athena.core.scope import Scope
from athena.errors import NotFound
from athena.memory import rows as memory_rows
from athena.memory.consolidation import pattern_rows
from athena.memory.consolidation import rows as consolidation_rows
from athena.memory.consolidation.read import INPUT_KINDS
from athena.memory.consolidation.values import Evidence, Found, WithEvidence
from athena.memory.lookup import Ref, locate
from athena.memory.store import Store
from athena.memory.values import format_preview
from athena.storage import scopes
from athena.storage.database import Transaction


async def browse_patterns(
    store: Store, scope: Scope, kind: str | None, least: float, limit: int, offset: int
) -> Page[Found]:
    """Return patterns, the surest first."""

    async def read_page(tx: Transaction) -> Page[Found]:
        numbers = await scopes.fetch_visible_ids(tx, scope.with_kind("pattern"))
        rows, total = await consolidation_rows.list_pattern_rows(tx, numbers, kind, least, limit, offset)
        return Page([pattern_rows.row_to_pattern(row) for row in rows], total)

    return await store.database.read(read_page)


async def get_pattern(store: Store, ref: Ref, scope: Scope) -> WithEvidence:
    async def read_pattern(tx: Transaction) -> WithEvidence:
        found = pattern_rows.row_to_pattern((await locate(tx, scope.with_kind("pattern"), ref)).memory)
        if not await consolidation_rows.has_all_sources(tx, found.id or 0):
            raise NotFound(f"what pattern {ref!r:.40} rests on is gone", hint="list_patterns shows those that stand")
        rests: list[Evidence] = []
        for kind in INPUT_KINDS:
            rows = await memory_rows.fetch_memories(
                tx, await scopes.fetch_visible_ids(tx, scope.with_kind(kind)), found.evidence
            )
            rests += [
                Evidence(m.id, kind, format_preview(m.content), m.created, m.metadata.get("outcome"))
                for m in rows.values()
            ]
        fields: dict[str, Any] = {name: getattr(found, name) for name in Found.__dataclass_fields__}
        return WithEvidence(**fields, found_in=tuple(sorted(rests, key=lambda one: one.id)))

    return await store.database.read(read_pattern)
