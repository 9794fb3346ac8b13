"""Keep programs that worked as functions with names."""

from typing import Annotated, Any

from athena.core.operation import EVERYONE, Effect, Values, operation
from athena.core.types import Param
from athena.operations import params
from athena.operations.context import Context
from athena.programs import skills
from athena.programs.values import FoundSkill, KeptSkill, Result
from athena.programs.workspace import clean_name

Name = Annotated[str, Param("The skill's name.", least=1, most=100)]


@operation(
    Effect.EXECUTE,
    callers=EVERYONE,
    short="save",
    asks="keep this function for next time; save the code so we can reuse it; make a skill of this; remember "
    "this program as a function; store this snippet under a name; turn what we just did into a reusable "
    "procedure",
)
async def save_skill(
    ctx: Context,
    name: Annotated[str, Param("The function's name.", least=1, most=100)],
    code: Annotated[str, Param("A function of that name with types; imports and others may stand beside it.")],
    description: Annotated[str | None, Param("What it does; else its docstring.", least=1)] = None,
    example: Annotated[
        str | None, Param("Lines that call it; run for real before it is saved.", least=1, most=8_000)
    ] = None,
) -> KeptSkill:
    """Save a function as a skill, if its types fit and its example runs.

    The example runs for real: what it writes stays. Programs call the skill as `skills.name(...)`. Saved again, it gets a new version; `undo` brings the old one back.

    >>> skills.save(name="double", code="def double(n: int) -> int:\\n    return 2 * n", description="Double a number.", example="double(2)")
    """  # noqa: E501
    return await ctx.programs.save_skill(ctx, name, code, description, example)


@operation(
    Effect.READ,
    callers=EVERYONE,
    short="find",
    asks="do we have reusable code for this; is there a skill that does it; which helper functions exist; have "
    "we already written something for this; search saved functions; what routines do we have",
)
async def find_skills(
    ctx: Context,
    query: Annotated[
        str | None, Param("What the skill should do; without it, all are listed.", least=1, most=20_000)
    ] = None,
    k: params.Limit = 10,
) -> list[FoundSkill]:
    """Find skills by what they do.

    >>> skills.find(query="summary of the week")
    """
    return (await skills.rank_skills(ctx.store, ctx.scope, query))[:k]


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="show the code of that skill; how does this skill work; let me see the source of the saved function; "
    "what does that skill do exactly",
)
async def get_skill(ctx: Context, name: Name) -> KeptSkill:
    """Show a skill's code, types and uses.

    >>> skills.get_skill(name="weekly_summary")
    """
    return await skills.require_skill(ctx.store, ctx.scope, name)


@operation(
    Effect.EXECUTE,
    callers=EVERYONE,
    short="run",
    values=Values.PROGRAM,
    asks="run that saved skill; use the function we saved; execute the saved routine; call our function with "
    "these arguments",
)
async def run_skill(
    ctx: Context,
    name: Name,
    arguments: Annotated[dict[str, Any] | None, Param("Its arguments, by name.")] = None,
    workspace: params.Workspace = None,
) -> Result:
    """Run a skill.

    >>> skills.run(name="weekly_summary", arguments={"days": 3})
    """
    skill = await skills.find_fitting_skill(ctx.store, ctx.scope, name, arguments or {})
    return await ctx.programs.run_skill(ctx, skill, arguments or {}, clean_name(ctx.resolve_workspace(workspace)))


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="delete that skill; we no longer need the saved function; throw out the old skill; remove a saved routine",
)
async def delete_skill(ctx: Context, name: Name) -> bool:
    """Delete a skill; `undo` brings it back. False if there was none.

    >>> skills.delete_skill(name="double")
    """
    skills.refuse_shipped(name, await skills.find_skill(ctx.store, ctx.scope, name))
    return await skills.delete_skill(ctx.store, name, ctx.call)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="give me all skills as files; export the saved functions; download our skills for review; write out "
    "all saved routines",
)
async def export_skills(ctx: Context) -> dict[str, str]:
    """Return all skills as files to read and review, by file name.

    >>> skills.export_skills()
    """
    return await skills.export_sources(ctx.store, ctx.scope)
