"""Take in what was said in past sessions of Claude Code and Codex, message by message, from their transcripts."""

import json
import os
from collections.abc import Iterator

from athena.core.home.paths import DEFAULT_PROJECT, current_project
from athena.hooks import past_sessions, transcript
from athena.hooks.past_sessions import PastSession
from athena.hooks.transcript import CLIENT_FOLDERS, ClientName
from athena.memory.transfer.peers import PeerFormat
from athena.memory.transfer.records import ImportedMemory, Record, SkippedRecord

MAPPING = {
    "text of a message": "content",
    "its time": "created",
    "role": "metadata.role",
    "session": "metadata.session_id",
    "folder of the session": "project",
    "commands, tool calls, their results, thoughts, talk of subagents": "left out",
}


def read_messages(path: str, now: float, client: ClientName | None = None) -> Iterator[Record]:
    """Yield what people and agents said, from a transcript or from all below a folder; each with its time."""
    paths = past_sessions.iter_transcripts(path) if os.path.isdir(path) else [path]
    for file in paths:
        session = past_sessions.read_session(file)
        if session is None:
            yield SkippedRecord(file, "no transcript of a session, or not a file of yours")
        elif client in (None, session.client):
            yield from _read_session_messages(session)


def _read_session_messages(session: PastSession) -> Iterator[Record]:
    project = current_project({}, session.folder) if session.folder else DEFAULT_PROJECT
    metadata = {"session_id": session.session_id, "client": session.client}
    broken = 0
    for number, line in enumerate(transcript.iter_lines(session.path), 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            broken += bool(line.strip())
            continue
        for message in transcript.parse_entry(entry, max_chars=None):
            yield ImportedMemory(
                f"{session.path}, line {number}",
                message.text,
                (),
                "message",
                metadata | {"role": message.role} | ({} if message.at is None else {"date": message.at}),
                created=session.ended if message.at is None else message.at,
                project=None if project == DEFAULT_PROJECT else project,
            )
    if broken:
        yield SkippedRecord(session.path, "1 line is no JSON" if broken == 1 else f"{broken:,} lines are no JSON")


def guess_client(path: str) -> ClientName | None:
    """Return which client wrote a transcript; None if the file is none."""
    session = past_sessions.read_session(path) if path.endswith(past_sessions.SUFFIX) else None
    return session.client if session and session.folder is not None else None


def _create_format(client: ClientName) -> PeerFormat:
    return PeerFormat(lambda path, now: read_messages(path, now, client), MAPPING)


FORMATS: dict[str, PeerFormat] = {client: _create_format(client) for client in CLIENT_FOLDERS}
