"""Keeping skills as rows, so that search, history and undo are theirs as well."""

from dataclasses import replace
from typing import Any, Literal

from athena.core import redaction
from athena.core.call import Call
from athena.core.scope import Scope
from athena.core.text import make_storable
from athena.errors import InvalidInput
from athena.memory import edit, history, inputs, rows, write_rows
from athena.memory.index import ENCODE_DELAY_S, encode_in_background
from athena.memory.prepare import prepare_memory
from athena.memory.recall import Query, recall
from athena.memory.store import Store
from athena.memory.values import RESERVED_PREFIX, SERIAL_KEY, Draft, Filter, Memory
from athena.programs import skill_rows as storage
from athena.programs.skill_values import KeptSkill, Skill
from athena.storage import calls, scopes
from athena.storage.database import Transaction

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
                added = await write_rows.insert_memory(store, tx, scope, prepare_memory(made, now), now)
                await history.insert_change(tx, scope, added, number, now, "remembered", None)
                return added
            old = found[0]
            if old.deleted is None and parse_skill(old.memory) == parse_skill(replace(old.memory, **_to_fields(made))):
                return old.memory.id
            action = "updated" if old.deleted is None else "revived"
            await history.insert_change(tx, scope, old.memory.id, number, now, action, old.to_snapshot())
            await write_rows.rewrite_memory(store, tx, old, prepare_memory(made, old.memory.created), now)
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


async def load_skills(store: Store, scope: Scope) -> list[Skill]:
    """Return all skills that a project can see, its own last."""
    return [parse_skill(row.memory) for row in reversed(await _fetch_rows(store, scope))]


async def list_skills(store: Store, scope: Scope) -> list[KeptSkill]:
    """Return all skills with their uses, one of each name."""
    found: dict[str, KeptSkill] = {}
    for row in await _fetch_rows(store, scope):
        found.setdefault(row.memory.metadata["session_id"], _row_to_kept_skill(row))
    return list(found.values())


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
