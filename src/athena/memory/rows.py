"""SQL of memories: rows, tags and the queue of rows to index. Every read names the scopes it may see."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from athena.core.hashing import MIN_HASH_CHARS, count_shared_prefix
from athena.core.values import Scope
from athena.memory.values import Memory
from athena.storage import counts, privacy, scopes
from athena.storage.database import Row, Transaction
from athena.storage.filters import bind_list, split_batches, tag_key

MEMORY_COLUMNS = (
    "m.id, m.hash, m.content, m.tags, m.memory_type, m.metadata, m.created, m.updated, m.importance, s.name,"
    " m.author, m.private"
)
MEMORY_COLUMN_COUNT = 12
BOUNDED_BATCH_ROWS = 20
FROM_MEMORIES = "FROM memories m JOIN scopes s ON s.id = m.scope"
SELECT_ROWS_SQL = f"SELECT {MEMORY_COLUMNS}, m.scope, m.digest, m.label, m.happened, m.deleted {FROM_MEMORIES}"
INSERT_MEMORY_SQL = """INSERT INTO memories (scope, digest, hash, content, label, tags, memory_type, metadata, session,
                                  happened, created, updated, importance, author, private)
            VALUES (:scope, :digest, :hash, :content, :label, :tags, :memory_type, :metadata, :session,
                    :happened, :created, :updated, :importance, :author, :private)"""

MAX_NOTED_MEMORIES = 5_000  # whose marks are looked up one by one
RELATED_ACTION = "related"  # the action that history records for a link
CONTRADICTED_BY = "contradicted by"  # links a memory to a newer one that contradicts it
QUOTES_RELATION = "quotes"  # links a row to a memory whose text it repeats: a purge of the memory removes the row too
QUOTED_BEFORE_RELATION = "quoted"  # only the row's history repeats the text: a purge removes that history
MERGED_INTO = "merged into"  # links a forgotten duplicate to the memory that stays
UNDECIDED = "may be replaced by"  # links a memory to a newer one, where a person is to say which of them holds
ASKED = "asked whether replaced by"  # the same, after the question
RESERVED_RELATIONS = (QUOTES_RELATION, QUOTED_BEFORE_RELATION, MERGED_INTO, UNDECIDED, ASKED)


class RowKey(NamedTuple):
    """Which row, and which text it has."""

    scope: int
    id: int
    digest: str


class MemoryRow(NamedTuple):
    """A memory with the columns that callers never see."""

    memory: Memory
    scope: int
    digest: str
    label: str
    happened: float
    deleted: float | None
    private: str  # marks of the private sources that its text may quote

    def to_snapshot(self) -> dict[str, Any]:
        """Return the state that history keeps and undo restores."""
        m = self.memory
        return {
            "digest": self.digest,
            "content": m.content,
            "tags": list(m.tags),
            "memory_type": m.memory_type,
            "metadata": m.metadata,
            "importance": m.importance,
            "author": m.author,
            "updated": m.updated,
            "happened": self.happened,
            "label": self.label,
            "deleted": self.deleted,
        }


def memory_from_row(row: Row) -> Memory:
    """Build a memory from MEMORY_COLUMNS; columns after them are ignored."""
    memory_id, short_hash, content, tags, memory_type, metadata, created, updated, importance = row[:9]
    project, author, private = row[9:MEMORY_COLUMN_COUNT]
    privacy.note_read(private)
    return Memory(
        memory_id,
        short_hash,
        content,
        () if tags == "[]" else tuple(json.loads(tags)),
        memory_type,
        {} if metadata == "{}" else json.loads(metadata),
        created,
        updated,
        importance,
        project,
        author,
    )


def _to_memory_row(row: Row) -> MemoryRow:
    scope, digest, label, happened, deleted = row[MEMORY_COLUMN_COUNT:]
    return MemoryRow(memory_from_row(row), scope, digest, label, happened, deleted, row[MEMORY_COLUMN_COUNT - 1])


def join_ids(ids: Iterable[int]) -> str:
    """Return ids as the inside of `IN (...)`; no id matches nothing."""
    return ", ".join(map(str, ids)) or "NULL"


async def fetch_memories(
    tx: Transaction,
    scope_ids: list[int],
    ids: Iterable[int],
    *,
    include_deleted: bool = False,
    longest: int | None = None,
) -> dict[int, Memory]:
    """Return memories of these scopes by id; `longest` is how much of each text is read, whole ones few at a time."""
    columns = (
        MEMORY_COLUMNS if longest is None else MEMORY_COLUMNS.replace("m.content", "substr(m.content, 1, :longest)")
    )
    cut = {} if longest is None else {"longest": longest}
    live_condition = "" if include_deleted else "AND m.deleted IS NULL"
    memories: dict[int, Memory] = {}
    for batch in split_batches(list(ids), 500 if longest is not None else BOUNDED_BATCH_ROWS):
        placeholders, bound = bind_list("id", batch)
        rows = await tx.fetch(
            f"""SELECT {columns} {FROM_MEMORIES}
                WHERE m.scope IN ({join_ids(scope_ids)}) AND m.id IN ({placeholders}) {live_condition}""",
            **bound,
            **cut,
        )
        memories |= {row[0]: memory_from_row(row) for row in rows}
    return memories


async def find_memory_rows(tx: Transaction, scope_ids: list[int], condition: str, **values: Any) -> list[MemoryRow]:
    """Return at most 50 rows that meet a condition: live before deleted ones, then by scope as given, then by id."""
    rows = await tx.fetch(
        f"""{SELECT_ROWS_SQL} WHERE m.scope IN ({join_ids(scope_ids)}) AND {condition}
            ORDER BY m.deleted IS NOT NULL, m.id DESC LIMIT 50""",
        **values,
    )
    return sorted(map(_to_memory_row, rows), key=lambda row: (row.deleted is not None, scope_ids.index(row.scope)))


async def find_rows_by_id(tx: Transaction, scope_ids: list[int], memory_id: int) -> list[MemoryRow]:
    """Return the row with an id, if it is in one of the scopes, deleted or not."""
    return await find_memory_rows(tx, scope_ids, "m.id = :id", id=memory_id)


async def list_rows_by_id(tx: Transaction, scope_ids: list[int], ids: list[int]) -> list[MemoryRow]:
    """Return the rows with these ids that are in one of the scopes, deleted or not."""
    found: list[MemoryRow] = []
    for batch in split_batches(ids):
        names, bound = bind_list("id", batch)
        query = f"{SELECT_ROWS_SQL} WHERE m.scope IN ({join_ids(scope_ids)}) AND m.id IN ({names}) ORDER BY m.id"
        found += map(_to_memory_row, await tx.fetch(query, **bound))
    return found


async def list_row_keys(tx: Transaction, scope_ids: list[int], ids: list[int]) -> list[RowKey]:
    """Return the keys of those of these memories that are in one of the scopes, deleted or not."""
    keys: list[RowKey] = []
    for batch in split_batches(ids):
        names, bound = bind_list("id", batch)
        query = f"SELECT scope, id, digest FROM memories WHERE scope IN ({join_ids(scope_ids)}) AND id IN ({names})"
        keys += [RowKey(*row) for row in await tx.fetch(query, **bound)]
    return keys


async def list_rows_after(tx: Transaction, scope_ids: list[int], last_id: int, limit: int) -> list[MemoryRow]:
    """Return the next live rows after an id, in the order of their ids."""
    rows = await tx.fetch(
        f"""{SELECT_ROWS_SQL} WHERE m.scope IN ({join_ids(scope_ids)}) AND m.id > :last AND m.deleted IS NULL
            ORDER BY m.id LIMIT :limit""",
        last=last_id,
        limit=limit,
    )
    return [_to_memory_row(row) for row in rows]


async def count_live_rows(tx: Transaction, scope_ids: list[int]) -> int:
    query = f"SELECT count(*) FROM memories WHERE scope IN ({join_ids(scope_ids)}) AND deleted IS NULL"
    return int((await tx.fetch_required(query))[0])


async def find_rows_by_digest(tx: Transaction, scope: int, digest: str) -> list[MemoryRow]:
    """Return the rows with a digest, the live one first."""
    return await find_memory_rows(tx, [scope], "m.digest = :digest", digest=digest)


async def find_rows_by_hash_prefix(tx: Transaction, scope_ids: list[int], prefix: str) -> list[MemoryRow]:
    return await find_memory_rows(tx, scope_ids, "m.digest >= :low AND m.digest < :high", low=prefix, high=prefix + "g")


async def find_ids_by_old_hash_prefix(tx: Transaction, scope_ids: list[int], prefix: str) -> list[int]:
    """Return memories that once had a text whose digest starts with a prefix."""
    rows = await tx.fetch(
        f"""SELECT DISTINCT memory FROM history WHERE scope IN ({join_ids(scope_ids)})
            AND digest >= :low AND digest < :high""",
        low=prefix,
        high=prefix + "g",
    )
    return [row[0] for row in rows]


async def list_session_memories(
    tx: Transaction, scope_ids: list[int], session: str, memory_type: str
) -> list[MemoryRow]:
    """Return the live memories of one type in a session, in the order they were stored."""
    rows = await tx.fetch(
        f"""{SELECT_ROWS_SQL} WHERE m.scope IN ({join_ids(scope_ids)}) AND m.session = :session
            AND m.memory_type = :memory_type AND m.deleted IS NULL ORDER BY m.id""",
        session=session,
        memory_type=memory_type,
    )
    return [_to_memory_row(row) for row in rows]


async def count_session_memories(
    tx: Transaction, scope_ids: list[int], memory_type: str
) -> list[tuple[str, int, float]]:
    """Return each session with memories of one type: how many it has and when the last changed."""
    await note_scope_marks(tx, scope_ids)
    rows = await tx.fetch(
        f"""SELECT session, count(*), max(updated) FROM memories
            WHERE scope IN ({join_ids(scope_ids)}) AND session IS NOT NULL
            AND memory_type = :memory_type AND deleted IS NULL GROUP BY session ORDER BY session""",
        memory_type=memory_type,
    )
    return [(session, int(count), updated) for session, count, updated in rows]


async def list_forgotten_ids(tx: Transaction, scope_ids: list[int]) -> list[int]:
    rows = await tx.fetch(
        f"SELECT id FROM memories WHERE scope IN ({join_ids(scope_ids)}) AND deleted IS NOT NULL ORDER BY id"
    )
    return [row[0] for row in rows]


async def find_known_digests(tx: Transaction, scope: Scope, digests: list[str]) -> set[str]:
    """Return which of these digests belong to live memories of the project."""
    known: set[str] = set()
    for batch in split_batches(digests):
        placeholders, bound = bind_list("digest", batch)
        rows = await tx.fetch(
            f"""SELECT m.digest, m.private FROM scopes s, memories m WHERE s.name = :project AND s.kind = :kind
                AND m.scope = s.id AND m.digest IN ({placeholders}) AND m.deleted IS NULL""",
            **scope._asdict(),
            **bound,
        )
        for digest, private in rows:  # that a text is there says what it is
            privacy.note_read(private)
            known.add(digest)
    return known


async def insert_memory(tx: Transaction, scope: int, columns: dict[str, Any]) -> int:
    """Insert a row and return its id."""
    columns["private"] = privacy.add_current_marks(columns["private"])
    short_hash, _ = await _assign_short_hash(tx, scope, columns["digest"])
    # Not RETURNING: after it SQLite makes FTS5 flush, which costs fifteen times as much as reading the id back.
    await tx.execute_many(INSERT_MEMORY_SQL, [{"scope": scope, "hash": short_hash, **columns}])
    [(memory_id,)] = await tx.fetch(
        "SELECT id FROM memories WHERE scope = :scope AND digest = :digest AND deleted IS NULL",
        scope=scope,
        digest=columns["digest"],
    )
    return int(memory_id)


async def insert_unindexed_memory(tx: Transaction, scope: int, columns: dict[str, Any]) -> int | None:
    """Insert a row that gets no full-text entry yet, and return its id; None if a live row has its digest."""
    short_hash, marks = await _assign_short_hash(tx, scope, columns["digest"])
    if marks is not None:
        privacy.note_read(marks)  # that a text is there says what it is
        return None
    columns["private"] = privacy.add_current_marks(columns["private"])
    row = await tx.fetch_one(f"{INSERT_MEMORY_SQL} RETURNING id", scope=scope, hash=short_hash, **columns)
    assert row is not None
    return int(row[0])


async def update_memory_row(tx: Transaction, row: MemoryRow, columns: dict[str, Any]) -> None:
    privacy.note_change(row.private, "memory", row.memory.id)
    if columns.get("digest", row.digest) != row.digest:
        columns["hash"], _ = await _assign_short_hash(tx, row.scope, columns["digest"])
    if "content" in columns:
        columns["private"] = privacy.add_current_marks(row.private)
    assignments = ", ".join(f"{name} = :{name}" for name in columns)
    await tx.execute(
        f"UPDATE memories SET {assignments} WHERE scope = :scope AND id = :id",
        scope=row.scope,
        id=row.memory.id,
        **columns,
    )


async def mark_deleted(tx: Transaction, hidden: Sequence[MemoryRow], now: float) -> None:
    """Mark rows of one scope as deleted, and remove their tags from the index."""
    for row in hidden:
        privacy.note_change(row.private, "memory", row.memory.id)
    names, bound = bind_list("id", [row.memory.id for row in hidden])
    scope = hidden[0].scope
    await tx.execute(f"DELETE FROM tags WHERE scope = :scope AND memory IN ({names})", scope=scope, **bound)
    await tx.execute(
        f"UPDATE memories SET deleted = :now, updated = :now WHERE scope = :scope AND id IN ({names})",
        scope=scope,
        now=now,
        **bound,
    )


async def lock_memory(tx: Transaction, row: MemoryRow) -> None:
    """Keep others from changing or removing a memory until this transaction ends."""
    await tx.execute(
        "UPDATE memories SET updated = updated WHERE scope = :scope AND id = :id", scope=row.scope, id=row.memory.id
    )


async def increment_occurrences(tx: Transaction, row: MemoryRow, *, revived: bool = False) -> None:
    """Increment a memory's occurrence count; `revived`: it was forgotten when `row` was read, and is not any more."""
    await tx.execute(
        "UPDATE memories SET occurrences = occurrences + 1 WHERE scope = :scope AND id = :id",
        scope=row.scope,
        id=row.memory.id,
    )
    if row.deleted is None or revived:
        await counts.count_occurrence(tx, row.scope, row.memory.memory_type)


