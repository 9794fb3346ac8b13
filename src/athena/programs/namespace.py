"""The names that a program can call: the operations of the catalog, and the skills."""

import weakref
from collections.abc import Mapping
from typing import NamedTuple

from athena.core.catalog import AnyOperation, Catalog
from athena.core.operation import CallerKind, Effect
from athena.programs.sandbox import Function, Namespace
from athena.programs.values import Skill

SKILLS_CATEGORY = "skills"
# names that agents try in place of ours, with or without a category
SYNONYMS = {
    synonym: path
    for path, synonyms in {
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
    for synonym in synonyms.split()
}
MAX_CACHED_SKILL_SETS, MAX_CACHED_SET_CHARS = 16, 16_000_000


class _CatalogNames(NamedTuple):
    """The names of one version of a catalog."""

    version: int
    functions: list[Function]
    names: Namespace
    operations: dict[str, AnyOperation]
    names_by_skills: dict[tuple[Skill, ...], Namespace]  # the latest sets of skills, of which they share what is same


_names_cache: "weakref.WeakKeyDictionary[Catalog, _CatalogNames]" = weakref.WeakKeyDictionary()


def build_names(catalog: Catalog, skills: Mapping[str, Skill]) -> Namespace:
    """Return every name that a program can call."""
    catalog_names = _get_catalog_names(catalog)
    if not skills:
        return catalog_names.names
    cache, key = catalog_names.names_by_skills, tuple(skills.values())
    if (names := cache.get(key)) is None:
        while len(cache) >= MAX_CACHED_SKILL_SETS or (
            cache and sum(skill.chars for skills in (*cache, key) for skill in skills) > MAX_CACHED_SET_CHARS
        ):
            cache.pop(next(iter(cache)), None)
        functions = [*catalog_names.functions, *map(create_skill_function, key)]
        names = cache[key] = Namespace(functions, SYNONYMS, _list_unavailable(catalog), catalog.problem)
    return names


def list_operations(catalog: Catalog) -> dict[str, AnyOperation]:
    """Return the operations that programs can call, by path."""
    return _get_catalog_names(catalog).operations


def _get_catalog_names(catalog: Catalog) -> _CatalogNames:
    """Return the names of the catalog, built once for each version of it."""
    cached, version = _names_cache.get(catalog), catalog.version
    if cached is None or cached.version != version:
        operations = {operation.path: operation for operation in catalog if CallerKind.PROGRAM in operation.callers}
        functions = [_create_function(operation) for operation in operations.values()]
        names = Namespace(functions, SYNONYMS, _list_unavailable(catalog), catalog.problem)
        cached = _names_cache[catalog] = _CatalogNames(version, functions, names, operations, {})
    return cached


def _list_unavailable(catalog: Catalog) -> dict[str, tuple[str, str]]:
    """Return what programs cannot call: what waits for a person, and operations that are not for programs."""
    closed = (operation for operation in catalog if CallerKind.PROGRAM not in operation.callers)
    return catalog.unavailable | {
        operation.path: (f"programs may not call {operation.path}", operation.format_callers_hint())
        for operation in closed
    }


def _create_function(operation: AnyOperation) -> Function:
    return Function(
        operation.path,
        operation.arguments_schema,
        operation.names[1:],
        operation.summary,
        operation.approval,
        operation.effect is Effect.EXECUTE and not operation.is_foreign,
        operation.parameter_aliases,
    )


def create_skill_function(skill: Skill) -> Function:
    return Function(f"{SKILLS_CATEGORY}.{skill.name}", skill.parameters, (), skill.description, runs_program=True)
