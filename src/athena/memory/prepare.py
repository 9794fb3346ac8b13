"""What is worked out about a text before it is written: its parts, its time, its vectors."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from athena.core import clock
from athena.core.hashing import hash_text
from athena.embedding.embedder import Excerpt, PassageEncoding
from athena.embedding.encoder import Encoder
from athena.errors import InvalidInput
from athena.memory.values import MOMENT_KEY, SERIAL_KEY, Draft, compute_digest_salt
from athena.storage.arrays import quantize_vectors

MAX_PASSAGE_WORDS = 90  # words
MAX_PASSAGES = 2_000  # passages of one text, about: a book is cut more coarsely
SENTENCE_PATTERN = re.compile(r"[^\n]*?(?:[.!?;](?=\s)|\n|\Z)")
# Scripts without spaces between words count by characters.
UNSPACED_RANGES = r"\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
PASSAGE_WORD_PATTERN = re.compile(rf"[{UNSPACED_RANGES}]|[^\s{UNSPACED_RANGES}]+")


class Passage(NamedTuple):
    start: int
    length: int
    words: int

    def extract_from(self, text: str) -> str:
        return text[self.start : self.start + self.length]


def split_passages(text: str) -> list[Passage]:
    """Pack sentences into passages of at most 90 words, more in a whole book; longer sentences are cut."""
    passages: list[Passage] = []
    start = end = words = 0
    longest = max(MAX_PASSAGE_WORDS, text.count(" ") // MAX_PASSAGES)
    for first, last, count in _split_sentences(text, longest):
        if words and words + count > longest:
            passages.append(Passage(start, end - start, words))
            words = 0
        if not words:
            start = first
        end, words = last, words + count
    passages.append(Passage(start, end - start, words))
    return passages


def _split_sentences(text: str, longest: int) -> Iterator[tuple[int, int, int]]:
    """Yield sentences as (start, end, words), none longer than a passage, and no empty ones."""
    at = 0
    while at < len(text):
        match = SENTENCE_PATTERN.match(text, at)
        stop = match.end() if match and match.end() > at else len(text)
        found = list(PASSAGE_WORD_PATTERN.finditer(text, at, stop))
        for i in range(0, len(found), longest):
            piece = found[i : i + longest]
            yield piece[0].start(), piece[-1].end(), len(piece)
        at = stop


ANSWERING_ROLES = {"assistant", "system", "tool"}
FIRST_PERSON_PATTERN = re.compile(r"\b(?:i|my|me|we|our|i'm|i've)\b", re.IGNORECASE)
MAX_IMMEDIATE_PASSAGES = 16  # passages of one memory that get their vectors before it is acknowledged; the rest follow


class PassageCode(NamedTuple):
    """What the indexes by meaning keep of a passage."""

    vector: bytes
    signs: bytes


class PreparedMemory(NamedTuple):
    """A draft, cut and encoded, ready to be written."""

    draft: Draft
    digest: str
    label: str
    header: str
    happened: float
    pieces: list[Passage]
    codes: list[PassageCode]  # of the first pieces; none where the model does not work

    @property
    def speaker_flags(self) -> int:
        """Who speaks: 1 an assistant, a tool or the system, who mostly repeat; 2 somebody about themselves."""
        answers = str(self.draft.metadata.get("role") or "").casefold() in ANSWERING_ROLES
        return int(answers) + 2 * bool(FIRST_PERSON_PATTERN.search(self.draft.content))

    @property
    def window_session(self) -> str | None:
        """The session whose passages are read together; what has a serial is read by itself."""
        return None if SERIAL_KEY in self.draft.metadata else self.draft.metadata.get("session_id")

    def to_columns(self, now: float) -> dict[str, Any]:
        d = self.draft
        return {
            "digest": self.digest,
            "content": d.content,
            "label": self.label,
            "tags": json.dumps(d.tags, ensure_ascii=False),
            "memory_type": d.memory_type,
            "metadata": json.dumps(d.metadata, ensure_ascii=False),
            "session": d.metadata.get("session_id"),
            "happened": self.happened,
            "created": now,
            "updated": now,
            "importance": d.importance,
        }


def prepare_memory(draft: Draft, now: float) -> PreparedMemory:
    """Work out what is stored beside a text: its digest, its time, the words it can also be found by."""
    metadata = draft.metadata
    for name in ("session_id", "speaker", "role", "source"):
        if metadata.get(name) is not None and not isinstance(metadata[name], str):
            metadata = metadata | {name: str(metadata[name])}
    moment = metadata.get(MOMENT_KEY)
    happened, day = _parse_date(metadata.get("date"), now) if moment is None else (float(moment), "")
    said_by = " ".join(metadata[name] for name in ("speaker", "source") if metadata.get(name))
    label = " ".join([*draft.tags, said_by, day]).strip()
    speaker = metadata.get("speaker") or ""
    header = f"{speaker}{f' ({day})' if day else ''}: " if speaker or day else ""
    draft = Draft(
        draft.content, draft.tags, draft.memory_type, metadata, draft.importance, draft.redacted
    )  # with the names as text
    key = hash_text(draft.content, compute_digest_salt(metadata))
    return PreparedMemory(draft, key, label, header, happened, split_passages(draft.content), [])


def _parse_date(date: object, now: float) -> tuple[float, str]:
    """Return when a memory happened, and that day in words if its date was given."""
    if date is None or date == "":
        return now, ""
    if isinstance(date, int | float) and not isinstance(date, bool):
        moment = float(date) if abs(date) < 1e15 else float("inf")
    elif isinstance(date, str):
        from athena.memory.time import phrase  # its tables are slow to load

        try:
            moment = phrase.parse_period(date, clock.to_local_time(now)).start
        except InvalidInput as error:
            raise InvalidInput(f"metadata.date: {error}", hint=error.hint) from None
    else:
        raise InvalidInput(f"metadata.date must be a time in words or seconds, not {type(date).__name__}")
    try:
        day = clock.to_local_time(moment)
    except (OverflowError, ValueError, OSError):
        raise InvalidInput(f"metadata.date is out of range: {date!r:.60}") from None
    return moment, f"{day.day} {day:%B %Y}"


async def add_vectors(encoder: Encoder, prepared: Sequence[PreparedMemory], skip: set[str]) -> list[PreparedMemory]:
    """Give the first passages of each text their vectors, in one batch; `skip` names digests that need none."""
    cut = [[] if one.digest in skip else one.pieces[:MAX_IMMEDIATE_PASSAGES] for one in prepared]
    excerpts = [
        Excerpt(p.extract_from(one.draft.content), one.header)
        for one, pieces in zip(prepared, cut, strict=True)
        for p in pieces
    ]
    readings = await encoder.encode_passages(excerpts) if excerpts else None
    if readings is None:
        return list(prepared)
    codes = iter(encode_readings(readings))
    return [one._replace(codes=[next(codes) for _ in pieces]) for one, pieces in zip(prepared, cut, strict=True)]


def encode_readings(readings: Sequence[PassageEncoding]) -> list[PassageCode]:
    import numpy as np

    vectors = quantize_vectors(np.stack([reading.vector for reading in readings]))
    return [PassageCode(vector, reading.signs) for vector, reading in zip(vectors, readings, strict=True)]
