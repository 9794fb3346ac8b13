"""Full-text search on SQLite.

An FTS5 table indexes the words, and its vocabulary tables list each term's passages. Scores are computed here, not by
FTS5's bm25(): that one counts documents over all columns and all projects, and visits every passage that holds any of
the words. Here rare terms find passages; terms too common to list only add to the score of passages that rare ones
found, so the cost does not grow with the most common word of a query.
"""

import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw

from athena.storage.arrays import are_members, find_changes, merge_unique, sort_unique
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
    stem_text,
    weigh_query_words,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from athena.storage.database import Floats, Ids
    from athena.storage.sqlite.vectors import SqliteSelection

MAX_TERM_PASSAGES = 10_000  # that a term may occur in and still be read in full
MAX_PASSAGES_READ = 30_000  # for one query, over all its terms
MAX_KEPT_BYTES = 4 << 20  # of postings, besides those that a large project may have for each of its passages
KEPT_BYTES_PER_PASSAGE = 48
MAX_CHANGE_LOGS = 16  # projects whose changes are followed
MAX_KEPT_STEM_CHARS = 100
TERM_BYTES = 600  # of a term's objects, besides its arrays
MAX_KEPT_PASSAGES = 200_000  # that a term may occur in and still be kept
MAX_ASKED_TERMS = 1_000  # common terms of which it is known that somebody asked for them
MAX_CHANGED_PASSAGES = 128  # of a project, by which postings are brought up to date; after more they are read again
MAX_UNUSED_S = 60.0  # that postings stay in memory
SMALL_PROJECT_DIVISOR = 4  # a project with less than this part of all passages is searched with MATCH
PROJECT_MATCH_SQL = """SELECT group_concat(rowid - :first) FROM words
            WHERE words MATCH :query AND rowid BETWEEN :first AND :last"""


class TermPostings:
    """The rows of a vector cache where a term occurs: in texts, with counts, and in labels."""

    def __init__(self, rows: "NDArray[Any]", counts: "NDArray[Any]", label: "NDArray[Any]") -> None:
        self.rows, self.counts, self.label = rows, counts, label
        self.holding = merge_unique(rows, label) if len(label) else rows
        self.last_row = int(self.holding[-1]) if len(self.holding) else -1
        self.size = TERM_BYTES + rows.nbytes + counts.nbytes + 2 * label.nbytes

    @classmethod
    def count_rows(cls, text_rows: "Ids", label_rows: "Ids") -> "TermPostings":
        """Create postings from the rows in order, each once for each occurrence."""
        import numpy as np  # slow to load

        first = np.flatnonzero(find_changes(text_rows))
        counts = np.diff(first, append=len(text_rows)).astype(np.int32)
        return cls(text_rows[first].astype(np.int32), counts, sort_unique(label_rows).astype(np.int32))

    def replace_rows(self, changed: "Ids", found: Sequence["Occurrence"]) -> "TermPostings":
        """Return postings in which the changed rows are those that were found, in order."""
        import numpy as np  # slow to load

        rows, counts, label = self.rows, self.counts, self.label
        if changed[0] <= self.last_row:
            stays = ~are_members(rows, changed)
            rows, counts, label = rows[stays], counts[stays], label[~are_members(label, changed)]
        in_text, in_label = [one for one in found if one.in_text], [one.row for one in found if one.in_label]
        rows = np.concatenate([rows, np.array([one.row for one in in_text], np.int32)])
        counts = np.concatenate([counts, np.array([one.in_text for one in in_text], np.int32)])
        label = np.concatenate([label, np.array(in_label, np.int32)])
        if changed[0] > self.last_row:
            return TermPostings(rows, counts, label)
        order = np.argsort(rows, kind="stable")
        return TermPostings(rows[order], counts[order], np.sort(label))

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


class Occurrence(NamedTuple):
    """A passage that holds a term."""

    row: int
    in_text: int  # how often
    in_label: bool


