"""Keeping skills as rows, so that search, history and undo are theirs as well."""

import math
from dataclasses import replace
from typing import Any, Literal

from athena.core import redaction, words
from athena.core.catalog import Catalog
from athena.core.text import make_storable
from athena.core.values import Call, Scope
from athena.errors import Conflict, InvalidInput, NotFound
from athena.memory import edit, history_rows, inputs, rows, write
from athena.memory.index import ENCODE_DELAY_S, encode_in_background
from athena.memory.prepare import prepare_memory
from athena.memory.recall import Query, recall
from athena.memory.store import Store
from athena.memory.values import RESERVED_PREFIX, SERIAL_KEY, Draft, Memory
from athena.programs import rows as storage
from athena.programs import skill_source
from athena.programs.skill_source import load_shipped_skills
from athena.programs.values import FoundSkill, KeptSkill, Skill
from athena.storage import calls, scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter

SKILL_KIND: Literal["skill"] = "skill"
SKILL_METADATA_KEY = f"{RESERVED_PREFIX}skill"


def _create_skill_draft(skill: Skill) -> Draft:
    """Return a skill as a row: what it is for, then its code."""
    if kinds := redaction.redact(f"{skill.description}\n{skill.code}\n{skill.example}").kinds:
        raise InvalidInput(
            f"this skill holds a secret ({', '.join(kinds)})", hint="give it as an argument, or leave it out"
        )
    code = make_storable(skill.code)
    head = f"{skill.name.replace('_', ' ')} ({skill.name}): {make_storable(skill.description)}\n\n"
    facts = {
        "description": skill.description,
        "signature": skill.signature,
        "returns": skill.returns,
        "parameters": skill.parameters,
        "example": skill.example,
        "start": len(head),
    }
    return Draft(
        head + code, (), SKILL_KIND, {"session_id": skill.name, SERIAL_KEY: SKILL_KIND, SKILL_METADATA_KEY: facts}
    )


def parse_skill(memory: Memory) -> Skill:
    facts: dict[str, Any] = dict(memory.metadata[SKILL_METADATA_KEY])
    code = memory.content[facts.pop("start") :]
    return Skill(name=memory.metadata["session_id"], code=code, **facts)


def _row_to_kept_skill(row: storage.SkillRow) -> KeptSkill:
    skill, m = parse_skill(row.memory), row.memory
    return to_kept_skill(skill, uses=row.uses, version=row.version, memory=m)


def to_kept_skill(skill: Skill, *, uses: int = 0, version: int = 1, memory: Memory | None = None) -> KeptSkill:
    """Return a skill as callers see it."""
    s = skill
    where = (None, None, None) if memory is None else (memory.updated, memory.id, memory.project)
    return KeptSkill(s.name, s.description, s.code, s.signature, s.returns, s.example, uses, version, *where)


async def write_skill(store: Store, skill: Skill, call: Call) -> KeptSkill:
    """Keep a skill; one of the same name gets a new version, and one that was deleted comes back as one."""
    now, call = store.clock(), call.with_kind(SKILL_KIND)
    made = _create_skill_draft(skill)

    async def write_version(tx: Transaction) -> KeptSkill:
        async def put_version(number: int) -> int:
            scope = await scopes.ensure_scope(tx, call.scope)
            await storage.lock_skills(tx, scope)
            found = await rows.find_memory_rows(tx, [scope], "m.session = :name", name=skill.name)
            if not found:
                added = await write.insert_memory(store, tx, scope, prepare_memory(made, now), now)
                await history_rows.insert_change(tx, scope, added, number, now, "remembered", None)
                return added
            old = found[0]
            if old.deleted is None and parse_skill(old.memory) == parse_skill(replace(old.memory, **_to_fields(made))):
                return old.memory.id
            action = "updated" if old.deleted is None else "revived"
            await history_rows.insert_change(tx, scope, old.memory.id, number, now, action, old.to_snapshot())
            await write.rewrite_memory(store, tx, old, prepare_memory(made, old.memory.created), now)
            return old.memory.id

        await calls.run_once(tx, call, put_version)
        row = await storage.fetch_skill(tx, await scopes.fetch_own_ids(tx, call.scope), skill.name)
        assert row is not None
        return _row_to_kept_skill(row)

    kept = await store.database.write(write_version)
    if store.encoder.is_working:
        encode_in_background(store, ENCODE_DELAY_S)
    return kept


def _to_fields(made: Draft) -> dict[str, Any]:
    return {"content": made.content, "metadata": made.metadata}


async def find_skill(store: Store, scope: Scope, name: str) -> KeptSkill | None:
    """Return the skill of a name, if there is one."""

    async def read_row(tx: Transaction) -> storage.SkillRow | None:
        return await storage.fetch_skill(tx, await scopes.fetch_visible_ids(tx, scope.with_kind(SKILL_KIND)), name)

    row = await store.database.read(read_row)
    return _row_to_kept_skill(row) if row else None


async def load_skills(store: Store, scope: Scope) -> dict[str, Skill]:
    """Return the skills that a project can call, by name: its own hide those of the user and of Athena."""
    saved = [parse_skill(row.memory) for row in reversed(await _fetch_rows(store, scope))]
    return load_shipped_skills() | {skill.name: skill for skill in saved}


