"""What a search for tools can find: an operation or a skill, with the texts that it is found by."""

import re
import weakref
from typing import Any, NamedTuple

from athena.core.catalog import AnyOperation, Catalog
from athena.core.operation import Effect
from athena.programs.values import KeptSkill

# What a tool begins with that only looks: where nobody says whether it changes anything, its name does.
READ_NAME_PATTERN = re.compile(
    r"(?:\w+_)??(list|get|retrieve|read|fetch|search|find|query|describe|show|check|view|lookup|count|analyze|explain"
    r"|calculate|convert|recall)(?:_|\b)|\w+_(list|log|logs|top|get|search|directions|geocode|matrix|elevation)\b"
)
SKILLS_CATEGORY = "skills"


class Entry(NamedTuple):
    path: str  # how a program names it
    key: str  # what its calls are recorded under
    category: str
    category_summary: str  # what its category is for
    name: str
    summary: str
    details: str
    parameters: tuple[tuple[str, str], ...]  # each name with its help
    is_read_only: bool  # whether it changes nothing, as far as one can tell
    target: AnyOperation | KeptSkill

    @property
    def effect(self) -> Effect:
        return Effect.EXECUTE if isinstance(self.target, KeptSkill) else self.target.effect


_catalog_entries: "weakref.WeakKeyDictionary[Catalog, tuple[int, tuple[Entry, ...]]]" = weakref.WeakKeyDictionary()


def list_catalog_entries(catalog: Catalog) -> tuple[Entry, ...]:
    """Return an entry for each operation; put together once for each change of the catalog."""
    version = catalog.version
    known = _catalog_entries.get(catalog)
    if known is None or known[0] != version:
        about = catalog.categories
        known = _catalog_entries[catalog] = (
            version,
            tuple(create_operation_entry(one, about.get(one.category, "")) for one in catalog),
        )
    return known[1]


def create_operation_entry(operation: AnyOperation, about: str) -> Entry:
    documentation = operation.documentation
    looks = operation.effect is Effect.READ
    if operation.is_foreign and not looks:
        looks = bool(
            READ_NAME_PATTERN.match(operation.bare_name) or READ_NAME_PATTERN.match(documentation.summary.lower())
        )
    return Entry(
        operation.path,
        operation.name,
        operation.category,
        about,
        operation.bare_name,
        documentation.summary,
        documentation.details,
        tuple((p.name, p.help) for p in operation.parameters),
        looks,
        operation,
    )


def create_skill_entry(skill: KeptSkill, about: str) -> Entry:
    summary, _, details = skill.description.partition("\n")
    path = f"{SKILLS_CATEGORY}.{skill.name}"
    return Entry(
        path, path, SKILLS_CATEGORY, about, skill.name, summary, details, ((skill.signature, ""),), False, skill
    )


def to_valid_utf8(text: str) -> str:
    """Return a text that can be written as UTF-8, which half of a character cannot."""
    return text.encode("utf-8", "replace").decode()


def split_name(name: Any) -> str:
    """Part a name into its words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_.\-]+", " ", str(name))