class ChangedPassages(NamedTuple):
    """What passages of a scope hold as of a stamp, after a write: nothing, where it has hidden them."""

    stamp: int
    rows: "Ids"  # in order
    by_stem: dict[str, list[Occurrence]]


class ChangeLog:
    """The last changes of a scope's passages: all after the first stamp."""

    def __init__(self, stamp: int) -> None:
        self.first_stamp = self.stamp = stamp
        self._changes: list[ChangedPassages] = []

    def add(self, change: ChangedPassages) -> None:
        self.stamp = change.stamp
        self._changes += [change] if len(change.rows) else []
        while sum(len(one.rows) for one in self._changes) > MAX_CHANGED_PASSAGES:
            self.first_stamp = self._changes.pop(0).stamp

    def update(self, stem: str, postings: TermPostings, stamp: int, *, counted: bool) -> TermPostings | None:
        """Return postings of a stamp as of now; None where a change after it is not known."""
        if stamp < self.first_stamp:
            return None
        for change in self._changes[bisect_right(self._changes, stamp, key=lambda one: one.stamp) :]:
            found = change.by_stem.get(stem, [])
            if found or change.rows[0] <= postings.last_row:
                found = found if counted else [one._replace(in_text=min(one.in_text, 1)) for one in found]
                postings = postings.replace_rows(change.rows, found)
        return postings


