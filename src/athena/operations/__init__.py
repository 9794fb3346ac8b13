"""The catalog of operations: one module for each category. Adding an operation touches one of these files."""

from athena.core.catalog import Catalog
from athena.operations import (
    code,
    consolidation,
    documents,
    events,
    graph,
    memory,
    meta,
    privacy,
    servers,
    skills,
    tasks,
    tools,
    workspace,
)

CATALOG = Catalog(
    memory, events, graph, tasks, consolidation, documents, skills, workspace, servers, tools, code, privacy, meta
)
