"""What the catalog tells about itself, in the words of the HTTP registry."""

from typing import Any

from athena.core import types
from athena.core.catalog import AnyOperation, Catalog
from athena.core.operation import Effect
from athena.discovery.entry import SKILLS, Entry
from athena.operations import finding
from athena.operations.context import Context
from athena.programs.skill_values import KeptSkill, Skill


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


async def search(ctx: Context, query: str, limit: int, category: str | None) -> dict[str, Any]:
    """Rank operations and skills as `search_tools` does."""
    found = (await finding.found(ctx, query, category))[:limit]
    return {"tools": [_brief(one) for one in found], "count": len(found)}


def _brief(entry: Entry) -> dict[str, Any]:
    if isinstance(entry.thing, KeptSkill):
        return {"name": entry.path, "description": entry.summary, "category": entry.category}
    return summary(entry.thing)


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
                "default": types.plain(p.default),
            }
            for p in operation.parameters
        ],
        "returns": {"type": kind(types.schema(operation.result)), "description": types.source(operation.result)},
        "effect": str(operation.effect),
        "examples": list(documentation.examples),
        "call": {"method": "POST", "path": f"/tools/{operation.name}/execute", "body": operation.example},
    }


def skill(kept: Skill) -> dict[str, Any]:
    """Describe a skill in full; it is run by an operation."""
    schema = kept.parameters
    summary, _, details = kept.description.partition("\n")
    return {
        "name": f"{SKILLS}.{kept.name}",
        "description": summary,
        "category": SKILLS,
        "details": details.strip(),
        "parameters": [
            {
                "name": name,
                "type": kind(one),
                "description": one.get("description", ""),
                "required": name in schema["required"],
                "default": one.get("default"),
            }
            for name, one in schema["properties"].items()
        ],
        "returns": {"type": "any", "description": kept.returns},
        "effect": str(Effect.EXECUTE),
        "examples": [f"{SKILLS}.{kept.example}"] if kept.example else [],
        "call": {"method": "POST", "path": "/tools/run_skill/execute", "body": {"name": kept.name, "arguments": {}}},
    }


def kind(schema: dict[str, Any]) -> str:
    """Name a schema in one word, or in several with bars between them."""
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(kind(part) for part in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    kinds = schema.get("type", "any")
    return " | ".join(kinds) if isinstance(kinds, list) else str(kinds)
