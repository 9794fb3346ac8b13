"""The product's table of contents: one module a category. Adding an operation touches one file here."""

from athena.core.catalog import Catalog
from athena.operations import (
    code,
    consolidation,
    documents,
    events,
    graph,
    memory,
    meta,
    servers,
    skills,
    tasks,
    tools,
    workspace,
)

CATALOG = Catalog(memory, events, graph, tasks, consolidation, documents, skills, workspace, servers, tools, code, meta)
