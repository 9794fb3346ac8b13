"""What a model reads of a result: few words, never more than a budget, and how to get at the rest."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from athena.core import tokens
from athena.core.catalog import AnyOperation
from athena.core.types import plain
from athena.errors import AthenaError
from athena.memory.values import Hit, Memory, Stored
from athena.programs.values import Result

BUDGET = 2_000  # tokens of an answer
WIDEST = BUDGET * tokens.LONGEST  # characters that have more tokens than that: the rest need not be counted
NOTE = 40  # tokens of what is said of a cut
LONGEST = 600  # characters of a memory in a list
WHOLE = "memory.get_memory(memory_id=...) in execute_code shows one whole"
OUTCOMES = {"new": "kept", "known": "known already", "revived": "kept again", "updated": "changed"}


def written(operation: AnyOperation, arguments: Mapping[str, Any], result: Any) -> str:
    """Write a result as text."""
    if isinstance(result, str):
        return _cut(result)
    if isinstance(result, Result):
        return run(result)
    if isinstance(result, Stored):
        return _stored(result)
    if isinstance(result, list | tuple):
        return _listed(operation, arguments, result)
    return _cut(_json(result))


def failure(error: AthenaError) -> str:
    """Write an error with what to do next."""
    return f"{error}\nhint: {error.hint}" if error.hint else str(error)


def is_failure(result: Any) -> bool:
    """Tell whether a result is that of a program that failed; one that waits for a person has not."""
    return isinstance(result, Result) and not result.success and result.status != "needs_approval"


def run(done: Result) -> str:
    """Write what came of a program: what it printed, its value, what went wrong."""
    output, value, last = done.output.rstrip("\n"), "", _last_words(done)
    if done.result is not None:
        value = done.result if isinstance(done.result, str) else _json(done.result)
        value = f"result: {value}" if output.strip() else value
    room = BUDGET - sum(tokens.count(line) + 1 for line in last)
    value = _part(value, max(room // 2, room - tokens.count(output)), UNSEEN if done.handle is None else "")
    output = _part(output, room - tokens.count(value), UNPRINTED) if output.strip() else ""
    parts = [part for part in (output, value, *last) if part]
    return "\n".join(parts) or "done; it printed nothing and its last line has no value"


UNSEEN = "; end the program in less, or keep it: workspace.write(path=..., content=...)"
UNPRINTED = "; print less, or write it to a file: workspace.write(path=..., content=...)"


def _last_words(done: Result) -> list[str]:
    """Write what comes after what was printed: where all of it is, and what went wrong."""
    lines = [f'[cut; all of it: workspace.read(path="{done.handle}")]'] if done.handle else []
    if done.error is not None:
        where = "" if done.error.line is None else f" (line {done.error.line})"
        lines.append(f"{done.error.type}: {tokens.head(done.error.message, BUDGET // 3)}{where}")
        if done.error.hint:
            lines.append(f"hint: {tokens.head(done.error.hint, BUDGET // 3)}")
    return lines


def _part(text: str, room: int, otherwise: str) -> str:
    """Return a text, or its beginning and how to get at the rest."""
    if tokens.fits(text, room):
        return text
    shown = tokens.head(text, room - NOTE)
    return f"{shown}…\n[cut: {len(shown):,} of {len(text):,} characters{otherwise}]"


def _stored(memory: Stored) -> str:
    taken = f"; taken out before storing: {', '.join(memory.redacted)}" if memory.redacted else ""
    return f"{memory.hash} {OUTCOMES.get(memory.outcome, memory.outcome)}{taken}"


def _listed(operation: AnyOperation, arguments: Mapping[str, Any], items: Any) -> str:
    """Write a list a line for each item, as many as fit, and say how to see the others."""
    if not items:
        nothing = "nothing fits; try other words" if operation.name == "search_tools" else "[]"
        return "nothing found" if operation.result == list[Hit] else nothing
    write = _writer(items[0])
    lines: list[str] = []
    spent = 0
    for item in items:
        line = write(item)
        spent += tokens.count(line[:WIDEST]) + 1
        if spent > BUDGET and lines:
            break
        lines.append(line)
    cut = [WHOLE] if any(line.endswith("…") for line in lines) and isinstance(items[0], Memory) else []
    if left := _total(items, arguments) - len(lines):
        cut.insert(0, f"{left} more: {_further(operation, arguments, len(lines))}")
    if len(lines) == 1 and not isinstance(items[0], Memory):
        lines[0] = _cut(lines[0])
    return "\n".join([*lines, f"[{'; '.join(cut)}]"] if cut else lines)


def _total(items: Any, arguments: Mapping[str, Any]) -> int:
    """Return how many there are from here on; of what a search found, how many it was asked for."""
    if isinstance(items[0], Hit):
        return len(items)
    return max(len(items), getattr(items, "total", 0) - int(arguments.get("offset") or 0))


def _further(operation: AnyOperation, arguments: Mapping[str, Any], shown: int) -> str:
    if "offset" in operation.names:
        return f"offset={int(arguments.get('offset') or 0) + shown}"
    return "look at all of them in a program, with execute_code"


def _writer(first: Any) -> Callable[[Any], str]:
    if isinstance(first, str):
        return str
    return _memory if isinstance(first, Memory) else _json


def _memory(memory: Memory) -> str:
    """Write a memory with what tells it apart."""
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
    text = memory.content
    return " ".join([*facts, text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…"])


def _json(value: Any) -> str:
    return json.dumps(_without_nulls(plain(value)), ensure_ascii=False, separators=(",", ":"))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _cut(text: str) -> str:
    """Return a text, or as much of it as the budget allows."""
    return _part(text, BUDGET, "; in a program, with execute_code, all of it is at hand")
