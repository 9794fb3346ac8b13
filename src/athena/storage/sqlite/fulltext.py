"""Finding passages by their words.

On SQLite an FTS5 table holds the words, and its vocabulary gives each term's passages. Scores are computed
here, not by FTS5's own bm25(): that one counts documents over all columns and all projects, and visits every
passage that holds any of the words. Here rare terms find passages; terms too common to list only add to the
score of what the rare ones found, so the cost does not follow the most common word of a question.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import apsw

from athena.storage.arrays import merge_unique, sort_unique
from athena.storage.database import IndexedPassage, TextMatches
from athena.storage.terms import (
    BM25_B,
    LABEL_WEIGHT,
    NEIGHBOR_WEIGHTS,
    Term,
    add_word_spaces,
    create_tokenizer,
    idf,
    parse_query_terms,
    saturate_frequency,
    weigh_query_words,
)

if TYPE_CHECKING:
    from athena.storage.database import Floats, Ids
    from athena.storage.sqlite.vector_cache import VectorCache
    from athena.storage.sqlite.vectors import SqliteSelection

MAX_TERM_PASSAGES = 10_000  # passages that a term may occur in and still be read in full
MAX_PASSAGES_READ = 30_000  # passages read for one question, over all its terms
SMALL_PROJECT_DIVISOR = 4  # a project with less than this part of all passages is looked up by itself
PROJECT_MATCH_SQL = """SELECT group_concat(rowid - :first) FROM words
            WHERE words MATCH :query AND rowid BETWEEN :first AND :last"""


class TermPostings:
    """Where a term occurs, as rows of a shelf: in texts, how often, and in labels."""

    def __init__(self, text: "Ids", label: "Ids") -> None:
        import numpy as np

        first = np.flatnonzero(np.diff(text, prepend=-1))  # the index lists a row once for each occurrence
        self.rows = text[first]
        self.counts = np.diff(first, append=len(text))
        self.label = sort_unique(label)

    def weigh_rows(self, shelf: "VectorCache", mean: float) -> "tuple[Ids, Floats]":
        """Return rows and what the term counts in each: less in long passages, more in a label, some nearby."""
        import numpy as np

        frequency = self.counts / (1 - BM25_B + BM25_B * shelf.words[self.rows] / mean)
        if shelf.neighbours is None and not len(self.label):
            return self.rows, frequency.astype(np.float32)
        rows, counts = [self.rows, self.label], [frequency, np.full(len(self.label), LABEL_WEIGHT)]
        if shelf.neighbours is not None:
            for step in shelf.neighbours:
                reached, left = self.rows, frequency
                for weight in NEIGHBOR_WEIGHTS:
                    there = step[reached]
                    reached, left = there[there >= 0], left[there >= 0]
                    rows.append(reached)
                    counts.append(weight * left)
        whole = np.bincount(np.concatenate(rows), np.concatenate(counts), shelf.rows)
        touched = np.flatnonzero(whole)
        return touched, whole[touched].astype(np.float32)


class SqliteFullText:
    schema = (
        """CREATE VIEW passage_words AS
           SELECT p.id AS id, spaced(substr(m.content, p.start + 1, p.length)) AS text, spaced(m.label) AS label
           FROM passages p JOIN memories m ON m.scope = p.scope AND m.id = p.memory WHERE p.live = 1""",
        """CREATE VIRTUAL TABLE words USING fts5 (text, label, content='passage_words', content_rowid='id',
           tokenize='porter unicode61 remove_diacritics 2')""",
        "INSERT INTO words (words, rank) VALUES ('secure-delete', 1)",
        "CREATE VIRTUAL TABLE word_places USING fts5vocab ('words', 'instance')",
        "CREATE VIRTUAL TABLE word_counts USING fts5vocab ('words', 'row')",
    )

    async def add_passages(self, tx: Any, passages: Iterable[IndexedPassage]) -> None:
        for p in passages:
            await tx.execute(
                "INSERT INTO words (rowid, text, label) VALUES (:id, :text, :label)",
                id=p.id,
                text=add_word_spaces(p.text),
                label=add_word_spaces(p.label),
            )

    async def remove_passages(self, tx: Any, passages: Iterable[IndexedPassage]) -> None:
        """Remove passages; text and label must be what was put."""
        for p in passages:
            await tx.execute(
                "INSERT INTO words (words, rowid, text, label) VALUES ('delete', :id, :text, :label)",
                id=p.id,
                text=add_word_spaces(p.text),
                label=add_word_spaces(p.label),
            )

    async def search_text(self, tx: Any, among: "SqliteSelection", question: str, limit: int) -> TextMatches:
        import numpy as np  # 60 ms, so only where something is searched

        visible = sum(shelf.rows for shelf in among.caches)
        (everywhere,) = await tx.fetch_one("SELECT coalesce(sum(passages), 0) FROM scopes")
        list_places = (
            self._read_postings if visible * SMALL_PROJECT_DIVISOR > everywhere else self._read_project_postings
        )
        rare, common = await self._split_terms(tx, question, visible)
        live = max(1, sum(shelf.live_rows for shelf in among.caches))
        words = sum(shelf.live_words for shelf in among.caches) / live or 1.0
        places = [
            [await list_places(tx, shelf, term) for term in rare]
            + [await self._read_shared_postings(tx, shelf, term, rare) for term in common]
            for shelf in among.caches
        ]
        counts = [sum(len(shelf[i].rows) for shelf in places) for i in range(len(rare))]
        counts += [min(term.passages or 0, live) for term in common]
        weights = [idf(n, live) for n in counts]
        whole = sum(weights) or 1.0
        found: list[tuple[Any, Any, Any, Any]] = []
        for shelf, allowed, listed in zip(among.caches, among.allowed, places, strict=True):
            scores = np.zeros(shelf.rows, np.float32)
            coverage = np.zeros(shelf.rows, np.float32)
            for postings, weight in zip(listed, weights, strict=True):
                rows, frequency = postings.weigh_rows(shelf, words)
                scores[rows] += weight * saturate_frequency(frequency)
                coverage[merge_unique(postings.rows, postings.label)] += weight / whole
            if allowed is not None:
                scores[~allowed] = 0
            best, held = shelf.max_per_group(scores), shelf.max_per_group(coverage)
            groups = np.flatnonzero(best)
            if len(groups) > limit:
                groups = groups[np.argpartition(-best[groups], limit)[:limit]]
            found.append((shelf.owners[groups], best[groups], held[groups], groups))
        memories, best, held = (np.concatenate([part[i] for part in found]) for i in range(3))
        known = {t.stem: w for t, w in zip([*rare, *common], weights, strict=True)}
        spans = weigh_query_words(create_tokenizer(tx.connection), question, known, live)
        return TextMatches(memories, best, held, [part[3] for part in found], spans)

    async def _split_terms(self, tx: Any, question: str, rows: int) -> tuple[list[Term], list[Term]]:
        """Separate the terms that may be read in full from those that only score, the rarest first."""
        terms = parse_query_terms(create_tokenizer(tx.connection), question)
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

    async def _read_postings(self, tx: Any, shelf: Any, term: Term) -> TermPostings:
        row = await tx.fetch_one(
            """SELECT group_concat(CASE col WHEN 'text' THEN doc - :first END),
                      group_concat(CASE col WHEN 'label' THEN doc - :first END)
               FROM word_places WHERE term = :stem AND doc BETWEEN :first AND :last""",
            stem=term.stem,
            first=shelf.first,
            last=shelf.last,
        )
        return TermPostings(shelf.find(row[0]), shelf.find(row[1]))

    async def _read_project_postings(self, tx: Any, shelf: Any, term: Term) -> TermPostings:
        """List a term's places in one project of many, without going through the others'."""
        found = []
        for column in ("text", "label"):
            row = await tx.fetch_one(
                PROJECT_MATCH_SQL, query=f'{column} : "{term.word}"', first=shelf.first, last=shelf.last
            )
            found.append(shelf.find(row[0]))
        return TermPostings(*found)

    async def _read_shared_postings(self, tx: Any, shelf: Any, term: Term, rare: list[Term]) -> TermPostings:
        """List where a common term stands beside a rare one."""
        rarer = " OR ".join(f'"{other.word}"' for other in rare)
        row = await tx.fetch_one(
            PROJECT_MATCH_SQL, query=f'text : ("{term.word}" AND ({rarer}))', first=shelf.first, last=shelf.last
        )
        return TermPostings(shelf.find(row[0]), shelf.find(None))

    async def find_problems(self, tx: Any) -> list[str]:
        """Compare the index with the passages it stands for."""
        try:
            await tx.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
        except (apsw.CorruptError, apsw.SQLError) as error:
            return [f"the full-text index does not agree with the memories ({error})"]
        return []
