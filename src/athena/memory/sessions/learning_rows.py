"""SQL of what sessions taught: the memories, the rules of what may not be stored, and which of them were announced."""

from collections.abc import Sequence

from athena.core.home.paths import USER_PROJECT
from athena.core.values import Kind, Scope
from athena.memory.rows import FROM_MEMORIES, MEMORY_COLUMNS, MERGED_INTO, fetch_memories, join_ids, memory_from_row
from athena.memory.sessions.values import get_said_time
from athena.memory.values import DOCUMENT_TYPE, Memory
from athena.storage import privacy, scopes
from athena.storage.database import Transaction
from athena.storage.filters import bind_list, split_batches, tag_key

AUTO_TAG = "auto"  # marks memories that Athena stored without a request
CONFIRMED_IMPORTANCE = 0.7  # of a memory that a person confirmed; a memory that a person stores has 0.5
CONFIRMED_KEY = "confirmed"  # of a memory's metadata: learning stored it, and a person confirmed it
RULE_KIND: Kind = "rule"  # type: ignore[assignment]  # callers can name the kinds of the type, and these rows not
CONFIRMING_OPERATIONS = ("keep_learned", "edit_learned")
PERSON_SURFACES = ("cli", "page")
PERSONS_OPERATIONS = ("remember", "remember_batch", "restore_memory")  # there a person's word on what a memory says
EXAMPLE_KEY = "memory"  # of a rule's metadata: the id of the memory that it was made of
MAX_LEARNED_CHARS = 4_000
MAX_COMPARED, MAX_COMPARED_CHARS = 500, 1_000  # of the newest statements of other projects, and of each
NOTICE_COUNTER_PREFIX = "announced "  # before a scope's id: a row of `counters` with the last memory that was announced


async def list_learned_memories(tx: Transaction, scope: Scope, limit: int, offset: int) -> list[Memory]:
    """Return the memories of a project that learning stored, the newest first, with the beginning of each."""
    scope_ids = await scopes.fetch_own_ids(tx, scope.with_kind("memory"))
    rows = await tx.fetch(
        f"""SELECT m.id FROM memories m JOIN tags t ON t.scope = m.scope AND t.memory = m.id
            WHERE t.scope IN ({join_ids(scope_ids)}) AND t.tag = :tag AND m.deleted IS NULL
            ORDER BY m.created DESC, m.id DESC LIMIT :limit OFFSET :offset""",
        tag=tag_key(AUTO_TAG),
        limit=limit,
        offset=offset,
    )
    # anybody may use the tag, for a text of any length
    memories = await fetch_memories(tx, scope_ids, [row[0] for row in rows], longest=MAX_LEARNED_CHARS)
    return [memories[row[0]] for row in rows]


async def list_statements_elsewhere(
    tx: Transaction, scope: Scope, user_tags: Sequence[str], tags: Sequence[str]
) -> list[tuple[str, str]]:
    """Return project and text of a person's newest memories with such tags, in `user` and in other projects."""
    names = {
        int(scope_id): str(name)
        for scope_id, name in await tx.fetch(
            "SELECT id, name FROM scopes WHERE kind = 'memory' AND name <> :own", own=scope.project
        )
    }
    statements = []
    for is_user, wanted in ((True, user_tags), (False, tags)):
        tag_names, bound = bind_list("tag", [tag_key(tag) for tag in wanted])
        scope_ids = [scope_id for scope_id, name in names.items() if (name == USER_PROJECT) is is_user]
        rows = await tx.fetch(
            f"""SELECT m.scope, substr(m.content, 1, :longest), m.private
                FROM tags t JOIN memories m ON m.scope = t.scope AND m.id = t.memory
                WHERE t.scope IN ({join_ids(scope_ids)}) AND t.tag IN ({tag_names}) AND m.author = 'person'
                AND m.deleted IS NULL ORDER BY t.memory DESC LIMIT :limit""",
            longest=MAX_COMPARED_CHARS,
            limit=MAX_COMPARED,
            **bound,
        )
        for scope_id, text, private in rows:
            privacy.note_read(private)
            statements.append((names[int(scope_id)], str(text)))
    return statements


