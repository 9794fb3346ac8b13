"""Find out what can be done and how to call it."""

from typing import Annotated

from athena.kernel import stubs
from athena.kernel.operation import Effect, operation
from athena.kernel.shapes import Param
from athena.operations import learning, params
from athena.operations.context import Context


@operation(Effect.READ, short="search")
async def search_tools(ctx: Context, query: params.Question, k: params.Limit = 5) -> list[str]:
    """Find operations and skills by what they do; each comes as a line of Python.

    >>> tools.search(query="tag a memory")
    """
    found = [
        (score, stubs.render(one, bare=True)) for score, one in ctx.catalog.scored(query) if one.effect in ctx.allowed
    ]
    found += [(score, one.line) for score, one in await learning.scored(ctx, query)]
    return [line for _, line in sorted(found, key=lambda pair: -pair[0])[:k]]


@operation(Effect.READ, short="describe")
async def describe_tool(ctx: Context, name: Annotated[str, Param("The operation's name.", least=1, most=200)]) -> str:
    """Show how an operation is called: its parameters, their types and help, and examples.

    >>> tools.describe(name="recall")
    """
    return stubs.render_module([ctx.catalog.find(name)])