async def _assign_short_hash(tx: Transaction, scope: int, digest: str) -> tuple[str, str | None]:
    """Return the shortest unique prefix of a digest, and lengthen the hashes that it would make ambiguous.

    Return also the private marks of the live row that has this digest, or None.
    """
    head, marks = digest[:MIN_HASH_CHARS], None
    rows = await tx.fetch(
        """SELECT id, digest, hash, deleted, private FROM memories
           WHERE scope = :scope AND digest >= :low AND digest < :high""",
        scope=scope,
        low=head,
        high=head + "g",
    )
    length = MIN_HASH_CHARS
    for memory_id, other, short_hash, deleted, private in rows:
        if other == digest:
            marks = private if deleted is None else marks
            continue
        unique_length = count_shared_prefix(digest, other) + 1
        length = max(length, unique_length)
        if len(short_hash) < unique_length:
            await tx.execute(
                "UPDATE memories SET hash = :hash WHERE scope = :scope AND id = :id",
                hash=other[:unique_length],
                scope=scope,
                id=memory_id,
            )
    return digest[:length], marks


async def delete_memory(tx: Transaction, scope: int, memory: int) -> None:
    """Delete a memory from every table; delete its passages first."""
    await counts.count_out(tx, scope, [memory])
    for table in ("tags", "links", "waiting", "mentions"):
        await tx.execute(f"DELETE FROM {table} WHERE scope = :scope AND memory = :memory", scope=scope, memory=memory)
    await tx.execute("DELETE FROM links WHERE other = :memory", memory=memory)
    await tx.execute("DELETE FROM memories WHERE scope = :scope AND id = :memory", scope=scope, memory=memory)


