"""A part of a longer list."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeVar

from athena.core.home.paths import USER_PROJECT
from athena.core.text import make_storable
from athena.errors import InvalidInput

MAX_PROJECT_CHARS = 1_000
Kind = Literal["memory", "event", "task", "entity", "pattern", "skill"]  # each is searched by itself


class Scope(NamedTuple):
    """A project, and which kind of its things. Reads see it and what is true everywhere, and nothing else."""

    project: str
    kind: Kind = "memory"

    @classmethod
    def from_name(cls, project: object) -> "Scope":
        if not isinstance(project, str):
            raise InvalidInput(f"project must be text, not {type(project).__name__}")
        name = project.strip()
        if not name or len(name) > MAX_PROJECT_CHARS or make_storable(name) != name:
            raise InvalidInput(f"project must be a name of 1 to {MAX_PROJECT_CHARS:,} characters")
        return cls(name)

    def with_kind(self, kind: Kind) -> "Scope":
        """Return the same project's things of another kind."""
        return self._replace(kind=kind)

    @property
    def visible_projects(self) -> tuple[str, ...]:
        return (self.project,) if self.project == USER_PROJECT else (self.project, USER_PROJECT)


HOOK_SURFACE = "hook"  # the surface of session hooks


class Call(NamedTuple):
    """Who called what, where. Argument values are never part of it."""

    operation: str
    surface: str
    scope: Scope
    started: float
    key: str | None = None  # a repeated call with the same key happens once
    arguments_digest: str = (
        ""  # the digest of its arguments, where it has a key: another call must not pass for this one
    )
    run: str | None = None  # the program's run that it belongs to

    def with_kind(self, kind: Kind) -> "Call":
        """Return the same call, about things of another kind."""
        return self._replace(scope=self.scope.with_kind(kind))


T = TypeVar("T")


class Page(list[T]):
    """A list that knows how many there are in all."""

    def __init__(self, items: Iterable[T], total: int) -> None:
        super().__init__(items)
        self.total = total


# The hook client runs alone in users' data folders, so it has its own copies; a test compares them.
HOOK_EVENTS = (
    "session-start",
    "user-prompt-submit",
    "post-tool-use",
    "pre-compact",
    "post-compact",
    "stop",
    "session-end",
)
