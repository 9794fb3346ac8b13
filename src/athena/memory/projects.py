"""List the projects of a store, and rename one."""

from dataclasses import dataclass

from athena.core.home.paths import USER_PROJECT
from athena.core.values import Call, Scope
from athena.errors import Conflict, NotFound
from athena.memory.store import Store
from athena.storage import calls, scopes, vault_rows
from athena.storage.database import Transaction


@dataclass(frozen=True, slots=True)
class Project:
    name: str
    memories: int
    updated: float | None


async def list_projects(store: Store) -> list[Project]:
    async def read_projects(tx: Transaction) -> list[Project]:
        return [Project(*row) for row in await scopes.list_projects(tx)]

    return await store.database.read(read_projects)


async def rename_project(store: Store, name: str, to: str, call: Call) -> Project:
    """Rename a project; no other project may have the new name."""
    old, new = Scope.from_name(name).project, Scope.from_name(to).project

    async def write_name(tx: Transaction) -> Project:
        async def rename_scope(_: int) -> None:
            known = [project for project, _, _ in await scopes.list_projects(tx)]
            if USER_PROJECT in (old, new):
                raise Conflict(f"{USER_PROJECT!r} is what every project sees", hint="choose another project")
            if old not in known:
                raise NotFound(f"there is no project {old!r:.80}", hint="list_projects says which there are")
            if new in known:
                raise Conflict(f"there is a project {new!r:.80} already", hint="two projects cannot be joined")
            # values are encrypted for their scope, so that they cannot move to that of the renamed project
            if await vault_rows.count_kinds(tx, await scopes.fetch_project_ids(tx, Scope(new))):
                raise Conflict(
                    f"the vault has values of a project {new!r:.80}, which has no memories",
                    hint="choose another name, or forget them: athena vault --project NAME lists them",
                )
            await scopes.rename_project(tx, old, new)

        await calls.run_once(tx, call, rename_scope)
        for row in await scopes.list_projects(tx):
            if row[0] == new:
                return Project(*row)
        # The same call again, after the project was renamed once more.
        raise NotFound(f"there is no project {new!r:.80} any more", hint="list_projects says which there are")

    return await store.database.write(write_name)
