"""Store and find skills: they are memories of their own kind, so that search, history and undo work for them."""

import math
import threading
from dataclasses import replace
from typing import Any, Literal

from athena.core import redaction, words
from athena.core.catalog import Catalog
from athena.core.text import make_storable
from athena.core.threads import run_in_thread
from athena.core.values import Call, Scope
from athena.errors import Conflict, InvalidInput, NotFound
from athena.memory import edit, history_rows, inputs, rows, write
from athena.memory.index import ENCODE_DELAY_S, encode_in_background
from athena.memory.prepare import prepare_memory
from athena.memory.recall import Query, recall
from athena.memory.store import Store
from athena.memory.values import RESERVED_PREFIX, SERIAL_KEY, Draft, Memory
from athena.programs import rows as skill_rows
from athena.programs import skill_source
from athena.programs.skill_source import load_shipped_skills
from athena.programs.values import FoundSkill, KeptSkill, Skill
from athena.storage import calls, scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter, split_batches

SKILL_KIND: Literal["skill"] = "skill"
SKILL_METADATA_KEY = f"{RESERVED_PREFIX}skill"
MAX_SEARCH_HITS = 50
MIN_HIT_SCORE = 0.2
MAX_LISTED_NAMES = 20  # in a hint
MAX_CACHED_CHARS = 16_000_000  # of the parsed skills of all projects
_cache: dict[tuple[Any, ...], Skill] = {}
_cache_lock = threading.Lock()
NAME_WEIGHT, DESCRIPTION_WEIGHT, SIGNATURE_WEIGHT = 4.0, 2.0, 0.5


# --- saving and deleting ----------------------------------------------------------------------------------------------


async def write_skill(store: Store, skill: Skill, call: Call) -> KeptSkill:
    """Save a skill; an existing one of this name, deleted or not, gets a new version."""
    now, call = store.clock(), call.with_kind(SKILL_KIND)
    refuse_replacement(skill.name, call, "system" if skill.name in load_shipped_skills() else None)
    draft = replace(await run_in_thread(_create_draft, skill), author=call.author)

    async def write_version(tx: Transaction) -> KeptSkill:
        async def put_version(call_id: int) -> int:
            scope_id = await scopes.ensure_scope(tx, call.scope)
            await skill_rows.lock_skills(tx, scope_id)
            visible = await scopes.fetch_visible_ids(tx, call.scope)
            known = await rows.find_memory_rows(tx, visible, "m.session = :name", name=skill.name)
            for row in known:
                refuse_replacement(skill.name, call, row.memory.author)
            versions = [row for row in known if row.scope == scope_id]
            await skill_rows.check_room(tx, scope_id, skill.name, draft.content, draft.metadata)
            if not versions:
                memory_id = await write.insert_memory(store, tx, scope_id, prepare_memory(draft, now), now)
                await history_rows.insert_change(tx, scope_id, memory_id, call_id, now, "remembered", None)
                return memory_id
            old = versions[0]
            new_memory = replace(old.memory, content=draft.content, metadata=draft.metadata)
            if old.deleted is None and _memory_to_skill(old.memory) == _memory_to_skill(new_memory):
                return old.memory.id
            action = "updated" if old.deleted is None else "revived"
            await history_rows.insert_change(tx, scope_id, old.memory.id, call_id, now, action, old.to_snapshot())
            await write.rewrite_memory(store, tx, old, prepare_memory(draft, old.memory.created), now)
            return old.memory.id

        await calls.run_once(tx, call, put_version)
        own = await scopes.fetch_own_ids(tx, call.scope)
        for row, stored in await _parse_rows(tx, own, await _list_named(tx, own, skill.name)):
            return to_kept_skill(stored, row)
        raise NotFound(f"the skill {skill.name} was saved, and deleted since then", hint="use a new idempotency key")

    saved = await store.database.write(write_version)
    if store.encoder.is_working:
        encode_in_background(store, ENCODE_DELAY_S)
    return saved


async def delete_skill(store: Store, name: str, call: Call) -> bool:
    """Delete a skill of the project; `undo` restores it. Return False if there was none."""
    call = call.with_kind(SKILL_KIND)

    async def find_ids(tx: Transaction) -> list[int]:
        return [row.id for row in await _list_named(tx, await scopes.fetch_own_ids(tx, call.scope), name)]

    return await edit.forget_rows(store, find_ids, call) > 0


