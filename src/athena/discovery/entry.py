"""What a search for tools can find: an operation or a skill, with the texts that it is found by."""

import re
import weakref
from typing import Any, NamedTuple

from athena.core.catalog import AnyOperation, Catalog
from athena.core.operation import Effect
from athena.programs.skill_values import KeptSkill

# What a tool begins with that only looks: where nobody says whether it changes anything, its name does.
LOOKING = re.compile(
    r"(?:\w+_)??(list|get|retrieve|read|fetch|search|find|query|describe|show|check|view|lookup|count|analyze|explain"
    r"|calculate|convert|recall)(?:_|\b)|\w+_(list|log|logs|top|get|search|directions|geocode|matrix|elevation)\b"
)
SKILLS = "skills"


class Entry(NamedTuple):
    path: str  # how a program names it
    key: str  # what its calls are recorded under
    category: str
    about: str  # what its category is for
    name: str
    summary: str
    details: str
    parameters: tuple[tuple[str, str], ...]  # each name with its help
    looks: bool  # whether it changes nothing, as far as one can tell
    thing: AnyOperation | KeptSkill

    @property
    def effect(self) -> Effect:
        return Effect.EXECUTE if isinstance(self.thing, KeptSkill) else self.thing.effect


_known: "weakref.WeakKeyDictionary[Catalog, tuple[int, tuple[Entry, ...]]]" = weakref.WeakKeyDictionary()


def of_catalog(catalog: Catalog) -> tuple[Entry, ...]:
    """Return an entry for each operation; put together once for each change of the catalog."""
    version = catalog.version
    known = _known.get(catalog)
    if known is None or known[0] != version:
        about = catalog.categories
        known = _known[catalog] = version, tuple(of_operation(one, about.get(one.category, "")) for one in catalog)
    return known[1]


def of_operation(operation: AnyOperation, about: str) -> Entry:
    documentation = operation.documentation
    looks = operation.effect is Effect.READ
    if operation.foreign and not looks:
        looks = bool(LOOKING.match(operation.bare) or LOOKING.match(documentation.summary.lower()))
    return Entry(
        operation.path,
        operation.name,
        operation.category,
        about,
        operation.bare,
        documentation.summary,
        documentation.details,
        tuple((p.name, p.help) for p in operation.parameters),
        looks,
        operation,
    )


def of_skill(skill: KeptSkill, about: str) -> Entry:
    summary, _, details = skill.description.partition("\n")
    path = f"{SKILLS}.{skill.name}"
    return Entry(path, path, SKILLS, about, skill.name, summary, details, ((skill.signature, ""),), False, skill)


def legible(text: str) -> str:
    """Return a text that can be written as UTF-8, which half of a character cannot."""
    return text.encode("utf-8", "replace").decode()


def spaced(name: Any) -> str:
    """Part a name into its words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_.\-]+", " ", str(name))