class KeptPostings:
    """The postings that searches have read, kept for the next ones and brought up to date with what was written since.

    Postings are of a stamp. The words of passages that have changed after it are read from their texts, so that a write
    costs no second look at the index, whichever process wrote.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._logs: dict[tuple[int, int], ChangeLog] = {}  # by scope and purges
        self._kept: dict[tuple[int, int, str, bool], tuple[int, TermPostings]] = {}  # with stamps; last used, last
        self._asked: set[tuple[int, str]] = set()  # common terms
        self._size = 0
        self._largest_rows = 0  # of the scopes that were searched
        self._used_at = 0.0

    async def follow_changes(self, tx: Transaction, cache: VectorCache, stamp: int) -> None:
        """Note what was written in a scope until a stamp, that of this transaction."""
        with self._guard:
            self._used_at = time.monotonic()
            if (cache.scope, cache.purges) not in self._logs:
                self._logs = {key: log for key, log in self._logs.items() if key[0] != cache.scope}
            log = self._logs.pop((cache.scope, cache.purges), None) or ChangeLog(stamp)
            self._logs[cache.scope, cache.purges] = log  # as the one that was used last
            while len(self._logs) > MAX_CHANGE_LOGS:
                del self._logs[next(iter(self._logs))]
            since = log.stamp
            if since >= stamp:
                return
            if cache.stamp <= since:  # others were written
                log.stamp = stamp
                return
        change = await _read_changed_passages(tx, cache, since, stamp)
        with self._guard:
            log = self._logs.setdefault((cache.scope, cache.purges), ChangeLog(stamp))
            if log.stamp < stamp:  # else another search was faster
                log.add(change)

    def find(self, cache: VectorCache, stem: str, *, counted: bool) -> TermPostings | None:
        """Return what is kept of a term; None if it has to be read."""
        key = cache.scope, cache.purges, stem, counted
        with self._guard:
            log, (stamp, kept) = self._logs.get(key[:2]), self._kept.pop(key, (0, None))
            if kept is None:
                return None
            self._size -= kept.size
            postings = None if log is None else log.update(stem, kept, stamp, counted=counted)
            if log is None or postings is None or postings.last_row >= cache.rows:
                return None  # the last: another search has seen what this one does not
            self._kept[key] = log.stamp, postings
            self._size += postings.size
            return postings

    async def read(self, tx: Transaction, cache: VectorCache, term: Term, stamp: int, *, counted: bool) -> TermPostings:
        """Read a term's postings and keep them; `stamp` is that of this transaction."""
        key = cache.scope, cache.purges, term.stem, counted
        postings = await _read_postings(tx, cache, term, counted=counted)
        with self._guard:
            if key not in self._kept and len(term.stem) <= MAX_KEPT_STEM_CHARS:
                self._kept[key] = stamp, postings
                self._size += postings.size
            self._largest_rows = max(self._largest_rows, cache.rows)
            while self._size > MAX_KEPT_BYTES + KEPT_BYTES_PER_PASSAGE * self._largest_rows:
                self._size -= self._kept.pop(next(iter(self._kept)))[1].size
        return postings

    def is_asked_again(self, cache: VectorCache, term: Term) -> bool:
        """Return whether a search has asked for a common term before: only then all of it is read."""
        key = cache.scope, term.stem
        with self._guard:
            is_known = key in self._asked
            if len(self._asked) > MAX_ASKED_TERMS:
                self._asked.clear()
            self._asked.add(key)
        return is_known and (term.passages or 0) <= MAX_KEPT_PASSAGES

    def release_unused(self) -> bool:
        """Free what no search has used for a while; return whether there was any."""
        with self._guard:
            if is_unused := bool(self._kept or self._logs) and time.monotonic() - self._used_at > MAX_UNUSED_S:
                self._kept, self._logs, self._size = {}, {}, 0
            return is_unused


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

    def __init__(self) -> None:
        self.kept = KeptPostings()

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
        is_large = visible * SMALL_PROJECT_DIVISOR > selection.everywhere
        stamp, terms = selection.stamp, parse_query_terms(question)
        for cache in caches:
            await self.kept.follow_changes(tx, cache, stamp)
        known = [{term.stem: self.kept.find(cache, term.stem, counted=is_large) for term in terms} for cache in caches]
        rare, common = terms, list[Term]()
        if visible > MAX_TERM_PASSAGES:
            is_all = visible == selection.everywhere
            rare, common = _split_terms([await _count_passages(tx, term, known, is_all=is_all) for term in terms])
        live = max(1, sum(cache.live_rows for cache in caches))
        mean_words = sum(cache.live_words for cache in caches) / live or 1.0
        postings_by_cache = []
        for cache, found in zip(caches, known, strict=True):
            read = [found[term.stem] or await self.kept.read(tx, cache, term, stamp, counted=is_large) for term in rare]
            shared = []
            for term in common:
                one = found[term.stem]
                if one is None and self.kept.is_asked_again(cache, term):
                    one = await self.kept.read(tx, cache, term, stamp, counted=is_large)
                selected = one and _select_shared(cache, one, read)
                shared.append(selected or await _read_shared_postings(tx, cache, term, rare))
            postings_by_cache.append(read + shared)
        counts = [sum(len(postings[i].rows) for postings in postings_by_cache) for i in range(len(rare))]
        counts += [min(term.passages or 0, live) for term in common]
        weights = [idf(count, live) for count in counts]
        total_weight = sum(weights) or 1.0
        hits: list[tuple[Ids, Any, Any, Ids, Ids, Any]] = []  # memories, scores, coverage, groups, passages, scores
        for cache, allowed, all_postings in zip(caches, selection.allowed, postings_by_cache, strict=True):
            scores = np.zeros(cache.rows, np.float32)
            coverage = np.zeros(cache.rows, np.float32)
            for one, weight in zip(all_postings, weights, strict=True):
                rows, frequency = one.weigh_rows(cache, mean_words)
                scores[rows] += weight * saturate_frequency(frequency)
                coverage[one.holding] += weight / total_weight
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


async def _count_passages(
    tx: Transaction, term: Term, known: list[dict[str, TermPostings | None]], *, is_all: bool
) -> Term:
    """Return a term with the number of passages that hold it, those of other projects among them."""
    kept = [postings for found in known if (postings := found[term.stem]) is not None]
    if is_all and len(kept) == len(known):
        return term._replace(passages=sum(len(postings.holding) for postings in kept))
    row = await tx.fetch_one("SELECT doc FROM word_counts WHERE term = :stem", stem=term.stem)
    return term._replace(passages=row[0] if row else 0)


