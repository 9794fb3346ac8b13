"""Session hooks: a coding agent's events in as its client's JSON, and what it should know out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from athena.home import DEFAULT_PROJECT, current_project
from athena.model.scope import Scope
from athena.operations.context import Context

EVENTS = (
    "session-start",
    "user-prompt-submit",
    "post-tool-use",
    "pre-compact",
    "post-compact",
    "stop",
    "session-end",
)
LONGEST = 9_500  # characters of an answer: clients replace a longer one by its beginning
EVERY = "*"  # all events


@dataclass(frozen=True)
class Rules:
    """What people decided about hooks."""

    budget_tokens: int = 900
    off: frozenset[str] = frozenset()  # events that are switched off
    projects: Mapping[str, frozenset[str]] = field(default_factory=dict)  # of a project, those that are; or "*"
    enable_metrics: bool = False

    def allow(self, event: str, project: str) -> bool:
        there = self.projects.get(project, frozenset())
        return not ({event, EVERY} & self.off) and not ({event, EVERY} & there)


async def answer(
    event: str, given: bytes, ctx: Context, rules: Rules, *, hurry: bool = False, project: str | None = None
) -> bytes:
    """Return what to tell the client of an event, as its JSON; nothing where there is nothing to say.

    The project is the caller's own `ATHENA_PROJECT` if `project` says so, else the git root of the folder that
    the client names. In a hurry no model is loaded: words, tags and time decide.
    """
    said = read(given)
    folder = said.get("cwd")
    scope = Scope.named(project or (current_project({}, folder) if isinstance(folder, str) else DEFAULT_PROJECT))
    if event not in EVENTS or not rules.allow(event, scope.project):
        return b""
    replace(ctx, scope=scope)
    return b""


def read(given: bytes) -> dict[str, Any]:
    """Return the client's JSON object; what is none is an empty one."""
    try:
        said = json.loads(given)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
