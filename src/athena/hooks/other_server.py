"""Ask another memory server over MCP what a session should know, and format its memories for the client.

It speaks JSON-RPC with the standard library: importing the MCP SDK takes longer than a hook may take.
"""

import json
import os
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from http.client import HTTPResponse
from itertools import islice
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from athena.app.settings import Settings, create_hook_rules
from athena.core import redaction
from athena.core.home.paths import current_project
from athena.core.private import remove_private_clauses
from athena.core.redaction.personal import mask_personal
from athena.core.text import make_storable
from athena.core.version import __version__
from athena.errors import Unavailable
from athena.hooks import events
from athena.memory.sessions.briefing import MAX_BRIEFING_CHARS
from athena.memory.sessions.select import BriefingItem, merge_items, select_items
from athena.memory.sessions.voice import BriefingText, Header, Heading, Line, SafeText

PROTOCOL_VERSION = "2025-11-25"
CLIENT_INFO = {"name": "athena-hook", "version": __version__}
CLIENT_EVENT_NAMES = {"session-start": "SessionStart", "user-prompt-submit": "UserPromptSubmit"}  # that take an answer
# the names that several memory servers use
SEARCH_TOOL_NAMES = ("recall", "memory_search", "retrieve_memory", "recall_memory", "search")
QUERY_PARAMETERS = ("query", "q", "text", "question")
LIMIT_PARAMETERS = ("k", "limit", "n_results", "top_k")
TEXT_KEYS = ("content", "text", "memory", "summary")
MAX_RESPONSE_BYTES = 1 << 20
MAX_REQUESTED_MEMORIES = 5
MAX_QUESTION_CHARS = 2_000
MAX_MEMORIES_READ = 20
MAX_READ_CHARS = 20_000  # of one memory
MAX_PROMPT_CHARS = 20_000
MAX_MEMORY_CHARS = 600  # of one memory in the answer
MAX_JSON_DEPTH = 6


def answer_event(
    event: str, payload: bytes, settings: Settings, timeout_s: float, on_malformed: Callable[[str], None]
) -> bytes:
    """Return the answer to a hook made of what the other server found."""
    fields, rules = events.parse_payload(payload), create_hook_rules(settings)
    if events.is_malformed(payload, fields):
        on_malformed(events.MALFORMED_INPUT)
    folder = events.get_named_folder(fields)
    if not settings.hooks_mcp_url or not rules.allows_event(event, current_project(folder=folder), folder):
        return b""
    if isinstance(prompt := fields.get("prompt"), str):
        fields["prompt"] = remove_private_clauses(redaction.redact(prompt[:MAX_PROMPT_CHARS]).text)
        if settings.privacy != "off":
            fields["prompt"] = mask_personal(fields["prompt"])
    question = _build_question(event, fields)
    server = McpClient(settings.hooks_mcp_url, time.monotonic() + timeout_s, settings.hooks_mcp_token)
    texts = search_other_server(server, question) if question else []
    if settings.privacy != "off":
        texts = [mask_personal(text) for text in texts]
    return format_memories(CLIENT_EVENT_NAMES[event], texts, rules.budget_tokens) if texts else b""


def search_other_server(server: "McpClient", question: str) -> list[str]:
    """Return the texts that the server found; no model may read them before `format_memories` cleaned them."""
    server.send_request("initialize", protocolVersion=PROTOCOL_VERSION, capabilities={}, clientInfo=CLIENT_INFO)
    server.send_notification("notifications/initialized")
    tools = {tool["name"]: tool for tool in server.send_request("tools/list").get("tools", ())}
    name = next((name for name in SEARCH_TOOL_NAMES if name in tools), None)
    if name is None:
        raise Unavailable(
            "mcp_url has no tool that finds memories", hint=f"it needs one of {', '.join(SEARCH_TOOL_NAMES)}"
        )
    properties = tools[name].get("inputSchema", {}).get("properties", {})
    query_parameter = next((parameter for parameter in QUERY_PARAMETERS if parameter in properties), "query")
    arguments: dict[str, Any] = {query_parameter: question}
    arguments |= {parameter: MAX_REQUESTED_MEMORIES for parameter in LIMIT_PARAMETERS if parameter in properties}
    result = server.send_request("tools/call", name=name, arguments=arguments)
    texts = [part.get("text", "") for part in result.get("content", ()) if part.get("type") == "text"]
    texts = [text for text in texts if isinstance(text, str) and text.strip()]
    if result.get("isError") or not texts:
        raise Unavailable("mcp_url found nothing")  # its words may repeat the prompt, and errors are logged
    return texts


def _build_question(event: str, fields: dict[str, Any]) -> str:
    if event == "session-start":
        return f"recent work and decisions {os.path.basename(str(fields.get('cwd') or ''))}".strip()
    return str(fields.get("prompt") or "")[:MAX_QUESTION_CHARS] if event in CLIENT_EVENT_NAMES else ""


