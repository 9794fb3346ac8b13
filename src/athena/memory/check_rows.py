"""SQL over the whole store: the checks that its tables agree."""

import json
from collections.abc import Iterator

from athena.core.hashing import hash_text
from athena.core.values import CallProgress
from athena.memory.values import compute_digest_salt
from athena.storage import counts
from athena.storage.database import Row, Transaction
from athena.storage.filters import tag_key

# Each message with a query for the rows that it is about; a sound store has none of them.
CONSISTENCY_RULES = {
    "memory {} has no passages, so nothing finds it": """
        SELECT m.hash FROM memories m WHERE m.deleted IS NULL
        AND NOT EXISTS (SELECT 1 FROM passages p WHERE p.scope = m.scope AND p.memory = m.id AND p.live = 1)
        AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.scope = m.scope AND w.memory = m.id)""",
    "memory {} is queued for indexing but is deleted or already indexed": """
        SELECT m.hash FROM waiting w JOIN memories m ON m.scope = w.scope AND m.id = w.memory
        WHERE m.deleted IS NOT NULL
        OR EXISTS (SELECT 1 FROM passages p WHERE p.scope = w.scope AND p.memory = w.memory)""",
    "passage {} belongs to no live memory": """
        SELECT p.id FROM passages p WHERE p.live = 1
        AND NOT EXISTS (SELECT 1 FROM memories m WHERE m.scope = p.scope AND m.id = p.memory AND m.deleted IS NULL)""",
    "passage {} lies outside of its memory's text": """
        SELECT p.id FROM passages p JOIN memories m ON m.scope = p.scope AND m.id = p.memory
        WHERE p.start < 0 OR p.length < 1 OR p.start + p.length > length(m.content)""",
    "passage {} names a model but has no vector": """
        SELECT p.id FROM passages p WHERE p.live = 1 AND p.model IS NOT NULL AND p.code IS NULL""",
    "tag {} refers to a memory that does not exist": """
        SELECT t.tag FROM tags t
        WHERE NOT EXISTS (SELECT 1 FROM memories m WHERE m.scope = t.scope AND m.id = t.memory)""",
    "a mention of {} refers to a memory that does not exist": """
        SELECT n.key FROM mentions n
        WHERE NOT EXISTS (SELECT 1 FROM memories m WHERE m.scope = n.scope AND m.id = n.memory)""",
    "hash {} is shared by two memories": """
        SELECT hash FROM memories WHERE deleted IS NULL GROUP BY scope, hash HAVING count(*) > 1""",
}


async def find_inconsistencies(tx: Transaction) -> list[str]:
    return [
        message.format(row[0])
        for message, query in CONSISTENCY_RULES.items()
        for row in await tx.fetch(f"{query} LIMIT 20")
    ]


async def check_memories(tx: Transaction, progress: CallProgress) -> tuple[int, list[str]]:
    """Compare each memory's text with its digest and hash, its tags with their index, and all with the kept counts.

    Return how many memories there are, and the problems.
    """
    check = _MemoryCheck()
    (total,) = await tx.fetch_required("SELECT count(*) FROM memories")
    progress.enter_stage("checking memories", int(total))
    last_id = 0
    while ids := await tx.fetch("SELECT id FROM memories WHERE id > :last ORDER BY id LIMIT 200", last=last_id):
        first_id, last_id = ids[0][0], ids[-1][0]
        check.memories += len(ids)
        progress.done = check.memories
        try:
            await check.check_range(tx, first_id, last_id)
        except ROW_ERRORS:  # a row of them is not text; the others are checked one by one
            for (memory_id,) in ids:
                try:
                    await check.check_range(tx, memory_id, memory_id)
                except ROW_ERRORS:
                    check.problems.append(f"the row of memory {memory_id} is not valid text")
    if not check.problems:  # else the counts differ for the same reason
        await check.compare_counts(tx)
    return check.memories, check.problems


# Bytes that are not UTF-8, and values of other types than their columns have.
ROW_ERRORS = (UnicodeDecodeError, AttributeError, TypeError)


class _MemoryCheck:
    def __init__(self) -> None:
        self.memories = 0
        self.problems: list[str] = []
        # by scope, facet and name: memories, characters, occurrences, and those in a session
        self._counts: dict[tuple[int, str, str], list[int]] = {}

    async def check_range(self, tx: Transaction, first_id: int, last_id: int) -> None:
        bounds = {"first": first_id, "last": last_id}
        rows = await tx.fetch(
            """SELECT id, scope, hash, content, metadata, digest, tags, happened, deleted, memory_type, occurrences,
                      session, label, author, private
               FROM memories WHERE id BETWEEN :first AND :last""",
            **bounds,
        )
        indexed_tags: dict[int, set[tuple[str, float]]] = {}
        for memory_id, tag, happened in await tx.fetch(
            """SELECT t.memory, t.tag, t.happened FROM memories m JOIN tags t ON t.scope = m.scope AND t.memory = m.id
               WHERE m.id BETWEEN :first AND :last""",
            **bounds,
        ):
            indexed_tags.setdefault(memory_id, set()).add((tag, happened))
        for row in rows:
            self.problems += list(self._check_row(row, indexed_tags.get(row[0], set())))

    def _check_row(self, row: Row, indexed_tags: set[tuple[str, float]]) -> Iterator[str]:
        memory_id, scope, short_hash, content, metadata, digest, tags, happened, deleted, *_ = row
        try:
            salt = compute_digest_salt(json.loads(metadata))
            keys = {tag_key(tag) for tag in json.loads(tags)} if deleted is None else set()
        except (ValueError, TypeError, AttributeError):
            yield f"the metadata or tags of memory {memory_id} cannot be read"
            return
        if hash_text(content, salt) != digest:
            yield f"the text of memory {short_hash} is not what was stored"
        elif not short_hash or not digest.startswith(short_hash):
            yield f"the hash {short_hash} of memory {memory_id} is not that of its text"
        if {(key, happened) for key in keys} != indexed_tags:
            yield f"the tags of memory {short_hash} differ from the tag index"
        if deleted is None:
            memory_type, occurrences, session = row[9:12]
            numbers = (1, len(content), occurrences, int(session is not None))
            self._count(scope, "type", memory_type, *numbers)
            self._count(scope, "day", str(counts.get_day(happened)), 1)
            for key in keys:
                self._count(scope, "tag", key, 1)

    def _count(self, scope: int, facet: str, name: str, *numbers: int) -> None:
        sums = self._counts.setdefault((scope, facet, name), [0, 0, 0, 0])
        for i, number in enumerate(numbers):
            sums[i] += number

    async def compare_counts(self, tx: Transaction) -> None:
        kept = {key: numbers for key, numbers in await counts.list_all(tx) if any(numbers)}
        if kept == self._counts:
            return
        scopes = {key[0] for key in {*kept, *self._counts} if kept.get(key) != self._counts.get(key)}
        self.problems += [f"the kept counts of scope {scope} are wrong" for scope in sorted(scopes)]


async def count_passages(tx: Transaction) -> int:
    [(count,)] = await tx.fetch("SELECT count(*) FROM passages WHERE live = 1")
    return int(count)
