"""What a session leaves behind: an episode that says what was done, and memories that its talk is worth."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from athena.core import redaction
from athena.core.call import Call
from athena.core.hashing import digest
from athena.core.scope import Scope
from athena.core.threads import aside
from athena.memory import inputs
from athena.memory.sessions import events, rows
from athena.memory.sessions.briefing_values import Candidate, Said
from athena.memory.sessions.excerpt import gist, overlap, telling
from athena.memory.sessions.relevance import found_for, particular
from athena.memory.sessions.values import IDLE
from athena.memory.store import Store
from athena.memory.values import Draft
from athena.memory.write import remember
from athena.storage.database import Transaction

AUTO = "auto"  # the tag of what nobody asked to keep
IMPORTANCE = {"user": 0.4, "assistant": 0.25}  # an agent may repeat what any page says
KNOWN = 0.6  # a memory that overlaps more with a candidate says it already
WITHIN = 0.85  # so does one that has so much of its words
READ = 20_000  # characters of a text in which secrets are looked for
ASKED, ENDED, SUMMARY = 240, 360, 1_500  # characters of an episode
LAST, LEAST_ENDING = 20, 40  # messages among which an ending is looked for, and the characters that make one
WORK = ("command", "edit", "tool")  # types of events of a session that did something


@dataclass(frozen=True, slots=True)
class Learned:
    id: int
    hash: str
    content: str
    memory_type: str
    outcome: str  # new, known, revived


@dataclass(frozen=True, slots=True)
class Lesson:
    """What was kept of a session."""

    episode: int | None  # the event that sums it up
    learned: tuple[Learned, ...]
    known: int  # candidates that the store says already


async def learn(
    store: Store, session: str, said: Sequence[Said], summary: str | None, call: Call, keep: bool = True
) -> Lesson:
    """Record what a session did and keep what it decided; without `keep`, only the episode."""
    from athena.memory.sessions import extract  # its patterns are slow to compile

    told = extract.unwrapped(summary or "").strip() or None
    every = [*said, *([Said("assistant", told)] if told else [])]
    found = await aside(extract.find, every) if keep else []
    episode = await _episode(store, session, said, told, bool(found), _part(call, "episode"))
    fresh = [one for one in found if not await _is_known(store, one, call)]
    if not fresh:
        return Lesson(episode, (), len(found))
    drafts = [_draft(one, session) for one in fresh]
    part = _part(call, digest("\n".join(one.content for one in drafts)))
    kept = await remember(store, drafts, part, read_first=False)
    made = tuple(Learned(one.id, one.hash, one.content, one.memory_type, one.outcome) for one in kept)
    return Lesson(episode, made, len(found) - len(fresh))


def _part(call: Call, name: str) -> Call:
    """Return a call for a part of the work; where it has a key, each part has its own, and happens once."""
    return call if call.key is None else call._replace(key=f"{call.key}#{name}")


async def _episode(
    store: Store, session: str, said: Sequence[Said], summary: str | None, found: bool, call: Call
) -> int | None:
    from athena.memory.sessions.extract import substance  # slow to load

    asked = [one.text for one in said if one.role == "user" and one.text.strip()]
    last = [one.text[:READ] for one in said[-LAST:] if one.role == "assistant" and one.text.strip()]
    answers = await aside(lambda: [substance(text) for text in last])
    ended = next((text for text in reversed(answers) if len(text) >= LEAST_ENDING), "")
    parts = [_told(summary, SUMMARY)] if summary else []
    if not summary and asked:
        more = f" (and {len(asked) - 1} more)" if len(asked) > 1 else ""
        parts.append(f"Asked: {_told(asked[0], ASKED)}{more}")
    if not summary and ended:
        parts.append(f"Ended: {_told(ended, ENDED)}")
    if not parts:
        return None
    item: dict[str, Any] = {"event_type": "episode", "content": " ".join(parts), "session_id": session}
    if not (summary or ended or found or await store.database.read(partial(_worked, call.scope, session))):
        item["metadata"] = {IDLE: True}
    return (await events.record(store, [item], call))[0].id


async def _worked(scope: Scope, session: str, tx: Transaction) -> bool:
    return await rows.has(tx, scope.of("event"), session, WORK)


def _told(text: str, longest: int) -> str:
    """Return the beginning of a text, without the secrets that only the whole of it shows."""
    return gist(redaction.redact(text[:READ]).text, longest)


async def _is_known(store: Store, one: Candidate, call: Call) -> bool:
    """Tell whether a memory says what a candidate says; a person who says it otherwise has changed their mind."""
    from athena.memory.sessions.extract import sentences  # slow to load

    text = redaction.redact(one.text).text
    found = await found_for(store, call.scope, text, 3)
    known = [part for hit in found for part in (hit.content, *sentences(hit.content)) if _is_alike(text, part)]
    return any(one.role != "user" or not _differs(text, part) for part in known)


def _is_alike(one: str, other: str) -> bool:
    words, theirs = telling(one), telling(other)
    return overlap(words, theirs) >= KNOWN or (bool(words) and len(words & theirs) >= WITHIN * len(words))


def _differs(one: str, other: str) -> bool:
    """Tell whether each of two texts that are alike names what the other does not, or one denies the other."""
    from athena.memory.consolidation.contradictions import agree  # slow to load

    mine, theirs = particular(one), particular(other)
    return bool(mine - theirs and theirs - mine) or not agree(one, other)


def _draft(one: Candidate, session: str) -> Draft:
    # The session is its source, and not its session_id: the same text in two sessions is one memory.
    facts = {"source": f"session {session}", "role": one.role}
    return inputs.clean(one.text, [AUTO, one.kind], one.kind, facts, IMPORTANCE[one.role])
