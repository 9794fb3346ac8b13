"""A catalog of some 340 tools, and requests in plain language with the tools that would do.

`data/tools.json` holds tools as typical MCP servers define them; our own operations join them. `data/tool_requests.json`
was written before the ranking was tuned: its `dev` half may be looked at while tuning, its `held_out` half not.
"""

import json
from pathlib import Path
from typing import Any

from athena.kernel.operation import Documentation, Effect, Operation, Parameter
from athena.kernel.shapes import Param
from athena.operations import CATALOG

DATA = Path(__file__).parent / "data"
KINDS: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict[str, Any]}


class Tool(Operation[Any, ..., Any]):
    """A tool of another server, as far as it can be described."""

    def __init__(self, server: str, definition: dict[str, Any]) -> None:
        super().__init__(_nothing, Effect.EXECUTE)
        self.name, self.category = definition["name"], server
        summary, _, details = definition["description"].partition(". ")
        schema = definition["inputSchema"]
        self.__dict__["documentation"] = Documentation(summary, details, ())
        self.__dict__["parameters"] = tuple(
            _parameter(name, one, name in schema.get("required", ())) for name, one in schema["properties"].items()
        )
        self.__dict__["_hints"] = {"return": Any}


async def _nothing(ctx: Any) -> None:
    """Do nothing."""


def _parameter(name: str, schema: dict[str, Any], required: bool) -> Parameter:
    kind = list[Any] if schema["type"] == "array" else KINDS[schema["type"]]
    annotation = kind if required else kind | None
    if about := schema.get("description"):
        annotation = _helped(annotation, about)
    return Parameter(name, annotation, required, None)


def _helped(kind: Any, about: str) -> Any:
    from typing import Annotated

    return Annotated[kind, Param(about)]


def tools() -> list[Operation[Any, ..., Any]]:
    """Return our operations and those of the other servers."""
    servers = json.loads((DATA / "tools.json").read_text("utf-8"))
    others = [Tool(name, one) for name, server in servers.items() for one in server["tools"]]
    return [*CATALOG, *others]


def requests(half: str) -> list[tuple[str, list[str]]]:
    """Return requests, each with the paths of the tools that would do."""
    return [(said, paths) for said, paths in json.loads((DATA / "tool_requests.json").read_text("utf-8"))[half]]
