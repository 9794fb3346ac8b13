"""Entries of tool search: one for each operation and each skill, with the texts that it searches."""

import re
import weakref
from typing import Any, NamedTuple

from athena.core.catalog import AnyOperation, Catalog
from athena.core.operation import EVERYONE, ONLY_PERSONS, CallerKind, Effect
from athena.programs.values import KeptSkill

# How the names of tools begin that change nothing, for servers that do not declare whether a tool does.
READ_NAME_PATTERN = re.compile(
    r"(?:\w+_)??(list|get|retrieve|read|fetch|search|find|query|describe|show|check|view|lookup|count|analyze|explain"
    r"|calculate|convert|recall)(?:_|\b)|\w+_(list|log|logs|top|get|search|directions|geocode|matrix|elevation)\b"
)
SKILLS_CATEGORY = "skills"


class ToolEntry(NamedTuple):
    """A tool as search sees it."""

    path: str  # its name in a program
    key: str  # the name under which its calls are logged
    category: str
    category_summary: str
    name: str
    summary: str
    details: str
    parameters: tuple[tuple[str, str], ...]  # names and help texts
    is_read_only: bool  # declared, or guessed from the name
    target: AnyOperation | KeptSkill

    @property
    def declares_phrases(self) -> bool:
        return not isinstance(self.target, KeptSkill) and bool(self.target.asks)

    @property
    def callers(self) -> frozenset[CallerKind]:
        return EVERYONE if isinstance(self.target, KeptSkill) else self.target.callers

    @property
    def effect(self) -> Effect:
        return Effect.EXECUTE if isinstance(self.target, KeptSkill) else self.target.effect


_catalog_entries: "weakref.WeakKeyDictionary[Catalog, tuple[int, tuple[ToolEntry, ...]]]" = weakref.WeakKeyDictionary()


def list_catalog_entries(catalog: Catalog) -> tuple[ToolEntry, ...]:
    """Return an entry for each operation, cached until the catalog changes.

    Of those that are for a person alone, only decisions can be found: the page needs the others, and knows them.
    """
    version = catalog.version
    cached = _catalog_entries.get(catalog)
    if cached is None or cached[0] != version:
        summaries = catalog.categories
        entries = tuple(
            create_operation_entry(operation, summaries.get(operation.category, ""))
            for operation in catalog
            if operation.callers != ONLY_PERSONS or operation.effect is Effect.APPROVE
        )
        cached = _catalog_entries[catalog] = version, entries
    return cached[1]


def create_operation_entry(operation: AnyOperation, category_summary: str) -> ToolEntry:
    documentation = operation.documentation
    is_read_only = operation.effect is Effect.READ
    if operation.is_foreign and not is_read_only:
        is_read_only = bool(
            READ_NAME_PATTERN.match(operation.bare_name) or READ_NAME_PATTERN.match(documentation.summary.lower())
        )
    return ToolEntry(
        operation.path,
        operation.name,
        operation.category,
        category_summary,
        operation.bare_name,
        documentation.summary,
        documentation.details,
        tuple((p.name, p.help) for p in operation.parameters),
        is_read_only,
        operation,
    )


def create_skill_entry(skill: KeptSkill, category_summary: str) -> ToolEntry:
    summary, _, details = skill.description.partition("\n")
    path = f"{SKILLS_CATEGORY}.{skill.name}"
    return ToolEntry(
        path,
        path,
        SKILLS_CATEGORY,
        category_summary,
        skill.name,
        summary,
        details,
        ((skill.signature, ""),),
        False,
        skill,
    )


def to_valid_utf8(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded as UTF-8."""
    return text.encode("utf-8", "replace").decode()


def split_name(name: Any) -> str:
    """Split an identifier into its words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_.\-]+", " ", str(name))