async def replace_tags(tx: Transaction, scope: int, memory: int, tags: Iterable[str], happened: float) -> None:
    """Set the tags by which a memory is found; a forgotten one has none there."""
    await tx.execute("DELETE FROM tags WHERE scope = :scope AND memory = :memory", scope=scope, memory=memory)
    await tx.execute_many(
        "INSERT INTO tags (scope, tag, memory, happened) VALUES (:scope, :tag, :memory, :happened)",
        [{"scope": scope, "tag": tag_key(tag), "memory": memory, "happened": happened} for tag in tags],
    )


async def note_scope_marks(tx: Transaction, scope_ids: list[int]) -> None:
    """Mark the run that reads names out of many rows: tags, types, sessions. A program may have put a text there.

    A document that is as its file made it has only the names that the file has.
    """
    if not privacy.is_watched() or not scope_ids:
        return
    rows = await tx.fetch(
        f"""SELECT DISTINCT m.private FROM memories m WHERE m.scope IN ({join_ids(scope_ids)}) AND m.private <> ''
            AND (m.author <> 'document' OR m.tags <> '[]' OR EXISTS (SELECT 1 FROM history h
                 WHERE h.scope = m.scope AND h.memory = m.id AND h.action IN ('updated', 'merged')))"""
    )
    for (private,) in rows:
        privacy.note_read(private)


