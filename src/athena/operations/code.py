"""Run programs that call operations, next to the data."""

from typing import Annotated, Literal

from athena.core.operation import EVERYONE, ONLY_PERSONS, PEOPLE, CallerKind, Effect, Reach, Values, operation
from athena.core.types import Param
from athena.operations import params
from athena.operations.context import Context
from athena.programs.values import EngineName, Past, Result, RunReview, WatchedProgram
from athena.programs.workspace import clean_name

MAX_PROGRAM_S = 600  # as long as a tool of a server may take; computing has a limit of its own
RunId = Annotated[str, Param("The run's id.", least=1, most=64)]


@operation(
    Effect.EXECUTE,
    callers=PEOPLE | {CallerKind.MODEL},
    values=Values.PROGRAM,
    asks="run this python code; compute it with a script; execute a program; calculate something in python; "
    "write a little program and run it; do the maths in code; process the data with a script; run a "
    "snippet",
)
async def execute_code(
    ctx: Context,
    code: Annotated[str, Param("A Python program; operations are functions of their category, without await.")],
    timeout_s: Annotated[float, Param("Seconds until it is stopped.", least=0.05, most=MAX_PROGRAM_S)] = 30.0,
    workspace: params.Workspace = None,
    engine: Annotated[EngineName, Param("auto chooses; python runs all of the standard library.")] = "auto",
) -> Result:
    """Run a Python program that calls operations; only its answer comes back.

    Every category is a name, every operation a function: `memory.recall(query="x")`. The value of the last
    expression or of a top-level `return` is the result. Variables stay for the next run in the same workspace.

    >>> code.execute_code(code="len(memory.list_memories(k=100))")
    """
    name = clean_name(ctx.resolve_workspace(workspace))
    return await ctx.programs.execute(ctx, code, timeout_s, name, engine)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="which programs have run; list past executions; what was executed lately; show recent program runs; "
    "which scripts were started; history of executions",
)
async def list_runs(
    ctx: Context,
    limit: params.Limit = 20,
    status: Annotated[
        Literal["running", "done", "failed", "refused", "needs_approval", "unknown"] | None,
        Param("Only runs with this status."),
    ] = None,
) -> list[Past]:
    """List runs of programs, the latest first.

    >>> code.list_runs(status="needs_approval")
    """
    return await ctx.programs.list_runs(ctx, limit, status)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="is my program done; what came out of that run; did the execution succeed; how far is the script; "
    "show the result of the run; is it still running",
)
async def get_run(ctx: Context, run_id: RunId) -> Past:
    """Show the status of a run, and its answer while that is stored.

    Answers are stored for a day: of runs that waited for a person, and of calls with an idempotency key.

    >>> code.get_run(run_id="0123456789abcdef")
    """
    return await ctx.programs.get_run(ctx, run_id)


@operation(
    Effect.READ,
    callers=ONLY_PERSONS,
    asks="what is the program printing now; show the text of a run",
)
async def watch_runs(
    ctx: Context, run_id: Annotated[str | None, Param("One run, whole; else the latest.", most=100)] = None
) -> list[WatchedProgram]:
    """Show the programs that this server runs or ran lately: text, output so far, calls and answer; for people.

    Without an id, the first line of each. They are in memory only: after a restart there are none.

    >>> code.watch_runs(run_id="0123456789abcdef")
    """
    return await ctx.programs.watch_runs(ctx, run_id)


@operation(
    Effect.READ,
    callers=ONLY_PERSONS,
    asks="what would the waiting program do; show all that a paused run may run",
)
async def review_run(ctx: Context, run_id: RunId) -> RunReview:
    """Show what a person must see before a waiting program goes on; for people.

    >>> code.review_run(run_id="0123456789abcdef")
    """
    return await ctx.programs.review_run(ctx, run_id)


@operation(
    Effect.APPROVE,
    callers=ONLY_PERSONS,
    reach=[Reach.VOICE],
    values=Values.PROGRAM,
    asks="let the waiting program continue; give permission for the run; approve the execution; yes, the "
    "program may go on; I allow it; confirm the pending run",
)
async def approve_run(
    ctx: Context,
    run_id: RunId,
    refuse: Annotated[bool, Param("Refuse the call: the program gets an error and goes on.")] = False,
    reason: Annotated[str, Param("Why it is refused.", most=500)] = "",
) -> Result:
    """Let a waiting program go on; for people.

    Only a person's answer at a terminal makes it work: `athena approve`. An agent cannot approve its own programs.

    >>> code.approve_run(run_id="0123456789abcdef", refuse=True)
    """
    return await ctx.programs.decide_run(ctx, run_id, approved=not refuse, reason=reason)
