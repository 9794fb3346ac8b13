"""What a person sees of a server before deciding on it: its command, its tools, and what changed in them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from athena.core import redaction
from athena.core.approval import Approval
from athena.core.threads import run_long_in_thread
from athena.gateway import approvals, definitions, sanitize
from athena.gateway.approvals import Refusal, ToolDefinitions
from athena.gateway.config import VARIABLE_PATTERN, ServerEntry
from athena.gateway.gateway import Gateway
from athena.gateway.values import ServerDetails, ServerReview, ToolReview

MAX_VALUE_CHARS = 300
MAX_DIFFERENCES = 100  # of a tool


def describe_entry(entry: ServerEntry) -> list[str]:
    """Describe a server besides its command: working directory, environment, headers, variables of ours it gets."""
    options = entry.options
    lines = [f"folder: {options['cwd']}"] if options.get("cwd") else []
    lines += [_format_pair("env", name, "=", value) for name, value in (options.get("env") or {}).items()]
    lines += [_format_pair("header", name, ": ", value) for name, value in (options.get("headers") or {}).items()]
    if names := list(dict.fromkeys(match[1] for match in VARIABLE_PATTERN.finditer(entry.fingerprint))):
        lines.append(f"given from your environment: {', '.join(names)}")
    return [sanitize.escape_hidden(line) for line in lines]


def _format_pair(label: str, name: str, separator: str, value: str) -> str:
    """Format a pair as the file has it, with variables unexpanded and secrets redacted."""
    return f"{label} {redaction.redact(f'{name}{separator}{value}').text[:MAX_VALUE_CHARS]}"


def describe_changes(fingerprint: str, entry: ServerEntry) -> list[str]:
    """Return a diff between a server when it was approved, by its fingerprint of then, and now."""
    try:
        approved = {key: value for key, value in json.loads(fingerprint).items() if value is not None}
    except (ValueError, AttributeError):
        approved = {}
    old, new = (
        describe_server(ServerEntry(entry.name, options)) if options else [] for options in (approved, entry.options)
    )
    lines = [f"- {line}" for line in old if line not in new] + [f"+ {line}" for line in new if line not in old]
    return lines or ["a value that is not shown is another one"]


def describe_server(entry: ServerEntry) -> list[str]:
    """Describe a server: its command or address, and what else it gets."""
    return [
        sanitize.escape_hidden(f"{'address' if entry.transport == 'http' else 'command'}: {entry.target}"),
        *describe_entry(entry),
    ]


def review_tools(gateway: Gateway, name: str, offered: ToolDefinitions) -> list[ToolReview]:
    """Return the tools that a server offers now, the changed ones first, and those that are gone."""
    before, operations = gateway.get_server(name).approvals, gateway.preview_operations(name, offered)
    changes = approvals.compare_tools(before, offered, whole=True) if before else {}
    reviews = []
    for tool, definition in offered.items():
        state = changes[tool].reason if tool in changes else "same" if before else "new"
        lines: list[str] = []
        if state == "changed" and before is not None:
            lines = definitions.format_differences(before.tools[tool].definition, definition, MAX_DIFFERENCES)
        review = review_tool(tool, definition, state, lines)
        reviews.append(replace(review, as_read=list(definitions.format_as_read(operations[tool]))))
    gone = [tool for tool in changes if changes[tool].reason == "gone"]
    reviews += [ToolReview(sanitize.escape_hidden(tool), "gone", "", "", [], False) for tool in gone]
    return sorted(reviews, key=lambda review: (review.state == "same", review.name))


def review_tool(name: str, definition: Mapping[str, Any], state: str, differences: list[str]) -> ToolReview:
    """Return one tool as a person sees it, whole, with hidden characters escaped."""
    hints = definition.get("annotations")
    hints = hints if isinstance(hints, dict) else {}
    effect = (
        "reads" if hints.get("readOnlyHint") is True else "destroys" if hints.get("destructiveHint") is True else ""
    )
    return ToolReview(
        sanitize.escape_hidden(name),
        state,
        effect,
        sanitize.escape_hidden(json.dumps(definition, ensure_ascii=False, sort_keys=True)),
        differences,
        sanitize.has_hidden_text(definition),
    )


async def describe_details(gateway: Gateway, name: str) -> ServerDetails:
    """Return a server with its approved tools and the end of its log, without connecting it."""
    return await run_long_in_thread(_describe_details, gateway, name)  # of a server with megabytes of texts


def _describe_details(gateway: Gateway, name: str) -> ServerDetails:
    name = gateway.resolve_name(name)
    server = gateway.get_server(name)
    approved = server.approvals
    refused: Mapping[str, Refusal] = approved.refused if approved else {}
    pinned = {tool: approved.tools[tool].definition for tool in approved.tools} if approved else {}
    definitions_by_tool = pinned | {tool: {} for tool in refused if tool not in pinned}
    changes = [] if approved is None or not server.problem else describe_changes(approved.fingerprint, server.config)
    log = redaction.redact(gateway.read_log(name)).text  # it may print a key that it was configured with
    return ServerDetails(
        next(listed for listed in gateway.list_servers(for_person=True) if listed.name == name),
        describe_server(server.config),
        changes,
        approved.at if approved else None,
        [
            review_tool(tool, definition, str(refused.get(tool, "approved")), [])
            for tool, definition in definitions_by_tool.items()
        ],
        [sanitize.escape_hidden(line) for line in log.splitlines()],
    )


async def review_server(gateway: Gateway, name: str) -> ServerReview:
    """Connect a server and return what it offers now."""
    name = gateway.resolve_name(name)
    offered, left_out = await gateway.fetch_tools(name)
    subject = gateway.format_subject(name, offered)
    tools = await run_long_in_thread(review_tools, gateway, name, offered)  # a server may send megabytes of texts
    return ServerReview(name, tools, left_out, subject)


async def approve_server(gateway: Gateway, name: str, approval: Approval | None) -> int:
    """Approve what a server offers now, if it is what the person has seen; return how many tools."""
    name = gateway.resolve_name(name)
    offered, left_out = await gateway.fetch_tools(name)
    return len(gateway.approve_tools(name, offered, left_out, approval).tools)
