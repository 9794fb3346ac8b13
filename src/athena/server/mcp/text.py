"""Format results as text for a model: short, within a token budget, with a hint how to get the rest."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from athena.app.compact import format_weaker
from athena.core import tokens
from athena.core.catalog import AnyOperation
from athena.core.types import to_json
from athena.errors import AthenaError
from athena.memory.values import Hit, Memory, Stored
from athena.programs.values import Result
from athena.server.admission import dump_json

MAX_ANSWER_TOKENS = 2_000
MAX_COUNTED_CHARS = MAX_ANSWER_TOKENS * tokens.MAX_TOKEN_BYTES  # a longer line is over the budget anyway
CUT_NOTE_TOKENS = 40
MAX_MEMORY_CHARS = 600
FULL_HINT = "…: cut; full=true shows all"
WHOLE_MEMORY_HINT = "memory.get_memory(memory_id=...) in execute_code shows one whole"
OUTCOME_TEXTS = {"new": "kept", "known": "known already", "revived": "kept again", "updated": "changed"}


def format_result(operation: AnyOperation, arguments: Mapping[str, Any], result: Any) -> str:
    """Return a result as text."""
    if isinstance(result, str):
        return _cut_to_budget(result)
    if isinstance(result, Result):
        return format_run(result)
    if isinstance(result, Stored):
        return _format_stored(result)
    if isinstance(result, list | tuple):
        return _format_list(operation, arguments, result)
    return _cut_to_budget(_dump_json(result))


def format_error(error: AthenaError) -> str:
    """Return an error with its hint."""
    return f"{error}\nhint: {error.hint}" if error.hint else str(error)


def is_failed_run(result: Any) -> bool:
    """Return whether a result is a program that failed; one that waits for approval has not."""
    return isinstance(result, Result) and not result.success and result.status != "needs_approval"


def format_run(done: Result) -> str:
    """Return the outcome of a program: its output, its value, its error."""
    output, value, last = done.output.rstrip("\n"), "", _format_run_end(done)
    if done.result is not None:
        value = done.result if isinstance(done.result, str) else _dump_json(done.result)
        value = f"result: {value}" if output.strip() else value
    room = tokens.reduce_budget(MAX_ANSWER_TOKENS) - sum(tokens.count_tokens(line) + 1 for line in last)
    value = _cut_to_tokens(
        value, max(room // 2, room - tokens.count_tokens(output)), RESULT_CUT_HINT if done.handle is None else ""
    )
    output = _cut_to_tokens(output, room - tokens.count_tokens(value), OUTPUT_CUT_HINT) if output.strip() else ""
    parts = [part for part in (output, value, *last) if part]
    return "\n".join(parts) or "done; it printed nothing and its last line has no value"


RESULT_CUT_HINT = "; end the program in less, or keep it: workspace.write(path=..., content=...)"
OUTPUT_CUT_HINT = "; print less, or write it to a file: workspace.write(path=..., content=...)"


def _format_run_end(done: Result) -> list[str]:
    """Return the lines after the output: where to find all of it, and the error."""
    lines = [f'[cut; all of it: workspace.read(path="{done.handle}")]'] if done.handle else []
    if done.error is not None:
        where = "" if done.error.line is None else f" (line {done.error.line})"
        lines.append(
            f"{done.error.type}: {tokens.truncate_to_tokens(done.error.message, MAX_ANSWER_TOKENS // 3)}{where}"
        )
        if done.error.hint:
            lines.append(f"hint: {tokens.truncate_to_tokens(done.error.hint, MAX_ANSWER_TOKENS // 3)}")
    return lines


def _cut_to_tokens(text: str, room: int, hint: str) -> str:
    """Return a text, or its beginning with a hint how to get the rest."""
    if tokens.fits_token_limit(text, room):
        return text
    shown = tokens.truncate_to_tokens(text, room - CUT_NOTE_TOKENS)
    return f"{shown}…\n[cut: {len(shown):,} of {len(text):,} characters{hint}]"


def _format_stored(memory: Stored) -> str:
    taken = f"; taken out before storing: {', '.join(memory.redacted)}" if memory.redacted else ""
    return f"{memory.hash} {OUTCOME_TEXTS.get(memory.outcome, memory.outcome)}{taken}"


def _format_list(operation: AnyOperation, arguments: Mapping[str, Any], items: Any) -> str:
    """Return one line for each item, as many as fit, and a hint how to see the others."""
    if not items:
        if weaker := getattr(items, "weaker", 0):
            return f"nothing found; {format_weaker(weaker)}"
        nothing = "nothing fits; try other words" if operation.name == "search_tools" else "[]"
        return "nothing found" if operation.result_type == list[Hit] else nothing
    write = _select_formatter(items[0])
    lines: list[str] = []
    spent = 0
    for item in items:
        line = write(item)
        spent += tokens.count_tokens(line[:MAX_COUNTED_CHARS]) + 1
        if spent > tokens.reduce_budget(MAX_ANSWER_TOKENS) and lines:
            break
        lines.append(line)
    cut = []
    if isinstance(items[0], Hit):
        cut = [FULL_HINT] if any(hit.cut for hit in items[: len(lines)]) else []
    elif isinstance(items[0], Memory) and any(line.endswith("…") for line in lines):
        cut = [WHOLE_MEMORY_HINT]
    if weaker := getattr(items, "weaker", 0):
        cut.append(format_weaker(weaker))
    if hidden := _count_total(items, arguments) - len(lines):
        cut.insert(0, f"{hidden} more: {_format_next_page(operation, arguments, items, len(lines))}")
    if len(lines) == 1:
        lines[0] = _cut_to_budget(lines[0])
    return "\n".join([*lines, f"[{'; '.join(cut)}]"] if cut else lines)


def _count_total(items: Any, arguments: Mapping[str, Any]) -> int:
    """Return how many items there are from the offset on; for a search or a page after one, how many it returned."""
    if isinstance(items[0], Hit) or arguments.get("after") is not None:
        return len(items)
    return max(len(items), getattr(items, "total", 0) - int(arguments.get("offset") or 0))


def _format_next_page(operation: AnyOperation, arguments: Mapping[str, Any], items: Any, shown: int) -> str:
    if arguments.get("after") is not None:
        return f"after={items[shown - 1].hash}"
    if "offset" in operation.parameter_names:
        return f"offset={int(arguments.get('offset') or 0) + shown}"
    return "look at all of them in a program, with execute_code"


def _select_formatter(first: Any) -> Callable[[Any], str]:
    if isinstance(first, str):
        return str
    return _format_memory if isinstance(first, Memory) else _dump_json


def _format_memory(memory: Memory) -> str:
    """Return a memory as one line, with hash, score, day and tags."""
    facts = [memory.hash]
    if isinstance(memory, Hit):
        facts.append(f"{memory.score:.2f}")
    facts.append(time.strftime("%Y-%m-%d", time.localtime(memory.created)))
    if memory.tags:
        facts.append(f"[{', '.join(memory.tags)}]")
    if isinstance(memory, Hit) and memory.kind != "memory":
        facts.append(f"({memory.kind})")
    if isinstance(memory, Hit) and memory.contradicted_by is not None:
        facts.append(f"(a newer one says otherwise: {memory.contradicted_by})")
    if isinstance(memory, Hit) and memory.place:
        facts.append(f"({memory.place})")
    text = memory.content
    if isinstance(memory, Hit):  # its text is a passage, or the caller asked for all of it
        return " ".join([*facts, text])
    return " ".join([*facts, text if len(text) <= MAX_MEMORY_CHARS else text[: MAX_MEMORY_CHARS - 1].rstrip() + "…"])


def _dump_json(value: Any) -> str:
    return dump_json(_without_nulls(to_json(value)), in_pieces=True).decode()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _cut_to_budget(text: str) -> str:
    """Return as much of a text as the budget allows."""
    return _cut_to_tokens(
        text, tokens.reduce_budget(MAX_ANSWER_TOKENS), "; in a program, with execute_code, all of it is at hand"
    )
