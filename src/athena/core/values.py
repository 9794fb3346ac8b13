"""Values that every layer uses: scope, record and progress of a call, a page of results, the names of hook events."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeVar

from athena.core.home.paths import USER_PROJECT
from athena.core.text import make_storable
from athena.errors import InvalidInput

MAX_PROJECT_CHARS = 1_000
Kind = Literal["memory", "event", "task", "entity", "pattern", "skill"]  # each is searched separately
Author = Literal["person", "agent", "tool", "document"]  # who said a text
MCP_SURFACE = "mcp"
HOOK_SURFACE = "hook"
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
HOOK_GREETING = b"A"  # a working daemon's first byte

T = TypeVar("T")


class Scope(NamedTuple):
    """A project and a kind of record. Reads see this project and the user's own, and no other."""

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
        """Return the same project with another kind."""
        return self._replace(kind=kind)

    @property
    def visible_projects(self) -> tuple[str, ...]:
        return (self.project,) if self.project == USER_PROJECT else (self.project, USER_PROJECT)


class ModelNames(NamedTuple):
    """The embedding model in use, and the earlier ones whose vectors can be compared with its own."""

    current: str
    earlier: tuple[str, ...] = ()


class Call(NamedTuple):
    """The record of a call: who called what, where. It never holds argument values."""

    operation: str
    surface: str
    scope: Scope
    started: float
    key: str | None = None  # a repeated call with the same key happens once
    arguments_digest: str = ""  # set with a key, so that another call with the same key is refused
    author: Author = "agent"  # of texts that the call stores
    run: str | None = None  # id of the program's run that makes the call
    recorded_id: int | None = None  # set where it was recorded before, since it makes several changes
    is_confined: bool = False  # a program or a model: from another project it changes nothing of `user`

    def with_kind(self, kind: Kind) -> "Call":
        """Return the same call about another kind."""
        return self._replace(scope=self.scope.with_kind(kind))


class SettingValue(NamedTuple):
    """A setting in force."""

    key: str
    value: str
    source: str  # default, config.toml or the name of a variable


class BackupFile(NamedTuple):
    """A copy of the whole store."""

    path: str
    created: float
    size: int  # in bytes
    encrypted: bool


class CallProgress:
    """How far a long call is; whoever waits for it may look."""

    def __init__(self) -> None:
        self.stage = ""
        self.done = self.total = 0

    def enter_stage(self, stage: str, total: int = 0) -> None:
        self.stage, self.done, self.total = stage, 0, total

    def __str__(self) -> str:
        return f"{self.stage}: {self.done:,} of {self.total:,}" if self.total else self.stage


class Page(list[T]):
    """A part of a longer list, with the number of all its items, and of those left out because they fit too badly."""

    def __init__(self, items: Iterable[T], total: int, weaker: int = 0) -> None:
        super().__init__(items)
        self.total = total
        self.weaker = weaker
