"""Full-text search on SQLite.

An FTS5 table indexes the words, and its vocabulary tables list each term's passages. Scores are computed here, not by
FTS5's bm25(): that one counts documents over all columns and all projects, and visits every passage that holds any of
the words. Here rare terms find passages; terms too common to list only add to the score of passages that rare ones
found, so the cost does not grow with the most common word of a query.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import apsw

from athena.storage.arrays import find_changes, merge_unique, sort_unique
from athena.storage.database import IndexedPassage, TextMatches, Transaction
from athena.storage.sqlite.vector_cache import VectorCache
from athena.storage.terms import (
    BM25_B,
    LABEL_WEIGHT,
    NEIGHBOR_WEIGHTS,
    Term,
    add_word_spaces,
    idf,
    parse_query_terms,
    saturate_frequency,
    weigh_query_words,
)

if TYPE_CHECKING:
    from athena.storage.database import Floats, Ids
    from athena.storage.sqlite.vectors import SqliteSelection

MAX_TERM_PASSAGES = 10_000  # that a term may occur in and still be read in full
MAX_PASSAGES_READ = 30_000  # for one query, over all its terms
SMALL_PROJECT_DIVISOR = 4  # a project with less than this part of all passages is searched with MATCH
PROJECT_MATCH_SQL = """SELECT group_concat(rowid - :first) FROM words
            WHERE words MATCH :query AND rowid BETWEEN :first AND :last"""


class TermPostings:
    """The rows of a vector cache where a term occurs: in texts, with counts, and in labels."""

    def __init__(self, text_rows: "Ids", label_rows: "Ids") -> None:
        import numpy as np  # slow to load

        first = np.flatnonzero(find_changes(text_rows))  # the index lists a row once for each occurrence
        self.rows = text_rows[first]
        self.counts = np.empty(len(first), np.int64)
        np.subtract(first[1:], first[:-1], out=self.counts[:-1])
        self.counts[-1:] = len(text_rows) - first[-1:]
        self.label = sort_unique(label_rows) if len(label_rows) else label_rows

    def weigh_rows(self, cache: VectorCache, mean_words: float) -> "tuple[Ids, Floats]":
        """Return rows and the term's frequency in each: less if it is long, more for a label, some from neighbours."""
        import numpy as np  # slow to load

        frequency = self.counts / (1 - BM25_B + BM25_B * cache.word_counts[self.rows] / mean_words)
        if cache.neighbours is None and not len(self.label):
            return self.rows, frequency.astype(np.float32)
        rows, counts = [self.rows, self.label], [frequency, np.full(len(self.label), LABEL_WEIGHT)]
        if cache.neighbours is not None:
            for neighbour in cache.neighbours:
                reached, spread = self.rows, frequency
                for weight in NEIGHBOR_WEIGHTS:
                    following = neighbour[reached]
                    reached, spread = following[following >= 0], spread[following >= 0]
                    rows.append(reached)
                    counts.append(weight * spread)
        totals = np.bincount(np.concatenate(rows), np.concatenate(counts), cache.rows)
        touched = np.flatnonzero(totals != 0)
        return touched, totals[touched].astype(np.float32)


