"""SQL of documents: what the store knows of a file."""

import json
import os
from typing import Any, NamedTuple

from athena.memory.rows import join_ids, note_scope_marks
from athena.memory.values import DOCUMENT_TYPE, FILE_KEY
from athena.storage.database import Transaction


class FileRecord(NamedTuple):
    """A file as it was read: what tells whether it has changed since."""

    sha256: str
    size: int
    modified: int  # in nanoseconds; 0 if it changed just before it was read
    pieces: int
    tags: list[str]
    reader: int  # the version of the readers and the splitter

    @classmethod
    def from_json(cls, value: Any) -> "FileRecord | None":
        try:
            return cls(**value)
        except TypeError:  # of another version
            return None


async def fetch_file_record(tx: Transaction, scope_ids: list[int], source: str) -> FileRecord | None:
    """Return what is known of a file; None if pieces of it are missing, or it was never read."""
    found = await tx.fetch(
        f"""SELECT metadata FROM memories WHERE scope IN ({join_ids(scope_ids)}) AND session = :session
            AND memory_type = :type AND deleted IS NULL""",
        session=source,
        type=DOCUMENT_TYPE,
    )
    values = [json.loads(metadata).get(FILE_KEY) for (metadata,) in found]
    record = next((FileRecord.from_json(value) for value in values if value is not None), None)
    return record if record is not None and record.pieces == len(found) else None


async def list_sources(tx: Transaction, scope_ids: list[int], path: str) -> list[str]:
    """Return the documents at or below a path."""
    await note_scope_marks(tx, scope_ids)
    found = await tx.fetch(
        f"""SELECT DISTINCT session FROM memories WHERE scope IN ({join_ids(scope_ids)})
            AND session IS NOT NULL AND memory_type = :type AND deleted IS NULL""",
        type=DOCUMENT_TYPE,
    )
    below = path.rstrip(os.sep) + os.sep
    return sorted(session for (session,) in found if session == path or session.startswith(below))
