"""Finding passages by their meaning.

On SQLite each passage keeps its vector as signed bytes beside its text, and the signs of its tokens in a table of
their own: those are read only for the few memories that are ranked to the end.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.core.scope import Kind
from athena.memory import rows as memory_rows
from athena.memory.values import Filter
from athena.storage import scopes
from athena.storage.arrays import distinct, likest, token_sets, union
from athena.storage.database import Facts, Matches, Near, TokenSets, batched, listed
from athena.storage.passages import OF_MEMORIES, SPAN, by_turns, scope_of
from athena.storage.sqlite.vector_cache import Changed, Shelf

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from athena.storage.database import Floats, Ids

SAMPLE = 512  # passages from which the spread of all cosines is estimated
LEAST_RESCORED = 600  # memories that are scored exactly, of those whose signs agree best
COMPARED = 20_000  # passages that are compared pair by pair when duplicates are looked for


class Selection(NamedTuple):
    """The shelves a question may look at, and on each the rows that pass its filter (None: all live ones)."""

    scopes: list[int]
    shelves: list[Shelf]
    allowed: list[Any]
    total: int


class SqliteVectors:
    schema = ()

    def __init__(self) -> None:
        self._shelves: dict[tuple[int, str, int], Shelf] = {}
        self._guard = threading.Lock()

    async def reserve(self, tx: Any, scope: int, count: int) -> Sequence[int]:
        await tx.execute("UPDATE scopes SET passages = passages + :count WHERE id = :id", id=scope, count=count)
        (used,) = await tx.fetch_one("SELECT passages FROM scopes WHERE id = :id", id=scope)
        return range(scope * SPAN + used - count, scope * SPAN + used)

    async def add(self, tx: Any, passages: Iterable[dict[str, Any]]) -> None:
        stamp = await next_stamp(tx)
        for passage in passages:
            await tx.execute(
                """INSERT INTO passages (id, scope, memory, start, length, words, session, voice, live, windowed,
                                         stamp, model, code)
                   VALUES (:id, :scope, :memory, :start, :length, :words, :session, :voice, 1, :windowed,
                           :stamp, :model, :code)""",
                stamp=stamp,
                **passage,
            )

    async def retire(self, tx: Any, scope: int, memory: int) -> None:
        """Let go of a memory's passages; the empty rows tell every search in memory to drop them too."""
        values = {"scope": scope, "memory": memory}
        which = "SELECT id FROM passages WHERE scope = :scope AND memory = :memory"
        await tx.execute(f"DELETE FROM tokens WHERE passage IN ({which})", **values)
        await tx.execute(
            """UPDATE passages SET memory = 0, live = 0, code = NULL, model = NULL, stamp = :stamp
               WHERE scope = :scope AND memory = :memory""",
            stamp=await next_stamp(tx),
            **values,
        )

    async def drop_retired(self, tx: Any) -> None:
        """Delete the empty rows; searches read everything again after this."""
        await tx.execute("DELETE FROM passages WHERE memory = 0")
        await tx.execute("UPDATE counters SET value = value + 1 WHERE name = 'purges'")

    async def put(self, tx: Any, passages: Iterable[tuple[int, bytes]], model: str) -> None:
        number = await self.model(tx, model)
        stamp = await next_stamp(tx)
        for passage, code in passages:
            await tx.execute(
                "UPDATE passages SET model = :model, code = :code, stamp = :stamp, windowed = 1 WHERE id = :id",
                model=number,
                code=code,
                stamp=stamp,
                id=passage,
            )

    async def mark_behind(self, tx: Any, passage: int) -> None:
        await tx.execute("UPDATE passages SET windowed = 0 WHERE id = :id", id=passage)

    async def put_tokens(self, tx: Any, passages: Iterable[tuple[int, bytes]]) -> None:
        for passage, signs in passages:
            await tx.execute(
                """INSERT INTO tokens (passage, scope, signs) VALUES (:passage, :scope, :signs)
                   ON CONFLICT (passage) DO UPDATE SET signs = excluded.signs""",
                passage=passage,
                scope=scope_of(passage),
                signs=signs,
            )

    async def show(self, tx: Any, scope: int, memory: int, live: bool) -> None:
        """Let searches see a memory's passages, or not."""
        stamp = await next_stamp(tx)
        await tx.execute(
            "UPDATE passages SET live = :live, stamp = :stamp WHERE scope = :scope AND memory = :memory",
            live=int(live),
            scope=scope,
            stamp=stamp,
            memory=memory,
        )

    async def claim(self, tx: Any, model: str, limit: int, now: float, *, kind: Kind | None = None) -> list[int]:
        """Return passages without a vector of this model, then those that were read without their neighbours."""
        number = await self._known_model(tx, model) or 0
        needed = ("model IS NULL", f"model < {number}", f"model > {number}", "windowed = 0 AND model IS NOT NULL")
        taken: dict[int, None] = {}
        for needs in (f"{one} AND scope {of}" for of in by_turns(kind) for one in needed):
            which = f"SELECT id FROM passages WHERE live = 1 AND {needs} LIMIT :limit"
            taken |= {row[0]: None for row in await tx.fetch(which, limit=limit)}
            if len(taken) >= limit:
                break
        return list(taken)[:limit]

    async def count_behind(self, tx: Any) -> int:
        """Count the passages whose vectors do not know their neighbours yet."""
        row = await tx.fetch_one("SELECT count(*) FROM passages WHERE live = 1 AND windowed = 0")
        return int(row[0])

    async def any_missing(self, tx: Any) -> bool:
        """Tell whether any passage has no vector, or one read without its neighbours; cheap after every write."""
        missing = "SELECT 1 FROM passages WHERE live = 1 AND model IS NULL LIMIT 1"
        behind = "SELECT 1 FROM passages WHERE live = 1 AND windowed = 0 LIMIT 1"
        return await tx.fetch_one(missing) is not None or await tx.fetch_one(behind) is not None

    async def count_pending(self, tx: Any, model: str, *, memories: bool = False) -> int:
        number = await self._known_model(tx, model) or 0
        needs = ("model IS NULL", f"model < {number}", f"model > {number}")  # each has an index
        which = f"live = 1 AND scope {OF_MEMORIES}" if memories else "live = 1"
        row = await tx.fetch_one(
            "SELECT " + " + ".join(f"(SELECT count(*) FROM passages WHERE {which} AND {one})" for one in needs)
        )
        return int(row[0])

    async def select(self, tx: Any, only: Filter, model: str, dimensions: int) -> Selection:
        import numpy as np

        numbers = await scopes.visible(tx, only.scope)
        shelves = [await self._shelf(tx, i, model, dimensions) for i in numbers]
        if only.is_open:
            total = sum(shelf.live_memories for shelf in shelves)
            return Selection(numbers, shelves, [None if s.live_rows == s.rows else s.live for s in shelves], total)
        condition, values = memory_rows.where(only, numbers)
        row = await tx.fetch_one(f"SELECT group_concat(m.id) FROM memories m WHERE {condition}", **values)
        chosen = np.fromstring(row[0] or "", np.int64, sep=",")
        last = max((int(s.memories.max(initial=0)) for s in shelves), default=0)
        passes = np.zeros(last + 1, bool)
        passes[chosen[chosen <= last]] = True
        return Selection(numbers, shelves, [passes[s.memories] & s.live for s in shelves], len(chosen))

    async def nearest(self, tx: Any, among: Selection, vector: "Floats", limit: int, also: Matches | None) -> Near:
        import numpy as np

        found: list[tuple[Any, Any]] = []
        sampled = []
        named = also.places if also else [np.zeros(0, np.int64)] * len(among.shelves)
        for shelf, allowed, places in zip(among.shelves, among.allowed, named, strict=True):
            sampled.append(_sample(shelf, vector))
            usable = shelf.ready if allowed is None else shelf.ready & allowed
            groups = union(shelf.nearest(usable, vector, max(limit, LEAST_RESCORED)), places)
            best = shelf.closeness(groups, usable, vector)
            kept = best > -1
            if kept.sum() > limit:
                kept &= (best >= np.partition(best, -limit)[-limit]) | np.isin(groups, places, kind="sort")
            found.append((shelf.owners[groups[kept]], best[kept]))
        spread = np.concatenate(sampled)
        mean, deviation = (float(spread.mean()), float(spread.std())) if len(spread) else (0.0, 1.0)
        numbers, cosines = (np.concatenate(part) for part in zip(*found, strict=True))
        return Near(numbers, cosines, mean, deviation or 1.0)

    async def describe(self, tx: Any, among: Selection, memories: "Ids") -> Facts:
        """Return how long each memory is and who speaks, as far as the shelves know."""
        import numpy as np

        sizes, voices, sessions = np.ones(len(memories), np.float32), np.zeros(len(memories), np.int64), memories.copy()
        for shelf in among.shelves:
            if not shelf.rows:
                continue
            groups = shelf.groups_of(memories)
            here = groups >= 0
            sizes[here] = shelf.sizes[groups[here]]
            first = shelf.starts[groups[here]]
            voices[here], sessions[here] = shelf.voices[first], shelf.sessions[first]
        return Facts(sizes, (voices & 1).astype(np.float32), (voices >> 1 & 1).astype(np.float32), sessions)

    async def feedback(self, tx: Any, among: Selection, memories: "Ids", first: int) -> "Floats":
        """Return how close memories are to the middle of the first few, in deviations from the mean of all."""
        import numpy as np

        places = [shelf.groups_of(memories) if shelf.rows else np.full(len(memories), -1) for shelf in among.shelves]
        leaders = [
            shelf.codes[shelf.starts[groups[:first][groups[:first] >= 0]]].astype(np.float32)
            for shelf, groups in zip(among.shelves, places, strict=True)
        ]
        known = np.concatenate(leaders)
        known = known[known.any(axis=1)]
        if not len(known):
            return np.zeros(len(memories), np.float32)
        middle = (known / np.linalg.norm(known, axis=1, keepdims=True)).mean(axis=0)
        middle /= np.linalg.norm(middle)
        near = np.full(len(memories), -1, np.float32)
        for shelf, groups in zip(among.shelves, places, strict=True):
            near[groups >= 0] = shelf.closeness(groups[groups >= 0], shelf.ready, middle)
        spread = np.concatenate([_sample(shelf, middle) for shelf in among.shelves])
        made: Floats = np.where(near > -1, (near - spread.mean()) / (spread.std() or 1.0), 0).astype(np.float32)
        return made

    async def tokens(self, tx: Any, among: Selection, memories: "Ids") -> TokenSets:
        """Return the tokens of these memories' passages and of up to two neighbours on each side."""
        import numpy as np

        owners, around, wanted = [], [], []
        for shelf in among.shelves:
            if not shelf.rows:
                continue
            groups = shelf.groups_of(memories)
            rows, within = shelf.rows_of(groups[groups >= 0])
            shown = shelf.live[rows]
            rows, within = rows[shown], np.flatnonzero(groups >= 0)[within[shown]]
            places = _around(shelf, rows)
            owners.append(within)
            around.append(np.where(places >= 0, shelf.passages[np.maximum(places, 0)], -1))
            wanted.append(shelf.passages[distinct(places[places >= 0])])
        if not owners:
            return TokenSets.none()
        found = await _signs(tx, [number for part in wanted for number in part.tolist()])
        return token_sets(found, np.concatenate(around), np.concatenate(owners))

    async def alike(self, tx: Any, among: Selection, threshold: float) -> list[tuple[int, int, float]]:
        """Return each memory with the one most like it, if at least this much, among the newest of each scope."""
        pairs: list[tuple[int, int, float]] = []
        for shelf in among.shelves:
            rows = shelf.ready_rows[-COMPARED:]
            pairs += likest(shelf.memories[rows], shelf.codes[rows], threshold)
        return pairs

    async def problems(self, tx: Any) -> list[str]:
        rows = await tx.fetch(WRONG_SIZE)
        return [f"passage {row[0]} has a vector of the wrong size" for row in rows]

    async def _shelf(self, tx: Any, scope: int, model: str, dimensions: int) -> Shelf:
        """Return the scope's shelf as of this transaction, or later."""
        key = scope, model, dimensions
        purges, stamp = [row[0] for row in await tx.fetch("SELECT value FROM counters ORDER BY name")]
        shelf = self._shelves.get(key)
        if shelf is None or shelf.purges != purges:
            shelf = Shelf(scope, dimensions, purges)
        if shelf.stamp == stamp:
            return shelf
        changed = await _changed(tx, shelf, scope)
        if changed is not None:
            shelf = shelf.updated(changed, await self._known_model(tx, model))
        with self._guard:
            kept = self._shelves.get(key)
            if kept is None or (kept.purges, kept.stamp) < (shelf.purges, shelf.stamp):
                self._shelves[key] = shelf
        return shelf

    async def model(self, tx: Any, name: str) -> int:
        """Return a model's number, giving it one if it has none."""
        known = await self._known_model(tx, name)
        if known is None:
            await tx.execute("INSERT INTO models (name) VALUES (:name)", name=name)
            known = await self._known_model(tx, name)
        return int(known or 0)

    async def _known_model(self, tx: Any, name: str) -> int | None:
        row = await tx.fetch_one("SELECT id FROM models WHERE name = :name", name=name)
        return row[0] if row else None


