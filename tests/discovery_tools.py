"""Tools of other servers, for tests of discovery."""

from typing import Any

from athena.core.foreign_operation import ForeignOperation, ToolDefinition


def make_tool(path: str, summary: str, **parameters: str) -> ForeignOperation:
    async def run(ctx: Any, arguments: dict[str, Any]) -> Any:
        return arguments

    server, _, name = path.partition(".")
    properties = {name: {"type": "string", "description": about} for name, about in parameters.items()}
    return ForeignOperation(
        ToolDefinition(server, name, summary, arguments={"type": "object", "properties": properties}), run
    )