class McpClient:
    """A minimal MCP client over HTTP for the server at one URL; it follows no redirect, so no other gets the token."""

    def __init__(self, url: str, deadline: float, token: str | None = None) -> None:
        parts = urlsplit(url)
        self._url = urlunsplit(SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))
        self._headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        self._headers["mcp-protocol-version"] = PROTOCOL_VERSION
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        elif parts.username:
            self._headers["authorization"] = _format_authorization(unquote(parts.username), parts.password)
        self._opener = _build_opener(parts.hostname)
        self._deadline = deadline
        self._request_id = 0

    def send_request(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._request_id += 1
        request = {"jsonrpc": "2.0", "id": self._request_id, "method": method, "params": parameters}
        for text in self._post_message(request):
            message = json.loads(text)
            if message.get("id") == self._request_id:
                if "error" in message:
                    raise Unavailable(f"mcp_url refuses {method} with code {str(message['error'].get('code'))[:20]}")
                result: dict[str, Any] = message["result"]
                return result
        raise Unavailable(f"mcp_url does not answer {method}")

    def send_notification(self, method: str) -> None:
        self._post_message({"jsonrpc": "2.0", "method": method})

    def _post_message(self, message: dict[str, Any]) -> list[str]:
        """Post a message; return the JSON texts of the response: one, or those of an event stream up to our answer."""
        request = urllib.request.Request(self._url, json.dumps(message).encode(), self._headers)
        timeout_s = max(0.01, self._deadline - time.monotonic())
        with self._opener.open(request, timeout=timeout_s) as response:
            if session := response.headers.get("mcp-session-id"):
                self._headers["mcp-session-id"] = session
            if "event-stream" in response.headers.get("content-type", ""):
                return self._read_events(response, message.get("id"))
            body = response.read(MAX_RESPONSE_BYTES).decode("utf-8", "replace").strip()
            return [body] if body else []

    def _read_events(self, response: HTTPResponse, request_id: int | None) -> list[str]:
        texts: list[str] = []
        size = 0
        while (
            size < MAX_RESPONSE_BYTES
            and time.monotonic() < self._deadline
            and (line := response.readline(MAX_RESPONSE_BYTES))
        ):
            size += len(line)
            if line.startswith(b"data:"):
                texts.append(line[5:].decode("utf-8", "replace").strip())
                if request_id is not None and f'"id":{request_id}' in texts[-1].replace(" ", ""):
                    break
        return [text for text in texts if text]


def _format_authorization(name: str, password: str | None) -> str:
    """Return the Authorization header: a URL such as `http://TOKEN@host/mcp` has a token, not a user."""
    if password is None:
        return f"Bearer {name}"
    return "Basic " + b64encode(f"{name}:{unquote(password)}".encode()).decode()


class _NoRedirectHandler(urllib.request.HTTPRedirectHandler):
    """Refuse redirects, so that only the configured host gets the request."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _build_opener(host: str | None) -> urllib.request.OpenerDirector:
    if host in ("localhost", "127.0.0.1", "::1"):
        return urllib.request.build_opener(_NoRedirectHandler, urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(_NoRedirectHandler)


def format_memories(event: str, texts: Iterable[str], budget_tokens: int) -> bytes:
    """Return the client's JSON with as many memories as fit the budget, the first ones first; empty if none does."""
    memories = islice((memory for text in texts for memory in _parse_memories(text)), MAX_MEMORIES_READ)
    items = [
        BriefingItem(Heading.NONE, "memory", index, "", _clean_memory(memory), "", "", 0.95 - 0.02 * index)
        for index, memory in enumerate(memories)
    ]
    _, text = select_items(
        merge_items([item for item in items if item.text]), budget_tokens, MAX_BRIEFING_CHARS, _format_items
    )
    answer = events.build_answer(event, text or "")
    return json.dumps(answer, ensure_ascii=False).encode() if answer else b""


def _clean_memory(text: str) -> SafeText:
    return SafeText(Line(redaction.redact(make_storable(text[:MAX_READ_CHARS])).text, "tool"), MAX_MEMORY_CHARS)


def _format_items(items: Sequence[BriefingItem]) -> BriefingText:
    return BriefingText(Header.OTHER_SERVER, [(Heading.NONE, [item.line for item in items])])


def _parse_memories(text: str) -> Iterator[str]:
    """Yield the memories of an answer: the texts of its JSON, else its paragraphs, else its lines."""
    try:
        yield from _iter_texts(json.loads(text), MAX_JSON_DEPTH)
    except (ValueError, RecursionError):
        yield from (part for part in text.strip().split("\n\n" if "\n\n" in text else "\n") if part.strip())


def _iter_texts(value: object, depth_left: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and (text := next((value[name] for name in TEXT_KEYS if name in value), None)):
        yield from _iter_texts(text, depth_left - 1) if depth_left else ()
    elif isinstance(value, dict | list) and depth_left:
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, dict | list) or isinstance(value, list):
                yield from _iter_texts(item, depth_left - 1)