def refuse_taken(catalog: Catalog, name: str) -> None:
    """Refuse the name of an operation or of a built-in method, since programs could not tell them apart."""
    for operation in catalog:
        if name == operation.name or (operation.category == "skills" and name == operation.short_name):
            raise Conflict(f"{name} is the name of an operation: {operation.category}.{name}", hint="choose another")
    if name in dir(str) + dir(list) + dir(dict) + dir(set):  # the sandbox does not measure arguments of these methods
        raise Conflict(f"{name} is the name of a method of plain values", hint="choose another")


def refuse_replacement(name: str, call: Call, owner: str | None) -> None:
    """Refuse to replace a skill of Athena or of a person for anybody but a person: others rely on what it does."""
    if owner in ("system", "person") and call.author != "person":
        source = "comes with Athena" if owner == "system" else "was saved by a person"
        raise Conflict(f"{name} {source}, and only a person may replace it", hint="choose another name")


def refuse_shipped(name: str, saved: KeptSkill | None) -> None:
    if saved is None and name in load_shipped_skills():
        raise Conflict(f"{name} comes with Athena and cannot be deleted", hint="save your own under the same name")


# --- finding ----------------------------------------------------------------------------------------------------------


async def find_skill(store: Store, scope: Scope, name: str) -> KeptSkill | None:
    """Return the saved skill of a name."""

    return next((to_kept_skill(skill, row) for row, skill in await _fetch_saved(store, scope, name)), None)


async def _list_named(tx: Transaction, scope_ids: list[int], name: str) -> list[skill_rows.SkillRow]:
    """Return the skill of a name: a person's before a program's, and the project's own before one of the user."""
    return (await skill_rows.list_skill_rows(tx, scope_ids, "AND m.session = :name", name=name))[:1]


async def require_skill(store: Store, scope: Scope, name: str) -> KeptSkill:
    """Return a skill, saved or shipped, or suggest a similar name."""
    if (saved := await find_skill(store, scope, name)) is not None:
        return saved
    if name in load_shipped_skills():
        return to_kept_skill(load_shipped_skills()[name])
    names = list(await list_skills(store, scope))
    near = words.find_similar_names(name, names)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names[:MAX_LISTED_NAMES])}"
    raise NotFound(f"there is no skill {name!r:.60}", hint=hint)


async def find_fitting_skill(store: Store, scope: Scope, name: str, arguments: dict[str, Any]) -> Skill:
    """Return a skill that takes these arguments, or say which argument is wrong."""
    skill = next((skill for _, skill in await _fetch_saved(store, scope, name)), load_shipped_skills().get(name))
    if skill is None:
        skill = load_shipped_skills()[(await require_skill(store, scope, name)).name]  # it raises
    properties, required = skill.parameters["properties"], skill.parameters["required"]
    errors = [f"there is no argument {argument!r:.60}" for argument in arguments if argument not in properties]
    errors += [f"{parameter} is missing" for parameter in required if parameter not in arguments]
    if errors:
        raise InvalidInput(f"{name}: {errors[0]}", hint=f"skills.{name}({skill.signature})")
    return skill


async def load_skills(store: Store, scope: Scope) -> dict[str, Skill]:
    """Return the skills that a project can call, by name: in the order of `list_skill_rows`, then Athena's."""
    saved = reversed(await _fetch_saved(store, scope))
    return load_shipped_skills() | {row.name: skill for row, skill in saved}


async def list_skills(store: Store, scope: Scope) -> dict[str, KeptSkill]:
    """Return the skills that a project can call with their uses, by name."""
    saved: dict[str, KeptSkill] = {}
    for row, skill in await _fetch_saved(store, scope):
        saved.setdefault(row.name, to_kept_skill(skill, row))
    return {name: to_kept_skill(skill) for name, skill in load_shipped_skills().items()} | saved


async def _fetch_saved(store: Store, scope: Scope, name: str | None = None) -> list[tuple[skill_rows.SkillRow, Skill]]:
    """Return all saved skills or the one of a name; they are read and parsed on the thread of the transaction."""

    async def read_rows(tx: Transaction) -> list[tuple[skill_rows.SkillRow, Skill]]:
        scope_ids = await scopes.fetch_visible_ids(tx, scope.with_kind(SKILL_KIND))
        listing = skill_rows.list_skill_rows(tx, scope_ids) if name is None else _list_named(tx, scope_ids, name)
        return await _parse_rows(tx, scope_ids, await listing)

    return await store.database.read(read_rows)


