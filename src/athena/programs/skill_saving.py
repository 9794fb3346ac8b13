"""What the operations on skills have in common: reading, trying out, storing and finding them."""

from typing import TYPE_CHECKING, Any

from athena.core.catalog import Catalog, score_match, stem_words
from athena.errors import Conflict, InvalidInput, NotFound
from athena.operations.context import Context
from athena.programs import skill_source
from athena.programs import skills as storing
from athena.programs.shipped_skills import load_shipped_skills
from athena.programs.skill_values import FoundSkill, KeptSkill, Skill

if TYPE_CHECKING:
    from athena.programs.sandbox import Run


async def save_tested_skill(
    ctx: Context, name: str, code: str, description: str | None, example: str | None
) -> KeptSkill:
    """Keep a function as a skill once its types fit and its example has run."""
    read = skill_source.parse_skill(name, code, description, example or "")
    refuse_taken(ctx.catalog, name)
    if not read.example:
        if read.parameters["required"]:
            raise InvalidInput("a skill needs an example", hint=f"e.g. example={name + '(...)'!r} with real arguments")
        read = skill_source.parse_skill(name, code, description, f"{name}()")
    if wrong := await ctx.programs.find_errors(ctx.host, read.code):
        said = "; ".join(f"line {one['line']}: {one['message']}" for one in wrong[:5])
        hint = wrong[0]["hint"] or "describe_tool says what an operation takes"
        raise InvalidInput(f"{name} cannot be saved: {said}", hint=hint)
    run = await ctx.programs.try_out(ctx.host, skill_source.build_example_program(read))
    if run.error is not None or run.pause is not None:
        said = f"{run.error['type']}: {run.error['message']}" if run.error else "it waits for a person's approval"
        line = f" (line {run.error['line']})" if run.error and run.error["line"] else ""
        raise InvalidInput(f"the example of {name} does not run: {said}{line}", hint=_example_hint(run))
    return await storing.write_skill(ctx.store, read, ctx.call)


def _example_hint(run: "Run") -> str | None:
    """Say what to do about an example that does not run."""
    if run.error is None or run.error["type"] == "ApprovalNeeded":
        return "nobody approves an example: call it with dry_run=True, or with arguments that do not need it"
    return run.error["hint"]


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


async def require_skill(ctx: Context, name: str) -> KeptSkill:
    """Return a skill, or say which ones are near."""
    if (kept := await storing.find_skill(ctx.store, ctx.scope, name)) is not None:
        return kept
    if name in load_shipped_skills():
        return storing.to_kept_skill(load_shipped_skills()[name])
    from difflib import get_close_matches  # only on a miss

    known = [one.name for one in await rank_skills(ctx, None)]
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known[:20])}"
    raise NotFound(f"there is no skill {name!r:.60}", hint=hint)


async def find_fitting_skill(ctx: Context, name: str, arguments: dict[str, Any]) -> Skill:
    """Return a skill that takes these arguments, or say how it is called."""
    kept = await require_skill(ctx, name)
    skill = skill_source.parse_skill(kept.name, kept.code, kept.description, kept.example)
    known, needed = skill.parameters["properties"], skill.parameters["required"]
    wrong = [f"there is no argument {one!r:.60}" for one in arguments if one not in known]
    wrong += [f"{one} is missing" for one in needed if one not in arguments]
    if wrong:
        raise InvalidInput(f"{name}: {wrong[0]}", hint=f"skills.{name}({skill.signature})")
    return skill


async def rank_skills(ctx: Context, query: str | None) -> list[FoundSkill]:
    """Return skills: those that fit a question, the best first, or all."""
    saved = {one.name: one for one in await storing.list_skills(ctx.store, ctx.scope)}
    every = {name: storing.to_kept_skill(one) for name, one in load_shipped_skills().items()} | saved
    order = list(every)
    if query is not None:
        wanted = stem_words(query)
        scores = {name: score_match(wanted, name, one.description, one.signature) for name, one in every.items()}
        for place, (name, score) in enumerate(await storing.search_skills(ctx.store, ctx.scope, query, 50)):
            if name in scores and score > 0.2:
                scores[name] += 1.0 / (1 + place)
        order = sorted((name for name in every if scores[name] > 0), key=lambda name: -scores[name])
    return [
        FoundSkill(one.name, one.signature, one.returns, one.description, one.uses)
        for one in map(every.get, order)
        if one
    ]


async def export_sources(ctx: Context) -> dict[str, str]:
    """Return every skill as the text of a file."""
    every = load_shipped_skills() | {one.name: one for one in await storing.load_skills(ctx.store, ctx.scope)}
    return {f"{name}.py": skill_source.format_skill_file(one) for name, one in sorted(every.items())}
