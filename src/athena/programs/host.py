"""What a run is given by whoever asks for it: the store, the operations, the skills, and who calls."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from athena.core.call import Call
from athena.core.catalog import Catalog
from athena.core.clock import Clock
from athena.core.operation import Caller
from athena.core.scope import Scope
from athena.programs.skill_values import Skill
from athena.storage.database import Database


class RunContext(NamedTuple):
    database: Database
    clock: Clock
    catalog: Catalog
    call: Call
    parent_run_id: str | None  # the run that this one is a part of
    create_caller: Callable[[str, str], Caller]  # a run and its workspace to who calls from there
    list_skills: Callable[[], Awaitable[list[Skill]]]

    @property
    def scope(self) -> Scope:
        return self.call.scope
