"""The catalog and the skills, as names that a program can call."""

import weakref
from collections.abc import Iterable, Mapping

from athena.kernel.catalog import AnyOperation, Catalog
from athena.model.skill import Skill
from athena.sandbox import Function, Names

SKILLS = "skills"
_made: "weakref.WeakKeyDictionary[Catalog, tuple[int, list[Function], Names]]" = weakref.WeakKeyDictionary()


def path(operation: AnyOperation) -> str:
    return f"{operation.category}.{operation.name}"


def names_of(catalog: Catalog, skills: Mapping[str, Skill]) -> Names:
    """Return every name that a program has; those of the catalog are put together once."""
    known = _made.get(catalog)
    if known is None or known[0] != len(catalog):
        functions = [_function(one) for one in catalog if one.programs]
        known = _made[catalog] = (len(catalog), functions, Names(functions))
    if not skills:
        return known[2]
    return Names([*known[1], *_skills(skills.values())])


def _function(operation: AnyOperation) -> Function:
    return Function(
        path(operation),
        operation.arguments_schema,
        operation.short or None,
        operation.summary,
        operation.approval,
    )


def _skills(skills: Iterable[Skill]) -> list[Function]:
    return [Function(f"{SKILLS}.{one.name}", one.parameters, None, one.description) for one in skills]