def _split_terms(counted: list[Term]) -> tuple[list[Term], list[Term]]:
    """Split the terms of a query into those to be read in full and those that only score, the rarest first."""
    counted.sort(key=lambda term: term.passages or 0)
    rare: list[Term] = []
    read = 0
    for term in counted:
        count = term.passages or 0
        read += count
        if rare and (count > MAX_TERM_PASSAGES or read > MAX_PASSAGES_READ):
            break
        rare.append(term)
    return rare, counted[len(rare) :]


async def _read_postings(tx: Transaction, cache: VectorCache, term: Term, *, counted: bool) -> TermPostings:
    """Read a term's rows; those of one project of many without those of the others, and without counts."""
    if not counted:
        return TermPostings.count_rows(
            *[await _match_rows(tx, cache, f'{column} : "{term.word}"') for column in ("text", "label")]
        )
    row = await tx.fetch_required(
        """SELECT group_concat((doc - :first) * 2 + (col = 'label')) FROM word_places
           WHERE term = :stem AND doc BETWEEN :first AND :last""",
        stem=term.stem,
        first=cache.first,
        last=cache.last,
    )
    places = _parse_numbers(row[0])
    is_label, offsets = (places & 1).astype(bool), places >> 1
    return TermPostings.count_rows(cache.find_rows(offsets[~is_label]), cache.find_rows(offsets[is_label]))


async def _match_rows(tx: Transaction, cache: VectorCache, query: str) -> "Ids":
    row = await tx.fetch_required(PROJECT_MATCH_SQL, query=query, first=cache.first, last=cache.last)
    return cache.find_rows(_parse_numbers(row[0]))


async def _read_changed_passages(tx: Transaction, cache: VectorCache, since: int, stamp: int) -> ChangedPassages:
    """Read what passages hold that have changed after a stamp; of too many, only that they are."""
    import numpy as np  # slow to load

    found = await tx.fetch(
        """SELECT p.id - :first, substr(m.content, p.start + 1, p.length), m.label FROM passages p
           LEFT JOIN memories m ON m.scope = p.scope AND m.id = p.memory AND p.live = 1
           WHERE p.scope = :scope AND p.stamp > :since ORDER BY p.id LIMIT :limit""",
        first=cache.first,
        scope=cache.scope,
        since=since,
        limit=MAX_CHANGED_PASSAGES + 1,
    )
    rows = cache.find_rows(np.array([offset for offset, _, _ in found], np.int64))
    if len(rows) < len(found) or len(found) > MAX_CHANGED_PASSAGES:
        return ChangedPassages(stamp, np.zeros(MAX_CHANGED_PASSAGES + 1, np.int64), {})
    by_stem: dict[str, list[Occurrence]] = {}
    for row, (_, text, label) in zip(rows.tolist(), found, strict=True):
        in_text, in_label = Counter(stem_text(text or "")), set(stem_text(label or ""))
        for stem in in_text.keys() | in_label:
            by_stem.setdefault(stem, []).append(Occurrence(row, in_text[stem], stem in in_label))
    return ChangedPassages(stamp, rows, by_stem)


def _parse_numbers(text: str | None) -> "Ids":
    import numpy as np  # slow to load

    return np.fromstring(text or "", np.int64, sep=",")


def _select_shared(cache: VectorCache, postings: TermPostings, rare: list[TermPostings]) -> TermPostings:
    """Return of a common term's postings the texts that hold a rare one, too, without counts."""
    import numpy as np  # slow to load

    is_found = np.zeros(cache.rows, bool)
    for one in rare:
        is_found[one.rows] = True
    rows = postings.rows[is_found[postings.rows]]
    return TermPostings(rows, np.ones(len(rows), np.int32), rows[:0])


async def _read_shared_postings(tx: Transaction, cache: VectorCache, term: Term, rare: list[Term]) -> TermPostings:
    """Read the rows where a common term occurs together with a rare one."""
    any_rare = " OR ".join(f'"{other.word}"' for other in rare)
    rows = await _match_rows(tx, cache, f'text : ("{term.word}" AND ({any_rare}))')
    return TermPostings.count_rows(rows, rows[:0])
