"""The log of a server: lines of JSON on standard error. With DEBUG=1 it also tells of every call."""

import json
import logging
import os
import sys
import time
from typing import Any

from athena.core.redaction.personal import mask_private


def is_debugging() -> bool:
    return os.environ.get("DEBUG", "") not in ("", "0")


def start_log() -> None:
    """Write what uvicorn, asyncio and our own modules log as lines of JSON; with DEBUG=1 also what is no warning."""
    logging.getLogger().addHandler(_JsonLogHandler())
    if is_debugging():
        logging.getLogger("athena").setLevel(logging.DEBUG)
        logging.getLogger("uvicorn").setLevel(logging.INFO)


def write_log_line(facts: dict[str, Any]) -> None:
    print(json.dumps({"at": round(time.time(), 3), **facts}, ensure_ascii=False), file=sys.stderr, flush=True)


def log_call(operation: str, surface: str, outcome: str, elapsed_s: float, error: Exception | None) -> None:
    """Write a line about a call, with DEBUG=1 alone: never its arguments, and of an error nothing private."""
    if not is_debugging():
        return
    facts = {"event": "call", "operation": operation, "surface": surface, "outcome": outcome}
    failure = {} if error is None else {"error": mask_private(f"{type(error).__name__}: {error}"[:500])}
    write_log_line({**facts, "ms": round(elapsed_s * 1000, 1), **failure})


class _JsonLogHandler(logging.Handler):
    """Writes records as our log lines, the same record at most once a second."""

    _last_record: tuple[str, float] = ("", 0.0)

    def emit(self, record: logging.LogRecord) -> None:
        if self._last_record[0] == record.msg and record.created < self._last_record[1] + 1:
            return
        self._last_record = str(record.msg), record.created
        facts = {"event": record.name, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            facts["error"] = logging.Formatter().formatException(record.exc_info)
        write_log_line({name: mask_private(text) for name, text in facts.items()})
