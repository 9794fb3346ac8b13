"""Keep files that programs share and that stay between runs."""

from typing import Annotated, Any

from athena.core.operation import EVERYONE, ONLY_PERSONS, Effect, operation
from athena.core.types import Param
from athena.operations import params
from athena.operations.context import Context
from athena.programs import workspace as workspace_files
from athena.programs.workspace import File, Workspace

Content = str | list[Any] | dict[str, Any] | int | float | bool | None
Path = Annotated[str, Param("Where, e.g. 'reports/week.json'.", least=1, most=1_000, verbatim=True)]


@operation(
    Effect.DESTROY,
    callers=EVERYONE,
    short="write",
    asks="keep this result for the next program; save the table as a file in the workspace; store intermediate "
    "results; put the data where other programs can find it; write a csv to the workspace",
)
async def write_file(
    ctx: Context,
    path: Path,
    content: Annotated[
        Content, Param("Text, or values that are written as JSON, in a .csv file as rows.", verbatim=True)
    ],
    workspace: params.Workspace = None,
) -> File:
    """Write a whole file.

    It replaces an existing file, of which nothing is kept.

    >>> workspace.write(path="notes.txt", content="hello")
    """
    return await workspace_files.write_file(
        ctx.database, ctx.resolve_workspace(workspace), path, content, ctx.store.clock(), ctx.call
    )


@operation(
    Effect.READ,
    callers=EVERYONE,
    short="read",
    asks="read the file from the workspace; load the saved results; open the csv we stored; get the data that "
    "the last program stored; what is in results.json; parse the saved json",
)
async def read_file(
    ctx: Context,
    path: Path,
    workspace: params.Workspace = None,
    offset: params.Offset = 0,
    limit: Annotated[int | None, Param("How many characters, items or keys; else all.", least=1)] = None,
    raw: Annotated[bool, Param("Return the text unparsed, also of .json and .csv.")] = False,
) -> Any:
    """Read a file; JSON and CSV are parsed.

    >>> workspace.read(path="notes.txt")
    """
    name = ctx.resolve_workspace(workspace)
    return await workspace_files.read_file(ctx.database, ctx.scope, name, path, offset, limit, raw=raw)


@operation(
    Effect.READ,
    callers=EVERYONE,
    short="list",
    asks="which files are in the workspace; what results have programs saved; what is lying around in the "
    "workspace; show stored files",
)
async def list_files(
    ctx: Context,
    workspace: params.Workspace = None,
    prefix: Annotated[str, Param("Only paths that begin with this.", most=500)] = "",
) -> list[File]:
    """List files.

    >>> workspace.list(prefix="reports/")
    """
    return await workspace_files.list_files(ctx.database, ctx.scope, ctx.resolve_workspace(workspace), prefix)


@operation(Effect.READ, callers=ONLY_PERSONS, asks="which workspaces are there; what variables have programs left")
async def list_workspaces(ctx: Context) -> list[Workspace]:
    """List the workspaces of the project, with their variables and how many files each has; for people.

    >>> workspace.list_workspaces()
    """
    return await workspace_files.list_workspaces(ctx.database, ctx.scope)


@operation(
    Effect.DESTROY,
    callers=EVERYONE,
    short="delete",
    asks="delete a file from the workspace; remove the saved result; clean up the workspace; the intermediate "
    "file is no longer needed",
)
async def delete_file(ctx: Context, path: Path, workspace: params.Workspace = None) -> bool:
    """Delete a file for good; False if there was none.

    >>> workspace.delete(path="notes.txt")
    """
    return await workspace_files.delete_file(ctx.database, ctx.resolve_workspace(workspace), path, ctx.call)