async def list_skills(store: Store, scope: Scope) -> dict[str, KeptSkill]:
    """Return the skills that a project can call with their uses, by name."""
    saved: dict[str, KeptSkill] = {}
    for row in await _fetch_rows(store, scope):
        saved.setdefault(row.memory.metadata["session_id"], _row_to_kept_skill(row))
    return {name: to_kept_skill(skill) for name, skill in load_shipped_skills().items()} | saved


async def _fetch_rows(store: Store, scope: Scope) -> list[storage.SkillRow]:
    async def read_rows(tx: Transaction) -> list[storage.SkillRow]:
        return await storage.list_skill_rows(tx, await scopes.fetch_visible_ids(tx, scope.with_kind(SKILL_KIND)))

    return await store.database.read(read_rows)


async def search_skills(store: Store, scope: Scope, query: str, limit: int) -> list[tuple[str, float]]:
    """Return the names of the skills that fit a question best, with how well they do."""
    found = await recall(
        store, Query(inputs.clean_query(query), Filter(scope.with_kind(SKILL_KIND)), limit), used=False
    )
    return [(hit.metadata["session_id"], hit.score) for hit in found]


async def delete_skill(store: Store, name: str, call: Call) -> bool:
    """Delete a skill of the project; `undo` brings it back. False if there was none."""
    call = call.with_kind(SKILL_KIND)

    async def find_rows(tx: Transaction) -> list[rows.Kept]:
        numbers = await scopes.fetch_own_ids(tx, call.scope)
        return [
            one
            for one in await rows.find_memory_rows(tx, numbers, "m.session = :name", name=name)
            if one.deleted is None
        ]

    return await edit.forget_rows(store, find_rows, call) > 0


def refuse_taken(catalog: Catalog, name: str) -> None:
    """Refuse the name of an operation, which programs could not tell from it."""
    for operation in catalog:
        if name == operation.name or (operation.category == "skills" and name == operation.short_name):
            raise Conflict(f"{name} is the name of an operation: {operation.category}.{name}", hint="choose another")
    if name in dir(str) + dir(list) + dir(dict) + dir(set):  # what is given to those is not measured
        raise Conflict(f"{name} is the name of a method of plain values", hint="choose another")


def refuse_shipped(name: str, kept: KeptSkill | None) -> None:
    if kept is None and name in load_shipped_skills():
        raise Conflict(f"{name} comes with Athena and cannot be deleted", hint="save your own under the same name")


async def require_skill(store: Store, scope: Scope, name: str) -> KeptSkill:
    """Return a skill, or say which ones are near."""
    if (kept := await find_skill(store, scope, name)) is not None:
        return kept
    if name in load_shipped_skills():
        return to_kept_skill(load_shipped_skills()[name])
    from difflib import get_close_matches  # only on a miss

    known = [one.name for one in await rank_skills(store, scope, None)]
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known[:20])}"
    raise NotFound(f"there is no skill {name!r:.60}", hint=hint)


async def find_fitting_skill(store: Store, scope: Scope, name: str, arguments: dict[str, Any]) -> Skill:
    """Return a skill that takes these arguments, or say how it is called."""
    kept = await require_skill(store, scope, name)
    skill = skill_source.parse_skill(kept.name, kept.code, kept.description, kept.example)
    known, needed = skill.parameters["properties"], skill.parameters["required"]
    wrong = [f"there is no argument {one!r:.60}" for one in arguments if one not in known]
    wrong += [f"{one} is missing" for one in needed if one not in arguments]
    if wrong:
        raise InvalidInput(f"{name}: {wrong[0]}", hint=f"skills.{name}({skill.signature})")
    return skill


async def rank_skills(store: Store, scope: Scope, query: str | None) -> list[FoundSkill]:
    """Return skills: those that fit a question, the best first, or all."""
    every = await list_skills(store, scope)
    order = list(every)
    if query is not None:
        scores = {name: _score_skill(one, set(words.stem_words(query))) for name, one in every.items()}
        for place, (name, score) in enumerate(await search_skills(store, scope, query, 50)):
            if name in scores and score > 0.2:
                scores[name] += 1.0 / (1 + place)
        order = sorted((name for name in every if scores[name] > 0), key=lambda name: -scores[name])
    return [
        FoundSkill(one.name, one.signature, one.returns, one.description, one.uses)
        for one in map(every.get, order)
        if one
    ]


def _score_skill(skill: KeptSkill, query: set[str]) -> float:
    """Return how well a skill fits the stems of a question: by its name, then its description, then its signature."""
    score = 0.0
    for text, weight in ((skill.name, 4.0), (skill.description, 2.0), (skill.signature, 0.5)):
        if stems := set(words.stem_words(text)):
            score += weight * len(query & stems) / math.sqrt(math.sqrt(len(stems)))  # long texts share words by chance
    return score


async def export_sources(store: Store, scope: Scope) -> dict[str, str]:
    """Return every skill as the text of a file."""
    skills = await load_skills(store, scope)
    return {f"{name}.py": skill_source.format_skill_file(skill) for name, skill in sorted(skills.items())}
