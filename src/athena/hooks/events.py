"""Session hooks: a coding agent's events in as its client's JSON, and what it should know out.

Everything in that JSON is data: it is looked up, recorded and compared, never run. The answer is the client's own JSON,
or nothing at all, which is what most events get.
"""

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, ParamSpec, TypeVar

from athena.core import redaction
from athena.core.call import HOOK
from athena.core.home.paths import DEFAULT_PROJECT, current_project
from athena.core.invoke import invoke
from athena.core.scope import Scope
from athena.core.text import storable
from athena.core.threads import Crew, aside, running_loop
from athena.hooks import transcript
from athena.memory.sessions.briefing_values import Briefing, Surroundings
from athena.memory.sessions.events import project_of
from athena.operations.context import Context

T = TypeVar("T")
P = ParamSpec("P")
LONGEST = 9_500  # characters of an answer: clients replace a longer one by its beginning
EVERY = "*"  # all events
KEY = "ATHENA_HOOK_ID"  # the variable by which a client tells one event from another
READ = 20_000  # characters of a text that are looked at
TOLD = 300  # characters of an event that is recorded
SUMMED_UP = 600  # characters of what a turn ended with
LEAST_WORK = 40  # characters of an answer that says what was done
LONGEST_SESSION = 200
LONGEST_TOOL = 1e10  # milliseconds
# Tools that only look, and our own, whose calls are recorded already.
QUIET = (
    "Read", "Grep", "Glob", "LS", "NotebookRead", "TodoWrite", "TodoRead", "ToolSearch", "ExitPlanMode",
    "read_file", "read_many_files", "list_directory", "glob", "search_file_content", "grep_search", "write_todos",
)  # fmt: skip
OWN = ("mcp__athena", "mcp__plugin_athena", "mcp_athena")
SHELLS = ("Bash", "run_shell_command")
TELLING = ("session-start", "user-prompt-submit")  # events that are answered; of the others something is kept
_lookers = Crew(2, "athena-folders")
AFRESH = ("compact", "clear")  # ways to start from which the session does not know what it was told before


@dataclass(frozen=True)
class Rules:
    """What people decided about hooks."""

    budget_tokens: int = 900
    off: frozenset[str] = frozenset()  # events that are switched off, or "*"
    projects: Mapping[str, frozenset[str]] = field(default_factory=dict)  # of a project or a folder, those that are
    enable_metrics: bool = False

    def allow(self, event: str, project: str, folder: str | None = None) -> bool:
        """Tell whether an event of a session is answered: its project and every folder around it must agree."""
        places = {project, *_around(project)} | (_around(os.path.realpath(folder)) if folder else set())
        off = self.off.union(*(events for name, events in self.projects.items() if name in places))
        return not {event, EVERY} & off


def _around(path: str) -> set[str]:
    """Return a folder and all above it; of what is no path, nothing."""
    found: set[str] = set()
    while os.path.isabs(path) and path not in found:
        found.add(path)
        path = os.path.dirname(path)
    return found


class Asked(NamedTuple):
    """One event: what the client said, and how to call operations for its project."""

    said: dict[str, Any]
    ctx: Context
    rules: Rules
    folder: str | None
    session: str | None

    async def call(self, operation: str, **arguments: Any) -> Any:
        return await invoke(self.ctx.catalog, operation, arguments, self.ctx)

    def text(self, name: str, longest: int = READ) -> str:
        """Return a text that the client gave, such as can be stored."""
        value = self.said.get(name)
        return storable(value[:longest]).strip() if isinstance(value, str) else ""


