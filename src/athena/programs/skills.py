"""Keeping skills as rows, so that search, history and undo are theirs as well."""

from dataclasses import replace
from typing import Any, Literal

from athena.core import redaction
from athena.core.call import Call
from athena.core.scope import Scope
from athena.core.text import storable
from athena.errors import InvalidInput
from athena.memory import edit, history, inputs, rows, write_rows
from athena.memory.index import SOON, catch_up
from athena.memory.prepare import prepare
from athena.memory.recall import Query, recall
from athena.memory.store import Store
from athena.memory.values import OURS, SERIAL, Draft, Filter, Memory
from athena.programs import skill_rows as storage
from athena.programs.skill_values import KeptSkill, Skill
from athena.storage import calls, scopes
from athena.storage.database import Transaction

KIND: Literal["skill"] = "skill"
FACTS = f"{OURS}skill"


def _draft(skill: Skill) -> Draft:
    """Return a skill as a row: what it is for, then its code."""
    if kinds := redaction.redact(f"{skill.description}\n{skill.code}\n{skill.example}").kinds:
        raise InvalidInput(
            f"this skill holds a secret ({', '.join(kinds)})", hint="give it as an argument, or leave it out"
        )
    code = storable(skill.code)
    head = f"{skill.name.replace('_', ' ')} ({skill.name}): {storable(skill.description)}\n\n"
    facts = {
        "description": skill.description,
        "signature": skill.signature,
        "returns": skill.returns,
        "parameters": skill.parameters,
        "example": skill.example,
        "start": len(head),
    }
    return Draft(head + code, (), KIND, {"session_id": skill.name, SERIAL: KIND, FACTS: facts})


def skill_of(memory: Memory) -> Skill:
    facts: dict[str, Any] = dict(memory.metadata[FACTS])
    code = memory.content[facts.pop("start") :]
    return Skill(name=memory.metadata["session_id"], code=code, **facts)


def _kept(row: storage.Row) -> KeptSkill:
    skill, m = skill_of(row.memory), row.memory
    return shown(skill, uses=row.uses, version=row.version, memory=m)


def shown(skill: Skill, *, uses: int = 0, version: int = 1, memory: Memory | None = None) -> KeptSkill:
    """Return a skill as callers see it."""
    s = skill
    where = (None, None, None) if memory is None else (memory.updated, memory.id, memory.project)
    return KeptSkill(s.name, s.description, s.code, s.signature, s.returns, s.example, uses, version, *where)


async def save(store: Store, skill: Skill, call: Call) -> KeptSkill:
    """Keep a skill; one of the same name gets a new version, and one that was deleted comes back as one."""
    now, call = store.clock(), call.of(KIND)
    made = _draft(skill)

    async def work(tx: Transaction) -> KeptSkill:
        async def put(number: int) -> int:
            scope = await scopes.ensure(tx, call.scope)
            await storage.lock(tx, scope)
            found = await rows.find(tx, [scope], "m.session = :name", name=skill.name)
            if not found:
                added = await write_rows.add(store, tx, scope, prepare(made, now), now)
                await history.add(tx, scope, added, number, now, "remembered", None)
                return added
            old = found[0]
            if old.deleted is None and skill_of(old.memory) == skill_of(replace(old.memory, **_fields(made))):
                return old.memory.id
            action = "updated" if old.deleted is None else "revived"
            await history.add(tx, scope, old.memory.id, number, now, action, old.snapshot())
            await write_rows.rewrite(store, tx, old, prepare(made, old.memory.created), now)
            return old.memory.id

        await calls.once(tx, call, put)
        row = await storage.named(tx, await scopes.own(tx, call.scope), skill.name)
        assert row is not None
        return _kept(row)

    kept = await store.database.write(work)
    if store.encoder.works:
        catch_up(store, SOON)
    return kept


def _fields(made: Draft) -> dict[str, Any]:
    return {"content": made.content, "metadata": made.metadata}


async def find(store: Store, scope: Scope, name: str) -> KeptSkill | None:
    """Return the skill of a name, if there is one."""

    async def work(tx: Transaction) -> storage.Row | None:
        return await storage.named(tx, await scopes.visible(tx, scope.of(KIND)), name)

    row = await store.database.read(work)
    return _kept(row) if row else None


async def every(store: Store, scope: Scope) -> list[Skill]:
    """Return all skills that a project can see, its own last."""
    return [skill_of(row.memory) for row in reversed(await _rows(store, scope))]


async def listed(store: Store, scope: Scope) -> list[KeptSkill]:
    """Return all skills with their uses, one of each name."""
    found: dict[str, KeptSkill] = {}
    for row in await _rows(store, scope):
        found.setdefault(row.memory.metadata["session_id"], _kept(row))
    return list(found.values())


async def _rows(store: Store, scope: Scope) -> list[storage.Row]:
    async def work(tx: Transaction) -> list[storage.Row]:
        return await storage.listed(tx, await scopes.visible(tx, scope.of(KIND)))

    return await store.database.read(work)


async def search(store: Store, scope: Scope, query: str, limit: int) -> list[tuple[str, float]]:
    """Return the names of the skills that fit a question best, with how well they do."""
    found = await recall(store, Query(inputs.question(query), Filter(scope.of(KIND)), limit), used=False)
    return [(hit.metadata["session_id"], hit.score) for hit in found]


async def delete(store: Store, name: str, call: Call) -> bool:
    """Delete a skill of the project; `undo` brings it back. False if there was none."""
    call = call.of(KIND)

    async def chosen(tx: Transaction) -> list[rows.Kept]:
        numbers = await scopes.own(tx, call.scope)
        return [one for one in await rows.find(tx, numbers, "m.session = :name", name=name) if one.deleted is None]

    return await edit.forget_chosen(store, chosen, call) > 0
