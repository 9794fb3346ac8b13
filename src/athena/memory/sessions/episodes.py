"""Record the episode of a session: what it was about, what was done, how it ended, and what comes next.

Nothing of a prompt is told but its statements; of commands and files only what they left.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

from athena.core import redaction
from athena.core.private import remove_private_clauses
from athena.core.threads import run_in_thread
from athena.core.values import Author, Call, Scope
from athena.memory.sessions import events, extract, rows
from athena.memory.sessions.select import find_specific_words
from athena.memory.sessions.values import (
    FAILURE_OUTCOMES,
    IDLE_KEY,
    IDLE_TEXT,
    OUTCOME_KEY,
    SUCCESS_OUTCOMES,
    Candidate,
    Utterance,
    strip_step,
)
from athena.memory.sessions.voice import shorten_text
from athena.memory.store import Store
from athena.memory.values import Memory
from athena.storage.database import Database, Transaction
from athena.storage.privacy import PrivateReads, WatchedDatabase

MAX_REDACTED_CHARS = 20_000
MAX_NEXT_CHARS, MAX_ENDED_CHARS, MAX_SUMMARY_CHARS = 200, 400, 1_500
MAX_WORK_EVENTS, MAX_WORK_CHARS = 500, 300  # hooks record no longer ones
MAX_LISTED_FILES = 6
MAX_ENDING_MESSAGES, MAX_ANSWER_CHARS = 60, 1_500
LAST_ANSWERS = 3  # that are told whole but for courtesies
MAX_NEXT_STEPS = 2
MAX_OBJECTION_CHARS = 200
OBJECTION_PATTERN = re.compile(
    r"(?:(?:hm+|uh+|oh|er|ah|well|sorry|but|and|ok(?:ay)?|god|um)[,. ]+)*(?:no|nope|nah|not|wrong|i said|we said|"
    r"don'?t|do not|"
    r"wait(?=[,.! ]*(?:$|no|not|why|what|that|this|it|you|i said)\b)|stop|never|why|that'?s (?:not|wrong)|"
    r"please (?:not|don'?t)|undo|revert|actually|correction|change it|again)\b",
    re.IGNORECASE,
)
NEGATION_PATTERN = re.compile(
    r"\b(?:no|not|never|wrong|don'?t|doesn'?t|isn'?t|didn'?t|instead|rather|hate|gone|remove|drop|without)\b",
    re.IGNORECASE,
)
COMMIT_PATTERN = re.compile(r"\bgit\b.*\bcommit\b.*?\s-\w*m\s*([\"'])(.+?)\1", re.DOTALL)
TAG_PATTERN = re.compile(r"\bgit\s+tag\b[^;&|\n]*?\s(v?\d[\w.+-]{0,30})")
PUSH_PATTERN = re.compile(r"\bgit\s+push\b")
PROGRAM_PATTERN = re.compile(r"[A-Za-z][\w-]{0,20}(?:\.[a-z]{1,5})?")
STEP_PATTERN = re.compile(r"&&|\|\||[;|\n]")  # between the commands of one line
VALUE_PATTERN = re.compile(  # what names no program, file or target: texts, options with their values, addresses
    r"<<.*|\"[^\"]*\"|'[^']*'|(?<!\S)--?[\w-]+(?:=(?!\S*/)[^\s;|&]*|\s+(?!-)[^\s;|&'\"]+)?|[^\s;|&]*://[^\s;|&]*"
    r"|(?<!\S)\w+=[^\s;|&]*", re.DOTALL,
)  # fmt: skip
PATH_PATTERN = re.compile(r"[^\s()]{1,200}")  # anybody may record an event; a sentence is no path
_READING = """awk cat cd cp diff du echo env export find grep head less ls mkdir pwd rg rm sed set sleep source tail
tee test touch tree wc which"""
READING_PROGRAMS = frozenset(_READING.split())
GIT_READING = frozenset({"add", "checkout", "clone", "diff", "fetch", "log", "pull", "show", "stash", "status"})
MAX_COMMIT_CHARS, MAX_LISTED_RESULTS, MAX_LISTED_FAILURES, MAX_COMMAND_NAMES = 80, 4, 2, 4
MAX_LISTED_COMMANDS = 4
CHECK_KINDS = ("test run", "build")
WORK_EVENT_TYPES = ("command", "edit", "tool")
WORK_KINDS = (
    ("test run", re.compile(r"\b(pytest|jest|vitest|mocha|tox|nox|ctest|rspec|phpunit|unittest|check|tests?)\b")),
    ("commit", re.compile(r"\bgit\b.*\bcommit\b")),
    ("build", re.compile(r"\b(build|make|cmake|compile|bundle|webpack|tsc|gradle|mvn)\b")),
)
TOPIC_PATTERN = re.compile(r"(?<![\w@./-])[a-z][a-z_-]{4,19}(?![\w@/-])")
MAX_TOPICS, MIN_TOPIC_COUNT, MAX_TALK_CHARS = 4, 2, 2_000


async def record_episode(
    store: Store,
    session: str,
    messages: Sequence[Utterance],
    summary: str | None,
    candidates: Sequence[Candidate],
    call: Call,
) -> int | None:
    """Record what was decided and done and how it ended; nothing of a prompt that is no statement."""
    # a program may have left a private text in an event, which the episode tells of
    store = store._replace(database=cast("Database", WatchedDatabase(store.database, PrivateReads())))
    work_events = await store.database.read(partial(_read_work, call.scope, session))
    work, is_sound = await run_in_thread(_describe_work, work_events)
    if summary:
        told = await run_in_thread(_find_gist, summary)
    else:
        told = await run_in_thread(_find_ending, messages, [candidate.text for candidate in candidates], is_sound)
    next_steps = [strip_step(candidate.text) for candidate in candidates if candidate.kind == "todo"]
    parts = [f"Next: {shorten_text(' '.join(next_steps[-MAX_NEXT_STEPS:]), MAX_NEXT_CHARS)}"] if next_steps else []
    if summary:
        parts += [told, work]
    elif told or work:
        topics = _name_topics([candidate.text for candidate in candidates], messages)
        parts.append(" ".join(filter(None, ("Ended:", topics, work, told))))
    parts = [part for part in parts if part]
    is_idle = not parts
    if is_idle and not messages:
        return None
    item: dict[str, Any] = {"event_type": "episode", "content": " ".join(parts) or IDLE_TEXT, "session_id": session}
    if is_idle:
        item["metadata"] = {IDLE_KEY: True}
    author: Author = "agent" if told or next_steps else "tool"
    return (await events.record_events(store, [item], call, author))[0].id


def _name_topics(statements: Sequence[str], messages: Sequence[Utterance]) -> str:
    """Return the words of what was stated that the talk is about most, as a sentence; empty if there are none."""
    talk = Counter(
        word for message in messages for word in TOPIC_PATTERN.findall(message.text[:MAX_TALK_CHARS].lower())
    )
    words = {word for text in statements for word in TOPIC_PATTERN.findall(text.lower()) if find_specific_words(word)}
    words = {word for word in words if talk[word] >= MIN_TOPIC_COUNT}
    topics = sorted(words, key=lambda word: (-talk[word], word))[:MAX_TOPICS]
    return f"About {', '.join(topics)}." if topics else ""


def _find_ending(messages: Sequence[Utterance], statements: Sequence[str], is_sound: bool) -> str:
    """Return what the answers say of results, the last ones if there are many.

    Left out is what they repeat of prompts or tell of private life, and failures that were not the end: a result
    follows, or the last runs of all commands (`is_sound`) had no fault.
    """
    prompts = [message.text for message in messages if message.role == "user"]
    rest = list(extract.remove_all_echoes(prompts, statements))  # statements may be repeated
    answers = [answer[:MAX_ANSWER_CHARS] for answer in _list_uncorrected(messages[-MAX_ENDING_MESSAGES:])]
    earlier, last = answers[:-LAST_ANSWERS], answers[-LAST_ANSWERS:]
    sentences = extract.find_results(extract.clean_answer("\n".join(earlier), rest))
    sentences += extract.find_closing(extract.clean_answer("\n".join(last), rest))
    results: list[str] = []
    chars_left = MAX_ENDED_CHARS
    for sentence in reversed(sentences):
        is_last = sentence is sentences[-1]
        is_end = extract.is_fix(sentence) or (is_last and extract.UNFINISHED_PATTERN.search(sentence))
        if extract.FAILURE_PATTERN.search(sentence) and (results or is_sound) and not is_end:
            continue
        chars_left -= len(sentence) + 1
        if chars_left < 0 and results:
            break
        results.insert(0, shorten_text(sentence, MAX_ENDED_CHARS))
    return " ".join(results)


def _list_uncorrected(messages: Sequence[Utterance]) -> list[str]:
    """Return the answers that the user did not object to."""
    following = [*messages[1:], Utterance("assistant", "")][: len(messages)]
    return [
        message.text
        for message, after in zip(messages, following, strict=True)
        if message.role == "assistant" and not (after.role == "user" and _objects(after.text, message.text))
    ]


def _objects(prompt: str, answer: str) -> bool:
    """Return whether a prompt says that the answer before it was wrong."""
    if OBJECTION_PATTERN.match(prompt.strip()):
        return True
    beginning = next(iter(extract.split_sentences(prompt[:MAX_OBJECTION_CHARS])), "")
    shared = find_specific_words(beginning) & find_specific_words(answer)
    return bool(shared) and NEGATION_PATTERN.search(beginning) is not None


def _find_gist(summary: str) -> str:
    """Return the beginning of a client's summary without what it quotes of users, secrets and private clauses."""
    text = extract.clean_answer(extract.strip_user_messages(summary)[:MAX_REDACTED_CHARS], ())
    return shorten_text(text, MAX_SUMMARY_CHARS)


