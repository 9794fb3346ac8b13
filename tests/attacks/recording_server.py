"""An MCP server with one tool, which writes everything that it receives to a file."""

import json
import sys

TOOL = {
    "name": "echo",
    "description": "Say it again.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "annotations": {"readOnlyHint": True},
}

for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "tools/call":
        with open(sys.argv[1], "a", encoding="utf-8") as file:
            file.write(json.dumps(request, ensure_ascii=False) + "\n")
    if "id" not in request:
        continue
    results = {
        "initialize": {
            "protocolVersion": request.get("params", {}).get("protocolVersion", "2025-06-18"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "recording", "version": "1"},
        },
        "tools/list": {"tools": [TOOL]},
        "tools/call": {"content": [{"type": "text", "text": "done"}]},
    }
    answer = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] in results:
        answer["result"] = results[request["method"]]
    else:
        answer["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(answer), flush=True)
