"""Whose things these are."""

from typing import Literal, NamedTuple

from athena.core.home.paths import EVERYWHERE
from athena.core.text import storable
from athena.errors import InvalidInput

LONGEST = 1_000
Kind = Literal["memory", "event", "task", "entity", "pattern", "skill"]  # each is searched by itself


class Scope(NamedTuple):
    """A project, and which kind of its things. Reads see it and what is true everywhere, and nothing else."""

    project: str
    kind: Kind = "memory"

    @classmethod
    def named(cls, project: object) -> "Scope":
        if not isinstance(project, str):
            raise InvalidInput(f"project must be text, not {type(project).__name__}")
        name = project.strip()
        if not name or len(name) > LONGEST or storable(name) != name:
            raise InvalidInput(f"project must be a name of 1 to {LONGEST:,} characters")
        return cls(name)

    def of(self, kind: Kind) -> "Scope":
        """Return the same project's things of another kind."""
        return self._replace(kind=kind)

    @property
    def visible(self) -> tuple[str, ...]:
        return (self.project,) if self.project == EVERYWHERE else (self.project, EVERYWHERE)
