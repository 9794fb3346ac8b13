"""The log of a server: lines of JSON on standard error, without secrets and personal values.

With DEBUG=1 it also tells of every call.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from athena.core.redaction.personal import PersonalRules, mask_private

MASKED_FACTS = frozenset({"error", "message", "path", "project"})  # the others are words and numbers of ours


def is_debugging() -> bool:
    return os.environ.get("DEBUG", "") not in ("", "0")


def start_log(write: Callable[[dict[str, Any]], None]) -> None:
    """Write what uvicorn, asyncio and our own modules log as lines of JSON; with DEBUG=1 also what is no warning."""
    logging.getLogger().addHandler(_JsonLogHandler(write))
    if is_debugging():
        logging.getLogger("athena").setLevel(logging.DEBUG)
        logging.getLogger("uvicorn").setLevel(logging.INFO)


def write_log_line(facts: dict[str, Any], rules: PersonalRules = PersonalRules()) -> None:  # noqa: B008  # a tuple
    """Write one line; `rules` are the names and patterns of the settings."""
    masked = {name: mask_private(facts[name], rules) for name in MASKED_FACTS & facts.keys()}
    line = {"at": round(time.time(), 3), **facts, **masked}
    print(json.dumps(line, ensure_ascii=False), file=sys.stderr, flush=True)


def log_call(operation: str, surface: str, outcome: str, elapsed_s: float, error: Exception | None) -> None:
    """Write a line about a call, with DEBUG=1 alone: never its arguments, and of an error nothing private."""
    if not is_debugging():
        return
    facts = {"event": "call", "operation": operation, "surface": surface, "outcome": outcome}
    failure = {} if error is None else {"error": f"{type(error).__name__}: {error}"[:500]}
    write_log_line({**facts, "ms": round(elapsed_s * 1000, 1), **failure})


class _JsonLogHandler(logging.Handler):
    """Writes records as our log lines, the same record at most once a second."""

    _last_record: tuple[str, float] = ("", 0.0)

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        if self._last_record[0] == record.msg and record.created < self._last_record[1] + 1:
            return
        self._last_record = str(record.msg), record.created
        facts = {"event": record.name, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            facts["error"] = logging.Formatter().formatException(record.exc_info)
        self._write(facts)
