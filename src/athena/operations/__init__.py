"""The product's table of contents: one module a category. Adding an operation touches one file here."""

from athena.kernel.catalog import Catalog
from athena.operations import consolidation, documents, events, memory, meta, tools

CATALOG = Catalog(memory, events, consolidation, documents, tools, meta)
