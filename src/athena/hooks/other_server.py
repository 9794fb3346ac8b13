"""Asking another memory server over MCP what a session should know: the way hooks worked before there was a daemon.

A few lines of JSON-RPC over the standard library: the whole SDK takes longer to load than a hook may take.
"""

import json
import os
import time
import urllib.request
from base64 import b64encode
from http.client import HTTPResponse
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from athena.core.version import __version__
from athena.errors import Unavailable

PROTOCOL = "2025-11-25"
TOOLS = (
    "recall",
    "memory_search",
    "retrieve_memory",
    "recall_memory",
    "search",
)  # of several servers
QUESTIONS = ("query", "q", "text", "question")
COUNTS = ("k", "limit", "n_results", "top_k")
EVENTS = {"session-start": "SessionStart", "user-prompt-submit": "UserPromptSubmit"}  # in which something can be said
LARGEST = 1 << 20  # bytes of an answer
MANY = 5  # memories
LONGEST = 2_000  # characters of a question


def ask(url: str, event: str, said: dict[str, Any], seconds: float) -> list[str]:
    """Return what another server found, as it said it: nothing that a model may read yet."""
    question = _question(event, said)
    if not question:
        return []
    server = Server(url, time.monotonic() + seconds)
    server.call("initialize", protocolVersion=PROTOCOL, capabilities={}, clientInfo=CLIENT)
    server.tell("notifications/initialized")
    tools = {one["name"]: one for one in server.call("tools/list").get("tools", ())}
    name = next((name for name in TOOLS if name in tools), None)
    if name is None:
        raise Unavailable("mcp_url has no tool that finds memories", hint=f"it needs one of {', '.join(TOOLS)}")
    asked = tools[name].get("inputSchema", {}).get("properties", {})
    arguments: dict[str, Any] = {next((word for word in QUESTIONS if word in asked), "query"): question}
    arguments |= {word: MANY for word in COUNTS if word in asked}
    found = server.call("tools/call", name=name, arguments=arguments)
    texts = [part.get("text", "") for part in found.get("content", ()) if part.get("type") == "text"]
    texts = [text for text in texts if isinstance(text, str) and text.strip()]
    if found.get("isError") or not texts:
        raise Unavailable(f"mcp_url found nothing: {''.join(texts)[:100]}")
    return texts


def _question(event: str, said: dict[str, Any]) -> str:
    if event == "session-start":
        return f"recent work and decisions {os.path.basename(str(said.get('cwd') or ''))}".strip()
    return str(said.get("prompt") or "")[:LONGEST] if event in EVENTS else ""


CLIENT = {"name": "athena-hook", "version": __version__}


class Server:
    """An MCP server at a URL, for one question."""

    def __init__(self, url: str, deadline: float) -> None:
        parts = urlsplit(url)
        self._url = urlunsplit(SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))
        self._headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        self._headers["mcp-protocol-version"] = PROTOCOL
        if parts.username:
            self._headers["authorization"] = _shown(unquote(parts.username), parts.password)
        self._opener = _opener(parts.hostname)
        self._deadline = deadline
        self._number = 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        answer = self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": parameters})
        for text in answer:
            message = json.loads(text)
            if message.get("id") == self._number:
                if "error" in message:
                    raise Unavailable(f"mcp_url refuses {method}: {str(message['error'].get('message'))[:100]}")
                result: dict[str, Any] = message["result"]
                return result
        raise Unavailable(f"mcp_url does not answer {method}")

    def tell(self, method: str) -> None:
        self._send({"jsonrpc": "2.0", "method": method})

    def _send(self, message: dict[str, Any]) -> list[str]:
        """Post a message, and return what comes back: one message, or a stream of events until ours is there."""
        request = urllib.request.Request(self._url, json.dumps(message).encode(), self._headers)
        left = max(0.01, self._deadline - time.monotonic())
        with self._opener.open(request, timeout=left) as reply:
            if session := reply.headers.get("mcp-session-id"):
                self._headers["mcp-session-id"] = session
            if "event-stream" in reply.headers.get("content-type", ""):
                return self._events(reply, message.get("id"))
            body = reply.read(LARGEST).decode("utf-8", "replace").strip()
            return [body] if body else []

    def _events(self, reply: HTTPResponse, number: int | None) -> list[str]:
        seen: list[str] = []
        size = 0
        while size < LARGEST and time.monotonic() < self._deadline and (line := reply.readline(LARGEST)):
            size += len(line)
            if line.startswith(b"data:"):
                seen.append(line[5:].decode("utf-8", "replace").strip())
                if number is not None and f'"id":{number}' in seen[-1].replace(" ", ""):
                    break
        return [text for text in seen if text]


def _shown(name: str, password: str | None) -> str:
    """Say who asks: a token alone stands before the host, as `http://TOKEN@host/mcp`."""
    if password is None:
        return f"Bearer {name}"
    return "Basic " + b64encode(f"{name}:{unquote(password)}".encode()).decode()


class _Stay(urllib.request.HTTPRedirectHandler):
    """No other place is asked than the one that was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _opener(host: str | None) -> urllib.request.OpenerDirector:
    if host in ("localhost", "127.0.0.1", "::1"):
        return urllib.request.build_opener(_Stay, urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(_Stay)
