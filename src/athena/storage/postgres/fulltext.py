"""Full-text search on PostgreSQL.

A `tsvector` holds a passage's stems, each prefixed with the id of its scope, so that the index is split by scope and a
search of a small project never reads the words of a large one. Stems and weights are those of SQLite. Rare terms find
passages, common ones only add to the score of passages that rare ones found; then terms in neighbouring passages of
the same session are added to the scores of the best.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from athena.storage.arrays import are_members, multiply_on_one_thread, sort_unique
from athena.storage.database import IndexedPassage, TextMatches, Transaction
from athena.storage.passages import get_passage_scope_id
from athena.storage.postgres import formats
from athena.storage.postgres.formats import pack_column, to_array_literal, unpack_numbers
from athena.storage.postgres.selection import (
    MAX_STEM_CHARS,
    MAX_TERM_PASSAGES,
    PostgresSelection,
    build_tsquery,
    count_term_passages,
    estimate_term_passages,
    quote_lexeme,
)
from athena.storage.terms import (
    BM25_B,
    LABEL_WEIGHT,
    NEIGHBOR_WEIGHTS,
    Term,
    idf,
    parse_query_terms,
    saturate_frequency,
    stem_text,
    weigh_query_words,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from athena.storage.database import Floats, Ids

MAX_PASSAGES_READ = 12_000  # for one query, over all its terms
MIN_NEIGHBOUR_PASSAGES = 600  # how many of the best get their neighbours' terms, at least
MAX_TSVECTOR_BYTES = 900_000  # of the 1 MB that PostgreSQL allows; a text without spaces is one passage of many stems
MAX_TSVECTOR_POSITION = 16_383  # PostgreSQL's own limit; labels use it, texts the positions before it
MAX_PROBLEMS = 20
TERM_COUNT_LEASE_S = 60.0  # how long the server's answer to how common a term is counts
MAX_TERM_COUNTS = 20_000
PLACE_COLUMNS = ("memory", "coalesce(session, 0)")
CountTerms = Callable[[Transaction, PostgresSelection, list[Term]], Awaitable[list[int]]]
WORDS_PAGE_SQL = """SELECT m.scope, m.id, m.content, m.label, array_agg(ARRAY[p.id, p.start, p.length] ORDER BY p.id),
        array_agg(w.lexemes::text ORDER BY p.id)
    FROM (SELECT * FROM memories WHERE (scope, id) > (:scope, :memory) AND deleted IS NULL
          ORDER BY scope, id LIMIT 50) m
    JOIN passages p ON p.scope = m.scope AND p.memory = m.id AND p.live = 1
    JOIN words w ON w.scope = p.scope AND w.passage = p.id
    GROUP BY m.scope, m.id, m.content, m.label ORDER BY m.scope, m.id"""


class MatchedPassages:
    """The passages that hold any term of a query, in the order of their ids, with the counts of each term."""

    def __init__(self, passages: "Ids", terms: int) -> None:
        import numpy as np  # slow to load

        self.passages = passages
        self.memories: Ids = np.zeros(len(passages), np.int64)
        self.sessions: Ids = np.zeros(len(passages), np.int64)  # 0 where a passage has no neighbours
        self.lengths: Floats = np.ones(len(passages), np.float32)
        self.allowed = np.ones(len(passages), bool)
        self.text = np.zeros((terms, len(passages)), np.float32)
        self.label = np.zeros((terms, len(passages)), bool)

    def with_passages(self, passages: "Ids") -> "MatchedPassages":
        """Return a copy with more passages, which hold no term themselves."""
        import numpy as np  # slow to load

        grown = MatchedPassages(sort_unique(np.concatenate([self.passages, passages])), len(self.text))
        at = np.searchsorted(grown.passages, self.passages)
        for name in ("memories", "sessions", "lengths", "allowed"):
            getattr(grown, name)[at] = getattr(self, name)
        grown.text[:, at], grown.label[:, at] = self.text, self.label
        return grown

    def normalise_counts(self, mean_words: float) -> "NDArray[Any]":
        """Return the frequency of each term in each text: less in long passages."""
        frequency: NDArray[Any] = self.text / (1 - BM25_B + BM25_B * self.lengths / mean_words)
        return frequency

    def compute_scores(self, frequency: "NDArray[Any]", weights: "Floats") -> "Floats":
        return multiply_on_one_thread(saturate_frequency(frequency + LABEL_WEIGHT * self.label).T, weights)


def select_highest(scores: "Floats", limit: int) -> "Ids":
    """Return the positions of the highest scores above zero."""
    import numpy as np  # slow to load

    positions = np.flatnonzero(scores)
    if len(positions) <= limit:
        return positions
    return positions[np.argpartition(-scores[positions], limit)[:limit]]


def reduce_to_memories(
    passages: "Ids",
    memories: "Ids",
    scores: "Floats",
    coverage: "Floats",
    limit: int,
    spans: list[tuple[int, int, float]],
) -> TextMatches:
    """Reduce passages to their memories: the best score and the best coverage of each."""
    import numpy as np  # slow to load

    matched = scores > 0
    passages, memories, scores, coverage = passages[matched], memories[matched], scores[matched], coverage[matched]
    owners = sort_unique(memories)
    at = np.searchsorted(owners, memories)
    best, covered = np.zeros(len(owners), np.float32), np.zeros(len(owners), np.float32)
    np.maximum.at(best, at, scores)
    np.maximum.at(covered, at, coverage)
    if len(owners) > limit:
        chosen = np.argpartition(-best, limit)[:limit]
        owners, best, covered = owners[chosen], best[chosen], covered[chosen]
    return TextMatches(owners, best, covered, [owners], spans, passages, scores)


class PostgresFullText:
    check_needs_write_lock = False
    # A row of `tallies` says by how many memories, passages and words a write changed a scope; their sum is the count.
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
        # Without a list of pending entries, which every search would have to read.
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
        self.unfolded_tallies = 0  # rows of `tallies` that this process has inserted since it last folded them
        self._term_counts: dict[tuple[object, ...], tuple[int, float]] = {}  # with the time until which they count

    # --- writes -------------------------------------------------------------------------------------------------------

    async def add_passages(self, tx: Transaction, passages: Sequence[IndexedPassage]) -> None:
        if not passages:
            return
        scope = get_passage_scope_id(passages[0].id)
        added = """INSERT INTO words (scope, passage, memory, session, length, lexemes)
            SELECT p.scope, p.id, p.memory, CASE WHEN m.session IS NULL AND :alone THEN NULL ELSE p.session END,
                   p.words, n.lexemes::tsvector
            FROM unnest(:ids::bigint[], :lexemes::text[]) AS n (id, lexemes)
            JOIN passages p ON p.scope = :scope AND p.id = n.id
            JOIN memories m ON m.scope = p.scope AND m.id = p.memory"""
        lexemes = [self.to_tsvector(scope, passage) for passage in passages]
        await self._change_words(tx, passages, added, 1, lexemes=lexemes, alone=len(passages) == 1)

    async def remove_passages(self, tx: Transaction, passages: Sequence[IndexedPassage]) -> None:
        if passages:
            removed = "DELETE FROM words WHERE scope = :scope AND passage = ANY(:ids::bigint[])"
            await self._change_words(tx, passages, removed, -1)

    async def erase_removed(self, tx: Transaction) -> None:
        """Do nothing: a vacuum erases deleted rows."""

    def to_tsvector(self, scope: int, passage: IndexedPassage) -> str:
        """Write a passage as a tsvector: its stems with their positions, and its label's stems with weight A."""
        positions: dict[str, list[str]] = {}
        bytes_left = MAX_TSVECTOR_BYTES
        for at, stem in enumerate(stem_text(passage.text)[: MAX_TSVECTOR_POSITION - 1], start=1):
            bytes_left -= 2 if stem in positions else 24 + len(stem[:MAX_STEM_CHARS].encode())
            if bytes_left < 0:
                break
            positions.setdefault(stem, []).append(str(at))
        for stem in set(stem_text(passage.label)):
            positions.setdefault(stem, []).append(f"{MAX_TSVECTOR_POSITION}A")
        return " ".join(
            f"{quote_lexeme(scope, stem)}:{','.join(at[: formats.MAX_LEXEME_POSITIONS])}"
            for stem, at in positions.items()
        )

    async def _change_words(
        self, tx: Transaction, passages: Sequence[IndexedPassage], change: str, sign: int, **values: Any
    ) -> None:
        """Change rows, and insert the change of the counts as a row: all writers would wait for a shared one."""
        self.unfolded_tallies += 1
        scope, ids = get_passage_scope_id(passages[0].id), to_array_literal(passage.id for passage in passages)
        await tx.execute_many(
            f"""WITH changed AS ({change} RETURNING words.memory, words.length)
                INSERT INTO tallies (scope, memories, passages, words)
                SELECT :scope, {sign} * count(DISTINCT memory), {sign} * count(*), {sign} * coalesce(sum(length), 0)
                FROM changed""",
            [{"scope": scope, "ids": ids, **values}],
        )

    async def fold_tallies(self, tx: Transaction) -> None:
        """Sum up the tallies and the kept counts; update the server's statistics if the tables grew fast."""
        await tx.execute(
            """WITH gone AS (
                   DELETE FROM tallies WHERE (scope, id) IN
                       (SELECT scope, id FROM tallies ORDER BY scope, id LIMIT 20000 FOR UPDATE SKIP LOCKED)
                   RETURNING scope, memories, passages, words)
               INSERT INTO tallies (scope, memories, passages, words)
               SELECT scope, sum(memories), sum(passages), sum(words) FROM gone GROUP BY scope"""
        )
        await tx.execute(
            """WITH several AS MATERIALIZED (
                   SELECT scope, facet, name FROM counts GROUP BY scope, facet, name HAVING count(*) > 1 LIMIT 5000),
               locked AS MATERIALIZED (
                   SELECT c.id FROM counts c JOIN several s USING (scope, facet, name) FOR UPDATE OF c SKIP LOCKED),
               gone AS (
                   DELETE FROM counts WHERE (scope, facet, name) IN (SELECT scope, facet, name FROM several)
                       AND id IN (SELECT id FROM locked)
                   RETURNING scope, facet, name, memories, characters, occurrences, in_session)
               INSERT INTO counts (scope, facet, name, memories, characters, occurrences, in_session)
               SELECT scope, facet, name, sum(memories), sum(characters), sum(occurrences), sum(in_session)
               FROM gone GROUP BY scope, facet, name
               HAVING (sum(memories), sum(characters), sum(occurrences), sum(in_session)) <> (0, 0, 0, 0)"""
        )
        row = await tx.fetch_one(
            """SELECT (SELECT sum(passages) FROM tallies) > 2 * greatest(c.reltuples, 0) + 1000
               FROM pg_class c WHERE c.oid = to_regclass('words')"""
        )
        if row and row[0]:  # the server does so by itself, but up to a minute later
            await tx.execute("ANALYZE (SKIP_LOCKED) memories, passages, words, tokens")

    # --- search -------------------------------------------------------------------------------------------------------

    async def search_text(
        self, tx: Transaction, selection: PostgresSelection, question: str, limit: int
    ) -> TextMatches:
        import numpy as np  # slow to load

        live = max(1, selection.passages)
        mean_words = selection.word_count / live or 1.0
        rare, common = await self._split_terms(tx, selection, parse_query_terms(question))
        matched, counts = await _read_term_passages(tx, selection, rare, len(common))
        weights = [idf(n, live) for n in counts] + [idf(min(term.passages or 0, live), live) for term in common]
        stem_weights = {term.stem: weight for term, weight in zip([*rare, *common], weights, strict=True)}
        spans = weigh_query_words(question, stem_weights, live)
        term_weights = np.array(weights, np.float32)
        first_scores = matched.compute_scores(matched.normalise_counts(mean_words), term_weights)
        top = select_highest(first_scores * matched.allowed, max(limit, MIN_NEIGHBOUR_PASSAGES))
        if not selection.is_unfiltered:  # a passage that the filter excludes may be the neighbour of one that passes
            in_session = select_highest(first_scores * (matched.sessions > 0), MIN_NEIGHBOUR_PASSAGES)
            top = sort_unique(np.concatenate([top, in_session]))
        if common and len(top):
            await _add_common_terms(tx, selection, matched, top, common, len(rare))
        best_passages = matched.passages[top]
        matched, edges = await _add_neighbours(tx, selection, matched, top)
        frequency = matched.normalise_counts(mean_words)
        total = frequency.copy()
        shown = np.searchsorted(matched.passages, best_passages)
        if len(edges):
            here, there = (np.searchsorted(matched.passages, edges[:, i]) for i in (0, 1))
            edge_weights = np.array(NEIGHBOR_WEIGHTS, np.float32)[edges[:, 2] - 1]
            outward = ~are_members(edges[:, 1], best_passages)  # to neighbours that are not among the best
            for term_total, direct in zip(total, frequency, strict=True):
                np.add.at(term_total, here, edge_weights * direct[there])
                np.add.at(term_total, there[outward], edge_weights[outward] * direct[here[outward]])
            shown = np.concatenate([shown, there[outward]])
        shown = sort_unique(shown)
        scores = (matched.compute_scores(total, term_weights) * matched.allowed)[shown]
        holds_term = ((matched.text > 0) | matched.label)[:, shown].T.astype(np.float32)
        coverage = multiply_on_one_thread(holds_term, term_weights / (float(term_weights.sum()) or 1.0))
        return reduce_to_memories(matched.passages[shown], matched.memories[shown], scores, coverage, limit, spans)

    async def _split_terms(
        self, tx: Transaction, selection: PostgresSelection, terms: list[Term]
    ) -> tuple[list[Term], list[Term]]:
        """Split terms into those to be read in full and those that only score, the rarest first."""
        if selection.passages <= MAX_TERM_PASSAGES or not terms:
            return terms, []
        estimates = await self._keep_counts(estimate_term_passages, tx, selection, terms)
        if sum(estimates) > MAX_PASSAGES_READ:  # not all can be read, so the rarest must be known exactly
            unsure = [term for term, count in zip(terms, estimates, strict=True) if count <= MAX_TERM_PASSAGES]
            exact = iter(await self._keep_counts(count_term_passages, tx, selection, unsure))
            estimates = [count if count > MAX_TERM_PASSAGES else next(exact) for count in estimates]
        counted = [term._replace(passages=count) for term, count in zip(terms, estimates, strict=True)]
        counted.sort(key=lambda term: term.passages or 0)
        rare: list[Term] = []
        read = 0
        for term in counted:
            read += term.passages or 0
            if rare and ((term.passages or 0) > MAX_TERM_PASSAGES or read > MAX_PASSAGES_READ):
                break
            rare.append(term)
        return rare, counted[len(rare) :]

    async def _keep_counts(
        self, count_terms: CountTerms, tx: Transaction, selection: PostgresSelection, terms: list[Term]
    ) -> list[int]:
        """Return how many passages hold each term; ask the server only for those that it was not asked for lately."""
        now = time.monotonic()
        keys = [(count_terms, *selection.scopes, term.stem) for term in terms]
        found = [self._term_counts.get(key, (0, 0.0)) for key in keys]
        asked = [at for at, (_, until) in enumerate(found) if until <= now]
        if asked:
            counts = await count_terms(tx, selection, [terms[at] for at in asked])
            if len(self._term_counts) > MAX_TERM_COUNTS:
                self._term_counts.clear()
            for at, count in zip(asked, counts, strict=True):
                found[at] = self._term_counts[keys[at]] = count, now + TERM_COUNT_LEASE_S
        return [count for count, _ in found]

    # --- checks -------------------------------------------------------------------------------------------------------

    async def find_problems(self, tx: Transaction) -> list[str]:
        """Compare the index and the tallies with the passages."""
        rows = await tx.fetch(
            f"""SELECT coalesce(p.id, w.passage), p.id IS NULL FROM
                   (SELECT * FROM passages WHERE live = 1) p FULL JOIN words w ON w.scope = p.scope AND w.passage = p.id
               WHERE p.id IS NULL OR w.passage IS NULL OR w.memory <> p.memory OR w.length <> p.words
               LIMIT {MAX_PROBLEMS}"""
        )
        problems = [
            f"passage {row[0]} is {'still' if row[1] else 'not rightly'} in the full-text index" for row in rows
        ]
        last = (0, 0)
        while page := await tx.fetch(WORDS_PAGE_SQL, scope=last[0], memory=last[1]):
            last = page[-1][:2]
            expected = [
                (
                    passage,
                    self.to_tsvector(scope, IndexedPassage(passage, text[start : start + length], label)),
                    lexemes,
                )
                for scope, _, text, label, spans, stored in page
                for (passage, start, length), lexemes in zip(spans, stored, strict=True)
            ]
            wrong = await tx.fetch(
                """SELECT ordinal FROM unnest(:expected::text[], :stored::text[])
                       WITH ORDINALITY AS t (expected, stored, ordinal)
                   WHERE expected::tsvector <> stored::tsvector""",
                expected=[row[1] for row in expected],
                stored=[row[2] for row in expected],
            )
            problems += [f"the words of passage {expected[at - 1][0]} are not those of its text" for (at,) in wrong]
        rows = await tx.fetch(
            """SELECT s.name FROM scopes s
               LEFT JOIN (SELECT scope, sum(memories) AS memories, sum(passages) AS passages, sum(words) AS words
                          FROM tallies GROUP BY scope) t ON t.scope = s.id
               LEFT JOIN (SELECT scope, count(DISTINCT memory) AS memories, count(*) AS passages, sum(length) AS words
                          FROM words GROUP BY scope) w ON w.scope = s.id
               WHERE (coalesce(t.memories, 0), coalesce(t.passages, 0), coalesce(t.words, 0))
                  <> (coalesce(w.memories, 0), coalesce(w.passages, 0), coalesce(w.words, 0))"""
        )
        return (problems + [f"the tallies of project {name} are wrong" for (name,) in rows])[:MAX_PROBLEMS]