async def answer(
    event: str,
    given: bytes,
    ctx: Context,
    rules: Rules,
    *,
    hurry: bool = False,
    project: str | None = None,
    key: str | None = None,
) -> bytes:
    """Return what to tell the client of an event, as its JSON; nothing where there is nothing to say.

    The project is the caller's own `ATHENA_PROJECT` if `project` says so, else the git root of the folder that
    the client names. Outside of git nothing is recorded, since all such folders are one project. In a hurry no model
    is loaded: words, tags and time decide. What is written with a `key` is written once, since whoever gave up waiting
    does the same event again.
    """
    said = read(given)
    named = named_by(said)
    folder = await _look(folder_of, said)
    found = project or await _project(ctx, said, named, folder is None)
    if event not in EVENTS or not said or found is None or not rules.allow(event, found, named):
        return b""
    if event not in TELLING and project is None and found == DEFAULT_PROJECT:
        return b""
    scope = Scope.named(found)
    store = ctx.store._replace(encoder=ctx.store.encoder.at_rest()) if hurry else ctx.store
    inside = replace(ctx, scope=scope, store=store, surface=HOOK, key=_key(event, key))
    told = await EVENTS[event](Asked(said, inside, rules, folder, _session(said)))
    return json.dumps(told, ensure_ascii=False).encode() if told else b""