async def _read_work(scope: Scope, session: str, tx: Transaction) -> list[Memory]:
    scope = scope.with_kind("event")
    return await rows.list_work_events(tx, scope, session, WORK_EVENT_TYPES, MAX_WORK_EVENTS, MAX_WORK_CHARS)


def _describe_work(work_events: Sequence[Memory]) -> tuple[str, bool]:
    """Return what the tool events of a session say was done, in our words, and whether the last runs had no fault.

    Empty if there are no events. How a kind of command ended counts, not how often it failed before.
    """
    paths: dict[str, None] = {}
    counts: Counter[str] = Counter()
    outcomes: dict[str, str] = {}  # by kind of check or by command: of the last one
    results: dict[str, None] = {}
    commands: dict[str, None] = {}  # names of those that did something, the last one last
    failed_checks: dict[str, str] = {}  # by kind of check, the name of the command
    for event in work_events:
        if event.memory_type == "edit":
            path = event.content.partition(" ")[2]
            paths |= {path: None} if PATH_PATTERN.fullmatch(path) else {}
            continue
        kind, command = "tool call", ""
        if event.memory_type == "command":
            command = event.content
            kind = next((name for name, pattern in WORK_KINDS if pattern.search(command)), "command")
        counts[kind] += 1
        command_name = _name_command(command)
        name = kind if kind in CHECK_KINDS else command_name
        outcomes[name] = _read_outcome(event)
        if kind in CHECK_KINDS:
            failed_checks[kind] = command_name
        elif kind == "command" and command_name:
            commands.pop(command_name, None)
            commands[command_name] = None
        if outcomes[name] != "failed":
            results |= dict.fromkeys(_list_results(command))
    parts = [_list_names(list(paths))] if paths else []
    for kind, count in counts.items():
        if kind in CHECK_KINDS:
            parts.append(_describe_checks(kind, count, outcomes[kind], failed_checks[kind]))
        elif kind == "command" and commands:
            parts.append(f"ran {', '.join(list(commands)[-MAX_LISTED_COMMANDS:])}")
        elif kind != "commit":
            parts.append(f"{count} {kind}{'s' * (count > 1)}")
    parts += list(results)[-MAX_LISTED_RESULTS:]
    failed = [name for name, outcome in outcomes.items() if outcome == "failed" and name not in ("", *CHECK_KINDS)]
    parts += [f"failed at last: {', '.join(failed[-MAX_LISTED_FAILURES:])}"] if failed else []
    return (f"Work: {'; '.join(parts)}." if parts else ""), set(outcomes.values()) == {"passed"}


