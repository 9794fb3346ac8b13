"""Keeping the patterns of a run and doing what they call for, all in one transaction.

Consolidation overrules nobody: a pattern is acted on once, and never again after somebody took that back.
"""

from typing import Any

from athena.core.scope import Scope
from athena.memory import history
from athena.memory.consolidation import changing, pattern_rows
from athena.memory.consolidation import rows as storage
from athena.memory.consolidation.changing import ChangeContext
from athena.memory.consolidation.findings import Pattern
from athena.memory.consolidation.pattern_rows import ACTED_KEY
from athena.memory.consolidation.read import INPUT_KINDS, ConsolidationInput
from athena.memory.consolidation.signature import compute_signature
from athena.memory.consolidation.strategies import StrategyPlan
from athena.memory.rows import Kept
from athena.storage import scopes
from athena.storage.database import Transaction


async def apply_patterns(
    hand: ChangeContext, scope: Scope, patterns: list[Pattern], supported: dict[str, list[int]], plan: StrategyPlan
) -> dict[str, Any]:
    """Do what the patterns call for; return counts and numbers, and no words."""
    done: dict[str, Any] = {"merged": 0, "strengthened": 0, "faded": 0, "promoted": 0, "patterns": [], "new": []}
    own = await scopes.ensure_scope(hand.tx, scope.with_kind("pattern"))
    live = await _find_live_evidence(hand.tx, scope, patterns)
    borne_out: dict[int, None] = {}
    if plan.min_acting_confidence is not None:
        await changing.restore_faded(hand)
    for pattern in patterns:
        if not live.issuperset(pattern.quotes or pattern.evidence):
            continue  # forgotten or purged since it was read
        known = await pattern_rows.find_pattern_row(hand.tx, scope, pattern)
        more: dict[str, Any] = {}
        if known is None or not await history.was_ever_undone(hand.tx, known.scope, known.memory.id):
            more = await _apply_pattern(hand, pattern, known, plan, supported, done, borne_out)
        number, what = await pattern_rows.save_pattern(hand.store, hand.tx, own, pattern, known, more, hand.call_id)
        done["patterns"].append(number)
        done["new"] += [number] if what == "new" else []
    for memory in borne_out:  # each once, and after all that fades
        done["strengthened"] += await changing.strengthen(hand, memory)
    return done


async def _apply_pattern(
    hand: ChangeContext,
    pattern: Pattern,
    known: Kept | None,
    plan: StrategyPlan,
    supported: dict[str, list[int]],
    done: dict[str, Any],
    borne_out: dict[int, None],
) -> dict[str, Any]:
    """Change memories as a pattern calls for; return what its row is to say of that."""
    more: dict[str, Any] = {}
    if (
        plan.merges_duplicates
        and pattern.details.get("same")
        and (gone := await changing.merge_duplicates(hand, pattern.details["same"]))
    ):
        done["merged"] += gone
        more["merged"] = True
    if plan.min_acting_confidence is None or pattern.confidence < plan.min_acting_confidence:
        return more
    facts = known.memory.metadata if known is not None else {}
    if not facts.get(ACTED_KEY):
        faded = pattern.type == "contradiction" and await changing.record_contradiction(hand, pattern)
        done["faded"] += faded
        if faded or pattern.type != "contradiction":
            borne_out |= dict.fromkeys(supported.get(pattern_rows.build_pattern_key(pattern), ()))
    if changing.is_lesson(pattern) and (not facts.get(ACTED_KEY) or facts.get("memory") is not None):
        memory, new = await changing.promote(hand, pattern, facts.get("memory"))
        done["promoted"] += new
        more |= {"memory": memory} if memory is not None else {}
    return more | {ACTED_KEY: True}


async def _find_live_evidence(tx: Transaction, scope: Scope, patterns: list[Pattern]) -> set[int]:
    """Return what patterns rest on that is still there."""
    numbers = [number for kind in INPUT_KINDS for number in await scopes.fetch_own_ids(tx, scope.with_kind(kind))]
    return await storage.find_live_ids(tx, numbers, {n for one in patterns for n in one.quotes or one.evidence})


def find_supported_memories(patterns: list[Pattern], material: ConsolidationInput) -> dict[str, list[int]]:
    """Return for each pattern the memories that it bears out: what is said twice, is newer, or recurs."""
    found: dict[str, list[int]] = {}
    words = [(note.id, compute_signature(note.text)) for note in material.memories]
    for pattern in patterns:
        if pattern.type == "near_duplicate":
            found[pattern_rows.build_pattern_key(pattern)] = [pattern.evidence[0]]
        elif pattern.type == "contradiction":
            found[pattern_rows.build_pattern_key(pattern)] = [pattern.evidence[-1]]
        elif pattern.type == "recurring":
            core = frozenset(pattern.about.partition(": ")[2].split())
            found[pattern_rows.build_pattern_key(pattern)] = (
                [n for n, said in words if core <= said] if len(core) > 1 else []
            )
    return found
