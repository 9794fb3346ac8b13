"""See how the store is doing."""

from typing import Annotated, Any

from athena.core.operation import EVERYONE, ONLY_PERSONS, PEOPLE, CallerKind, Effect, Reach, operation
from athena.core.threads import run_in_thread
from athena.core.types import Param
from athena.core.values import BackupFile, SettingValue
from athena.memory import expertise as knowing
from athena.memory import index, projects, savings, upkeep
from athena.memory.expertise import Expertise
from athena.memory.index import Progress
from athena.memory.projects import Project
from athena.memory.savings import Savings, UseReport
from athena.memory.upkeep import Health, Verdict
from athena.operations import params
from athena.operations.context import Context


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="is everything working; are you all right; is something wrong with the system; status of the store; "
    "does everything run as it should; any problems with you; system status; diagnose yourself",
)
async def health(ctx: Context) -> Health:
    """Say whether everything works, and if not, what and why.

    >>> meta.health()
    """
    return await upkeep.check_health(ctx.store, ctx.scope)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="how many memories are there; how much have you stored; numbers about what you know; statistics of "
    "the memory; count everything; how big is the store; how full is your memory",
)
async def stats(ctx: Context) -> dict[str, Any]:
    """Count what this project can see: memories, events, tasks; by kind, type, age, tag and use.

    `by_kind` counts all kinds; `by_type`, `memories_by_age` (none counts twice), `tags`, `most_used_tags`,
    `most_recalled`, `characters`, `oldest` and `newest` are about memories. `occurrences` counts how often memories
    were stored, repeats too; `forgotten` what this project has forgotten, of any kind, and can bring back; `projects`
    those of the whole store, and `bytes` its size. `workspaces` have variables of programs, and `waiting_programs` wait
    for a person; a purge removes both. `strength` grows towards 1 with each recall and halves in 30 days.

    >>> meta.stats()
    """
    return await upkeep.collect_stats(ctx.store, ctx.scope)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="what do you know well and where are gaps; which topics are you weak in; what is your knowledge like; "
    "where is your knowledge thin; what are you an expert in; which topics need more notes",
)
async def expertise(
    ctx: Context,
    topic: Annotated[str | None, Param("One topic, as a tag or in plain words; else all tags.", least=1)] = None,
    limit: params.Limit = 10,
) -> Expertise:
    """Say what is well covered, what is thin and what is stale, with the evidence.

    A topic with three memories or fewer is thin; one of which nothing was kept or recalled for 90 days is stale.

    >>> meta.expertise(topic="deploy")
    """
    return await knowing.survey_topics(ctx.store, ctx.scope, topic, limit)


@operation(
    Effect.READ,
    callers=PEOPLE | {CallerKind.MODEL},
    reach=[Reach.PROJECTS],
    asks="check the store for damage; is the data corrupted; verify that the database is intact; run an "
    "integrity check; look for inconsistencies in the store; is the database broken",
    reads_all=True,
)
async def verify(ctx: Context) -> Verdict:
    """Check the store for damage: whether rows, full text, vectors and counts agree.

    >>> meta.verify()
    """
    return await upkeep.verify_store(ctx.store, ctx.progress)


@operation(
    Effect.READ,
    callers=PEOPLE | {CallerKind.MODEL},
    reach=[Reach.PROJECTS],
    asks="how many tokens did we save; what did it cost in tokens; how much context was spared; how efficient "
    "were we; how much cheaper was it; token usage so far",
)
async def token_savings(ctx: Context) -> Savings:
    """Say how many tokens were spent, and what direct tool calls would have cost.

    >>> meta.token_savings()
    """
    ctx.catalog.refresh()
    return await savings.compute_savings(ctx.store, ctx.catalog)


@operation(
    Effect.READ,
    callers=ONLY_PERSONS,
    reach=[Reach.PROJECTS],
    asks="how was athena used in the last weeks; calls and tokens by day",
)
async def report_use(
    ctx: Context, days: Annotated[int, Param("How many days to look at.", least=1, most=3_650)] = 30
) -> UseReport:
    """Report calls, tokens and times of the last days, by day, operation, project and client; for people.

    >>> meta.report_use(days=7)
    """
    return await savings.report_use(ctx.store, days)


@operation(
    Effect.READ,
    callers=ONLY_PERSONS,
    reach=[Reach.SETTINGS],
    asks="which settings are in force and where do they come from",
)
async def list_settings(ctx: Context) -> list[SettingValue]:
    """List the settings in force, and where each value comes from; secrets are not shown; for people.

    >>> meta.list_settings()
    """
    return ctx.describe_settings()


@operation(
    Effect.READ,
    callers=ONLY_PERSONS,
    reach=[Reach.SETTINGS],
    asks="which backups are there; when was the store last backed up",
)
async def list_backups(ctx: Context) -> list[BackupFile]:
    """List the backups in the folder of backups, the newest first; for people.

    >>> meta.list_backups()
    """
    return await run_in_thread(ctx.list_backups)


@operation(
    Effect.EXECUTE,
    callers=ONLY_PERSONS,
    reach=[Reach.SETTINGS],
    asks="back the store up now; make a copy of everything",
    reads_all=True,
)
async def create_backup(ctx: Context) -> BackupFile:
    """Copy the whole store to the folder of backups, check the copy, and delete the oldest ones; for people.

    >>> meta.create_backup()
    """
    return await run_in_thread(ctx.create_backup)


@operation(
    Effect.READ,
    callers=PEOPLE,
    reach=[Reach.PROJECTS],
    asks="which projects are there; all projects you have memories of; show all projects; where else do I have "
    "memories; what am I working on in other folders",
)
async def list_projects(ctx: Context) -> list[Project]:
    """List the projects of the store, with how many memories each has.

    >>> meta.list_projects()
    """
    return await projects.list_projects(ctx.store)


@operation(
    Effect.WRITE,
    callers=PEOPLE,
    reach=[Reach.PROJECTS],
    asks="the project has a new name; rename this project; the folder was moved; call this project something "
    "else; give the project a different title",
)
async def rename_project(
    ctx: Context,
    name: Annotated[str, Param("The project's name now.", least=1, most=1_000)],
    to: Annotated[str, Param("Its new name, which no other project has.", least=1, most=1_000)],
) -> Project:
    """Give a project another name, e.g. after its folder was moved.

    >>> meta.rename_project(name="/home/ann/shop", to="shop")
    """
    return await projects.rename_project(ctx.store, name, to, ctx.call)


@operation(
    Effect.WRITE,
    callers=PEOPLE | {CallerKind.MODEL},
    reach=[Reach.PROJECTS],
    asks="compute the missing vectors; embed everything again with the new model; refresh the embeddings; the "
    "model changed, recompute vectors",
)
async def reembed(
    ctx: Context, limit: Annotated[int, Param("How many passages to do now.", least=1, most=10_000)] = 256
) -> Progress:
    """Embed what has no vector of the model in use; repeat until none remain.

    >>> meta.reembed(limit=64)
    """
    return await index.reembed(ctx.store, limit)
