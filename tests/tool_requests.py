"""A catalog of 338 tools, and requests in plain language with the tools that satisfy them.

`data/tools.json` holds tools as typical MCP servers define them; our own operations join them. Of the requests in
`data/tool_requests.json` the halves `dev` and `held_out` were written before the ranking was tuned, and `more`
afterwards, by the author of the ranking and of its everyday words. Others, who saw only the names and summaries of the
tools, wrote two more sets of 120: half of the first is `strangers_dev`, the rest and the second are
`strangers_held_out`. While tuning, of `held_out` and `strangers_held_out` only a few scores were looked at.
"""

import json
from pathlib import Path
from typing import Any

from athena.core.catalog import Catalog
from athena.core.foreign_operation import ForeignOperation, ToolDefinition, assign_identifiers
from athena.operations import CATALOG

DATA = Path(__file__).parent / "data"


async def _nothing(ctx: Any, arguments: dict[str, Any]) -> None:
    """Do nothing."""


def catalog() -> Catalog:
    """Return our operations and those of other servers."""
    made = CATALOG.copy()
    for server, held in json.loads((DATA / "tools.json").read_text("utf-8")).items():
        names = assign_identifiers([one["name"] for one in held["tools"]])
        made.replace_category(server, held["about"], [_tool(server, names[one["name"]], one) for one in held["tools"]])
    return made


def _tool(server: str, name: str, tool: dict[str, Any]) -> ForeignOperation:
    summary, _, details = tool["description"].partition(". ")
    return ForeignOperation(ToolDefinition(server, name, summary, details, tool["inputSchema"]), _nothing)


def requests(part: str) -> list[tuple[str, list[str]]]:
    """Return requests, each with the paths of the tools that satisfy it."""
    return [(said, paths) for said, paths in json.loads((DATA / "tool_requests.json").read_text("utf-8"))[part]]
