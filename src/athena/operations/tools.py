"""Find out what can be done and how to call it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from athena.core import stubs, tokens
from athena.core.catalog import AnyOperation
from athena.core.operation import Effect, operation
from athena.core.types import Param
from athena.discovery import export
from athena.discovery.entry import SKILLS_CATEGORY, Entry, create_skill_entry, list_catalog_entries
from athena.errors import NotFound
from athena.operations import params
from athena.operations.context import PROGRAM_SURFACES, Context
from athena.programs import skill_source
from athena.programs import skills as storing
from athena.programs.skill_source import render_skill
from athena.programs.values import KeptSkill, Skill
from athena.storage import usage
from athena.storage.database import Transaction

Detail = Literal["names", "signatures", "full"]
DEFAULT_BUDGET_TOKENS = 600  # tokens of an answer that a model reads, unless it asks for more
MAX_WAITING_TOOLS = 5  # tools of a server that are named although they cannot be called
USAGE_WINDOW_DAYS = 90  # days whose calls count as use
NO_MODEL_SURFACES = {"cli"}  # surfaces whose process ends with the answer: the model would take longer to load


async def list_entries(ctx: Context) -> tuple[Entry, ...]:
    """Return all that can be found: the operations that the caller may use, and the skills."""
    kept = await storing.list_skills(ctx.store, ctx.scope)
    about = ctx.catalog.categories.get(SKILLS_CATEGORY, "")
    ours = tuple(one for one in list_catalog_entries(ctx.catalog) if one.effect in ctx.allowed)
    return ours + tuple(create_skill_entry(replace(one, uses=0), about) for one in kept.values())


async def rank_tools(ctx: Context, query: str, category: str | None = None) -> list[Entry]:
    """Return what fits a request, the best first."""
    if category is not None:
        if category not in ctx.catalog.categories:
            category = ctx.gateway.renamed_servers.get(category, category)
        ctx.catalog.list_operations(category)  # says which ones there are, where there is none
    every = await list_entries(ctx)
    ranked = await ctx.finder.rank(every, query, await count_uses(ctx), hurry=ctx.surface in NO_MODEL_SURFACES)
    return [one for one in ranked if category in (None, one.category)]


async def describe_by_name(ctx: Context, name: str) -> str:
    """Write how a tool is called; where there is none of that name, say which ones are near."""
    try:
        return format_stub(ctx.catalog.get_operation(name))
    except NotFound:
        kept = await storing.list_skills(ctx.store, ctx.scope)
        if (skill := kept.get(name.removeprefix(f"{SKILLS_CATEGORY}."))) is None:
            raise
        return format_stub(skill)


async def find_skill(ctx: Context, path: str) -> Skill | None:
    """Return the skill of a path such as `skills.name`, if there is one."""
    kept = (await storing.list_skills(ctx.store, ctx.scope)).get(path.removeprefix(f"{SKILLS_CATEGORY}."))
    return None if kept is None else skill_source.parse_skill(kept.name, kept.code, kept.description, kept.example)


async def count_uses(ctx: Context) -> dict[str, int]:
    """Return how often each was used of late, with success."""

    async def read_counts(tx: Transaction) -> dict[str, int]:
        return await usage.count_recent_calls(tx, ctx.scope.project, ctx.store.clock(), USAGE_WINDOW_DAYS)

    return await ctx.store.database.read(read_counts)


def format_entries(found: Sequence[Entry], detail: Detail, budget: int | None) -> list[str]:
    """Write tools, one after the other while they fit a budget, none in part; the last line counts the others."""
    write = {"names": format_name, "signatures": format_signature, "full": format_stub}[detail]
    if budget is None:
        return [write(one.target) for one in found]
    lines: list[str] = []
    left = budget
    for place, one in enumerate(found):
        text = write(one.target)
        if tokens.count_tokens(text) + 1 > left and not lines:
            text = format_name(one.target)  # too long for the budget alone: its name at least
        if (cost := tokens.count_tokens(text) + 1) > left:
            more = len(found) - place
            return [*lines, f"# {more} more: a larger budget, a smaller k or detail='names'"]
        lines.append(text)
        left -= cost
    return lines


def format_waiting_tools(ctx: Context, category: str | None) -> list[str]:
    """Tell of the tools of one server that a person has to look at first, and of one that has another name here."""
    if category is None:
        return []
    away = [why for name, why in ctx.catalog.unavailable.items() if name.rpartition(".")[0] == category]
    if other := ctx.gateway.renamed_servers.get(category):
        away.insert(0, (f"the server {category} is called {other} here", f'category="{other}"'))
    shown = [f"# {message}; {hint}" for message, hint in away[:MAX_WAITING_TOOLS]]
    return [*shown, f"# and {len(away) - MAX_WAITING_TOOLS} more"] if len(away) > MAX_WAITING_TOOLS else shown


def resolve_budget(ctx: Context, asked: int | None) -> int | None:
    """Return how many tokens an answer may have; a program gets all that it asked for."""
    return asked if asked is not None or ctx.surface in PROGRAM_SURFACES else DEFAULT_BUDGET_TOKENS


async def export_stubs(ctx: Context) -> dict[str, str]:
    """Return all tools as stub files, by path."""
    every = [
        (one, format_signature(one.target), format_stub(one.target, strict=True)) for one in await list_entries(ctx)
    ]
    return export.build_stub_files(every, ctx.catalog.categories)


def format_name(thing: AnyOperation | KeptSkill) -> str:
    if isinstance(thing, KeptSkill):
        return f"{SKILLS_CATEGORY}.{thing.name}  # {_first_line(thing)}"
    return stubs.format_name_line(thing)


def format_signature(thing: AnyOperation | KeptSkill) -> str:
    if isinstance(thing, KeptSkill):
        return f"{SKILLS_CATEGORY}.{thing.name}({thing.signature}) -> {thing.returns}  # {_first_line(thing)}"
    return stubs.format_call_line(thing)


def format_stub(thing: AnyOperation | KeptSkill, *, strict: bool = False) -> str:
    if isinstance(thing, KeptSkill):
        return render_skill(thing)
    return f"# {thing.path}\n{stubs.render_module([thing], strict=strict)}"


def _first_line(skill: KeptSkill) -> str:
    return skill.description.partition("\n")[0]


@operation(
    Effect.READ,
    short="search",
    asks="is there a tool for this; how can I do that; which tool should I use; can you do this kind of thing; "
    "find a function that does this; what are you able to do; do we have a tool that can",
)
async def search_tools(
    ctx: Context,
    query: params.Question,
    k: params.Limit = 5,
    detail: Annotated[Detail, Param("How much of each: its name, its call, or all its help.")] = "signatures",
    category: Annotated[str | None, Param("Only of this category or server.", least=1, most=200)] = None,
    budget: Annotated[int | None, Param("Tokens that the answer may have.", least=10, most=1_000_000)] = None,
) -> list[str]:
    """Find tools and skills by what they do; each comes as a line of Python.

    Operations, saved skills and the tools of connected servers, the best first, by words, meaning and use. What does
    not fit the budget is counted in the last line; programs have no budget unless they give one.

    >>> tools.search(query="tag a memory")
    """
    found = await rank_tools(ctx, query, category)
    return [
        *format_entries(found[:k], detail, resolve_budget(ctx, budget)),
        *format_waiting_tools(ctx, category),
    ]


@operation(
    Effect.READ,
    short="describe",
    asks="how do I call this tool; what parameters does it take; explain how that function is used; usage of a "
    "tool; show the signature and an example; which arguments are required; help for this command",
)
async def describe_tool(
    ctx: Context,
    name: Annotated[
        str | list[str], Param("Its name, bare or after its category or server; or several.", least=1, most=200)
    ],
) -> str:
    """Show how a tool or skill is called: parameters, types, help and examples.

    >>> tools.describe(name="recall")
    """
    names = [name] if isinstance(name, str) else name
    return "\n".join([await describe_by_name(ctx, one) for one in names])
