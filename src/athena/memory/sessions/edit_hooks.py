"""Purge a memory together with the rules that a person made of it."""

from athena.core.values import Scope
from athena.memory.edit_hooks import EditHooks
from athena.memory.rows import MemoryRow
from athena.memory.sessions.learning_rows import EXAMPLE_KEY, list_rule_memories
from athena.storage.database import Transaction


class LearningEditHooks(EditHooks):
    async def list_dependent_ids(self, tx: Transaction, row: MemoryRow) -> list[int]:
        """Return the rules whose example is this memory: they repeat its text.

        A purge of all that was forgotten does not ask: a rule holds until a person removes it.
        """
        rules = await list_rule_memories(tx, Scope(row.memory.project), include_deleted=True)
        return [rule.id for rule in rules if rule.metadata.get(EXAMPLE_KEY) == row.memory.id]
