"""The catalog of operations: one module for each category. Adding an operation touches one of these files."""

from athena.core.catalog import Catalog

CATALOG = Catalog(
    "athena.operations",
    (
        "memory",
        "events",
        "graph",
        "tasks",
        "consolidation",
        "documents",
        "skills",
        "workspace",
        "servers",
        "tools",
        "code",
        "privacy",
        "meta",
    ),
)