def read(given: bytes) -> dict[str, Any]:
    """Return the client's JSON object; what is none is an empty one."""
    try:
        said = json.loads(given.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


async def _project(ctx: Context, said: dict[str, Any], folder: str | None, gone: bool) -> str | None:
    """Return the project of a folder; of one that is gone, that of its session's last event, or of what is around it.

    None where neither is known: what all folders without a project share is no place for somebody's own.
    """
    if folder is None or not gone:
        return await _look(current_project, {}, folder) if folder else DEFAULT_PROJECT
    session = _session(said)
    known = await project_of(ctx.store, session) if session else None
    around = known or await _look(current_project, {}, folder)
    return around if around != DEFAULT_PROJECT else None


async def _look(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Look at a folder, which may be on a disk that never answers: only events of such folders wait for it."""
    return function(*args, **kwargs) if running_loop() is None else await _lookers.start(function, *args, **kwargs)


def named_by(said: dict[str, Any]) -> str | None:
    """Return the folder that the client names, which need not be there any more."""
    roots = said.get("workspace_roots")  # as Cursor has it
    folder = said.get("cwd") or (roots[0] if isinstance(roots, list) and roots else None)
    if not isinstance(folder, str) or not os.path.isabs(folder) or storable(folder) != folder or len(folder) > 4_096:
        return None
    return folder


def folder_of(said: dict[str, Any]) -> str | None:
    """Return the folder that a session works in, if it is there."""
    folder = named_by(said)
    return folder if folder and os.path.isdir(folder) else None


def _key(event: str, key: str | None) -> str | None:
    """Return under which key an event is kept; not one of its input, as the same can happen twice."""
    return f"hook {event} {key}" if key and len(key) <= 64 and key.isalnum() and key.isascii() else None


def _session(said: dict[str, Any]) -> str | None:
    name = said.get("session_id") or said.get("conversation_id")
    return (storable(name[:LONGEST_SESSION]).strip() or None) if isinstance(name, str) else None


Answer = dict[str, Any] | None


async def session_start(asked: Asked) -> Answer:
    from athena.hooks import git  # it starts processes, and the library for that is slow to load

    around = await aside(git.look, asked.folder) if asked.folder else Surroundings()
    briefing: Briefing = await asked.call(
        "briefing",
        budget_tokens=max(50, min(asked.rules.budget_tokens, 20_000)),
        branch=around.branch,
        files=list(around.files),
        commits=list(around.commits),
        session_id=asked.session,
        again=asked.said.get("source") in AFRESH,
    )
    told = _context("SessionStart", briefing)
    if told and asked.rules.enable_metrics:
        told["systemMessage"] = (
            f"Athena: {len(briefing.told)} things from memory in {briefing.tokens} tokens"
            f" (as tool results: {briefing.direct})"
        )
    return told


async def user_prompt(asked: Asked) -> Answer:
    if not (prompt := asked.text("prompt")):
        return None
    return _context("UserPromptSubmit", await asked.call("remind", prompt=prompt, session_id=asked.session))


def _context(name: str, briefing: Briefing) -> Answer:
    if not briefing.text:
        return None
    return {"hookSpecificOutput": {"hookEventName": name, "additionalContext": briefing.text}}


async def tool_used(asked: Asked) -> Answer:
    tool = asked.text("tool_name", 200)
    if not tool or tool in QUIET or tool.startswith(OWN):
        return None
    given, got = (asked.said.get(name) for name in ("tool_input", "tool_response"))
    await asked.call(
        "record_event",
        event_type="command" if tool in SHELLS else "edit" if _file(given) else "tool",
        content=_did(tool, given, asked.folder),
        outcome="failure" if asked.said.get("hook_event_name") == "PostToolUseFailure" else _outcome(got),
        session_id=asked.session,
        duration_ms=_took(asked.said.get("duration_ms")),
        metadata={"tool": tool},
    )
    return None


def _took(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= LONGEST_TOOL else None


def _file(given: object) -> str | None:
    if not isinstance(given, dict):
        return None
    path = given.get("file_path") or given.get("notebook_path")
    return path if isinstance(path, str) else None


def _did(tool: str, given: object, folder: str | None) -> str:
    """Say in a line what a tool was used for."""
    if path := _file(given):
        inside = folder and path.startswith(folder.rstrip("/") + "/")
        return compact(f"{tool} {path[len(folder.rstrip('/')) + 1 :] if inside and folder else path}")
    if isinstance(given, dict):
        for name in ("command", "description", "prompt", "query", "url", "pattern"):
            if isinstance(given.get(name), str) and given[name].strip():
                return compact(f"{tool}: {given[name]}")
        return compact(f"{tool} {json.dumps(given, ensure_ascii=False, default=str)[:READ]}") if given else tool
    return tool


def _outcome(got: object) -> str:
    if not isinstance(got, dict):
        return "success"
    if got.get("interrupted") is True:
        return "aborted"
    failed = got.get("is_error") is True or got.get("success") is False or bool(got.get("error"))
    code = got.get("exit_code", got.get("exitCode", got.get("returncode")))
    return "failure" if failed or (isinstance(code, int) and code != 0) else "success"


def compact(text: str, longest: int = TOLD) -> str:
    """Return a text on one line without secrets, which are looked for before anything is cut."""
    line = " ".join(redaction.redact(storable(text[:READ])).text.split())
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


async def before_compaction(asked: Asked) -> Answer:
    how = asked.text("trigger", 40) or "auto"
    await asked.call(
        "record_event", event_type="compaction", content=f"context compacted ({how})", session_id=asked.session
    )
    return None


async def after_compaction(asked: Asked) -> Answer:
    if (summary := asked.text("compact_summary", 200_000)) and asked.session:
        await asked.call("learn", session_id=asked.session, summary=summary)
    return None


async def turn_ended(asked: Asked) -> Answer:
    done = asked.text("last_assistant_message") or asked.text("prompt_response")  # the second as Gemini has it
    from athena.memory.sessions.extract import substance  # slow to load

    if len(done) >= LEAST_WORK and len(substance(done)) >= LEAST_WORK:
        content = compact(done, SUMMED_UP)
        await asked.call("record_event", event_type="work", content=content, session_id=asked.session)
    return None


async def session_ended(asked: Asked) -> Answer:
    if asked.session is None:
        return None
    said = await aside(transcript.read, asked.said.get("transcript_path"))
    if said:
        messages = [{"role": one.role, "text": storable(one.text)} for one in said]
        await asked.call("learn", session_id=asked.session, messages=messages)
    return None


EVENTS: dict[str, Callable[[Asked], Awaitable[Answer]]] = {
    "session-start": session_start,
    "user-prompt-submit": user_prompt,
    "post-tool-use": tool_used,
    "pre-compact": before_compaction,
    "post-compact": after_compaction,
    "stop": turn_ended,
    "session-end": session_ended,
}
