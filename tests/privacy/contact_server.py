"""An MCP server with contacts: `list_contacts` gives those of a file, `add_contact` writes one to another file."""

import base64
import json
import os
import sys
from typing import Any

SOURCE, TARGET = sys.argv[1:3]
LIST = {
    "name": "list_contacts",
    "description": "Contacts, some at a time. Questions to the owner of the list: owner@contacts.example.",
    "inputSchema": {"type": "object", "properties": {"offset": {"type": "integer"}, "limit": {"type": "integer"}}},
    "outputSchema": {"type": "object", "properties": {"contacts": {"type": "array"}}, "required": ["contacts"]},
    "annotations": {"readOnlyHint": True},
}
ADD = {
    "name": "add_contact",
    "description": "Add a contact.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "email": {"type": "string", "pattern": "^[^\\[\\]]+@[^\\[\\]]+$"},
            "phone": {"type": "string", "description": "As sales@contacts.example knows it."},
            "secret": {"type": "string"},
            "level": {"type": "string", "enum": ["low", "high"]},
            "pin": {"type": "string", "minLength": 20},
            "more": {"type": "object", "properties": {"note": {"type": "string"}}, "additionalProperties": True},
            "strict": {"type": "object", "properties": {"note": {"type": "string"}}, "additionalProperties": False},
        },
        "required": ["email"],
    },
}


def call_tool(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name == "list_contacts":
        with open(SOURCE, encoding="utf-8") as file:
            contacts = json.load(file)
        offset, limit = arguments.get("offset", 0), arguments.get("limit", 100)
        value = {"contacts": contacts[offset : offset + limit]}
        return {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value}
    if arguments["email"].startswith("broken"):
        return {"isError": True, "content": [{"type": "text", "text": f"cannot add {arguments['email']}"}]}
    if arguments["email"].startswith("flood"):
        print("y" * 70_000, file=sys.stderr, flush=True)
    if arguments["email"].startswith(("log", "crash", "flood")):
        print("error: cannot log in with", arguments["secret"], file=sys.stderr, flush=True)
    if arguments["email"].startswith("noise"):
        print(arguments["secret"], flush=True)
    if arguments["email"].startswith(("exit", "crash", "flood", "noise")):
        os._exit(3)
    if arguments["email"].startswith("file"):
        data = base64.b64encode(f"key: {arguments['secret']}".encode()).decode()
        return {"content": [{"type": "resource", "resource": {"uri": "file:///x.cfg", "blob": data}}]}
    with open(TARGET, "a", encoding="utf-8") as file:
        file.write(json.dumps(arguments) + "\n")
    return {"content": [{"type": "text", "text": f"added {arguments['email']} {arguments.get('secret', '')}"}]}


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    params = request.get("params") or {}
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] == "initialize":
        answer["result"] = {
            "protocolVersion": params.get("protocolVersion", "2025-06-18"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "contacts", "version": "1"},
        }
    elif request["method"] == "tools/list":
        answer["result"] = {"tools": [LIST, ADD]}
    elif request["method"] == "tools/call":
        arguments = params.get("arguments") or {}
        if str(arguments.get("email")).startswith("refuse"):
            answer["error"] = {"code": -32602, "message": f"no: {arguments['secret']}"}
        elif str(arguments.get("email")).startswith("garble"):
            answer["result"] = {"content": [{"type": "text", "text": [arguments["secret"]]}]}
        else:
            answer["result"] = call_tool(params["name"], arguments)
    else:
        answer["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(answer), flush=True)
