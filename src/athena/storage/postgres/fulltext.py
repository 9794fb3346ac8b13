"""Finding passages by their words, on PostgreSQL.

A `tsvector` holds a passage's stems, each with the number of its scope before it, so that the index is cut by scope
and a small project never goes through a large one's words. Stems are cut and weighed as on SQLite. Rare terms find
passages, common ones only add to the score of what the rare ones found; the best then look at their neighbours.
"""

import json
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import apsw

from athena.storage.arrays import multiply_on_one_thread, sort_unique
from athena.storage.database import IndexedPassage, TextMatches
from athena.storage.passages import get_passage_scope_id
from athena.storage.postgres.vectors import pack_column, to_array_literal, unpack_numbers
from athena.storage.terms import (
    BM25_B,
    LABEL_WEIGHT,
    NEIGHBOR_WEIGHTS,
    Term,
    create_tokenizer,
    idf,
    parse_query_terms,
    saturate_frequency,
    stem_text,
    weigh_query_words,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from athena.storage.database import Floats, Ids
    from athena.storage.postgres.vectors import PostgresSelection


class MatchedPassages:
    """The passages that hold any term of a question, in order, with what each term counts in them."""

    def __init__(self, passages: "Ids", terms: int) -> None:
        import numpy as np

        self.passages = passages
        self.memories: Ids = np.zeros(len(passages), np.int64)
        self.sessions: Ids = np.zeros(len(passages), np.int64)  # 0 where a passage stands alone
        self.lengths: Floats = np.ones(len(passages), np.float32)
        self.allowed = np.ones(len(passages), bool)
        self.text = np.zeros((terms, len(passages)), np.float32)
        self.label = np.zeros((terms, len(passages)), bool)

    def with_passages(self, passages: "Ids") -> "MatchedPassages":
        """Return the same nodes among others that hold no term themselves."""
        import numpy as np

        grown = MatchedPassages(sort_unique(np.concatenate([self.passages, passages])), len(self.text))
        at = np.searchsorted(grown.passages, self.passages)
        for name in ("memories", "sessions", "lengths", "allowed"):
            getattr(grown, name)[at] = getattr(self, name)
        grown.text[:, at], grown.label[:, at] = self.text, self.label
        return grown

    def normalise_counts(self, mean: float) -> "NDArray[Any]":
        """Return how much each term counts in each text: less in long passages."""
        made: NDArray[Any] = self.text / (1 - BM25_B + BM25_B * self.lengths / mean)
        return made

    def compute_scores(self, frequency: "NDArray[Any]", weights: "Floats") -> "Floats":
        made: Floats = multiply_on_one_thread(saturate_frequency(frequency + LABEL_WEIGHT * self.label).T, weights)
        return made


def select_highest(scores: "Floats", most: int) -> "Ids":
    """Return the places of the highest scores above nothing."""
    import numpy as np

    found = np.flatnonzero(scores)
    return found if len(found) <= most else found[np.argpartition(-scores[found], most)[:most]]


def reduce_to_memories(
    memories: "Ids", scores: "Floats", coverage: "Floats", limit: int, spans: list[tuple[int, int, float]]
) -> TextMatches:
    """Reduce passages to their memories: the best score and the best coverage of each."""
    import numpy as np

    kept = scores > 0
    memories, scores, coverage = memories[kept], scores[kept], coverage[kept]
    every = sort_unique(memories)
    at = np.searchsorted(every, memories)
    best, held = np.zeros(len(every), np.float32), np.zeros(len(every), np.float32)
    np.maximum.at(best, at, scores)
    np.maximum.at(held, at, coverage)
    if len(every) > limit:
        chosen = np.argpartition(-best, limit)[:limit]
        every, best, held = every[chosen], best[chosen], held[chosen]
    return TextMatches(every, best, held, [every], spans)


MAX_TERM_PASSAGES = 5_000  # passages that a term may occur in and still be read in full
MAX_PASSAGES_READ = 12_000  # passages read for one question, over all its terms
MIN_NEIGHBOUR_PASSAGES = 600  # passages that look at their neighbours, at least
MAX_STEM_CHARS = 200  # letters of a stem
MAX_TSVECTOR_BYTES = (
    900_000  # bytes of a tsvector, which may have 1 MB: a table without spaces is one passage of many stems
)
# A stem in the text counts a thousandth and one in the label a whole, so that one number tells both.
TERM_COUNT_SQL = "ts_rank_cd('{{0.001, 0, 0, 1}}', lexemes, :query{i}::tsquery)"


class PostgresFullText:
    schema = (
        """CREATE TABLE words (
               scope BIGINT NOT NULL,
               passage BIGINT NOT NULL,
               memory BIGINT NOT NULL,
               session BIGINT,
               length BIGINT NOT NULL,
               lexemes TSVECTOR NOT NULL,
               PRIMARY KEY (scope, passage)
           )""",
        "CREATE INDEX words_of_session ON words (scope, session, passage) INCLUDE (memory) WHERE session IS NOT NULL",
        # Without a list of pending entries, which every search would have to go through.
        "CREATE INDEX words_by_lexeme ON words USING gin (lexemes) WITH (fastupdate = off)",
        "ALTER TABLE words ALTER COLUMN lexemes SET STATISTICS 500",
        """CREATE TABLE tallies (
               scope BIGINT NOT NULL,
               id BIGINT GENERATED ALWAYS AS IDENTITY,
               memories BIGINT NOT NULL,
               passages BIGINT NOT NULL,
               words BIGINT NOT NULL,
               PRIMARY KEY (scope, id)
           )""",
        "CREATE INDEX calls_by_number ON calls (id)",
        "CREATE INDEX memories_by_number ON memories (id)",
    )

    def __init__(self) -> None:
        self._tokenizers = threading.local()
        self.unfolded_tallies = 0  # rows of tallies that this process left since it last folded them

    async def add_passages(self, tx: Any, passages: Sequence[IndexedPassage]) -> None:
        if not passages:
            return
        scope = get_passage_scope_id(passages[0].id)
        await tx.each(
            """INSERT INTO words (scope, passage, memory, session, length, lexemes)
               SELECT p.scope, p.id, p.memory, CASE WHEN m.session IS NULL AND :alone THEN NULL ELSE p.session END,
                      p.words, :lexemes::tsvector
               FROM passages p JOIN memories m ON m.scope = p.scope AND m.id = p.memory
               WHERE p.scope = :scope AND p.id = :id""",
            [
                {"lexemes": self.to_tsvector(scope, p), "scope": scope, "id": p.id, "alone": len(passages) == 1}
                for p in passages
            ],
        )
        await self._record_tally(tx, scope, [p.id for p in passages], 1)

    async def remove_passages(self, tx: Any, passages: Sequence[IndexedPassage]) -> None:
        if not passages:
            return
        scope, numbers = get_passage_scope_id(passages[0].id), [p.id for p in passages]
        await self._record_tally(tx, scope, numbers, -1)
        await tx.execute(
            "DELETE FROM words WHERE scope = :scope AND passage = ANY(:numbers::bigint[])",
            scope=scope,
            numbers=to_array_literal(numbers),
        )

    async def _record_tally(self, tx: Any, scope: int, numbers: list[int], sign: int) -> None:
        """Note how many there are more or less: a row each time, since all writers would wait for a shared one."""
        self.unfolded_tallies += 1
        await tx.execute(
            """INSERT INTO tallies (scope, memories, passages, words)
               SELECT :scope, :sign, :sign * count(*), :sign * coalesce(sum(length), 0) FROM words
               WHERE scope = :scope AND passage = ANY(:numbers::bigint[])""",
            scope=scope,
            sign=sign,
            numbers=to_array_literal(numbers),
        )

    async def fold_tallies(self, tx: Any) -> None:
        """Put the tallies of each scope together in one row, and let the server count again what grew fast."""
        await tx.execute(
            """WITH gone AS (
                   DELETE FROM tallies WHERE (scope, id) IN
                       (SELECT scope, id FROM tallies ORDER BY scope, id LIMIT 20000 FOR UPDATE SKIP LOCKED)
                   RETURNING scope, memories, passages, words)
               INSERT INTO tallies (scope, memories, passages, words)
               SELECT scope, sum(memories), sum(passages), sum(words) FROM gone GROUP BY scope"""
        )
        row = await tx.fetch_one(
            """SELECT (SELECT sum(passages) FROM tallies) > 2 * greatest(c.reltuples, 0) + 1000
               FROM pg_class c WHERE c.oid = to_regclass('words')"""
        )
        if row and row[0]:  # the server does so by itself, but up to a minute later
            await tx.execute("ANALYZE (SKIP_LOCKED) memories, passages, words, tokens")

    def to_tsvector(self, scope: int, passage: IndexedPassage) -> str:
        """Write a passage as a tsvector: its stems where they stand, and its label's stems with weight A."""
        places: dict[str, list[str]] = {}
        room = MAX_TSVECTOR_BYTES
        for at, stem in enumerate(stem_text(self._get_tokenizer(), passage.text)[:16_382]):
            room -= 2 if stem in places else 24 + len(stem[:MAX_STEM_CHARS].encode())
            if room < 0:
                break
            places.setdefault(stem, []).append(str(at + 1))
        for stem in set(stem_text(self._get_tokenizer(), passage.label)):
            places.setdefault(stem, []).append("16383A")
        return " ".join(f"{_quote_lexeme(scope, stem)}:{','.join(found[:255])}" for stem, found in places.items())

    async def search_text(self, tx: Any, among: "PostgresSelection", question: str, limit: int) -> TextMatches:
        import numpy as np

        cut = self._get_tokenizer()
        live, mean = max(1, among.passages), among.words / max(1, among.passages) or 1.0
        rare, common = await self._split_terms(tx, among, parse_query_terms(cut, question))
        nodes, holding = await self._read_term_passages(tx, among, rare, len(common))
        weights = [idf(n, live) for n in holding] + [idf(min(term.passages or 0, live), live) for term in common]
        known = {term.stem: weight for term, weight in zip([*rare, *common], weights, strict=True)}
        spans = weigh_query_words(cut, question, known, live)
        each = np.array(weights, np.float32)
        first = nodes.compute_scores(nodes.normalise_counts(mean), each)
        top = select_highest(first * nodes.allowed, max(limit, MIN_NEIGHBOUR_PASSAGES))
        if not among.is_unfiltered:  # what the filter leaves out may still stand beside what it lets in
            top = sort_unique(
                np.concatenate([top, select_highest(first * (nodes.sessions > 0), MIN_NEIGHBOUR_PASSAGES)])
            )
        if common and len(top):
            await self._add_common_terms(tx, among, nodes, top, common, len(rare))
        chosen = nodes.passages[top]
        nodes, edges = await self._add_neighbours(tx, among, nodes, top)
        frequency = nodes.normalise_counts(mean)
        total = frequency.copy()
        if len(edges):
            here, there = np.searchsorted(nodes.passages, edges[:, 0]), np.searchsorted(nodes.passages, edges[:, 1])
            counts = np.array(NEIGHBOR_WEIGHTS, np.float32)[edges[:, 2] - 1]
            onward = ~np.isin(edges[:, 1], chosen, kind="sort")  # a neighbour that is not among the best itself
            for term, direct in zip(total, frequency, strict=True):
                np.add.at(term, here, counts * direct[there])
                np.add.at(term, there[onward], counts[onward] * direct[here[onward]])
            shown = sort_unique(np.concatenate([np.searchsorted(nodes.passages, chosen), there[onward]]))
        else:
            shown = np.sort(np.searchsorted(nodes.passages, chosen))
        scores = (nodes.compute_scores(total, each) * nodes.allowed)[shown]
        held = ((nodes.text > 0) | nodes.label)[:, shown].T.astype(np.float32)
        coverage = multiply_on_one_thread(held, each / (float(each.sum()) or 1.0))
        return reduce_to_memories(nodes.memories[shown], scores, coverage, limit, spans)

    async def _split_terms(
        self, tx: Any, among: "PostgresSelection", terms: list[Term]
    ) -> tuple[list[Term], list[Term]]:
        """Separate the terms that may be read in full from those that only score, the rarest first."""
        if among.passages <= MAX_TERM_PASSAGES or not terms:
            return terms, []
        about = await _estimate_passages(tx, among, terms)
        if sum(about) > MAX_PASSAGES_READ:  # not all can be read, so the rarest must be known
            about = [
                n if n > MAX_TERM_PASSAGES else await _count_passages(tx, among, term)
                for term, n in zip(terms, about, strict=True)
            ]
        counted = sorted(
            (term._replace(passages=n) for term, n in zip(terms, about, strict=True)),
            key=lambda term: term.passages or 0,
        )
        rare: list[Term] = []
        read = 0
        for term in counted:
            read += term.passages or 0
            if rare and ((term.passages or 0) > MAX_TERM_PASSAGES or read > MAX_PASSAGES_READ):
                break
            rare.append(term)
        return rare, counted[len(rare) :]

    async def _read_term_passages(
        self, tx: Any, among: "PostgresSelection", terms: list[Term], more: int
    ) -> tuple[MatchedPassages, list[int]]:
        """Read where terms occur, and how many passages hold each in their text."""
        import numpy as np

        allowed = (
            "" if among.is_unfiltered else f"""{pack_column(f"(memory IN ({among.memory_query}))::int", "int4")},"""
        )
        queries = [
            f"""SELECT {i} AS term, {pack_column("passage")}, {pack_column("memory")}, {pack_column("coalesce(session, 0)")},
                       {pack_column("length")}, {allowed} {pack_column(TERM_COUNT_SQL.format(i=i), "float4")}
                FROM (SELECT * FROM words WHERE lexemes @@ :query{i}::tsquery LIMIT {4 * MAX_PASSAGES_READ}) AS found"""
            for i in range(len(terms))
        ]
        values = {f"query{i}": _build_tsquery(among, term) for i, term in enumerate(terms)} | among.values
        rows = await tx.fetch(" UNION ALL ".join(queries), **values) if queries else []
        kinds = [">i8"] * 4 + ([] if among.is_unfiltered else [">i4"]) + [">f4"]
        read = [
            [unpack_numbers(value, kind) for value, kind in zip(row[1:], kinds, strict=True)] for row in sorted(rows)
        ]
        every = np.concatenate([columns[0] for columns in read]) if read else np.zeros(0, np.int64)
        nodes = MatchedPassages(sort_unique(every), len(terms) + more)
        holding = []
        for term, (passages, memories, sessions, lengths, *rest, ranks) in enumerate(read):
            at = np.searchsorted(nodes.passages, passages)
            nodes.memories[at], nodes.sessions[at], nodes.lengths[at] = memories, sessions, lengths
            if rest:
                nodes.allowed[at] = rest[0].astype(bool)
            thousandths = np.round(ranks * 1000).astype(np.int64)
            nodes.text[term, at], nodes.label[term, at] = thousandths % 1000, thousandths >= 1000
            holding.append(int((thousandths % 1000 > 0).sum()))
        return nodes, holding

    async def _add_common_terms(
        self, tx: Any, among: "PostgresSelection", nodes: MatchedPassages, top: "Ids", common: list[Term], first: int
    ) -> None:
        """Note which of the best passages also hold a common term."""
        import numpy as np

        tests = ", ".join(pack_column(f"(lexemes @@ :query{i}::tsquery)::int", "int4") for i in range(len(common)))
        row = await tx.fetch_one(
            f"""SELECT {pack_column("passage")}, {tests} FROM words
                WHERE scope IN ({among.scope_list}) AND passage = ANY(:passages::bigint[])""",
            passages=to_array_literal(nodes.passages[top].tolist()),
            **{f"query{i}": _build_tsquery(among, term, "D") for i, term in enumerate(common)},
        )
        at = np.searchsorted(nodes.passages, unpack_numbers(row[0]))
        for i, value in enumerate(row[1:]):
            nodes.text[first + i, at] = unpack_numbers(value, ">i4")

    async def _add_neighbours(
        self, tx: Any, among: "PostgresSelection", nodes: MatchedPassages, top: "Ids"
    ) -> tuple[MatchedPassages, "NDArray[Any]"]:
        """Add what stands around the best passages in their sessions; edges say from where, to where and how far."""
        import numpy as np

        together = top[nodes.sessions[top] > 0]
        if not len(together):
            return nodes, np.zeros((0, 3), np.int64)
        allowed = "1" if among.is_unfiltered else f"(n.memory IN ({among.memory_query}))::int"
        sides = " UNION ALL ".join(
            f"""(SELECT w.passage, w.memory, row_number() OVER (ORDER BY w.passage {order}) AS step FROM words w
                 WHERE w.scope = c.scope AND w.session = c.session AND w.passage {side} c.passage
                 ORDER BY w.passage {order} LIMIT {len(NEIGHBOR_WEIGHTS)})"""
            for side, order in (("<", "DESC"), (">", "ASC"))
        )
        passages = nodes.passages[together]
        row = await tx.fetch_one(
            f"""SELECT {pack_column("c.passage")}, {pack_column("n.passage")}, {pack_column("n.step")}, {pack_column("n.memory")},
                       {pack_column(allowed, "int4")}
                FROM unnest(:scopes::bigint[], :passages::bigint[], :sessions::bigint[]) AS c (scope, passage, session)
                CROSS JOIN LATERAL ({sides}) AS n""",
            scopes=to_array_literal(map(get_passage_scope_id, passages.tolist())),
            passages=to_array_literal(passages.tolist()),
            sessions=to_array_literal(nodes.sessions[together].tolist()),
            **among.values,
        )
        here, there, step, memories = (unpack_numbers(value) for value in row[:4])
        new = ~np.isin(there, nodes.passages, kind="sort")
        grown = nodes.with_passages(there[new])
        at = np.searchsorted(grown.passages, there[new])
        grown.memories[at], grown.allowed[at] = memories[new], unpack_numbers(row[4], ">i4")[new].astype(bool)
        return grown, np.stack([here, there, step], axis=1)

    async def find_problems(self, tx: Any) -> list[str]:
        """Compare the index with the passages it stands for."""
        rows = await tx.fetch(
            """SELECT coalesce(p.id, w.passage), p.id IS NULL FROM
                   (SELECT * FROM passages WHERE live = 1) p FULL JOIN words w ON w.scope = p.scope AND w.passage = p.id
               WHERE p.id IS NULL OR w.passage IS NULL OR w.memory <> p.memory OR w.length <> p.words LIMIT 20"""
        )
        found = [f"passage {row[0]} is {'still' if row[1] else 'not rightly'} in the full-text index" for row in rows]
        last = (0, 0)
        while texts := await tx.fetch(WORDS_PAGE_SQL, scope=last[0], memory=last[1]):
            last = texts[-1][:2]
            rows = [
                (number, self.to_tsvector(scope, IndexedPassage(number, text[start : start + length], label)), lexemes)
                for scope, _, text, label, places, kept in texts
                for (number, start, length), lexemes in zip(places, kept, strict=True)
            ]
            wrong = await tx.fetch(
                """SELECT place FROM unnest(:made::text[], :kept::text[]) WITH ORDINALITY AS t (made, kept, place)
                   WHERE made::tsvector <> kept::tsvector""",
                made=[row[1] for row in rows],
                kept=[row[2] for row in rows],
            )
            found += [f"the words of passage {rows[place - 1][0]} are not those of its text" for (place,) in wrong]
        rows = await tx.fetch(
            """SELECT s.name FROM scopes s
               LEFT JOIN (SELECT scope, sum(memories) AS memories, sum(passages) AS passages, sum(words) AS words
                          FROM tallies GROUP BY scope) t ON t.scope = s.id
               LEFT JOIN (SELECT scope, count(DISTINCT memory) AS memories, count(*) AS passages, sum(length) AS words
                          FROM words GROUP BY scope) w ON w.scope = s.id
               WHERE (coalesce(t.memories, 0), coalesce(t.passages, 0), coalesce(t.words, 0))
                  <> (coalesce(w.memories, 0), coalesce(w.passages, 0), coalesce(w.words, 0))"""
        )
        return (found + [f"the tallies of project {name} are wrong" for (name,) in rows])[:20]

    def _get_tokenizer(self) -> Any:
        """Return this thread's tokenizer, from an empty SQLite in memory."""
        if not hasattr(self._tokenizers, "made"):
            self._tokenizers.connection = apsw.Connection(":memory:")
            self._tokenizers.made = create_tokenizer(self._tokenizers.connection)
        return self._tokenizers.made


WORDS_PAGE_SQL = """SELECT m.scope, m.id, m.content, m.label, array_agg(ARRAY[p.id, p.start, p.length] ORDER BY p.id),
        array_agg(w.lexemes::text ORDER BY p.id)
    FROM (SELECT * FROM memories WHERE (scope, id) > (:scope, :memory) AND deleted IS NULL
          ORDER BY scope, id LIMIT 50) m
    JOIN passages p ON p.scope = m.scope AND p.memory = m.id AND p.live = 1
    JOIN words w ON w.scope = p.scope AND w.passage = p.id
    GROUP BY m.scope, m.id, m.content, m.label ORDER BY m.scope, m.id"""


def _quote_lexeme(scope: int, stem: str) -> str:
    """Write a stem with its scope, between quotes."""
    text = stem[:MAX_STEM_CHARS].replace("\\", "\\\\").replace("'", "''")
    return f"'{scope}/{text}'"


def _build_tsquery(among: "PostgresSelection", term: Term, weight: str = "") -> str:
    return " | ".join(_quote_lexeme(scope, term.stem) + (f":{weight}" if weight else "") for scope in among.scopes)


async def _count_passages(tx: Any, among: "PostgresSelection", term: Term) -> int:
    """Return how many passages hold a term, as far as that matters."""
    row = await tx.fetch_one(
        f"SELECT count(*) FROM (SELECT 1 FROM words WHERE lexemes @@ :query::tsquery LIMIT {MAX_TERM_PASSAGES + 1}) AS found",
        query=_build_tsquery(among, term),
    )
    return int(row[0])


async def _estimate_passages(tx: Any, among: "PostgresSelection", terms: list[Term]) -> list[int]:
    """Return about how many passages hold each term, from the server's own statistics."""
    counts = " UNION ALL ".join(f"SELECT 1 FROM words WHERE lexemes @@ :query{i}::tsquery" for i in range(len(terms)))
    values = {f"query{i}": _build_tsquery(among, term) for i, term in enumerate(terms)}
    row = await tx.fetch_one(f"EXPLAIN (FORMAT JSON) {counts}", **values)
    plan = (row[0] if isinstance(row[0], list) else json.loads(row[0]))[0]["Plan"]
    parts = plan["Plans"] if plan["Node Type"] == "Append" else [plan]
    return [int(part["Plan Rows"]) for part in parts]