async def note_marks_of(tx: Transaction, scope_ids: list[int], ids: list[int], *, is_search: bool = False) -> None:
    """Mark the run with these memories; of very many, with all of the scopes."""
    for private in await list_marks_of(tx, scope_ids, ids):
        (privacy.note_search if is_search else privacy.note_read)(private)


async def list_marks_of(tx: Transaction, scope_ids: list[int], ids: list[int]) -> set[str]:
    """Return the values of `private` of these memories; of very many, those of the scopes."""
    batches = split_batches(ids) if len(ids) <= MAX_NOTED_MEMORIES else [None]
    marks: set[str] = set()
    for batch in batches:
        names, bound = ("", {}) if batch is None else bind_list("id", batch)
        rows = await tx.fetch(
            f"""SELECT DISTINCT private FROM memories WHERE scope IN ({join_ids(scope_ids)}) AND private <> ''
                {names and f"AND id IN ({names})"}""",
            **bound,
        )
        marks.update(row[0] for row in rows)
    return marks


async def fetch_memory_ages(tx: Transaction, scope_ids: list[int], ids: list[int]) -> Any:
    """Return an array with a row for each memory: when it happened, its strength, and when it was last used."""
    import numpy as np  # slow to load; only searches need it

    ages, order = np.zeros((len(ids), 3)), np.argsort(ids)
    columns = ", ".join(f"string_agg(CAST({name} AS TEXT), ',')" for name in ("id", "happened", "strength", "used"))
    for batch in split_batches(ids):
        placeholders, bound = bind_list("id", batch)
        where = f"scope IN ({join_ids(scope_ids)}) AND id IN ({placeholders})"
        # As one row, see `load_tokens` of the vector index on SQLite.
        texts = await tx.fetch_required(f"SELECT {columns} FROM memories WHERE {where}", **bound)
        found, *values = (np.fromstring(text or "", np.float64, sep=",") for text in texts)
        ages[order[np.searchsorted(ids, found, sorter=order)]] = np.stack(values, axis=1)
    return ages