async def _read_term_passages(
    tx: Transaction, selection: PostgresSelection, terms: list[Term], more_terms: int
) -> tuple[MatchedPassages, list[int]]:
    """Read where terms occur, and how many passages hold each in their text."""
    import numpy as np  # slow to load

    names = ["passage", "length"]
    if not selection.is_unfiltered or not more_terms:  # else `_add_common_terms` reads them of the best
        names += PLACE_COLUMNS
    columns = [(pack_column(name), ">i8") for name in names]
    if not selection.is_unfiltered:
        columns.append((pack_column(f"(memory IN ({selection.memory_query}))::int", "int4"), ">i4"))
    packed = ", ".join(column for column, _ in columns)
    queries = [
        f"""SELECT {i} AS term, {packed}, {pack_column(formats.TERM_RANK_SQL.format(i=i), "float4")}
            FROM (SELECT * FROM words WHERE scope IN ({selection.scope_list}) AND lexemes @@ :query{i}::tsquery
                  LIMIT {4 * MAX_PASSAGES_READ}) AS found"""
        for i in range(len(terms))
    ]
    values = {f"query{i}": build_tsquery(selection, term) for i, term in enumerate(terms)} | selection.values
    rows = await tx.fetch(" UNION ALL ".join(queries), **values) if queries else []
    dtypes = [*(dtype for _, dtype in columns), ">f4"]
    postings = [
        [unpack_numbers(data, dtype) for data, dtype in zip(row[1:], dtypes, strict=True)] for row in sorted(rows)
    ]
    passages = np.concatenate([posting[0] for posting in postings]) if postings else np.zeros(0, np.int64)
    matched = MatchedPassages(sort_unique(passages), len(terms) + more_terms)
    counts = []
    for term, (passages, lengths, *more, ranks) in enumerate(postings):
        at = np.searchsorted(matched.passages, passages)
        matched.lengths[at] = lengths
        if more:
            matched.memories[at], matched.sessions[at] = more[:2]
        if more[2:]:
            matched.allowed[at] = more[2].astype(bool)
        matched.text[term, at], matched.label[term, at] = formats.split_ranks(ranks, len(selection.scopes))
        counts.append(int((matched.text[term, at] > 0).sum()))
    return matched, counts


