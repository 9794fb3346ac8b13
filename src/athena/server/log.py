"""The log of the server: lines of JSON on standard error, without secrets and personal values."""

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from athena.core.redaction.personal import PersonalRules, mask_private

MASKED_FACTS = frozenset({"error", "message", "path", "project"})  # the others are words and numbers of ours


class JsonLogHandler(logging.Handler):
    """Writes the records of uvicorn and asyncio as our log lines, the same record at most once a second."""

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


def write_log_line(facts: dict[str, Any], rules: PersonalRules = PersonalRules()) -> None:  # noqa: B008  # a tuple
    """Write one line; `rules` are the names and patterns of the settings."""
    masked = {name: mask_private(facts[name], rules) for name in MASKED_FACTS & facts.keys()}
    line = {"at": round(time.time(), 3), **facts, **masked}
    print(json.dumps(line, ensure_ascii=False), file=sys.stderr, flush=True)
