"""Find out what can be done and how to call it."""

from typing import Annotated

from athena.core.operation import Effect, operation
from athena.core.types import Param
from athena.operations import finding, params
from athena.operations.context import Context


@operation(Effect.READ, short="search")
async def search_tools(
    ctx: Context,
    query: params.Question,
    k: params.Limit = 5,
    detail: Annotated[finding.Detail, Param("How much of each: its name, its call, or all its help.")] = "signatures",
    category: Annotated[str | None, Param("Only of this category or server.", least=1, most=200)] = None,
    budget: Annotated[int | None, Param("Tokens that the answer may have.", least=10, most=1_000_000)] = None,
) -> list[str]:
    """Find tools and skills by what they do; each comes as a line of Python.

    Operations, saved skills and the tools of connected servers, the best first, by words, meaning and use. What does
    not fit the budget is counted in the last line; programs have no budget unless they give one.

    >>> tools.search(query="tag a memory")
    """
    found = await finding.rank_tools(ctx, query, category)
    return [
        *finding.format_entries(found[:k], detail, finding.resolve_budget(ctx, budget)),
        *finding.format_waiting_tools(ctx, category),
    ]


@operation(Effect.READ, short="describe")
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
    return "\n".join([await finding.describe_by_name(ctx, one) for one in names])
