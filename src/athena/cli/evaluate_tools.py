"""The half of `athena eval` that measures tool search on requests with known tools."""

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from athena.core.foreign_operation import ForeignOperation, assign_identifiers, to_identifier
from athena.core.threads import run_sync
from athena.discovery.entry import ToolEntry, create_operation_entry
from athena.discovery.finder import ToolFinder
from athena.embedding.embedder import Embedder
from athena.embedding.encoder import Encoder
from athena.errors import InvalidInput
from athena.gateway.approvals import ApprovedTool, create_definition

FIRST_PLACES = (1, 3, 5)
RESAMPLING_ROUNDS = 400
POLL_S = 0.05


class ToolRequest(NamedTuple):
    """A request with the indexes of the entries that satisfy it."""

    text: str
    gold: frozenset[int]


class ToolCollection(NamedTuple):
    """Tools that are searched together, and requests for them."""

    entries: tuple[ToolEntry, ...]
    requests: list[ToolRequest]


def load_tools(file: Path) -> ToolCollection:
    """Read JSON lines, each a server (`server`, `tools`) or a request (`request`, `server`, `tool`)."""
    entries: list[ToolEntry] = []
    index: dict[tuple[str, str], int] = {}
    asked: list[tuple[int, str, str, list[str]]] = []
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            server = row["server"]
            if "request" in row:
                tools = row["tool"] if isinstance(row["tool"], list) else [row["tool"]]
                asked.append((number, row["request"], server, tools))
                continue
            for tool, entry in zip(row["tools"], _create_entries(server, row["tools"]), strict=True):
                index[server, tool["name"]] = len(entries)
                entries.append(entry)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(
                f"{file}, line {number}: {error!r}",
                hint='a line is {"server": ..., "tools": [...]} or {"request": ..., "server": ..., "tool": ...}',
            ) from None
    requests = []
    for number, text, server, tools in asked:
        if missing := [tool for tool in tools if (server, tool) not in index]:
            raise InvalidInput(f"{file}, line {number}: the server {server!r:.60} has no tool {missing[0]!r:.60}")
        requests.append(ToolRequest(text, frozenset(index[server, tool] for tool in tools)))
    if not requests:
        raise InvalidInput(f"{file} has no requests", hint="see docs/evaluation.md")
    return ToolCollection(tuple(entries), requests)


def _create_entries(server: str, tools: list[dict[str, Any]]) -> list[ToolEntry]:
    """Return the entries of a server's tools as the gateway would make them."""
    names = assign_identifiers([tool["name"] for tool in tools])
    category = to_identifier(server)
    return [
        create_operation_entry(
            ForeignOperation(
                create_definition(category, ApprovedTool(names[tool["name"]], tool), "never"), _refuse_call
            ),
            f"The MCP server {category}.",
        )
        for tool in tools
    ]


async def _refuse_call(ctx: Any, arguments: dict[str, Any]) -> None:
    raise InvalidInput("this tool is only searched")


def measure_tools(collection: ToolCollection, embedder: Embedder) -> dict[str, Any]:
    """Rank the tools for each request, by words alone and with the model, and summarise the ranks."""
    finder = ToolFinder(Encoder(embedder))
    try:
        finder.warm_up(collection.entries)
        while not finder.vectors.is_ready:
            embedder.load()  # raises an error that says what is missing
            time.sleep(POLL_S)
        return {
            "tools": len(collection.entries),
            "requests": len(collection.requests),
            "words alone": summarise_ranks(_rank_requests(finder, collection, words_only=True)),
            "words and meaning": summarise_ranks(_rank_requests(finder, collection, words_only=False)),
        }
    finally:
        finder.stop()


def _rank_requests(finder: ToolFinder, collection: ToolCollection, *, words_only: bool) -> list[int | None]:
    """Return the rank of the first right tool for each request, from 0; None if it is not in the answer."""
    positions = {entry.path: i for i, entry in enumerate(collection.entries)}
    ranks: list[int | None] = []
    for request in collection.requests:
        ranked = run_sync(finder.rank(collection.entries, request.text, words_only=words_only))
        ranks.append(next((i for i, entry in enumerate(ranked) if positions[entry.path] in request.gold), None))
    return ranks


def summarise_ranks(ranks: Sequence[int | None]) -> dict[str, Any]:
    """Return the share of requests with the right tool among the first, and MRR, with 95 % bootstrap intervals."""
    measures = {
        f"first {places}": [float(rank is not None and rank < places) for rank in ranks] for places in FIRST_PLACES
    }
    measures["MRR"] = [0.0 if rank is None else 1 / (rank + 1) for rank in ranks]
    return {
        name: {"mean": sum(values) / len(values), "interval": _resample(values)} for name, values in measures.items()
    }


def _resample(values: Sequence[float]) -> tuple[float, float]:
    draw = random.Random(0)
    means = sorted(sum(draw.choices(values, k=len(values))) / len(values) for _ in range(RESAMPLING_ROUNDS))
    return means[int(RESAMPLING_ROUNDS * 0.025)], means[int(RESAMPLING_ROUNDS * 0.975)]


def print_tools_report(figures: dict[str, Any]) -> None:
    click.echo(f"\ntools: {figures['requests']} requests for {figures['tools']} tools (95 % intervals)")
    for name in ("words alone", "words and meaning"):
        click.echo(f"{name:<20}" + "".join(map(_format_measure, figures[name].items())))


def _format_measure(measure: tuple[str, dict[str, Any]]) -> str:
    name, figures = measure
    low, high = figures["interval"]
    return f"   {name} {figures['mean']:.3f} ({low:.3f} to {high:.3f})"
