"""Prepare a text before it is written: split it into passages, find its time, compute its digest and vectors."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from athena.core import clock
from athena.core.hashing import hash_text
from athena.embedding.embedder import Excerpt, PassageEncoding
from athena.embedding.encoder import Encoder
from athena.errors import InvalidInput
from athena.memory import time
from athena.memory.values import HEADING_KEY, MOMENT_KEY, PIECE_KEY, SERIAL_KEY, Draft, compute_digest_salt
from athena.storage.arrays import quantize_vectors
from athena.storage.privacy import FILES_MARK

MAX_PASSAGE_WORDS = 90
MAX_PASSAGE_CHARS = 8_000  # of words so long that 90 of them would fill pages
MAX_PASSAGES = 2_000  # of one text, about: a book gets longer passages instead of more
MAX_IMMEDIATE_PASSAGES = 16  # of one memory, that get their vectors before the call returns; the rest follow
TEXT_KEYS = ("session_id", "speaker", "role", "source")  # metadata of any type that is stored as text
encode_json = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` would create an encoder each time
ANSWERING_ROLES = {"assistant", "system", "tool"}
FIRST_PERSON_PATTERN = re.compile(r"\b(?:i|my|me|we|our|i'm|i've)\b", re.IGNORECASE)
SENTENCE_PATTERN = re.compile(r"[^\n]*?(?:[.!?;](?=\s)|\n|\Z)")
# In scripts without spaces between words, each character counts as a word.
UNSPACED_RANGES = r"\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
PASSAGE_WORD_PATTERN = re.compile(rf"[{UNSPACED_RANGES}]|[^\s{UNSPACED_RANGES}]+")


class Passage(NamedTuple):
    """A part of a text, as the model reads it."""

    start: int
    length: int
    words: int

    def extract_from(self, text: str) -> str:
        return text[self.start : self.start + self.length]


class PassageCode(NamedTuple):
    """The vector of a passage and the signs of its token vectors, as the indexes store them."""

    vector: bytes
    signs: bytes


class PreparedMemory(NamedTuple):
    """A draft with all that is stored beside it."""

    draft: Draft
    digest: str
    label: str
    header: str
    happened: float
    pieces: list[Passage]
    codes: list[PassageCode]  # of the first pieces; none if the model does not work

    @property
    def speaker_flags(self) -> int:
        """Flags for the ranking: 1 if an assistant, a tool or the system speaks, plus 2 if in the first person."""
        answers = str(self.draft.metadata.get("role") or "").casefold() in ANSWERING_ROLES
        return int(answers) + 2 * bool(FIRST_PERSON_PATTERN.search(self.draft.content))

    @property
    def window_session(self) -> str | None:
        """The session whose passages are encoded with their neighbours; a row with a serial is encoded alone."""
        is_alone = SERIAL_KEY in self.draft.metadata or self.is_piece
        return None if is_alone else self.draft.metadata.get("session_id")

    @property
    def is_piece(self) -> bool:
        """Return whether it is a piece of a document, which is encoded with its headings and without neighbours."""
        return PIECE_KEY in self.draft.metadata

    def to_columns(self, now: float) -> dict[str, Any]:
        draft = self.draft
        return {
            "digest": self.digest,
            "content": draft.content,
            "label": self.label,
            "tags": encode_json(draft.tags),
            "memory_type": draft.memory_type,
            "metadata": encode_json(draft.metadata),
            "session": draft.metadata.get("session_id"),
            "happened": self.happened,
            "created": now,
            "updated": now,
            "importance": draft.importance,
            "author": draft.author or "agent",
            "private": FILES_MARK if draft.author == "document" else "",
        }


def prepare_memory(draft: Draft, now: float, *, with_passages: bool = True) -> PreparedMemory:
    """Compute the data stored with a text: its digest, its time, its passages and the label that full text also finds.

    `now` is the time that relative dates in the metadata refer to. Without passages it is for a row that waits for
    its index.
    """
    metadata = draft.metadata
    for key in TEXT_KEYS:
        if metadata.get(key) is not None and not isinstance(metadata[key], str):
            metadata = metadata | {key: str(metadata[key])}
    if metadata is not draft.metadata:
        draft = replace(draft, metadata=metadata)
    moment = metadata.get(MOMENT_KEY)
    happened, day = _parse_date(metadata.get("date"), now) if moment is None else (float(moment), "")
    origin = " ".join(metadata[key] for key in ("speaker", "source") if metadata.get(key))
    heading = str(metadata.get(HEADING_KEY) or "") if PIECE_KEY in metadata else ""
    label = " ".join(filter(None, [*draft.tags, origin, day, heading]))
    speaker = metadata.get("speaker") or heading
    header = f"{speaker}{f' ({day})' if day else ''}: " if speaker or day else ""
    digest = hash_text(draft.content, compute_digest_salt(metadata))
    passages = split_passages(draft.content) if with_passages else []
    return PreparedMemory(draft, digest, label, header, happened, passages, [])


def _parse_date(date: object, now: float) -> tuple[float, str]:
    """Return when a memory happened, and that day in words if the metadata name a date."""
    if date is None or date == "":
        return now, ""
    if isinstance(date, int | float) and not isinstance(date, bool):
        moment = float(date) if abs(date) < 1e15 else float("inf")
    elif isinstance(date, str):
        try:
            moment = time.parse_period(date, clock.to_local_time(now)).start
        except InvalidInput as error:
            raise InvalidInput(f"metadata.date: {error}", hint=error.hint) from None
    else:
        raise InvalidInput(f"metadata.date must be a time in words or seconds, not {type(date).__name__}")
    if not clock.is_in_calendar(moment):
        raise InvalidInput(f"metadata.date is out of range: {date!r:.60}")
    day = clock.to_local_time(moment)
    return moment, f"{day.day} {day:%B %Y}"


def split_passages(text: str) -> list[Passage]:
    """Pack sentences into passages of at most 90 words, more in a very long text; longer sentences are cut."""
    passages: list[Passage] = []
    start = end = words = 0
    max_words = MAX_PASSAGE_WORDS
    if len(text) > MAX_PASSAGES * MAX_PASSAGE_WORDS:
        max_words = max(max_words, len(PASSAGE_WORD_PATTERN.findall(text)) // MAX_PASSAGES)
    for sentence_start, sentence_end, count in _split_sentences(text, max_words):
        if words and (words + count > max_words or sentence_end - start > MAX_PASSAGE_CHARS):
            passages.append(Passage(start, end - start, words))
            words = 0
        if not words:
            start = sentence_start
        end, words = sentence_end, words + count
    passages.append(Passage(start, end - start, words))
    return passages


def _split_sentences(text: str, max_words: int) -> Iterator[tuple[int, int, int]]:
    """Yield sentences as (start, end, words); cut those longer than a passage, skip empty ones."""
    position = 0
    while position < len(text):
        match = SENTENCE_PATTERN.match(text, position)
        stop = match.end() if match and match.end() > position else len(text)
        words = list(PASSAGE_WORD_PATTERN.finditer(text, position, stop))
        for i in range(0, len(words), max_words):
            part = words[i : i + max_words]
            start, end = part[0].start(), part[-1].end()
            if end - start <= MAX_PASSAGE_CHARS:
                yield start, end, len(part)
                continue
            for at in range(start, end, MAX_PASSAGE_CHARS):
                stop = min(at + MAX_PASSAGE_CHARS, end)
                yield at, stop, max(1, len(part) * (stop - at) // (end - start))
        position = stop


async def add_vectors(encoder: Encoder, prepared: Sequence[PreparedMemory], skip: set[str]) -> list[PreparedMemory]:
    """Encode the first passages of each text, all in one batch; `skip` names digests that need no vectors."""
    pieces = [[] if item.digest in skip else item.pieces[:MAX_IMMEDIATE_PASSAGES] for item in prepared]
    excerpts = [
        Excerpt(piece.extract_from(item.draft.content), item.header)
        for item, item_pieces in zip(prepared, pieces, strict=True)
        for piece in item_pieces
    ]
    encodings = await encoder.encode_passages(excerpts) if excerpts else None
    if encodings is None:
        return list(prepared)
    codes = iter(quantize_encodings(encodings))
    return [
        item._replace(codes=[next(codes) for _ in item_pieces])
        for item, item_pieces in zip(prepared, pieces, strict=True)
    ]


def quantize_encodings(encodings: Sequence[PassageEncoding]) -> list[PassageCode]:
    """Quantize the vectors of passages for the indexes."""
    import numpy as np  # slow to load; only encoding needs it

    vectors = quantize_vectors(np.stack([encoding.vector for encoding in encodings]))
    return [PassageCode(vector, encoding.signs) for vector, encoding in zip(vectors, encodings, strict=True)]
