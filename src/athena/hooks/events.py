"""Session hooks: record the events of a coding client, and answer some with what the session should know.

The client's JSON is data: we look up, record and compare it, and never run it. The answer is JSON in the client's form,
or nothing, which is the answer to most events.
"""

import json
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, NamedTuple, ParamSpec, TypeVar

from athena.app.settings import HookRules
from athena.core import redaction
from athena.core.catalog import invoke
from athena.core.home.paths import DEFAULT_PROJECT, current_project
from athena.core.private import remove_private_clauses
from athena.core.text import make_storable
from athena.core.threads import ThreadPool, get_running_loop, run_in_thread, run_sync
from athena.core.types import has_too_many_values
from athena.core.values import HOOK_SURFACE, Scope
from athena.hooks import git, transcript
from athena.memory.sessions.events import get_session_project
from athena.memory.sessions.learning import take_notice
from athena.memory.sessions.values import WORK_EVENT_TYPE, Briefing, GitContext
from athena.memory.sessions.voice import BriefingText
from athena.operations.context import Context

T = TypeVar("T")
P = ParamSpec("P")
HookOutput = dict[str, Any] | None
MAX_ANSWER_CHARS = 9_500  # clients cut a longer answer
HOOK_ID_VARIABLE = "ATHENA_HOOK_ID"  # set by the hook client, one for each event
LARGE_PAYLOAD_BYTES = 256 << 10
MAX_READ_CHARS = 20_000  # of a text in the payload
MAX_EVENT_CHARS = 300
MAX_WORK_CHARS = 600
MIN_WORK_CHARS = 40  # a shorter answer does not say what was done
MAX_SUMMARY_CHARS = 40_000
MAX_FOLDER_CHARS = 4_096
MAX_SESSION_ID_CHARS = 200
MAX_HOOK_ID_CHARS = 64
MAX_TOOL_DURATION_MS = 1e10
MIN_BUDGET_TOKENS, MAX_BUDGET_TOKENS = 50, 20_000
# tools that change nothing
UNRECORDED_TOOLS = (
    "Read", "Grep", "Glob", "LS", "NotebookRead", "TodoWrite", "TodoRead", "ToolSearch", "ExitPlanMode",
    "read_file", "read_many_files", "list_directory", "glob", "search_file_content", "grep_search", "write_todos",
)  # fmt: skip
OWN_TOOL_PREFIXES = ("mcp__athena", "mcp__plugin_athena", "mcp_athena")  # the call log has these calls
SHELL_TOOLS = ("Bash", "run_shell_command")
SUMMARY_ARGUMENTS = ("command", "description", "url")  # not prompts and queries, which repeat what a user said
MAX_LAST_MESSAGES = 20  # without secrets and private clauses before they are learned from, too
MAX_LEARNING_S = 600.0  # of one session, once it is its turn; `athena learn` can learn the rest later
MAX_TURN_BYTES = 256 << 10  # of the transcript, in which the prompts of a turn are looked for
ANSWERED_EVENTS = ("session-start", "user-prompt-submit")  # the others are only recorded
LEARNING_EVENTS = ("session-end", "post-compact")
RESET_SOURCES = ("compact", "clear")  # after these the session does not know its earlier briefings

_folder_threads = ThreadPool(2, "athena-folders")
_learning_threads = ThreadPool(1, "athena-learning")


MALFORMED_INPUT = "the input is not a JSON object, or has too many values"


class HookEvent(NamedTuple):
    """One event: the client's JSON, and the context for calling operations in its project."""

    payload: dict[str, Any]
    ctx: Context
    rules: HookRules
    folder: str | None
    session_id: str | None

    async def call_operation(self, operation: str, **arguments: Any) -> Any:
        return await invoke(self.ctx.catalog, operation, arguments, self.ctx)

    def get_text(self, name: str, max_chars: int = MAX_READ_CHARS) -> str:
        """Return a text field of the payload, cut and storable; empty if it is missing or no text."""
        value = self.payload.get(name)
        return make_storable(value[:max_chars]).strip() if isinstance(value, str) else ""


