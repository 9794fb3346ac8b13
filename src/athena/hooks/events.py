"""Session hooks: a coding agent's events in as its client's JSON, and what it should know out.

Everything in that JSON is data: it is looked up, recorded and compared, never run. The answer is the client's own JSON,
or nothing at all, which is what most events get.
"""

import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, NamedTuple, ParamSpec, TypeVar

from athena.app.settings import HookRules
from athena.core import redaction
from athena.core.catalog import invoke
from athena.core.home.paths import DEFAULT_PROJECT, current_project
from athena.core.text import make_storable
from athena.core.threads import ThreadPool, get_running_loop, run_in_thread
from athena.core.values import HOOK_SURFACE, Scope
from athena.hooks import transcript
from athena.memory.sessions.events import get_session_project
from athena.memory.sessions.values import Briefing, GitContext
from athena.operations.context import Context

T = TypeVar("T")
P = ParamSpec("P")
MAX_ANSWER_CHARS = 9_500  # characters of an answer: clients replace a longer one by its beginning
HOOK_ID_VARIABLE = "ATHENA_HOOK_ID"  # the variable by which a client tells one event from another
MAX_READ_CHARS = 20_000  # characters of a text that are looked at
MAX_EVENT_CHARS = 300  # characters of an event that is recorded
MAX_WORK_CHARS = 600  # characters of what a turn ended with
MIN_WORK_CHARS = 40  # characters of an answer that says what was done
MAX_SESSION_ID_CHARS = 200
MAX_TOOL_DURATION_MS = 1e10  # milliseconds
# Tools that only look, and our own, whose calls are recorded already.
UNRECORDED_TOOLS = (
    "Read", "Grep", "Glob", "LS", "NotebookRead", "TodoWrite", "TodoRead", "ToolSearch", "ExitPlanMode",
    "read_file", "read_many_files", "list_directory", "glob", "search_file_content", "grep_search", "write_todos",
)  # fmt: skip
OWN_TOOL_PREFIXES = ("mcp__athena", "mcp__plugin_athena", "mcp_athena")
SHELL_TOOLS = ("Bash", "run_shell_command")
ANSWERED_EVENTS = ("session-start", "user-prompt-submit")  # events that are answered; of the others something is kept
_folder_threads = ThreadPool(2, "athena-folders")
RESET_SOURCES = ("compact", "clear")  # ways to start from which the session does not know what it was told before


class HookEvent(NamedTuple):
    """One event: what the client said, and how to call operations for its project."""

    payload: dict[str, Any]
    ctx: Context
    rules: HookRules
    folder: str | None
    session_id: str | None

    async def call_operation(self, operation: str, **arguments: Any) -> Any:
        return await invoke(self.ctx.catalog, operation, arguments, self.ctx)

    def get_text(self, name: str, longest: int = MAX_READ_CHARS) -> str:
        """Return a text that the client gave, such as can be stored."""
        value = self.payload.get(name)
        return make_storable(value[:longest]).strip() if isinstance(value, str) else ""


