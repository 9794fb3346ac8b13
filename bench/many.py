"""An MCP server with 200 typical tools, each of which returns a short text. Standard library only."""

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

COUNT = 200
TOOLS = Path(__file__).parents[1] / "tests" / "data" / "tools.json"


def tools() -> list[dict[str, Any]]:
    """Return the tools, prefixed with their server's name."""
    held = json.loads(TOOLS.read_text("utf-8"))
    every = ({**one, "name": f"{server}_{one['name']}"} for server, kept in held.items() for one in kept["tools"])
    return list(islice(every, COUNT))


def main() -> None:
    for line in sys.stdin:
        said = json.loads(line)
        if "id" not in said:
            continue
        result: dict[str, Any] | None = None
        if said["method"] == "initialize":
            about = {"name": "many", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about}
        elif said["method"] == "tools/list":
            result = {"tools": tools()}
        elif said["method"] == "tools/call":
            text = json.dumps({"number": 42, "url": "https://example.com/42", "state": "open"})
            result = {"content": [{"type": "text", "text": text}]}
        answer = {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], **answer}), flush=True)


if __name__ == "__main__":
    main()
