"""A skill: a program that worked, kept as a function with a name."""

from dataclasses import dataclass, field
from typing import Any

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
