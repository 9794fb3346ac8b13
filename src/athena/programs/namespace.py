"""The catalog and the skills, as names that a program can call."""

import weakref
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from athena.core.catalog import AnyOperation, Catalog
from athena.core.operation import Effect
from athena.programs.sandbox import Function, Names
from athena.programs.skill_values import Skill

SKILLS = "skills"
# What others call it: the words of an operation that is not there, with or without their category.
SYNONYMS = {
    word: meant
    for meant, words in {
        "memory.remember": "store save add create put insert memorize memory.write memory.set memory.note",
        "memory.recall": "search find query lookup retrieve semantic_search memory.ask",
        "memory.forget": "delete remove erase memory.drop",
        "memory.update_memory": "tag update edit memory.change memory.add_tags memory.set_tags",
        "memory.get_memory": "get fetch read memory.show",
        "memory.list_memories": "list all memory.latest memory.recent",
        "events.record_event": "log events.add events.store events.record events.create",
        "events.recall_events": "events.search events.find events.recall events.query events.list",
        "graph.create_entities": "graph.add graph.create graph.add_node graph.add_nodes graph.add_entity",
        "graph.create_relations": "graph.relate graph.link graph.add_relation graph.add_edge",
        "graph.open_nodes": "graph.get graph.get_node graph.get_entity",
        "graph.search_nodes": "graph.search graph.find graph.query",
        "graph.delete_entities": "graph.delete graph.remove graph.delete_node",
        "tasks.create_task": "tasks.add tasks.create tasks.new tasks.remember tasks.store",
        "tasks.list_tasks": "tasks.list tasks.search tasks.find tasks.all tasks.get",
        "tasks.update_task": "tasks.update tasks.edit",
        "tasks.complete_task": "tasks.done tasks.complete tasks.finish tasks.close tasks.delete",
        "documents.ingest_document": "ingest documents.add documents.store documents.ingest",
        "documents.delete_document": "documents.delete documents.remove",
        "workspace.write": "write_file workspace.save workspace.put workspace.store",
        "workspace.read": "read_file workspace.get workspace.load workspace.open",
    }.items()
    for word in words.split()
}
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
        found = known.with_skills[key] = Names(
            [*known.functions, *_skills(key)], SYNONYMS, catalog.away, catalog.trouble
        )
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
        known = _made[catalog] = _Known(
            version, functions, Names(functions, SYNONYMS, catalog.away, catalog.trouble), operations, {}
        )
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
