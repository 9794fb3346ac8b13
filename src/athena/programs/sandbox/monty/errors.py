"""Monty's exceptions as errors for agents."""

import ast
import re
from collections.abc import Mapping

from athena.programs.sandbox.calls import CallError
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.monty.client import MontyCrashed, MontyRaised
from athena.programs.sandbox.source import ProgramSource
from athena.programs.sandbox.values import Failure, create_failure

# If a call does not fit a function that the program defines, Monty reports the line of the function, not of the call.
_ARGUMENT_ERROR_PATTERN = re.compile(
    r"(?:\w+\.)*(?P<name>\w+)\(\) (?:missing .*|takes .* positional arguments? but (?P<given>\d+) (?:was|were) given)"
)

HINT_MARK = " (hint: "  # in the message of an error that the driver or the prelude raises


def to_failure(
    error: MontyRaised, feed: int, source: ProgramSource, limits: Limits, call_errors: Mapping[str, CallError]
) -> Failure:
    """Return the error and its line."""
    kind, message = error.type, error.message
    lines = [line for filename, line in error.frames if filename == f"<python-input-{feed}>"]
    line = lines[-1] if lines else None
    if kind == "TypeError" and (argument_error := _ARGUMENT_ERROR_PATTERN.fullmatch(message)):
        line = _find_call_line(source, argument_error)
    lower = message.lower()
    if call_error := call_errors.get(message):
        return create_failure(call_error.exception_type, call_error._replace(hint=None).text, line, call_error.hint)
    if kind == "RuntimeError" and message.startswith("limit_exceeded: an argument"):  # raised by the prelude
        kind = "ToolError"
    if kind == "MemoryError" and "limit" in lower:
        limit_message = f"more than {limits.memory_mb} MB of memory (limit memory_mb)"
        return create_failure(kind, limit_message, line, "work on less at a time", "memory_mb")
    if kind == "TimeoutError" and "limit" in lower:
        limit_message = f"more than {limits.cpu_s:g} s of computing (limit cpu_s)"
        if "turn" in lower:
            limit_message = f"more than {limits.turn_s:g} s of computing between two calls (limit turn_s)"
        which = "turn_s" if "turn" in lower else "cpu_s"
        return create_failure(kind, limit_message, line, "the program itself computes too long", which)
    if "exceptions can only be called with" in message:
        limit_message = "an exception takes one text at most on Monty"
        return create_failure(
            "TypeError", limit_message, line, 'write raise ValueError(f"... {value}"), or run it with engine="python"'
        )
    if kind == "RecursionError":
        return create_failure(kind, message, line, "use a loop, or recurse less deeply")
    if "suspension" in lower:
        return create_failure("LimitExceeded", message, line, limit="calls")
    text, _, hint = message.removesuffix(")").partition(HINT_MARK)
    if hint and message.endswith(")"):
        return create_failure(kind, text, line, hint)
    return create_failure(kind, message, line)


def _find_call_line(source: ProgramSource, argument_error: re.Match[str]) -> int | None:
    """Return the line of the call that an error message is about; None if several fit."""
    missing = re.findall(r"'(\w+)'", argument_error.string)
    lines = set()
    for node in source.nodes:
        if not isinstance(node, ast.Call) or _last_name(node.func) != argument_error["name"]:
            continue
        spread = any(isinstance(value, ast.Starred) for value in node.args)
        spread = spread or any(keyword.arg is None for keyword in node.keywords)
        argument_count = len(node.args) + isinstance(node.func, ast.Attribute)  # a method has one more
        count = argument_error["given"] is None or argument_count == int(argument_error["given"])
        named = any(keyword.arg in missing for keyword in node.keywords)
        if spread or (count and not named):
            lines.add(node.lineno)
    return lines.pop() if len(lines) == 1 else None


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def describe_crash(error: MontyCrashed) -> Failure:
    text = str(error)
    if "memory" in text.lower():
        return create_failure(
            "MemoryError", "the worker exceeded its memory and was ended (limit memory_mb)", limit="memory_mb"
        )
    if error.timed_out or "duration" in text.lower() or "time limit" in text.lower():
        return create_failure(
            "TimeoutError", "one operation of the program computed too long (limit cpu_s)", limit="cpu_s"
        )
    return create_failure("WorkerDied", "the process that ran the program ended unexpectedly")
