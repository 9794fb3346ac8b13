"""What the catalog tells about itself, in the words of the HTTP registry."""

from typing import Any

from athena.kernel import shapes
from athena.kernel.catalog import AnyOperation, Catalog


def discover(catalog: Catalog) -> dict[str, Any]:
    """List every operation by category, each with as few words as will do; those of servers are only counted."""
    categories = {
        name: {
            "description": about,
            "count": len(found),
            "tools": [{"name": one.name, "description": one.brief} for one in found if not one.foreign],
        }
        for name, about in catalog.categories.items()
        if (found := catalog.listed(name))
    }
    return {"categories": categories, "total_tools": len(catalog)}


def listed(catalog: Catalog, category: str | None) -> dict[str, Any]:
    found = catalog.listed(category)
    return {"tools": [summary(one) for one in found], "count": len(found)}


def search(catalog: Catalog, query: str, limit: int) -> dict[str, Any]:
    found = catalog.search(query, limit)
    return {"tools": [summary(one) for one in found], "count": len(found)}


def summary(operation: AnyOperation) -> dict[str, Any]:
    return {"name": operation.name, "description": operation.summary, "category": operation.category}


def tool(operation: AnyOperation) -> dict[str, Any]:
    """Describe an operation in full."""
    documentation = operation.documentation
    return {
        **summary(operation),
        "details": documentation.details,
        "parameters": [
            {
                "name": p.name,
                "type": kind(operation.arguments_schema["properties"][p.name]),
                "description": p.described,
                "required": p.required,
                "default": shapes.plain(p.default),
            }
            for p in operation.parameters
        ],
        "returns": {"type": kind(shapes.schema(operation.result)), "description": shapes.source(operation.result)},
        "effect": str(operation.effect),
        "examples": list(documentation.examples),
        "call": {"method": "POST", "path": f"/tools/{operation.name}/execute", "body": operation.example},
    }


def kind(schema: dict[str, Any]) -> str:
    """Name a schema in one word, or in several with bars between them."""
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(kind(part) for part in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    return str(schema.get("type", "any"))
