"""A run: one execution of a program, and what came of it."""

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["done", "failed", "needs_approval", "unknown"]
EngineName = Literal["auto", "monty", "python"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong in a program."""

    type: str
    message: str
    line: int | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that waits for a person."""

    operation: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What a program's caller is told."""

    success: bool
    status: Status
    output: str
    result: Any
    error: Fault | None
    elapsed_ms: float
    calls: int
    run_id: str
    truncated: bool = False
    handle: str | None = None  # the file of the workspace with the whole value
    waiting: Waiting | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """A run as it is listed."""

    run_id: str
    workspace: str
    status: Literal["running", "done", "failed", "needs_approval", "unknown"]
    started: float
    elapsed_ms: float | None
    calls: int
    engine: str
    error: str | None
    waiting: Waiting | None
    answer: Result | None = None  # what came of it, as long as that is kept; only of a single run


ARGUMENTS_VARIABLE = "given__"


@dataclass(frozen=True, slots=True)
class Skill:
    name: str
    description: str
    code: str
    signature: str  # as Python writes it: "name: str, limit: int = 5"
    returns: str
    parameters: dict[str, Any] = field(default_factory=dict, hash=False)  # as JSON Schema
    example: str = ""

    @property
    def program(self) -> str:
        """A program that calls it with what the variable `GIVEN` holds."""
        return f"{self.code.rstrip()}\n\n{self.name}(**{ARGUMENTS_VARIABLE})\n"


@dataclass(frozen=True, slots=True)
class KeptSkill:
    """A skill as it is shown."""

    name: str
    description: str
    code: str
    signature: str
    returns: str
    example: str
    uses: int
    version: int
    updated: float | None  # None: it comes with Athena
    id: int | None  # for memory_history
    project: str | None


@dataclass(frozen=True, slots=True)
class FoundSkill:
    """A skill that a search found."""

    name: str
    signature: str
    returns: str
    description: str
    uses: int
