"""The product's table of contents: one module a category. Adding an operation touches one file here."""

from athena.kernel.catalog import Catalog
from athena.operations import consolidation, documents, events, graph, memory, meta, tasks, tools

CATALOG = Catalog(memory, events, graph, tasks, consolidation, documents, tools, meta)