async def _add_common_terms(
    tx: Transaction,
    selection: PostgresSelection,
    matched: MatchedPassages,
    top: "Ids",
    common: list[Term],
    first_term: int,
) -> None:
    """Add to the best passages the common terms that they hold, their memories and their sessions."""
    tests = ", ".join(pack_column(f"(lexemes @@ :query{i}::tsquery)::int", "int4") for i in range(len(common)))
    row = await tx.fetch_required(
        f"""SELECT {", ".join(map(pack_column, ("passage", *PLACE_COLUMNS)))}, {tests} FROM words
            WHERE scope IN ({selection.scope_list}) AND passage = ANY(:passages::bigint[])""",
        passages=to_array_literal(matched.passages[top].tolist()),
        **{f"query{i}": build_tsquery(selection, term, "D") for i, term in enumerate(common)},
    )
    at = matched.passages.searchsorted(unpack_numbers(row[0]))
    matched.memories[at], matched.sessions[at] = unpack_numbers(row[1]), unpack_numbers(row[2])
    for i, data in enumerate(row[3:]):
        matched.text[first_term + i, at] = unpack_numbers(data, ">i4")


async def _add_neighbours(
    tx: Transaction, selection: PostgresSelection, matched: MatchedPassages, top: "Ids"
) -> "tuple[MatchedPassages, NDArray[Any]]":
    """Add the neighbours of the best passages in their sessions; return edges of passage, neighbour and distance."""
    import numpy as np  # slow to load

    in_session = top[matched.sessions[top] > 0]
    if not len(in_session):
        return matched, np.zeros((0, 3), np.int64)
    allowed = "1" if selection.is_unfiltered else f"(n.memory IN ({selection.memory_query}))::int"
    sides = " UNION ALL ".join(
        f"""(SELECT w.passage, w.memory, row_number() OVER (ORDER BY w.passage {order}) AS step FROM words w
             WHERE w.scope = c.scope AND w.session = c.session AND w.passage {side} c.passage
             ORDER BY w.passage {order} LIMIT {len(NEIGHBOR_WEIGHTS)})"""
        for side, order in (("<", "DESC"), (">", "ASC"))
    )
    passages = matched.passages[in_session]
    columns = ", ".join(pack_column(name) for name in ("c.passage", "n.passage", "n.step", "n.memory"))
    row = await tx.fetch_required(
        f"""SELECT {columns}, {pack_column(allowed, "int4")}
            FROM unnest(:scopes::bigint[], :passages::bigint[], :sessions::bigint[]) AS c (scope, passage, session)
            CROSS JOIN LATERAL ({sides}) AS n""",
        scopes=to_array_literal(map(get_passage_scope_id, passages.tolist())),
        passages=to_array_literal(passages.tolist()),
        sessions=to_array_literal(matched.sessions[in_session].tolist()),
        **selection.values,
    )
    here, there, step, memories = (unpack_numbers(data) for data in row[:4])
    grown = matched.with_passages(there)
    at = np.searchsorted(grown.passages, there)
    grown.memories[at], grown.allowed[at] = memories, unpack_numbers(row[4], ">i4").astype(bool)
    return grown, np.stack([here, there, step], axis=1)