async def _changed(tx: Any, shelf: Shelf, scope: int) -> Changed | None:
    """Read the passages that changed since a shelf was built, in columns: rows would cost five times as much."""
    import numpy as np

    where = "id BETWEEN :first AND :last" if not shelf.stamp else "scope = :scope AND stamp > :stamp"
    values = {"first": shelf.first, "last": shelf.last, "scope": scope, "stamp": shelf.stamp}
    names = ("id", "memory", "words", "live", "stamp", "coalesce(model, -1)", "session", "voice")
    columns = ", ".join(f"group_concat({name})" for name in names)
    row = await tx.fetch_one(f"SELECT {columns} FROM (SELECT * FROM passages WHERE {where} ORDER BY id)", **values)
    if row[0] is None:
        return None
    codes = await tx.fetch(f"SELECT code FROM passages WHERE {where} ORDER BY id", **values)
    ids, numbers, words, live, stamps, models, sessions, voices = (
        np.fromstring(text, np.int64, sep=",") for text in row
    )
    return Changed(ids, numbers, words, live, stamps, models, sessions, voices, [code for (code,) in codes])


WRONG_SIZE = """SELECT p.id FROM passages p JOIN (SELECT model, max(length(code)) AS size FROM passages
        WHERE code IS NOT NULL GROUP BY model) d ON d.model = p.model
    WHERE p.live = 1 AND length(p.code) <> d.size LIMIT 20"""


