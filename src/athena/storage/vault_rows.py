"""SQL of the vault: encrypted values with their tokens, the ids of keys, and which tools received what."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from athena.core.values import Scope
from athena.storage import privacy, scopes
from athena.storage.database import Transaction
from athena.storage.filters import bind_list, split_batches

DAY_S = 86_400
_COLUMNS = "scope, kind, number, name, allowed, key, lookup, spelling, value, created, private, said"
MAX_LISTED_ROWS = 10_000


class VaultRow(NamedTuple):
    """One value; after it was forgotten, only its token is left."""

    scope: int
    kind: str
    number: int
    name: str
    allowed: str
    key: str
    lookup: bytes | None
    spelling: bytes | None
    value: bytes | None
    created: float
    private: str = ""  # marks of what the run had read that brought the value
    said: int = 0  # 1: a program or a model said it; 2: in `strict`, with a token of its own; 3: it read it there


class PersonName(NamedTuple):
    """A name to look for, with the private marks of the row that has it."""

    name: str
    private: str


class Disclosure(NamedTuple):
    server: str
    tool: str
    kind: str
    sent: int
    last_day: int


async def fetch_current_key(tx: Transaction) -> str | None:
    """Return the id of the newest key."""
    row = await tx.fetch_one("SELECT id FROM vault_keys ORDER BY created DESC, id LIMIT 1")
    return None if row is None else str(row[0])


async def claim_keys(tx: Transaction) -> None:
    """Before a key or a value is added: of two processes that do so at once, one waits, and may have to try again.

    On PostgreSQL neither would see what the other adds: a rotation would miss a value, and delete its key.
    """
    await tx.execute(
        """INSERT INTO counters (name, value) VALUES ('vault keys', 1)
           ON CONFLICT (name) DO UPDATE SET value = counters.value + 1"""
    )


async def insert_key(tx: Transaction, key: str, now: float) -> None:
    await tx.execute("INSERT INTO vault_keys (id, created) VALUES (:key, :now)", key=key, now=now)


async def list_used_keys(tx: Transaction) -> set[str]:
    """Return the ids of the keys that something in the store needs."""
    rows = await tx.fetch("SELECT key FROM vault WHERE value IS NOT NULL UNION SELECT id FROM vault_keys")
    return {str(row[0]) for row in rows}


async def delete_other_keys(tx: Transaction, key: str) -> None:
    await tx.execute("DELETE FROM vault_keys WHERE id <> :key", key=key)


async def find_by_lookup(tx: Transaction, scope_ids: Sequence[int], lookups: Iterable[bytes]) -> list[VaultRow]:
    """Return the rows whose values have these keyed hashes."""
    return await _find_by_hash(tx, "lookup", scope_ids, lookups)


async def find_by_spelling(tx: Transaction, scope_ids: Sequence[int], spellings: Iterable[bytes]) -> list[VaultRow]:
    """Return the rows whose values are the same but for their spelling."""
    return await _find_by_hash(tx, "spelling", scope_ids, spellings)


async def _find_by_hash(
    tx: Transaction, column: str, scope_ids: Sequence[int], hashes: Iterable[bytes]
) -> list[VaultRow]:
    found: list[VaultRow] = []
    scope_list, bound = bind_list("scope", scope_ids)
    for batch in split_batches(list(hashes)) if scope_ids else ():
        names, values = bind_list("hash", batch)
        rows = await tx.fetch(
            f"SELECT {_COLUMNS} FROM vault WHERE scope IN ({scope_list}) AND {column} IN ({names}) ORDER BY number",
            **bound,
            **values,
        )
        found += [_to_row(row) for row in rows]
    return found


async def find_by_token(tx: Transaction, scope_ids: Sequence[int], tokens: Iterable[tuple[str, int]]) -> list[VaultRow]:
    """Return the rows of these kinds and numbers."""
    found: list[VaultRow] = []
    by_kind: dict[str, list[int]] = {}
    for kind, number in tokens:
        by_kind.setdefault(kind, []).append(number)
    scope_list, bound = bind_list("scope", scope_ids)
    for kind, numbers in by_kind.items() if scope_ids else ():
        for batch in split_batches(numbers):
            names, values = bind_list("number", batch)
            rows = await tx.fetch(
                f"""SELECT {_COLUMNS} FROM vault WHERE scope IN ({scope_list}) AND kind = :kind
                    AND number IN ({names})""",
                kind=kind,
                **bound,
                **values,
            )
            found += [_to_row(row) for row in rows]
    return found


async def find_by_name(tx: Transaction, scope_ids: Sequence[int], names: Iterable[str]) -> list[VaultRow]:
    """Return the secrets of these names."""
    if not scope_ids:
        return []
    scope_list, bound = bind_list("scope", scope_ids)
    name_list, values = bind_list("name", names)
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM vault WHERE scope IN ({scope_list}) AND name IN ({name_list})", **bound, **values
    )
    return [_to_row(row) for row in rows]


async def list_rows(tx: Transaction, scope_ids: Sequence[int], kinds: Sequence[str] = ()) -> list[VaultRow]:
    """Return the rows of some scopes, or those of some kinds, in the order of their tokens; the first ones."""
    if not scope_ids:
        return []
    scope_list, bound = bind_list("scope", scope_ids)
    kind_list, values = bind_list("kind", kinds)
    condition = f"AND kind IN ({kind_list})" if kinds else ""
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM vault WHERE scope IN ({scope_list}) {condition} ORDER BY kind, number LIMIT :most",
        most=MAX_LISTED_ROWS,
        **bound,
        **values,
    )
    return [_to_row(row) for row in rows]


async def count_said(tx: Transaction, scope: int, said: int, since: float) -> int:
    """Return how many values programs and models have added in one of these ways since a time."""
    row = await tx.fetch_required(
        "SELECT count(*) FROM vault WHERE scope = :scope AND said = :said AND created > :since",
        scope=scope,
        said=said,
        since=since,
    )
    return int(row[0])


async def count_kinds(tx: Transaction, scope_ids: Sequence[int]) -> dict[str, int]:
    """Return how many values of each kind there are."""
    if not scope_ids:
        return {}
    scope_list, bound = bind_list("scope", scope_ids)
    rows = await tx.fetch(
        f"""SELECT kind, private, count(*) FROM vault WHERE scope IN ({scope_list}) AND value IS NOT NULL
            GROUP BY kind, private ORDER BY kind""",
        **bound,
    )
    counts: dict[str, int] = {}
    for kind, private, count in rows:
        privacy.note_read(private)
        counts[kind] = counts.get(kind, 0) + int(count)
    return counts


async def list_readable_rows(tx: Transaction) -> list[VaultRow]:
    """Return the rows of all projects that were not forgotten."""
    return [_to_row(row) for row in await tx.fetch(f"SELECT {_COLUMNS} FROM vault WHERE value IS NOT NULL")]


async def allocate_numbers(tx: Transaction, kind: str, count: int) -> int:
    """Return the first of some new numbers: one sequence for all projects, so that no two have the same token."""
    row = await tx.fetch_required(
        """INSERT INTO counters (name, value)
           SELECT CAST(:name AS TEXT), coalesce(max(number), 0) + CAST(:count AS BIGINT) FROM vault WHERE kind = :kind
           ON CONFLICT (name) DO UPDATE SET value = counters.value + CAST(:count AS BIGINT) RETURNING value""",
        name=f"token {kind}",
        kind=kind,
        count=count,
    )
    return int(row[0]) - count + 1


async def insert_rows(tx: Transaction, rows: Iterable[VaultRow]) -> None:
    """Add values; one that another process has just added is left out."""
    await tx.execute_many(
        f"""INSERT INTO vault ({_COLUMNS})
            VALUES (:scope, :kind, :number, :name, :allowed, :key, :lookup, :spelling, :value, :created, :private,
                    :said)
            ON CONFLICT (scope, lookup) WHERE lookup IS NOT NULL DO NOTHING""",
        [row._asdict() for row in rows],
    )


async def update_row(tx: Transaction, row: VaultRow) -> None:
    """Write a row again, under the same token."""
    await tx.execute(
        """UPDATE vault SET name = :name, allowed = :allowed, key = :key, lookup = :lookup, spelling = :spelling,
           value = :value, created = :created, private = :private, said = :said
           WHERE scope = :scope AND kind = :kind AND number = :number""",
        **row._asdict(),
    )


async def remove_receiver(tx: Transaction, server: str) -> None:
    """Take a server and its tools out of those that may receive a secret, in all projects."""
    for row in [_to_row(row) for row in await tx.fetch(f"SELECT {_COLUMNS} FROM vault WHERE allowed <> ''")]:
        kept = " ".join(one for one in row.allowed.split() if re.split("[.@]", one)[0] != server)
        if kept != row.allowed:
            await update_row(tx, row._replace(allowed=kept))


async def add_disclosures(tx: Transaction, scope: Scope, now: float, tool: str, kinds: dict[str, int]) -> None:
    """Count the values that a tool received, by kind."""
    scope_id = await scopes.ensure_scope(tx, scope.with_kind("memory"))
    server, _, name = tool.partition(".")
    await tx.execute_many(
        """INSERT INTO disclosures (scope, day, server, tool, kind, sent)
           VALUES (:scope, :day, :server, :tool, :kind, :sent)
           ON CONFLICT (scope, day, server, tool, kind) DO UPDATE SET sent = disclosures.sent + excluded.sent""",
        [
            {"scope": scope_id, "day": int(now // DAY_S), "server": server, "tool": name, "kind": kind, "sent": count}
            for kind, count in kinds.items()
        ],
    )


async def list_disclosures(tx: Transaction, scope_ids: Sequence[int]) -> list[Disclosure]:
    """Return how many values of each kind each tool received."""
    if not scope_ids:
        return []
    scope_list, bound = bind_list("scope", scope_ids)
    rows = await tx.fetch(
        f"""SELECT server, tool, kind, sum(sent), max(day) FROM disclosures WHERE scope IN ({scope_list})
            GROUP BY server, tool, kind ORDER BY server, tool, kind""",
        **bound,
    )
    return [Disclosure(row[0], row[1], row[2], int(row[3]), int(row[4])) for row in rows]


async def list_person_names(
    tx: Transaction, scope_ids: Sequence[int], types: Sequence[str], most: int
) -> list[PersonName]:
    """Return the names of the entities of some types: those of people first, then the oldest.

    Nothing is noted as read: only a name that is found in a text tells something.
    """
    if not scope_ids:
        return []
    scope_list, bound = bind_list("scope", scope_ids)
    type_list, values = bind_list("type", types)
    rows = await tx.fetch(
        f"""SELECT content, private FROM memories WHERE scope IN ({scope_list}) AND session IS NULL
            AND deleted IS NULL AND lower(memory_type) IN ({type_list})
            ORDER BY CASE author WHEN 'person' THEN 0 ELSE 1 END, id LIMIT :most""",
        most=most,
        **bound,
        **values,
    )
    return [PersonName(str(name), private) for name, private in rows]


async def list_names(tx: Transaction, scope_ids: Sequence[int], kind: str, most: int) -> list[VaultRow]:
    """Return the oldest values of a kind that were not forgotten; nothing is noted as read."""
    if not scope_ids:
        return []
    scope_list, bound = bind_list("scope", scope_ids)
    rows = await tx.fetch(
        f"""SELECT {_COLUMNS} FROM vault WHERE scope IN ({scope_list}) AND kind = :kind AND name = ''
            AND value IS NOT NULL ORDER BY said, number LIMIT :most""",
        kind=kind,
        most=most,
        **bound,
    )
    return [_to_row((*row[:-2], "", row[-1]))._replace(private=row[-2]) for row in rows]


def _to_row(row: tuple[Any, ...]) -> VaultRow:
    scope, kind, number, name, allowed, key, *blobs, created, private, said = row
    lookup, spelling, value = (None if blob is None else bytes(blob) for blob in blobs)
    privacy.note_read(private)
    return VaultRow(
        int(scope), kind, int(number), name, allowed, key, lookup, spelling, value, float(created), private, int(said)
    )