async def answer_event(
    event: str,
    payload: bytes,
    ctx: Context,
    rules: HookRules,
    *,
    without_model: bool = False,
    project: str | None = None,
    key: str | None = None,
    on_malformed: Callable[[str], None] | None = None,
) -> bytes:
    """Handle an event and return the answer as the client's JSON; empty if there is nothing to say.

    The project is `project` (the caller's ATHENA_PROJECT), else the git root of the folder in the payload. Outside of
    git nothing is recorded, since all such folders are one project. `without_model` searches by full text, tags and
    time only. With a `key` each write happens once: a client that gave up waiting handles the same event again.
    """
    # a long text in it takes a while; many values take longer still, and are not parsed at all
    fields = (
        parse_payload(payload) if len(payload) < LARGE_PAYLOAD_BYTES else await run_in_thread(parse_payload, payload)
    )
    if on_malformed is not None and is_malformed(payload, fields):
        on_malformed(MALFORMED_INPUT)
    named_folder = get_named_folder(fields)
    folder = await _run_folder_check(find_folder, fields)
    name = project or await find_project(ctx, fields, named_folder, is_gone=folder is None)
    if event not in EVENT_HANDLERS or not fields or name is None or not rules.allows_event(event, name, named_folder):
        return b""
    if event not in ANSWERED_EVENTS and project is None:
        name = await _find_recorded_project(ctx, event, fields, name, rules)
        if name is None:
            return b""
    hook_context = replace(
        ctx,
        scope=Scope.from_name(name),
        store=ctx.store._replace(encoder=ctx.store.encoder.without_model(), chat=None) if without_model else ctx.store,
        surface=HOOK_SURFACE,
        idempotency_key=_create_key(event, key),
    )
    output = await EVENT_HANDLERS[event](HookEvent(fields, hook_context, rules, folder, _get_session_id(fields)))
    return json.dumps(output, ensure_ascii=False).encode() if output else b""


def is_malformed(payload: bytes, fields: dict[str, Any]) -> bool:
    """Return whether a payload is nothing that `parse_payload` understands."""
    return not fields and payload.strip() != b"{}"