async def next_stamp(tx: Any) -> int:
    # Not RETURNING: after it SQLite makes FTS5 flush, which costs fifteen times as much as asking.
    await tx.execute("UPDATE counters SET value = value + 1 WHERE name = 'stamp'")
    return int((await tx.fetch_one("SELECT value FROM counters WHERE name = 'stamp'"))[0])


def _sample(shelf: Shelf, vector: "Floats") -> "Floats":
    """Return the cosines of passages all over a shelf, from which the spread of all is estimated."""
    every = shelf.ready_rows
    return shelf.cosines(every[:: max(1, len(every) // SAMPLE)], vector)


def _around(shelf: Shelf, rows: "Ids") -> "NDArray[Any]":
    """Return rows with those before and after them, one and two steps away: five columns, -1 for none."""
    import numpy as np

    none = np.full(len(rows), -1)
    if shelf.neighbours is None:
        return np.stack([rows, none, none, none, none], axis=1)
    before, after = shelf.neighbours
    one, other = before[rows], after[rows]
    two, others = np.where(one >= 0, before[one], -1), np.where(other >= 0, after[other], -1)
    return np.stack([rows, one, other, two, others], axis=1)


async def _signs(tx: Any, passages: list[int]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for piece in batched(passages):
        names, bound = listed("id", piece)
        rows = await tx.fetch(f"SELECT passage, signs FROM tokens WHERE passage IN ({names})", **bound)
        found.update((number, signs) for number, signs in rows if signs)
    return found