def _describe_checks(kind: str, count: int, ended: str, name: str) -> str:
    """Return how many checks of a kind ran, how the last one ended, and its name if it failed."""
    text = f"{count} {kind}{'s' * (count > 1)}"
    if not ended:
        return text
    named = f" ({name})" if ended == "failed" and name else ""
    return f"{text}, {'the last ' * (count > 1)}{ended}{named}"


def _read_outcome(event: Memory) -> str:
    outcome = event.metadata.get(OUTCOME_KEY)
    return "failed" if outcome in FAILURE_OUTCOMES else "passed" if outcome in SUCCESS_OUTCOMES else ""


def _name_command(command: str) -> str:
    """Return a few names of a command without options and folders: the whole command is somebody else's words.

    Of several in one line it is the last one that does more than read or move files; empty if there is none.
    """
    for step in reversed(STEP_PATTERN.split(VALUE_PATTERN.sub(" ", command))):
        words = [word.rpartition("/")[2] for word in step.split()]
        names = [word for word in words if PROGRAM_PATTERN.fullmatch(word)][:MAX_COMMAND_NAMES]
        if names and names[0] not in READING_PROGRAMS and not (names[0] == "git" and GIT_READING & set(names[1:2])):
            return " ".join(names)
    return ""


def _list_results(command: str) -> Iterator[str]:
    """Yield what a command left: a commit, a tag, a push."""
    commit = COMMIT_PATTERN.search(command)
    if commit and (subject := remove_private_clauses(redaction.redact(commit[2]).text).strip()):
        yield f"committed {shorten_text(subject, MAX_COMMIT_CHARS)}"
    if tag := TAG_PATTERN.search(command):
        yield f"tagged {tag[1]}"
    if PUSH_PATTERN.search(command):
        yield "pushed"


def _list_names(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - MAX_LISTED_FILES} more" if len(paths) > MAX_LISTED_FILES else ""
    return f"edited {', '.join(paths[-MAX_LISTED_FILES:])}{more}"
