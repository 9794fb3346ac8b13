"""Find the transcripts of past sessions of Claude Code and Codex, and say whose project each belongs to."""

import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from athena.app.compose import App
from athena.app.settings import HookRules
from athena.core.catalog import invoke
from athena.core.home.paths import DEFAULT_PROJECT
from athena.core.text import make_storable
from athena.core.threads import run_in_thread
from athena.hooks import transcript
from athena.hooks.events import find_home, get_named_folder, read_talk
from athena.hooks.transcript import CLIENT_FOLDERS, ClientName
from athena.memory.sessions.learning import get_last_episode_time
from athena.memory.sessions.values import Lesson
from athena.operations.context import Context

SURFACE = "cli"  # a person asks for it
MAX_FOLDER_DEPTH = 6
MAX_TAIL_BYTES = 256 << 10  # in which the time of its last entry is
MAX_SESSION_ID_CHARS = 200
SUFFIX = ".jsonl"
MIN_PAUSE_S = 3_600.0  # after which a session was resumed
MAX_PAUSES = 50  # of a session
TIMESTAMP_PATTERN = re.compile(rb'"timestamp"\s*:\s*"([\w.:+ -]{10,40})"')
CODEX_CWD_PATTERN = re.compile(r"<cwd>([^<]+)</cwd>|Current working directory: (\S+)")
CODEX_NAME_PATTERN = re.compile(r"rollout-.*?([0-9a-f]{8}-[0-9a-f-]{27})$")


class PastSession(NamedTuple):
    """A transcript file or the first part of one: its session, the folders where it took place, and when it ended."""

    path: str
    client: ClientName
    session_id: str
    folders: tuple[str, ...]
    ended: float  # the latest time in it that is past: clocks are set back
    end: int | None = None  # the position in the file where the part ends

    @property
    def folder(self) -> str | None:
        """Return the folder where it began."""
        return next(iter(self.folders), None)


class PastLesson(NamedTuple):
    """What became of a past session."""

    session: PastSession
    outcome: Literal["learned", "known", "outside", "empty"]  # outside: in no project of which hooks record sessions
    project: str | None = None
    lesson: Lesson | None = None


def list_default_folders(clients: Iterable[ClientName]) -> list[str]:
    """Return the folders of this user's transcripts that exist."""
    folders = []
    for client in clients:
        variable, folder, part = CLIENT_FOLDERS[client]
        folders.append(os.path.join(os.path.expanduser(os.environ.get(variable) or folder), part))
    return [folder for folder in folders if os.path.isdir(folder)]


def find_past_sessions(
    folders: Iterable[str], clients: Iterable[ClientName], *, in_parts: bool = False
) -> list[PastSession]:
    """Return the sessions whose transcripts lie below these folders, in order of time.

    In parts, one that was resumed comes as often as it ended: what others said meanwhile came between.
    """
    wanted = set(clients)
    sessions = [session for folder in folders for path in iter_transcripts(folder) if (session := read_session(path))]
    sessions = [session for session in sessions if session.client in wanted]
    if in_parts:
        sessions = [part for session in sessions for part in _list_parts(session)]
    return sorted(sessions, key=lambda s: (s.ended, s.path))


def _list_parts(session: PastSession) -> list[PastSession]:
    """Return a session as it was before each of its long pauses, and all of it."""
    parts: list[PastSession] = []
    latest = 0.0
    try:
        with transcript.open_own_file(session.path) as file, open(file, "rb", closefd=False) as stream:
            end = stream.seek(max(0, os.fstat(file).st_size - transcript.MAX_READ_BYTES))
            for line in stream:
                times = (transcript.parse_time(match[1].decode()) for match in TIMESTAMP_PATTERN.finditer(line))
                moment = max((one for one in times if one is not None and one <= session.ended), default=0.0)
                if latest and moment - latest >= MIN_PAUSE_S:
                    parts.append(session._replace(ended=latest, end=end))
                latest = max(latest, moment)
                end += len(line)
    except OSError:
        pass
    return [*parts[-MAX_PAUSES:], session]


def iter_transcripts(folder: str, depth: int = 0) -> Iterator[str]:
    """Yield the transcript files below a folder; no link is followed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # not readable, or gone since
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if depth < MAX_FOLDER_DEPTH:
                yield from iter_transcripts(entry.path, depth + 1)
        elif entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
            yield entry.path


def read_session(path: str) -> PastSession | None:
    """Return the session of a transcript; None if the file is not readable, not this user's or no transcript."""
    try:
        head, tail = transcript.read_head(path, transcript.MAX_HEAD_BYTES), transcript.read_tail(path, MAX_TAIL_BYTES)
        ended = os.lstat(path).st_mtime
    except (OSError, ValueError):
        return None
    entries = list(transcript.parse_lines(head.split("\n")))
    if not entries or all(entry.get("isSidechain") for entry in entries):  # the talk of a subagent
        return None
    times = (transcript.parse_time(entry.get("timestamp")) for entry in transcript.parse_lines(tail.split("\n")))
    ended = min(max((moment for moment in times if moment is not None), default=ended), time.time())
    name = Path(path).name.removesuffix(SUFFIX)
    payloads = [entry.get("payload") for entry in entries]
    details = next((p for p in payloads if isinstance(p, dict) and "cwd" in p), {})
    is_codex = name.startswith("rollout-") or any(isinstance(payload, dict) for payload in payloads)
    if is_codex:
        match = CODEX_NAME_PATTERN.search(name)
        session_id = details.get("id") or entries[0].get("id") or (match[1] if match else name)
    else:
        session_id = next((e["sessionId"] for e in entries if isinstance(e.get("sessionId"), str)), name)
    if not isinstance(session_id, str) or not (session_id := make_storable(session_id[:MAX_SESSION_ID_CHARS]).strip()):
        return None
    named = transcript.list_folders(entries) or (_find_codex_folders(head) if is_codex else [])
    folders = tuple(folder for one in named if (folder := get_named_folder({"cwd": one})))
    return PastSession(path, "codex" if is_codex else "claude-code", session_id, folders, ended)


def _find_codex_folders(head: str) -> list[str]:
    """Return the folder that an early version of Codex tells the model in its first message."""
    match = CODEX_CWD_PATTERN.search(head)
    return [match[1] or match[2]] if match else []


async def learn_past_session(app: App, session: PastSession, rules: HookRules, *, dry_run: bool = False) -> PastLesson:
    """Learn from a session as if it ended now, but with its own time; skip what hooks would skip."""
    project = await _find_session_project(app.create_context(DEFAULT_PROJECT, SURFACE), session, rules)
    if project is None:
        return PastLesson(session, "outside")
    context = app.create_context(project, SURFACE)
    last = await get_last_episode_time(context.store, context.scope, session.session_id)
    if last is not None and last >= session.ended:  # a hook or an earlier run has learned from all of it
        return PastLesson(session, "known", project)
    messages = await run_in_thread(read_talk, session.path, session.end)
    if not messages:
        return PastLesson(session, "empty", project)
    arguments = {"session_id": session.session_id, "messages": messages, "happened": session.ended, "dry_run": dry_run}
    lesson: Lesson = await invoke(context.catalog, "learn", arguments, context)
    return PastLesson(session, "learned", project, lesson)


async def _find_session_project(ctx: Context, session: PastSession, rules: HookRules) -> str | None:
    """Return the project that a session belongs to, as hooks find it; None where hooks would record nothing."""
    home = await find_home(ctx, session.session_id, session.folders)
    return home.project if home and rules.allows_event("session-end", home.project, home.folder) else None