async def answer_event(
    event: str,
    given: bytes,
    ctx: Context,
    rules: HookRules,
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
    said = parse_payload(given)
    named = get_named_folder(said)
    folder = await _run_folder_check(find_folder, said)
    found = project or await _find_project(ctx, said, named, folder is None)
    if event not in EVENT_HANDLERS or not said or found is None or not rules.allows_event(event, found, named):
        return b""
    if event not in ANSWERED_EVENTS and project is None and found == DEFAULT_PROJECT:
        return b""
    scope = Scope.from_name(found)
    store = ctx.store._replace(encoder=ctx.store.encoder.without_model()) if hurry else ctx.store
    inside = replace(ctx, scope=scope, store=store, surface=HOOK_SURFACE, idempotency_key=_create_key(event, key))
    told = await EVENT_HANDLERS[event](HookEvent(said, inside, rules, folder, _get_session_id(said)))
    return json.dumps(told, ensure_ascii=False).encode() if told else b""


def parse_payload(given: bytes) -> dict[str, Any]:
    """Return the client's JSON object; what is none is an empty one."""
    try:
        said = json.loads(given.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


async def _find_project(ctx: Context, said: dict[str, Any], folder: str | None, gone: bool) -> str | None:
    """Return the project of a folder; of one that is gone, that of its session's last event, or of what is around it.

    None where neither is known: what all folders without a project share is no place for somebody's own.
    """
    if folder is None or not gone:
        return await _run_folder_check(current_project, {}, folder) if folder else DEFAULT_PROJECT
    session = _get_session_id(said)
    known = await get_session_project(ctx.store, session) if session else None
    around = known or await _run_folder_check(current_project, {}, folder)
    return around if around != DEFAULT_PROJECT else None


async def _run_folder_check(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Look at a folder, which may be on a disk that never answers: only events of such folders wait for it."""
    return (
        function(*args, **kwargs)
        if get_running_loop() is None
        else await _folder_threads.start_call(function, *args, **kwargs)
    )


def get_named_folder(said: dict[str, Any]) -> str | None:
    """Return the folder that the client names, which need not be there any more."""
    roots = said.get("workspace_roots")  # as Cursor has it
    folder = said.get("cwd") or (roots[0] if isinstance(roots, list) and roots else None)
    if (
        not isinstance(folder, str)
        or not os.path.isabs(folder)
        or make_storable(folder) != folder
        or len(folder) > 4_096
    ):
        return None
    return folder


def find_folder(said: dict[str, Any]) -> str | None:
    """Return the folder that a session works in, if it is there."""
    folder = get_named_folder(said)
    return folder if folder and os.path.isdir(folder) else None


def _create_key(event: str, key: str | None) -> str | None:
    """Return under which key an event is kept; not one of its input, as the same can happen twice."""
    return f"hook {event} {key}" if key and len(key) <= 64 and key.isalnum() and key.isascii() else None


def _get_session_id(said: dict[str, Any]) -> str | None:
    name = said.get("session_id") or said.get("conversation_id")
    return (make_storable(name[:MAX_SESSION_ID_CHARS]).strip() or None) if isinstance(name, str) else None


HookOutput = dict[str, Any] | None


async def brief_session(asked: HookEvent) -> HookOutput:
    from athena.hooks import git  # it starts processes, and the library for that is slow to load

    around = await run_in_thread(git.read_surroundings, asked.folder) if asked.folder else GitContext()
    briefing: Briefing = await asked.call_operation(
        "briefing",
        budget_tokens=max(50, min(asked.rules.budget_tokens, 20_000)),
        branch=around.branch,
        files=list(around.files),
        commits=list(around.commits),
        session_id=asked.session_id,
        again=asked.payload.get("source") in RESET_SOURCES,
    )
    told = _format_context("SessionStart", briefing)
    if told and asked.rules.enable_metrics:
        told["systemMessage"] = (
            f"Athena: {len(briefing.told)} things from memory in {briefing.tokens} tokens"
            f" (as tool results: {briefing.direct})"
        )
    return told


async def remind_of_prompt(asked: HookEvent) -> HookOutput:
    if not (prompt := asked.get_text("prompt")):
        return None
    return _format_context(
        "UserPromptSubmit", await asked.call_operation("remind", prompt=prompt, session_id=asked.session_id)
    )


def _format_context(name: str, briefing: Briefing) -> HookOutput:
    if not briefing.text:
        return None
    return {"hookSpecificOutput": {"hookEventName": name, "additionalContext": briefing.text}}


async def record_tool_use(asked: HookEvent) -> HookOutput:
    tool = asked.get_text("tool_name", 200)
    if not tool or tool in UNRECORDED_TOOLS or tool.startswith(OWN_TOOL_PREFIXES):
        return None
    given, got = (asked.payload.get(name) for name in ("tool_input", "tool_response"))
    await asked.call_operation(
        "record_event",
        event_type="command" if tool in SHELL_TOOLS else "edit" if _get_file_path(given) else "tool",
        content=_summarize_tool_use(tool, given, asked.folder),
        outcome="failure" if asked.payload.get("hook_event_name") == "PostToolUseFailure" else _classify_outcome(got),
        session_id=asked.session_id,
        duration_ms=_parse_duration(asked.payload.get("duration_ms")),
        metadata={"tool": tool},
    )
    return None


def _parse_duration(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MAX_TOOL_DURATION_MS else None


def _get_file_path(given: object) -> str | None:
    if not isinstance(given, dict):
        return None
    path = given.get("file_path") or given.get("notebook_path")
    return path if isinstance(path, str) else None


def _summarize_tool_use(tool: str, given: object, folder: str | None) -> str:
    """Say in a line what a tool was used for."""
    if path := _get_file_path(given):
        inside = folder and path.startswith(folder.rstrip("/") + "/")
        return to_redacted_line(f"{tool} {path[len(folder.rstrip('/')) + 1 :] if inside and folder else path}")
    if isinstance(given, dict):
        for name in ("command", "description", "prompt", "query", "url", "pattern"):
            if isinstance(given.get(name), str) and given[name].strip():
                return to_redacted_line(f"{tool}: {given[name]}")
        return (
            to_redacted_line(f"{tool} {json.dumps(given, ensure_ascii=False, default=str)[:MAX_READ_CHARS]}")
            if given
            else tool
        )
    return tool


def _classify_outcome(got: object) -> str:
    if not isinstance(got, dict):
        return "success"
    if got.get("interrupted") is True:
        return "aborted"
    failed = got.get("is_error") is True or got.get("success") is False or bool(got.get("error"))
    code = got.get("exit_code", got.get("exitCode", got.get("returncode")))
    return "failure" if failed or (isinstance(code, int) and code != 0) else "success"


def to_redacted_line(text: str, longest: int = MAX_EVENT_CHARS) -> str:
    """Return a text on one line without secrets, which are looked for before anything is cut."""
    line = " ".join(redaction.redact(make_storable(text[:MAX_READ_CHARS])).text.split())
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


async def record_compaction(asked: HookEvent) -> HookOutput:
    how = asked.get_text("trigger", 40) or "auto"
    await asked.call_operation(
        "record_event", event_type="compaction", content=f"context compacted ({how})", session_id=asked.session_id
    )
    return None


async def learn_summary(asked: HookEvent) -> HookOutput:
    if (summary := asked.get_text("compact_summary", 200_000)) and asked.session_id:
        await asked.call_operation("learn", session_id=asked.session_id, summary=summary)
    return None


async def record_turn(asked: HookEvent) -> HookOutput:
    done = asked.get_text("last_assistant_message") or asked.get_text("prompt_response")  # the second as Gemini has it
    from athena.memory.sessions.extract import strip_chatter  # slow to load

    if len(done) >= MIN_WORK_CHARS and len(strip_chatter(done)) >= MIN_WORK_CHARS:
        content = to_redacted_line(done, MAX_WORK_CHARS)
        await asked.call_operation("record_event", event_type="work", content=content, session_id=asked.session_id)
    return None


async def learn_session(asked: HookEvent) -> HookOutput:
    if asked.session_id is None:
        return None
    said = await run_in_thread(transcript.read_transcript, asked.payload.get("transcript_path"))
    if said:
        messages = [{"role": one.role, "text": make_storable(one.text)} for one in said]
        await asked.call_operation("learn", session_id=asked.session_id, messages=messages)
    return None


EVENT_HANDLERS: dict[str, Callable[[HookEvent], Awaitable[HookOutput]]] = {
    "session-start": brief_session,
    "user-prompt-submit": remind_of_prompt,
    "post-tool-use": record_tool_use,
    "pre-compact": record_compaction,
    "post-compact": learn_summary,
    "stop": record_turn,
    "session-end": learn_session,
}
