"""The half of `athena eval` that measures tool search on requests with known tools."""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import click

from athena.cli.evaluate_measures import Estimate, estimate_mean
from athena.core.foreign_operation import ForeignOperation, assign_identifiers, to_identifier
from athena.core.threads import run_sync
from athena.discovery.entry import ToolEntry, create_operation_entry
from athena.discovery.finder import ToolFinder
from athena.embedding.embedder import Embedder
from athena.embedding.encoder import Encoder
from athena.errors import InvalidInput
from athena.gateway.approvals import ApprovedTool, create_definition

FIRST_PLACES = (1, 3, 5)
POLL_S = 0.05
Ranks = list[int | None]  # of the right tool for each request, from 0; None if it is not in the answer


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


def measure_tools(
    collection: ToolCollection, embedder: Embedder, other_embedder: Embedder | None = None
) -> dict[str, Any]:
    """Rank the tools for each request, by words alone and with the model, and summarise the ranks.

    With another model, also say by how much the ranks with it differ.
    """
    by_words, by_meaning = _rank_with_model(collection, embedder)
    figures = {
        "tools": len(collection.entries),
        "requests": len(collection.requests),
        "words alone": summarise_ranks(by_words),
        "words and meaning": summarise_ranks(by_meaning),
    }
    if other_embedder is not None:
        _, by_other = _rank_with_model(collection, other_embedder)
        figures["the other model"] = summarise_ranks(by_other)
        figures["difference"] = compare_ranks(by_meaning, by_other)
    return figures


def _rank_with_model(collection: ToolCollection, embedder: Embedder) -> tuple[Ranks, Ranks]:
    """Return the ranks by words alone, and those with the model."""
    finder = ToolFinder(Encoder(embedder))
    try:
        finder.warm_up(collection.entries)
        while not finder.vectors.is_ready:
            embedder.load()  # raises an error that says what is missing
            time.sleep(POLL_S)
        return _rank_requests(finder, collection, words_only=True), _rank_requests(finder, collection, words_only=False)
    finally:
        finder.stop()


def _rank_requests(finder: ToolFinder, collection: ToolCollection, *, words_only: bool) -> Ranks:
    """Return the rank of the first right tool for each request, from 0; None if it is not in the answer."""
    positions = {entry.path: i for i, entry in enumerate(collection.entries)}
    ranks: Ranks = []
    for request in collection.requests:
        ranked = run_sync(finder.rank(collection.entries, request.text, words_only=words_only))
        ranks.append(next((i for i, entry in enumerate(ranked) if positions[entry.path] in request.gold), None))
    return ranks


def summarise_ranks(ranks: Ranks) -> dict[str, Any]:
    """Return the share of requests with the right tool among the first, and MRR, with 95 % bootstrap intervals."""
    return {name: estimate_mean(values)._asdict() for name, values in _measure_ranks(ranks).items()}


def compare_ranks(first: Ranks, second: Ranks) -> dict[str, Any]:
    """Return for each measure by how much the second ranks of the same requests are better."""
    before, after = _measure_ranks(first), _measure_ranks(second)
    return {
        name: estimate_mean([b - a for a, b in zip(before[name], after[name], strict=True)])._asdict()
        for name in before
    }


def _measure_ranks(ranks: Ranks) -> dict[str, list[float]]:
    """Return the values of each measure, one for each request."""
    shares = {
        f"first {places}": [float(rank is not None and rank < places) for rank in ranks] for places in FIRST_PLACES
    }
    return shares | {"MRR": [0.0 if rank is None else 1 / (rank + 1) for rank in ranks]}


def print_tools_report(figures: dict[str, Any]) -> None:
    click.echo(f"\ntools: {figures['requests']} requests for {figures['tools']} tools (95 % intervals)")
    for name in ("words alone", "words and meaning", "the other model"):
        if name in figures:
            click.echo(f"{name:<20}" + "".join(map(_format_measure, figures[name].items())))
    for name, difference in figures.get("difference", {}).items():
        click.echo(f"difference: {name} {Estimate(**difference).format_signed()}")


def _format_measure(measure: tuple[str, dict[str, Any]]) -> str:
    name, figures = measure
    low, high = figures["interval"]
    return f"   {name} {figures['mean']:.3f} ({low:.3f} to {high:.3f})"
