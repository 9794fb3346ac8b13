"""What the operations and surfaces that find tools have in common: ranking, and writing what was found."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from athena.core import stubs, tokens
from athena.core.catalog import AnyOperation
from athena.discovery import export
from athena.discovery.entry import SKILLS, Entry, of_catalog, of_skill
from athena.errors import NotFound
from athena.operations.context import PROGRAMS, Context
from athena.programs import skill_source
from athena.programs import skills as storing
from athena.programs.shipped_skills import shipped
from athena.programs.skill_values import KeptSkill, Skill
from athena.storage import usage
from athena.storage.database import Transaction

Detail = Literal["names", "signatures", "full"]
BUDGET = 600  # tokens of an answer that a model reads, unless it asks for more
WAITING = 5  # tools of a server that are named although they cannot be called
LATELY = 90  # days whose calls count as use
IN_A_HURRY = {"cli"}  # surfaces whose process ends with the answer: the model would take longer to load


async def entries(ctx: Context) -> tuple[Entry, ...]:
    """Return all that can be found: the operations that the caller may use, and the skills."""
    kept = await _skills(ctx)
    about = ctx.catalog.categories.get(SKILLS, "")
    ours = tuple(one for one in of_catalog(ctx.catalog) if one.effect in ctx.allowed)
    return ours + tuple(of_skill(replace(one, uses=0), about) for one in kept.values())


async def found(ctx: Context, query: str, category: str | None = None) -> list[Entry]:
    """Return what fits a request, the best first."""
    if category is not None:
        if category not in ctx.catalog.categories:
            category = ctx.gateway.renamed.get(category, category)
        ctx.catalog.listed(category)  # says which ones there are, where there is none
    every = await entries(ctx)
    ranked = await ctx.finder.rank(every, query, await used(ctx), hurry=ctx.surface in IN_A_HURRY)
    return [one for one in ranked if category in (None, one.category)]


async def described(ctx: Context, name: str) -> str:
    """Write how a tool is called; where there is none of that name, say which ones are near."""
    try:
        return full(ctx.catalog.find(name))
    except NotFound:
        kept = await _skills(ctx)
        if (skill := kept.get(name.removeprefix(f"{SKILLS}."))) is None:
            raise
        return full(skill)


async def skill(ctx: Context, path: str) -> Skill | None:
    """Return the skill of a path such as `skills.name`, if there is one."""
    kept = (await _skills(ctx)).get(path.removeprefix(f"{SKILLS}."))
    return None if kept is None else skill_source.read(kept.name, kept.code, kept.description, kept.example)


async def _skills(ctx: Context) -> dict[str, KeptSkill]:
    saved = {one.name: one for one in await storing.listed(ctx.store, ctx.scope)}
    return {name: storing.shown(one) for name, one in shipped().items()} | saved


async def used(ctx: Context) -> dict[str, int]:
    """Return how often each was used of late, with success."""

    async def work(tx: Transaction) -> dict[str, int]:
        return await usage.lately(tx, ctx.scope.project, ctx.store.clock(), LATELY)

    return await ctx.store.database.read(work)


def written(found: Sequence[Entry], detail: Detail, budget: int | None) -> list[str]:
    """Write tools, one after the other while they fit a budget, none in part; the last line counts the others."""
    write = {"names": named, "signatures": line, "full": full}[detail]
    if budget is None:
        return [write(one.thing) for one in found]
    lines: list[str] = []
    left = budget
    for place, one in enumerate(found):
        text = write(one.thing)
        if tokens.count(text) + 1 > left and not lines:
            text = named(one.thing)  # too long for the budget alone: its name at least
        if (cost := tokens.count(text) + 1) > left:
            more = len(found) - place
            return [*lines, f"# {more} more: a larger budget, a smaller k or detail='names'"]
        lines.append(text)
        left -= cost
    return lines


def waiting(ctx: Context, category: str | None) -> list[str]:
    """Tell of the tools of one server that a person has to look at first, and of one that has another name here."""
    if category is None:
        return []
    away = [why for name, why in ctx.catalog.away.items() if name.rpartition(".")[0] == category]
    if other := ctx.gateway.renamed.get(category):
        away.insert(0, (f"the server {category} is called {other} here", f'category="{other}"'))
    shown = [f"# {message}; {hint}" for message, hint in away[:WAITING]]
    return [*shown, f"# and {len(away) - WAITING} more"] if len(away) > WAITING else shown


def budget(ctx: Context, asked: int | None) -> int | None:
    """Return how many tokens an answer may have; a program gets all that it asked for."""
    return asked if asked is not None or ctx.surface in PROGRAMS else BUDGET


async def exported(ctx: Context) -> dict[str, str]:
    """Return all tools as stub files, by path."""
    every = [(one, line(one.thing), full(one.thing, strict=True)) for one in await entries(ctx)]
    return export.files(every, ctx.catalog.categories)


def named(thing: AnyOperation | KeptSkill) -> str:
    if isinstance(thing, KeptSkill):
        return f"{SKILLS}.{thing.name}  # {_first(thing)}"
    return stubs.name(thing)


def line(thing: AnyOperation | KeptSkill) -> str:
    if isinstance(thing, KeptSkill):
        return f"{SKILLS}.{thing.name}({thing.signature}) -> {thing.returns}  # {_first(thing)}"
    return stubs.line(thing)


def full(thing: AnyOperation | KeptSkill, *, strict: bool = False) -> str:
    if isinstance(thing, KeptSkill):
        return stubs.of_skill(thing)
    return f"# {thing.path}\n{stubs.render_module([thing], strict=strict)}"


def _first(skill: KeptSkill) -> str:
    return skill.description.partition("\n")[0]
