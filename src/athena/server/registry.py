"""What the catalog tells about itself, in the words of the HTTP registry."""

from typing import Any

from athena.core import types
from athena.core.catalog import AnyOperation, Catalog
from athena.core.operation import Effect
from athena.discovery.entry import SKILLS_CATEGORY, Entry
from athena.operations import finding
from athena.operations.context import Context
from athena.programs.skill_values import KeptSkill, Skill


def describe_catalog(catalog: Catalog) -> dict[str, Any]:
    """List every operation by category, each with as few words as will do; those of servers are only counted."""
    categories = {
        name: {
            "description": about,
            "count": len(found),
            "tools": [{"name": one.name, "description": one.short_summary} for one in found if not one.is_foreign],
        }
        for name, about in catalog.categories.items()
        if (found := catalog.list_operations(name))
    }
    return {"categories": categories, "total_tools": len(catalog)}


def list_tools(catalog: Catalog, category: str | None) -> dict[str, Any]:
    found = catalog.list_operations(category)
    return {"tools": [summarize_operation(one) for one in found], "count": len(found)}


async def search_tools(ctx: Context, query: str, limit: int, category: str | None) -> dict[str, Any]:
    """Rank operations and skills as `search_tools` does."""
    found = (await finding.rank_tools(ctx, query, category))[:limit]
    return {"tools": [_summarize_entry(one) for one in found], "count": len(found)}


def _summarize_entry(entry: Entry) -> dict[str, Any]:
    if isinstance(entry.target, KeptSkill):
        return {"name": entry.path, "description": entry.summary, "category": entry.category}
    return summarize_operation(entry.target)


def summarize_operation(operation: AnyOperation) -> dict[str, Any]:
    return {"name": operation.name, "description": operation.summary, "category": operation.category}


def describe_operation(operation: AnyOperation) -> dict[str, Any]:
    """Describe an operation in full."""
    documentation = operation.documentation
    return {
        **summarize_operation(operation),
        "details": documentation.details,
        "parameters": [
            {
                "name": p.name,
                "type": format_schema_type(operation.arguments_schema["properties"][p.name]),
                "description": p.description,
                "required": p.required,
                "default": types.to_json(p.default),
            }
            for p in operation.parameters
        ],
        "returns": {
            "type": format_schema_type(types.to_json_schema(operation.result_type)),
            "description": types.to_source(operation.result_type),
        },
        "effect": str(operation.effect),
        "examples": list(documentation.examples),
        "call": {"method": "POST", "path": f"/tools/{operation.name}/execute", "body": operation.example_arguments},
    }


def describe_skill(kept: Skill) -> dict[str, Any]:
    """Describe a skill in full; it is run by an operation."""
    schema = kept.parameters
    summary, _, details = kept.description.partition("\n")
    return {
        "name": f"{SKILLS_CATEGORY}.{kept.name}",
        "description": summary,
        "category": SKILLS_CATEGORY,
        "details": details.strip(),
        "parameters": [
            {
                "name": name,
                "type": format_schema_type(one),
                "description": one.get("description", ""),
                "required": name in schema["required"],
                "default": one.get("default"),
            }
            for name, one in schema["properties"].items()
        ],
        "returns": {"type": "any", "description": kept.returns},
        "effect": str(Effect.EXECUTE),
        "examples": [f"{SKILLS_CATEGORY}.{kept.example}"] if kept.example else [],
        "call": {"method": "POST", "path": "/tools/run_skill/execute", "body": {"name": kept.name, "arguments": {}}},
    }


def format_schema_type(schema: dict[str, Any]) -> str:
    """Name a schema in one word, or in several with bars between them."""
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(format_schema_type(part) for part in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    kinds = schema.get("type", "any")
    return " | ".join(kinds) if isinstance(kinds, list) else str(kinds)