async def strengthen_memories(scope: Scope, ids: list[int], now: float, half_life: float, tx: Transaction) -> None:
    """Strengthen memories that were used, starting from their strength as it has decayed until now.

    Not for a run that has read something private: which memories it makes stronger is a message to others.
    """
    if privacy.has_marks():
        return
    scope_ids = await scopes.fetch_visible_ids(tx, scope)
    placeholders, bound = bind_list("id", ids)
    await tx.execute(
        f"""UPDATE memories SET used = :now, strength =
                0.2 + 0.8 * strength * power(2.0, -(CASE WHEN used > :now THEN 0 ELSE :now - used END) / :half_life)
            WHERE scope IN ({join_ids(scope_ids)}) AND id IN ({placeholders})""",
        now=now,
        half_life=half_life,
        **bound,
    )


async def reset_strength(tx: Transaction, scope: Scope) -> None:
    """Clear the record of use of all memories of a project."""
    scope_ids = await scopes.fetch_own_ids(tx, scope)
    await tx.execute(
        f"UPDATE memories SET strength = 0, used = 0 WHERE scope IN ({join_ids(scope_ids)}) AND strength > 0"
    )


async def add_marks(tx: Transaction, memory: int, marks: str) -> None:
    """Add private marks to a memory, and those of the run that writes."""
    if marks := privacy.add_current_marks(marks):
        row = await tx.fetch_one("SELECT private FROM memories WHERE id = :id", id=memory)
        joined = privacy.join_marks([*marks.split(), *(row[0].split() if row else ())])
        await tx.execute("UPDATE memories SET private = :private WHERE id = :id", private=joined, id=memory)


async def enqueue_memory(tx: Transaction, scope: int, memory: int) -> None:
    """Queue a memory for indexing."""
    # the table `waiting` is the index queue
    await tx.execute("INSERT INTO waiting (scope, memory) VALUES (:scope, :memory)", scope=scope, memory=memory)


async def list_queued_memories(tx: Transaction, limit: int) -> list[tuple[int, int]]:
    """Return scope and id of the first memories in the queue."""
    rows = await tx.fetch("SELECT scope, memory FROM waiting ORDER BY scope, memory LIMIT :limit", limit=limit)
    return [(scope, memory_id) for scope, memory_id in rows]


async def dequeue_memories(tx: Transaction, scope: int, ids: list[int]) -> None:
    for batch in split_batches(ids):
        placeholders, bound = bind_list("id", batch)
        await tx.execute(
            f"DELETE FROM waiting WHERE scope = :scope AND memory IN ({placeholders})", scope=scope, **bound
        )


async def set_updated(tx: Transaction, scope: int, memory: int, at: float) -> None:
    """Set when a memory was last changed, as another store says."""
    await tx.execute(
        "UPDATE memories SET updated = :at WHERE scope = :scope AND id = :id", at=at, scope=scope, id=memory
    )
