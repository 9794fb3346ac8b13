"""The catalog and the skills, as names that a program can call."""

import weakref
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from athena.kernel.catalog import AnyOperation, Catalog
from athena.kernel.operation import Effect
from athena.model.skill import Skill
from athena.sandbox import Function, Names

SKILLS = "skills"
REMEMBERED = 16  # sets of skills, each with its names


class _Known(NamedTuple):
    """What a catalog gives to programs, as it was at one version."""

    version: int
    functions: list[Function]
    names: Names
    operations: dict[str, AnyOperation]
    with_skills: dict[tuple[Skill, ...], Names]  # the last few


_made: "weakref.WeakKeyDictionary[Catalog, _Known]" = weakref.WeakKeyDictionary()


def path(operation: AnyOperation) -> str:
    return operation.path


def names_of(catalog: Catalog, skills: Mapping[str, Skill]) -> Names:
    """Return every name that a program has."""
    known = _known(catalog)
    if not skills:
        return known.names
    if (found := known.with_skills.get(key := tuple(skills.values()))) is None:
        while len(known.with_skills) >= REMEMBERED:
            known.with_skills.pop(next(iter(known.with_skills)), None)
        found = known.with_skills[key] = Names([*known.functions, *_skills(key)])
    return found


def operations_of(catalog: Catalog) -> dict[str, AnyOperation]:
    """Return the operations that programs can call, by path."""
    return _known(catalog).operations


def _known(catalog: Catalog) -> _Known:
    """Put together once what a catalog gives to programs."""
    known, version = _made.get(catalog), catalog.version
    if known is None or known.version != version:
        operations = {path(one): one for one in catalog if one.programs}
        functions = [_function(one) for one in operations.values()]
        known = _made[catalog] = _Known(version, functions, Names(functions), operations, {})
    return known


def _function(operation: AnyOperation) -> Function:
    return Function(
        path(operation),
        operation.arguments_schema,
        operation.short or None,
        operation.summary,
        operation.approval,
        operation.effect is Effect.EXECUTE and not operation.foreign,
    )


def _skills(skills: Iterable[Skill]) -> list[Function]:
    return [Function(f"{SKILLS}.{one.name}", one.parameters, None, one.description, runs=True) for one in skills]