class SqliteFullText:
    check_needs_write_lock = True  # FTS5 takes the order to check itself as an INSERT
    schema = (
        """CREATE VIEW passage_words AS
           SELECT p.id AS id, spaced(substr(m.content, p.start + 1, p.length)) AS text, spaced(m.label) AS label
           FROM passages p JOIN memories m ON m.scope = p.scope AND m.id = p.memory WHERE p.live = 1""",
        """CREATE VIRTUAL TABLE words USING fts5 (text, label, content='passage_words', content_rowid='id',
           tokenize='porter unicode61 remove_diacritics 2')""",
        "CREATE VIRTUAL TABLE word_places USING fts5vocab ('words', 'instance')",
        "CREATE VIRTUAL TABLE word_counts USING fts5vocab ('words', 'row')",
    )

    async def add_passages(self, tx: Transaction, passages: Iterable[IndexedPassage]) -> None:
        await tx.execute_many(
            "INSERT INTO words (rowid, text, label) VALUES (:id, :text, :label)", map(_to_index_row, passages)
        )

    async def remove_passages(self, tx: Transaction, passages: Iterable[IndexedPassage]) -> None:
        await tx.execute_many(
            "INSERT INTO words (words, rowid, text, label) VALUES ('delete', :id, :text, :label)",
            map(_to_index_row, passages),
        )

    async def erase_removed(self, tx: Transaction) -> None:
        """Merge the index into one segment: until then, removed words stay in older segments, marked as removed.

        FTS5's own `secure-delete` erases them at once, but costs fifty times as much: seconds for a long memory.
        """
        await tx.execute("INSERT INTO words (words) VALUES ('optimize')")

    async def search_text(
        self, tx: Transaction, selection: "SqliteSelection", question: str, limit: int
    ) -> TextMatches:
        import numpy as np  # slow to load

        caches = selection.caches
        visible = sum(cache.rows for cache in caches)
        (everywhere,) = await tx.fetch_required("SELECT coalesce(sum(passages), 0) FROM scopes")
        is_large = visible * SMALL_PROJECT_DIVISOR > everywhere
        read_postings = _read_postings if is_large else _read_project_postings
        rare, common = await _split_terms(tx, question, visible)
        live = max(1, sum(cache.live_rows for cache in caches))
        mean_words = sum(cache.live_words for cache in caches) / live or 1.0
        postings_by_cache = [
            [await read_postings(tx, cache, term) for term in rare]
            + [await _read_shared_postings(tx, cache, term, rare) for term in common]
            for cache in caches
        ]
        counts = [sum(len(postings[i].rows) for postings in postings_by_cache) for i in range(len(rare))]
        counts += [min(term.passages or 0, live) for term in common]
        weights = [idf(count, live) for count in counts]
        total_weight = sum(weights) or 1.0
        hits: list[tuple[Ids, Any, Any, Ids, Ids, Any]] = []  # memories, scores, coverage, groups, passages, scores
        for cache, allowed, all_postings in zip(caches, selection.allowed, postings_by_cache, strict=True):
            scores = np.zeros(cache.rows, np.float32)
            coverage = np.zeros(cache.rows, np.float32)
            for postings, weight in zip(all_postings, weights, strict=True):
                rows, frequency = postings.weigh_rows(cache, mean_words)
                scores[rows] += weight * saturate_frequency(frequency)
                holding = merge_unique(postings.rows, postings.label) if len(postings.label) else postings.rows
                coverage[holding] += weight / total_weight
            if allowed is not None:
                scores *= allowed
            best, covered = cache.max_per_group(scores), cache.max_per_group(coverage)
            groups = np.flatnonzero(best != 0)  # numpy finds flags ten times faster than numbers
            if len(groups) > limit:
                groups = groups[np.argpartition(-best[groups], limit)[:limit]]
            rows = np.flatnonzero(scores != 0) if len(cache.starts) < cache.rows else np.zeros(0, np.int64)
            hits.append(
                (cache.owners[groups], best[groups], covered[groups], groups, cache.passages[rows], scores[rows])
            )
        memories, best, covered, _, passages, passage_scores = (
            np.concatenate([part[i] for part in hits]) for i in range(6)
        )
        order = np.argsort(passages)
        stem_weights = {term.stem: weight for term, weight in zip([*rare, *common], weights, strict=True)}
        spans = weigh_query_words(question, stem_weights, live)
        groups_by_cache = [part[3] for part in hits]
        return TextMatches(memories, best, covered, groups_by_cache, spans, passages[order], passage_scores[order])

    async def find_problems(self, tx: Transaction) -> list[str]:
        """Compare the index with the passages."""
        try:
            await self.refresh(tx)
            await tx.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
        except (apsw.CorruptError, apsw.SQLError) as error:
            return [f"the full-text index does not agree with the memories ({error})"]
        return []

    async def refresh(self, tx: Transaction) -> None:
        """Let FTS5 read its index anew: its own checks use what it has cached, though other processes have written."""
        await tx.fetch("SELECT rowid FROM words WHERE words MATCH 'a' LIMIT 1")


def _to_index_row(passage: IndexedPassage) -> dict[str, Any]:
    return {"id": passage.id, "text": add_word_spaces(passage.text), "label": add_word_spaces(passage.label)}


async def _split_terms(tx: Transaction, question: str, rows: int) -> tuple[list[Term], list[Term]]:
    """Split the terms of a query into those to be read in full and those that only score, the rarest first."""
    terms = parse_query_terms(question)
    if rows <= MAX_TERM_PASSAGES:
        return terms, []
    counted: list[tuple[int, Term]] = []
    for term in terms:
        row = await tx.fetch_one("SELECT doc FROM word_counts WHERE term = :stem", stem=term.stem)
        count = row[0] if row else 0
        counted.append((count, term._replace(passages=count)))
    counted.sort(key=lambda pair: pair[0])
    rare: list[Term] = []
    read = 0
    for count, term in counted:
        read += count
        if rare and (count > MAX_TERM_PASSAGES or read > MAX_PASSAGES_READ):
            break
        rare.append(term)
    return rare, [term for _, term in counted[len(rare) :]]


async def _read_postings(tx: Transaction, cache: VectorCache, term: Term) -> TermPostings:
    row = await tx.fetch_required(
        """SELECT group_concat((doc - :first) * 2 + (col = 'label')) FROM word_places
           WHERE term = :stem AND doc BETWEEN :first AND :last""",
        stem=term.stem,
        first=cache.first,
        last=cache.last,
    )
    places = _parse_numbers(row[0])
    is_label, offsets = (places & 1).astype(bool), places >> 1
    if not is_label.any():
        return TermPostings(cache.find_rows(offsets), offsets[:0])
    return TermPostings(cache.find_rows(offsets[~is_label]), cache.find_rows(offsets[is_label]))


def _parse_numbers(text: str | None) -> "Ids":
    import numpy as np  # slow to load

    return np.fromstring(text or "", np.int64, sep=",")


async def _read_project_postings(tx: Transaction, cache: VectorCache, term: Term) -> TermPostings:
    """Read a term's rows in one project of many, without reading those of the others."""
    postings = []
    for column in ("text", "label"):
        row = await tx.fetch_required(
            PROJECT_MATCH_SQL, query=f'{column} : "{term.word}"', first=cache.first, last=cache.last
        )
        postings.append(cache.find_rows(_parse_numbers(row[0])))
    return TermPostings(*postings)


async def _read_shared_postings(tx: Transaction, cache: VectorCache, term: Term, rare: list[Term]) -> TermPostings:
    """Read the rows where a common term occurs together with a rare one."""
    any_rare = " OR ".join(f'"{other.word}"' for other in rare)
    row = await tx.fetch_required(
        PROJECT_MATCH_SQL, query=f'text : ("{term.word}" AND ({any_rare}))', first=cache.first, last=cache.last
    )
    rows = cache.find_rows(_parse_numbers(row[0]))
    return TermPostings(rows, rows[:0])