async def _parse_rows(
    tx: Transaction, scope_ids: list[int], listed: list[skill_rows.SkillRow]
) -> list[tuple[skill_rows.SkillRow, Skill]]:
    """Add the skill to each row. All programs share one copy of each; only those that are new are read."""
    skills = {row.version_key: skill for row in listed if (skill := _cache.get(row.version_key))}
    new = [row for row in listed if row.version_key not in skills]
    for batch in split_batches(new, rows.BOUNDED_BATCH_ROWS):  # those of earlier versions may be long
        memories = await rows.fetch_memories(tx, scope_ids, [row.id for row in batch])
        for row in batch:
            skills[row.version_key] = _memory_to_skill(memories[row.id])
    if new:
        with _cache_lock:
            _cache.update(skills)
            excess = sum(skill.chars for skill in _cache.values()) - MAX_CACHED_CHARS
            while excess > 0:
                excess -= _cache.pop(next(iter(_cache))).chars
    return [(row, skills[row.version_key]) for row in listed]


async def rank_skills(store: Store, scope: Scope, query: str | None) -> list[FoundSkill]:
    """Return the skills that fit a query, the best first; without a query, all."""
    skills = await list_skills(store, scope)
    names = list(skills)
    if query is not None:
        stems = set(words.stem_words(query))
        scores = await run_in_thread(lambda: {name: _score_skill(skill, stems) for name, skill in skills.items()})
        for rank, (name, score) in enumerate(await search_skills(store, scope, query, MAX_SEARCH_HITS)):
            if name in scores and score > MIN_HIT_SCORE:
                scores[name] += 1.0 / (1 + rank)
        names = sorted((name for name in skills if scores[name] > 0), key=lambda name: -scores[name])
    return [
        FoundSkill(skill.name, skill.signature, skill.returns, skill.description, skill.uses)
        for skill in (skills[name] for name in names)
    ]


async def search_skills(store: Store, scope: Scope, query: str, limit: int) -> list[tuple[str, float]]:
    """Return the names of the saved skills that recall finds, with their scores."""
    skill_filter = Filter(scope.with_kind(SKILL_KIND))
    hits = await recall(store, Query(inputs.clean_query(query), skill_filter, limit), used=False)
    return [(hit.metadata["session_id"], hit.score) for hit in hits]


def _score_skill(skill: KeptSkill, query: set[str]) -> float:
    """Return how well a skill fits the stems of a question: by its name, then its description, then its signature."""
    score = 0.0
    for text, weight in (
        (skill.name, NAME_WEIGHT),
        (skill.description, DESCRIPTION_WEIGHT),
        (skill.signature, SIGNATURE_WEIGHT),
    ):
        if stems := set(words.stem_words(text)):
            score += weight * len(query & stems) / math.sqrt(math.sqrt(len(stems)))  # long texts share words by chance
    return score


async def export_sources(store: Store, scope: Scope) -> dict[str, str]:
    """Return every skill as the text of a file, by file name."""
    skills = await load_skills(store, scope)
    return {f"{name}.py": skill_source.format_skill_file(skill) for name, skill in sorted(skills.items())}


# --- skills as memories -----------------------------------------------------------------------------------------------


def _create_draft(skill: Skill) -> Draft:
    """Return a skill as a memory: a line about it, then its code."""
    if kinds := redaction.redact(f"{skill.description}\n{skill.code}\n{skill.example}").kinds:
        raise InvalidInput(
            f"this skill holds a secret ({', '.join(dict.fromkeys(kinds))})",
            hint="give it as an argument, or leave it out",
        )
    code = make_storable(skill.code)
    head = f"{skill.name.replace('_', ' ')} ({skill.name}): {make_storable(skill.description)}\n\n"
    fields = {
        "description": skill.description,
        "signature": skill.signature,
        "returns": skill.returns,
        "parameters": skill.parameters,
        "example": skill.example,
        "start": len(head),  # where the code begins
    }
    return Draft(
        head + code, (), SKILL_KIND, {"session_id": skill.name, SERIAL_KEY: SKILL_KIND, SKILL_METADATA_KEY: fields}
    )


def _memory_to_skill(memory: Memory) -> Skill:
    fields: dict[str, Any] = dict(memory.metadata[SKILL_METADATA_KEY])
    code = memory.content[fields.pop("start") :]
    return skill_source.cut_types(Skill(name=memory.metadata["session_id"], code=code, **fields))


def to_kept_skill(skill: Skill, row: skill_rows.SkillRow | None = None) -> KeptSkill:
    """Return a skill as operations return it; without a row it is one that comes with Athena."""
    return KeptSkill(
        skill.name,
        skill.description,
        skill.code,
        skill.signature,
        skill.returns,
        skill.example,
        0 if row is None else row.uses,
        1 if row is None else row.version,
        updated=None if row is None else row.updated,
        id=None if row is None else row.id,
        project=None if row is None else row.project,
    )