async def list_new_ids(tx: Transaction, scope_id: int, after: int, since: float) -> list[int]:
    """Return the memories that learning stored with ids above `after` and times from `since` on, the newest first."""
    rows = await tx.fetch(
        """SELECT m.id, m.private FROM memories m JOIN tags t ON t.scope = m.scope AND t.memory = m.id
           WHERE t.scope = :scope AND t.tag = :tag AND t.memory > :after
           AND m.deleted IS NULL AND m.created >= :since ORDER BY m.id DESC""",
        scope=scope_id,
        tag=tag_key(AUTO_TAG),
        after=after,
        since=since,
    )
    for _, private in rows:
        privacy.note_read(private)
    return [int(row[0]) for row in rows]


async def list_rule_memories(tx: Transaction, scope: Scope, *, include_deleted: bool = False) -> list[Memory]:
    """Return the rows of what learning may not store, of the project and of the user, the oldest first."""
    scope_ids = await scopes.fetch_visible_ids(tx, scope.with_kind(RULE_KIND))
    if not scope_ids:
        return []
    live_condition = "" if include_deleted else "AND m.deleted IS NULL"
    columns = MEMORY_COLUMNS.replace("m.content", "substr(m.content, 1, :longest)")
    rows = await tx.fetch(
        f"""SELECT {columns} {FROM_MEMORIES} WHERE m.scope IN ({join_ids(scope_ids)}) {live_condition}
            ORDER BY m.id""",
        longest=MAX_LEARNED_CHARS,
    )
    return [memory_from_row(row) for row in rows]


async def fetch_last_episode_time(tx: Transaction, scope: Scope, session: str) -> float | None:
    """Return when the last episode of a session was, or None if it has none."""
    scope_ids = await scopes.fetch_own_ids(tx, scope.with_kind("event"))
    row = await tx.fetch_one(
        f"""SELECT max(happened) FROM memories WHERE scope IN ({join_ids(scope_ids)}) AND session = :session
            AND memory_type = 'episode'""",  # also of a deleted one: what somebody forgot is not learned again
        session=session,
    )
    return None if row is None or row[0] is None else float(row[0])


async def list_learned_turns(tx: Transaction, scope_ids: Sequence[int], turns: Sequence[int]) -> set[int]:
    """Return which of these turns of sessions were learned from."""
    known: set[int] = set()
    for batch in split_batches(list(turns)):
        names, bound = bind_list("turn", batch)
        rows = await tx.fetch(
            f"SELECT turn FROM learned_turns WHERE scope IN ({join_ids(scope_ids)}) AND turn IN ({names})", **bound
        )
        known |= {int(row[0]) for row in rows}
    return known


async def insert_learned_turns(tx: Transaction, scope_id: int, turns: Sequence[int]) -> None:
    await tx.execute_many(
        "INSERT INTO learned_turns (scope, turn) VALUES (:scope, :turn) ON CONFLICT (scope, turn) DO NOTHING",
        [{"scope": scope_id, "turn": turn} for turn in dict.fromkeys(turns)],
    )


async def list_forgotten_since(
    tx: Transaction, scope_ids: Sequence[int], since: float, after: int
) -> list[tuple[int, str, float]]:
    """Return memories that somebody forgot from a time on, and when: the next ones with ids above `after`.

    No pieces of documents, which go with their files, and no duplicates of what stays.
    """
    rows = await tx.fetch(
        f"""SELECT m.id, substr(m.content, 1, :longest), m.deleted, m.private FROM memories m
            WHERE m.scope IN ({join_ids(scope_ids)}) AND m.deleted IS NOT NULL AND m.deleted >= :since AND m.id > :after
            AND m.memory_type <> '{DOCUMENT_TYPE}'
            AND NOT EXISTS (SELECT 1 FROM links l WHERE l.scope = m.scope AND l.memory = m.id
                            AND l.relation = '{MERGED_INTO}' AND l.at >= m.deleted)
            ORDER BY m.id LIMIT :limit""",
        longest=MAX_LEARNED_CHARS,
        since=since,
        after=after,
        limit=MAX_COMPARED,
    )
    for *_, private in rows:
        privacy.note_read(private)
    return [(int(memory_id), str(text), float(deleted)) for memory_id, text, deleted, _ in rows]