def parse_payload(payload: bytes) -> dict[str, Any]:
    """Return the client's JSON object; an empty one if the payload is none, or has too many values."""
    if has_too_many_values(payload):
        return {}
    try:
        fields = json.loads(payload.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


async def find_project(ctx: Context, fields: dict[str, Any], folder: str | None, *, is_gone: bool) -> str | None:
    """Return the project of a folder; of a deleted one, that of its session's last event or of its parent folders.

    Return None if neither is known: the default project, which all folders outside of git share, would be wrong.
    """
    if folder is None or not is_gone:
        return await _run_folder_check(current_project, {}, folder) if folder else DEFAULT_PROJECT
    session_id = _get_session_id(fields)
    session_project = await get_session_project(ctx.store, session_id) if session_id else None
    project = session_project or await _run_folder_check(current_project, {}, folder)
    return project if project != DEFAULT_PROJECT else None


class Home(NamedTuple):
    """The project that a session belongs to, and the folder that says so."""

    project: str
    folder: str


async def find_home(ctx: Context, session_id: str | None, folders: Iterable[str]) -> Home | None:
    """Return the first of a session's folders that is in a project: it may have gone elsewhere since."""
    for name in folders:
        if (folder := get_named_folder({"cwd": name})) is None:
            continue
        is_gone = await _run_folder_check(find_folder, {"cwd": folder}) is None
        project = await find_project(ctx, {"session_id": session_id}, folder, is_gone=is_gone)
        if project is not None and project != DEFAULT_PROJECT:
            return Home(project, folder)
    return None


async def _find_recorded_project(
    ctx: Context, event: str, fields: dict[str, Any], project: str, rules: HookRules
) -> str | None:
    """Return the project in which a session's event is recorded: where it began, and not where it went since.

    None outside of git, and where the rules forbid it here or there. `project` is that of the folder in the payload.
    """
    session_id, home = _get_session_id(fields), None
    if event not in LEARNING_EVENTS and project == DEFAULT_PROJECT:
        return None
    recorded = await get_session_project(ctx.store, session_id) if session_id else None
    if event in LEARNING_EVENTS or recorded is None:
        folders = await run_in_thread(transcript.read_folders, fields.get("transcript_path"))
        home = await find_home(ctx, session_id, folders)
    name, folder = home or (recorded or project, get_named_folder(fields))
    return name if name != DEFAULT_PROJECT and rules.allows_event(event, name, folder) else None


async def _run_folder_check(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Look at a folder on separate threads: its disk may never answer, and events of other folders must not wait."""
    if get_running_loop() is None:
        return function(*args, **kwargs)
    return await _folder_threads.start_call(function, *args, **kwargs)


def get_named_folder(fields: dict[str, Any]) -> str | None:
    """Return the folder in the payload, which may not exist any more."""
    roots = fields.get("workspace_roots")  # Cursor's field
    folder = fields.get("cwd") or (roots[0] if isinstance(roots, list) and roots else None)
    if (
        not isinstance(folder, str)
        or not os.path.isabs(folder)
        or make_storable(folder) != folder
        or len(folder) > MAX_FOLDER_CHARS
    ):
        return None
    return folder


def find_folder(fields: dict[str, Any]) -> str | None:
    """Return the folder in the payload if it exists."""
    folder = get_named_folder(fields)
    return folder if folder and os.path.isdir(folder) else None


def _create_key(event: str, key: str | None) -> str | None:
    """Return the idempotency key of an event; a hash of the payload would not do, as the same can happen twice."""
    return f"hook {event} {key}" if key and len(key) <= MAX_HOOK_ID_CHARS and key.isalnum() and key.isascii() else None


def _get_session_id(fields: dict[str, Any]) -> str | None:
    session_id = fields.get("session_id") or fields.get("conversation_id")
    if not isinstance(session_id, str):
        return None
    return make_storable(session_id[:MAX_SESSION_ID_CHARS]).strip() or None


async def brief_session(event: HookEvent) -> HookOutput:
    surroundings = await run_in_thread(git.read_surroundings, event.folder) if event.folder else GitContext()
    briefing: Briefing = await event.call_operation(
        "briefing",
        budget_tokens=max(MIN_BUDGET_TOKENS, min(event.rules.budget_tokens, MAX_BUDGET_TOKENS)),
        branch=surroundings.branch,
        files=list(surroundings.files),
        commits=list(surroundings.commits),
        session_id=event.session_id,
        again=event.payload.get("source") in RESET_SOURCES,
    )
    output = build_answer("SessionStart", briefing.text)
    notices = []
    if output and event.rules.enable_metrics:
        notices.append(
            f"Athena: {len(briefing.told)} things from memory in {briefing.tokens} tokens"
            f" (as tool results: {briefing.direct})"
        )
    kept, offered = await take_notice(event.ctx.store, event.ctx.scope)
    if kept:
        notices.append(f"Athena kept {kept} thing{'s' * (kept > 1)} from earlier sessions: athena learned")
    if offered:
        notices.append(f"{offered} of them may hold in all your projects: athena learned keep HASH --user")
    return {**(output or {}), "systemMessage": "\n".join(notices)} if notices else output


async def remind_of_prompt(event: HookEvent) -> HookOutput:
    if not (prompt := event.get_text("prompt")):
        return None
    briefing: Briefing = await event.call_operation("remind", prompt=prompt, session_id=event.session_id)
    return build_answer("UserPromptSubmit", briefing.text)


def build_answer(name: str, text: str) -> HookOutput:
    """Return the client's JSON that adds a text to the session; the only place where that happens."""
    if not text:
        return None
    if not isinstance(text, BriefingText):
        raise TypeError("only a briefing may be added to a session")
    return {"hookSpecificOutput": {"hookEventName": name, "additionalContext": text}}


async def record_tool_use(event: HookEvent) -> HookOutput:
    tool = event.get_text("tool_name", 200)
    if not tool or tool in UNRECORDED_TOOLS or tool.startswith(OWN_TOOL_PREFIXES):
        return None
    tool_input, response = event.payload.get("tool_input"), event.payload.get("tool_response")
    has_failed = event.payload.get("hook_event_name") == "PostToolUseFailure"
    await event.call_operation(
        "record_event",
        event_type="command" if tool in SHELL_TOOLS else "edit" if _get_file_path(tool_input) else "tool",
        content=_summarize_tool_use(tool, tool_input, event.folder),
        outcome="failure" if has_failed else _classify_outcome(response),
        session_id=event.session_id,
        duration_ms=_parse_duration(event.payload.get("duration_ms")),
        metadata={"tool": tool},
    )
    return None


def _parse_duration(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MAX_TOOL_DURATION_MS else None


def _get_file_path(tool_input: object) -> str | None:
    if not isinstance(tool_input, dict):
        return None
    path = tool_input.get("file_path") or tool_input.get("notebook_path")
    return path if isinstance(path, str) else None


def _summarize_tool_use(tool: str, tool_input: object, folder: str | None) -> str:
    """Return one line about the use of a tool."""
    if path := _get_file_path(tool_input):
        if folder:
            path = path.removeprefix(folder.rstrip("/") + "/")
        return to_redacted_line(f"{tool} {path}")
    if not isinstance(tool_input, dict) or not tool_input:
        return tool
    for name in SUMMARY_ARGUMENTS:
        if isinstance(tool_input.get(name), str) and tool_input[name].strip():
            return to_redacted_line(f"{tool}: {tool_input[name]}")
    return to_redacted_line(f"{tool} ({', '.join(map(str, tool_input))})")  # values may be texts of any kind


def _classify_outcome(response: object) -> str:
    if not isinstance(response, dict):
        return "success"
    if response.get("interrupted") is True:
        return "aborted"
    has_error = response.get("is_error") is True or response.get("success") is False or bool(response.get("error"))
    exit_code = response.get("exit_code", response.get("exitCode", response.get("returncode")))
    return "failure" if has_error or (isinstance(exit_code, int) and exit_code != 0) else "success"


def to_redacted_line(text: str, max_chars: int = MAX_EVENT_CHARS) -> str:
    """Return a text on one line without secrets and private clauses; they go before it is cut: halves are not found."""
    line = " ".join(remove_private_clauses(redaction.redact(make_storable(text[:MAX_READ_CHARS])).text).split())
    return line if len(line) <= max_chars else line[: max_chars - 1].rstrip() + "…"


async def record_compaction(event: HookEvent) -> HookOutput:
    trigger = event.get_text("trigger", 40) or "auto"
    await event.call_operation(
        "record_event", event_type="compaction", content=f"context compacted ({trigger})", session_id=event.session_id
    )
    return None


async def _run_learning(work: Coroutine[Any, Any, None]) -> None:
    """Learn on a thread of its own, for a while at most: it may take minutes, and all reads need the other threads."""
    if get_running_loop() is None:
        return await work

    def learn() -> None:
        ends_at = time.monotonic() + MAX_LEARNING_S
        run_sync(work, is_stopped=lambda: time.monotonic() > ends_at)

    return await _learning_threads.start_call(learn)


async def learn_summary(event: HookEvent) -> HookOutput:
    await _run_learning(_learn_summary(event))
    return None


async def _learn_summary(event: HookEvent) -> None:
    if (summary := event.get_text("compact_summary", MAX_SUMMARY_CHARS)) and event.session_id:
        from athena.memory.sessions.extract import clean_answer  # slow to import

        prompts = await run_in_thread(transcript.read_prompts, event.payload.get("transcript_path"))
        if summary := await run_in_thread(clean_answer, summary, prompts):
            await event.call_operation("learn", session_id=event.session_id, summary=summary)


async def record_turn(event: HookEvent) -> HookOutput:
    from athena.memory.sessions.extract import clean_answer, strip_chatter  # slow to import

    message = event.get_text("last_assistant_message") or event.get_text("prompt_response")  # the second is Gemini's
    if len(message) >= MIN_WORK_CHARS and len(strip_chatter(message)) >= MIN_WORK_CHARS:
        path = event.payload.get("transcript_path")
        prompts = await run_in_thread(transcript.read_prompts, path, MAX_TURN_BYTES)
        content = to_redacted_line(await run_in_thread(clean_answer, message, prompts), MAX_WORK_CHARS)
        if len(content) >= MIN_WORK_CHARS:
            await event.call_operation(
                "record_event", event_type=WORK_EVENT_TYPE, content=content, session_id=event.session_id
            )
    return None


async def learn_session(event: HookEvent) -> HookOutput:
    if event.session_id is not None:
        await _run_learning(_learn_session(event))
    return None


async def _learn_session(event: HookEvent) -> None:
    if messages := await run_in_thread(read_talk, event.payload.get("transcript_path")):
        await event.call_operation("learn", session_id=event.session_id, messages=messages)


def read_talk(path: object, end: int | None = None) -> list[dict[str, Any]]:
    """Return the messages of a session; answers without what they repeat of commands and of clients' texts.

    With `end`, only those before this position in the file.
    """
    from athena.memory.sessions.extract import clean_all_answers, remove_all_echoes  # slow to import

    talk = transcript.read_transcript(path, end=end)
    prompts = {message.text for message in talk if message.role == "user"}
    noise = [text for text in transcript.read_prompts(path, end=end) if text not in prompts] if talk else []
    texts = [make_storable(message.text) for message in talk]
    answers = [
        i
        for i, rest in enumerate(remove_all_echoes(texts, noise))
        if talk[i].role == "assistant" and (rest != texts[i] or i >= len(talk) - MAX_LAST_MESSAGES)
    ]
    if answers:
        for i, text in zip(answers, clean_all_answers([texts[i] for i in answers], noise), strict=True):
            texts[i] = text
    return [{"role": message.role, "text": text, "at": message.at} for message, text in zip(talk, texts, strict=True)]


EVENT_HANDLERS: dict[str, Callable[[HookEvent], Awaitable[HookOutput]]] = {
    "session-start": brief_session,
    "user-prompt-submit": remind_of_prompt,
    "post-tool-use": record_tool_use,
    "pre-compact": record_compaction,
    "post-compact": learn_summary,
    "stop": record_turn,
    "session-end": learn_session,
}
