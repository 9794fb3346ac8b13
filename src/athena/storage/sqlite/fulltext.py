"""Finding passages by their words.

On SQLite an FTS5 table holds the words, and its vocabulary gives each term's passages. Scores are computed
here, not by FTS5's own bm25(): that one counts documents over all columns and all projects, and visits every
passage that holds any of the words. Here rare terms find passages; terms too common to list only add to the
score of what the rare ones found, so the cost does not follow the most common word of a question.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import apsw

from athena.storage.arrays import distinct, union
from athena.storage.database import Indexed, Matches
from athena.storage.terms import (
    LABEL_WEIGHT,
    LENGTH_WEIGHT,
    NEARBY,
    Term,
    idf,
    saturated,
    spaced,
    terms_of,
    tokenizer,
    word_weights,
)

if TYPE_CHECKING:
    from athena.storage.database import Floats, Ids
    from athena.storage.sqlite.vector_cache import Shelf
    from athena.storage.sqlite.vectors import Selection

LISTED = 10_000  # passages that a term may occur in and still be read in full
READ = 30_000  # passages read for one question, over all its terms
SMALL = 4  # a project with less than this part of all passages is looked up by itself
WITHIN = """SELECT group_concat(rowid - :first) FROM words
            WHERE words MATCH :query AND rowid BETWEEN :first AND :last"""


class Postings:
    """Where a term occurs, as rows of a shelf: in texts, how often, and in labels."""

    def __init__(self, text: "Ids", label: "Ids") -> None:
        import numpy as np

        first = np.flatnonzero(np.diff(text, prepend=-1))  # the index lists a row once for each occurrence
        self.rows = text[first]
        self.counts = np.diff(first, append=len(text))
        self.label = distinct(label)

    def weighed(self, shelf: "Shelf", mean: float) -> "tuple[Ids, Floats]":
        """Return rows and what the term counts in each: less in long passages, more in a label, some nearby."""
        import numpy as np

        frequency = self.counts / (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * shelf.words[self.rows] / mean)
        if shelf.neighbours is None and not len(self.label):
            return self.rows, frequency.astype(np.float32)
        rows, counts = [self.rows, self.label], [frequency, np.full(len(self.label), LABEL_WEIGHT)]
        if shelf.neighbours is not None:
            for step in shelf.neighbours:
                reached, left = self.rows, frequency
                for weight in NEARBY:
                    there = step[reached]
                    reached, left = there[there >= 0], left[there >= 0]
                    rows.append(reached)
                    counts.append(weight * left)
        whole = np.bincount(np.concatenate(rows), np.concatenate(counts), shelf.rows)
        touched = np.flatnonzero(whole)
        return touched, whole[touched].astype(np.float32)


class SqliteWords:
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

    async def put(self, tx: Any, passages: Iterable[Indexed]) -> None:
        for p in passages:
            await tx.execute(
                "INSERT INTO words (rowid, text, label) VALUES (:id, :text, :label)",
                id=p.id,
                text=spaced(p.text),
                label=spaced(p.label),
            )

    async def drop(self, tx: Any, passages: Iterable[Indexed]) -> None:
        """Remove passages; text and label must be what was put."""
        for p in passages:
            await tx.execute(
                "INSERT INTO words (words, rowid, text, label) VALUES ('delete', :id, :text, :label)",
                id=p.id,
                text=spaced(p.text),
                label=spaced(p.label),
            )

    async def matches(self, tx: Any, among: "Selection", question: str, limit: int) -> Matches:
        import numpy as np  # 60 ms, so only where something is searched

        visible = sum(shelf.rows for shelf in among.shelves)
        (everywhere,) = await tx.fetch_one("SELECT coalesce(sum(passages), 0) FROM scopes")
        list_places = self._places if visible * SMALL > everywhere else self._places_within
        rare, common = await self._sort(tx, question, visible)
        live = max(1, sum(shelf.live_rows for shelf in among.shelves))
        words = sum(shelf.live_words for shelf in among.shelves) / live or 1.0
        places = [
            [await list_places(tx, shelf, term) for term in rare]
            + [await self._shared_places(tx, shelf, term, rare) for term in common]
            for shelf in among.shelves
        ]
        counts = [sum(len(shelf[i].rows) for shelf in places) for i in range(len(rare))]
        counts += [min(term.passages or 0, live) for term in common]
        weights = [idf(n, live) for n in counts]
        whole = sum(weights) or 1.0
        found: list[tuple[Any, Any, Any, Any]] = []
        for shelf, allowed, listed in zip(among.shelves, among.allowed, places, strict=True):
            scores = np.zeros(shelf.rows, np.float32)
            coverage = np.zeros(shelf.rows, np.float32)
            for postings, weight in zip(listed, weights, strict=True):
                rows, frequency = postings.weighed(shelf, words)
                scores[rows] += weight * saturated(frequency)
                coverage[union(postings.rows, postings.label)] += weight / whole
            if allowed is not None:
                scores[~allowed] = 0
            best, held = shelf.best_of_each(scores), shelf.best_of_each(coverage)
            groups = np.flatnonzero(best)
            if len(groups) > limit:
                groups = groups[np.argpartition(-best[groups], limit)[:limit]]
            found.append((shelf.owners[groups], best[groups], held[groups], groups))
        memories, best, held = (np.concatenate([part[i] for part in found]) for i in range(3))
        known = {t.stem: w for t, w in zip([*rare, *common], weights, strict=True)}
        spans = word_weights(tokenizer(tx.connection), question, known, live)
        return Matches(memories, best, held, [part[3] for part in found], spans)

    async def _sort(self, tx: Any, question: str, rows: int) -> tuple[list[Term], list[Term]]:
        """Separate the terms that may be read in full from those that only score, the rarest first."""
        terms = terms_of(tokenizer(tx.connection), question)
        if rows <= LISTED:
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
            if rare and (count > LISTED or read > READ):
                break
            rare.append(term)
        return rare, [term for _, term in counted[len(rare) :]]

    async def _places(self, tx: Any, shelf: Any, term: Term) -> Postings:
        row = await tx.fetch_one(
            """SELECT group_concat(CASE col WHEN 'text' THEN doc - :first END),
                      group_concat(CASE col WHEN 'label' THEN doc - :first END)
               FROM word_places WHERE term = :stem AND doc BETWEEN :first AND :last""",
            stem=term.stem,
            first=shelf.first,
            last=shelf.last,
        )
        return Postings(shelf.find(row[0]), shelf.find(row[1]))

    async def _places_within(self, tx: Any, shelf: Any, term: Term) -> Postings:
        """List a term's places in one project of many, without going through the others'."""
        found = []
        for column in ("text", "label"):
            row = await tx.fetch_one(WITHIN, query=f'{column} : "{term.word}"', first=shelf.first, last=shelf.last)
            found.append(shelf.find(row[0]))
        return Postings(*found)

    async def _shared_places(self, tx: Any, shelf: Any, term: Term, rare: list[Term]) -> Postings:
        """List where a common term stands beside a rare one."""
        rarer = " OR ".join(f'"{other.word}"' for other in rare)
        row = await tx.fetch_one(
            WITHIN, query=f'text : ("{term.word}" AND ({rarer}))', first=shelf.first, last=shelf.last
        )
        return Postings(shelf.find(row[0]), shelf.find(None))

    async def problems(self, tx: Any) -> list[str]:
        """Compare the index with the passages it stands for."""
        try:
            await tx.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
        except (apsw.CorruptError, apsw.SQLError) as error:
            return [f"the full-text index does not agree with the memories ({error})"]
        return []