async def fetch_last_times(tx: Transaction, scope: Scope, memories: Sequence[Memory]) -> dict[int, float]:
    """Return when each memory was said, or when a person changed, confirmed or brought back what it says since.

    Tags, metadata and importance say nothing new, whoever changes them; nor does what was undone.
    """
    times = {memory.id: get_said_time(memory) for memory in memories}
    changed = [memory.id for memory in memories if memory.updated > memory.created]
    scope_ids = await scopes.fetch_visible_ids(tx, scope.with_kind("memory")) if changed else []
    for batch in split_batches(changed):
        names, bound = bind_list("id", batch)
        rows = await tx.fetch(
            f"""SELECT h.memory, h.at, h.action, h.digest, m.digest, c.operation, c.surface
                FROM memories m JOIN history h ON h.scope = m.scope AND h.memory = m.id
                LEFT JOIN calls c ON c.id = h.call
                WHERE m.scope IN ({join_ids(scope_ids)}) AND m.id IN ({names})
                  AND h.undone = 0 AND h.digest IS NOT NULL ORDER BY h.memory, h.id DESC""",
            **bound,
        )
        later: dict[int, str] = {}  # of each memory, the digest after the change
        for memory_id, at, action, digest, last_digest, operation, surface in rows:
            is_new_text = digest != later.get(memory_id, last_digest)
            is_act = surface in PERSON_SURFACES and operation in PERSONS_OPERATIONS
            if is_new_text or is_act or action == "revived" or operation in CONFIRMING_OPERATIONS:
                times[memory_id] = max(times[memory_id], float(at))
            later[memory_id] = digest
    return times


async def fetch_announced_id(tx: Transaction, scope_id: int) -> int:
    """Return the last memory that a session was told the number of."""
    row = await tx.fetch_one("SELECT value FROM counters WHERE name = :name", name=f"{NOTICE_COUNTER_PREFIX}{scope_id}")
    return 0 if row is None else int(row[0])


async def save_announced_id(tx: Transaction, scope_id: int, memory_id: int) -> None:
    await tx.execute(
        """INSERT INTO counters (name, value) VALUES (:name, :value)
           ON CONFLICT (name) DO UPDATE SET value = excluded.value""",
        name=f"{NOTICE_COUNTER_PREFIX}{scope_id}",
        value=memory_id,
    )


async def list_questions(
    tx: Transaction, scope_ids: Sequence[int], relations: tuple[str, str], ids: Sequence[int] | None
) -> list[tuple[int, int, str]]:
    """Return the links of two relations from older to newer memories; with `ids` only to these."""
    links: list[tuple[int, int, str]] = []
    for batch in [None] if ids is None else split_batches(list(ids)):
        names, bound = bind_list("id", batch or ())
        condition = "" if batch is None else f"AND other IN ({names})"
        links += await tx.fetch(
            f"""SELECT memory, other, relation FROM links WHERE scope IN ({join_ids(scope_ids)}) {condition}
                AND relation IN (:first, :second)""",
            first=relations[0],
            second=relations[1],
            **bound,
        )
    return links


async def list_logged_ids(tx: Transaction, project: str, session: str, key: str, reason: str) -> set[int]:
    """Return the memories that the briefing of a call told for a reason."""
    rows = await tx.fetch(
        """SELECT memory FROM injections WHERE scope = :scope AND session = :session AND key = :key
           AND reason LIKE :reason""",
        scope=project,
        session=session,
        key=key,
        reason=f"%{reason}",
    )
    return {int(row[0]) for row in rows}
