"""What is worked out about a text before it is written: its parts, its time, its vectors."""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from athena.core import clock
from athena.core.hashing import digest
from athena.embedding.embedder import Excerpt, Reading
from athena.embedding.encoder import Encoder
from athena.errors import InvalidInput
from athena.memory import passages
from athena.memory.passages import Passage
from athena.memory.values import MOMENT, SERIAL, Draft, distinction
from athena.storage.arrays import encode

ANSWERING = {"assistant", "system", "tool"}
FIRST_PERSON = re.compile(r"\b(?:i|my|me|we|our|i'm|i've)\b", re.IGNORECASE)
AT_ONCE = 16  # passages of one memory that get their vectors before it is acknowledged; the rest follow


class Code(NamedTuple):
    """What the indexes by meaning keep of a passage."""

    vector: bytes
    signs: bytes


class Prepared(NamedTuple):
    """A draft, cut and encoded, ready to be written."""

    draft: Draft
    digest: str
    label: str
    header: str
    happened: float
    pieces: list[Passage]
    codes: list[Code]  # of the first pieces; none where the model does not work

    @property
    def voice(self) -> int:
        """Who speaks: 1 an assistant, a tool or the system, who mostly repeat; 2 somebody about themselves."""
        answers = str(self.draft.metadata.get("role") or "").casefold() in ANSWERING
        return int(answers) + 2 * bool(FIRST_PERSON.search(self.draft.content))

    @property
    def talk(self) -> str | None:
        """The session whose passages are read together; what has a serial is read by itself."""
        return None if SERIAL in self.draft.metadata else self.draft.metadata.get("session_id")

    def fields(self, now: float) -> dict[str, Any]:
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


def prepare(draft: Draft, now: float) -> Prepared:
    """Work out what is stored beside a text: its digest, its time, the words it can also be found by."""
    metadata = draft.metadata
    for name in ("session_id", "speaker", "role", "source"):
        if metadata.get(name) is not None and not isinstance(metadata[name], str):
            metadata = metadata | {name: str(metadata[name])}
    moment = metadata.get(MOMENT)
    happened, day = _when(metadata.get("date"), now) if moment is None else (float(moment), "")
    said_by = " ".join(metadata[name] for name in ("speaker", "source") if metadata.get(name))
    label = " ".join([*draft.tags, said_by, day]).strip()
    speaker = metadata.get("speaker") or ""
    header = f"{speaker}{f' ({day})' if day else ''}: " if speaker or day else ""
    draft = Draft(
        draft.content, draft.tags, draft.memory_type, metadata, draft.importance, draft.redacted
    )  # with the names as text
    key = digest(draft.content, distinction(metadata))
    return Prepared(draft, key, label, header, happened, passages.split(draft.content), [])


def _when(date: object, now: float) -> tuple[float, str]:
    """Return when a memory happened, and that day in words if its date was given."""
    if date is None or date == "":
        return now, ""
    if isinstance(date, int | float) and not isinstance(date, bool):
        moment = float(date) if abs(date) < 1e15 else float("inf")
    elif isinstance(date, str):
        from athena.memory.time import phrase  # its tables are slow to load

        try:
            moment = phrase.parse(date, clock.local(now)).start
        except InvalidInput as error:
            raise InvalidInput(f"metadata.date: {error}", hint=error.hint) from None
    else:
        raise InvalidInput(f"metadata.date must be a time in words or seconds, not {type(date).__name__}")
    try:
        day = clock.local(moment)
    except (OverflowError, ValueError, OSError):
        raise InvalidInput(f"metadata.date is out of range: {date!r:.60}") from None
    return moment, f"{day.day} {day:%B %Y}"


async def with_vectors(encoder: Encoder, prepared: Sequence[Prepared], skip: set[str]) -> list[Prepared]:
    """Give the first passages of each text their vectors, in one batch; `skip` names digests that need none."""
    cut = [[] if one.digest in skip else one.pieces[:AT_ONCE] for one in prepared]
    excerpts = [
        Excerpt(p.of(one.draft.content), one.header) for one, pieces in zip(prepared, cut, strict=True) for p in pieces
    ]
    readings = await encoder.read(excerpts) if excerpts else None
    if readings is None:
        return list(prepared)
    codes = iter(codes_of(readings))
    return [one._replace(codes=[next(codes) for _ in pieces]) for one, pieces in zip(prepared, cut, strict=True)]


def codes_of(readings: Sequence[Reading]) -> list[Code]:
    import numpy as np

    vectors = encode(np.stack([reading.vector for reading in readings]))
    return [Code(vector, reading.signs) for vector, reading in zip(vectors, readings, strict=True)]
