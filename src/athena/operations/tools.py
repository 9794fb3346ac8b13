"""Find out what can be done and how to call it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from athena.core import stubs, tokens
from athena.core.catalog import AnyOperation
from athena.core.operation import EVERYONE, Effect, operation
from athena.core.types import Param
from athena.discovery import export
from athena.discovery.entry import SKILLS_CATEGORY, ToolEntry, create_skill_entry, list_catalog_entries
from athena.errors import NotFound
from athena.operations import params
from athena.operations.context import PROGRAM_SURFACES, Context
from athena.programs import skills as storing
from athena.programs.skill_source import render_skill
from athena.programs.values import KeptSkill, Skill
from athena.storage import usage
from athena.storage.database import Transaction

Detail = Literal["names", "signatures", "full"]
DEFAULT_BUDGET_TOKENS = 600  # of a result that a model reads
MAX_WAITING_TOOLS = 5  # of a server, named although a person must approve them first
USAGE_WINDOW_DAYS = 90
MAX_VECTOR_WAIT_S = 60.0  # that a command waits for a server which has just started for the first time
NO_MODEL_SURFACES = {"cli"}  # their process exits with the answer, before the model would be loaded


async def list_entries(ctx: Context) -> tuple[ToolEntry, ...]:
    """Return an entry for each operation that the caller may use and for each skill."""
    ctx.catalog.refresh()
    skills_by_name = await storing.list_skills(ctx.store, ctx.scope)
    category_summary = ctx.catalog.categories.get(SKILLS_CATEGORY, "")
    operations = tuple(entry for entry in list_catalog_entries(ctx.catalog) if ctx.caller in entry.callers)
    # entries are keys of caches, which a use must not invalidate, and which need not hold the code
    skills = (
        create_skill_entry(replace(skill, uses=0, code=""), category_summary) for skill in skills_by_name.values()
    )
    return (*operations, *skills)


async def rank_tools(ctx: Context, query: str, category: str | None = None) -> list[ToolEntry]:
    """Return the tools that fit a request, the best first."""
    ctx.catalog.refresh()
    if category is not None:
        category = ctx.catalog.resolve_category(category)
        if category not in ctx.catalog.categories:
            category = ctx.gateway.renamed_servers.get(category, category)
        ctx.catalog.list_operations(category)  # raises an error that names the categories if there is no such one
    entries = await list_entries(ctx)
    is_command, is_server = ctx.surface in NO_MODEL_SURFACES, ctx.get_finder().stays_open
    ranked = await ctx.get_finder().rank(
        entries,
        query,
        await count_uses(ctx),
        words_only=is_command and not is_server,
        wait_s=MAX_VECTOR_WAIT_S if is_command and is_server else 0.0,
    )
    return [entry for entry in ranked if category in (None, entry.category)]


async def describe_by_name(ctx: Context, name: str) -> str:
    """Describe how an operation or a skill is called; raise NotFound with similar names for an unknown one."""
    ctx.catalog.refresh()
    try:
        return format_stub(ctx.catalog.get_operation(name))
    except NotFound:
        skills_by_name = await storing.list_skills(ctx.store, ctx.scope)
        if (skill := skills_by_name.get(name.removeprefix(f"{SKILLS_CATEGORY}."))) is None:
            raise
        return format_stub(skill)


async def find_skill(ctx: Context, path: str) -> Skill | None:
    """Return the skill of a path such as `skills.name`, if there is one."""
    return (await storing.load_skills(ctx.store, ctx.scope)).get(path.removeprefix(f"{SKILLS_CATEGORY}."))


async def count_uses(ctx: Context) -> dict[str, int]:
    """Return how often each operation was called with success in the last days."""

    async def read_counts(tx: Transaction) -> dict[str, int]:
        return await usage.count_recent_calls(tx, ctx.scope.project, ctx.store.clock(), USAGE_WINDOW_DAYS)

    return await ctx.store.database.read(read_counts)


def format_entries(entries: Sequence[ToolEntry], detail: Detail, budget: int | None) -> list[str]:
    """Format as many tools as fit a budget of tokens, each of them whole; the last line counts the others."""
    format_target = {"names": format_name, "signatures": format_signature, "full": format_stub}[detail]
    if budget is None:
        return [format_target(entry.target) for entry in entries]
    lines: list[str] = []
    remaining = budget
    for i, entry in enumerate(entries):
        text = format_target(entry.target)
        if tokens.count_tokens(text) + 1 > remaining and not lines:
            text = format_name(entry.target)  # the first one alone exceeds the budget: show its name at least
        if (cost := tokens.count_tokens(text) + 1) > remaining:
            return [*lines, f"# {len(entries) - i} more: a larger budget, a smaller k or detail='names'"]
        lines.append(text)
        remaining -= cost
    return lines


def format_waiting_tools(ctx: Context, category: str | None) -> list[str]:
    """List the tools of a server that a person must approve first, and say if the server has another name here."""
    if category is None:
        return []
    waiting = [reason for name, reason in ctx.catalog.unavailable.items() if name.rpartition(".")[0] == category]
    if other := ctx.gateway.renamed_servers.get(category):
        waiting.insert(0, (f"the server {category} is called {other} here", f'category="{other}"'))
    waiting = list(dict.fromkeys(waiting))  # new tools have no names here
    lines = [f"# {message}; {hint}" for message, hint in waiting[:MAX_WAITING_TOOLS]]
    more = len(waiting) - len(lines)
    return [*lines, f"# and {more} more"] if more else lines


def resolve_budget(ctx: Context, budget: int | None) -> int | None:
    """Return how many tokens a result may have; None, for programs that set no budget, means no limit."""
    return budget if budget is not None or ctx.surface in PROGRAM_SURFACES else DEFAULT_BUDGET_TOKENS


async def export_stubs(ctx: Context) -> dict[str, str]:
    """Return all tools as stub files, by path."""
    stubs_by_entry = [
        (entry, format_signature(entry.target), format_stub(entry.target, strict=True))
        for entry in await list_entries(ctx)
    ]
    return export.build_stub_files(stubs_by_entry, ctx.catalog.categories)


def format_name(target: AnyOperation | KeptSkill) -> str:
    if isinstance(target, KeptSkill):
        return f"{SKILLS_CATEGORY}.{target.name}  # {_first_line(target)}"
    return stubs.format_name_line(target)


def format_signature(target: AnyOperation | KeptSkill) -> str:
    if isinstance(target, KeptSkill):
        return f"{SKILLS_CATEGORY}.{target.name}({target.signature}) -> {target.returns}  # {_first_line(target)}"
    return stubs.format_call_line(target)


def format_stub(target: AnyOperation | KeptSkill, *, strict: bool = False) -> str:
    if isinstance(target, KeptSkill):
        return render_skill(target)
    return f"# {target.path}\n{stubs.render_module([target], strict=strict)}"


def _first_line(skill: KeptSkill) -> str:
    return skill.description.partition("\n")[0]


@operation(
    Effect.READ,
    callers=EVERYONE,
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
    ranked = await rank_tools(ctx, query, category)
    return [*format_entries(ranked[:k], detail, resolve_budget(ctx, budget)), *format_waiting_tools(ctx, category)]


@operation(
    Effect.READ,
    callers=EVERYONE,
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
    return "\n".join([await describe_by_name(ctx, tool) for tool in names])
