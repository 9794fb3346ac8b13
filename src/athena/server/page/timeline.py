"""What happened and what is to do: the timeline with its sessions, tasks, and patterns with their evidence."""

import asyncio
import time
from typing import Any, NamedTuple

from starlette.responses import Response

from athena.core.hashing import hash_text
from athena.errors import Conflict, NotFound
from athena.server.page.forms import FormField, create_fields, parse_arguments, parse_updated, parse_whole
from athena.server.page.site import PageRequest, View, to_plain

ENTRIES_SHOWN = 400
BARS = 48
SPANS = {"year": 365 * 86_400.0, "month": 30 * 86_400.0, "week": 7 * 86_400.0, "day": 86_400.0, "hour": 3_600.0}
TICK_FORMATS = {"year": "%b %Y", "month": "%-d %b", "week": "%a %-d %b", "day": "%H:%M", "hour": "%H:%M"}
FAILURE_WORDS = {"failure", "failed", "error", "cancelled", "aborted"}
SUCCESS_WORDS = {"success", "succeeded", "done", "ok", "passed", "fixed"}
TASK_FIELDS = ("title", "due", "priority", "details", "tags")
TASKS_SHOWN = 200
OTHERS_OFFERED = 30  # that a task may wait for
PATTERN_WORDS = {
    "recurring": "Recurs",
    "sequence": "One leads to another",
    "near_duplicate": "Nearly the same",
    "topic": "A topic",
    "contradiction": "Contradicts",
}


class Bar(NamedTuple):
    """A part of the time that the timeline shows, with how many entries of each tone it has."""

    since: float
    until: float
    good: int
    bad: int
    plain: int

    @property
    def total(self) -> int:
        return self.good + self.bad + self.plain


def get_tone(outcome: str | None) -> str:
    word = (outcome or "").lower()
    return "bad" if word in FAILURE_WORDS else "good" if word in SUCCESS_WORDS else "plain"


def count_bars(entries: list[Any], since: float, until: float) -> list[Bar]:
    """Return the entries as bars over time."""
    width = (until - since) / BARS
    counts = [{"good": 0, "bad": 0, "plain": 0} for _ in range(BARS)]
    for entry in entries:
        position = int((entry.at - since) / width)
        if 0 <= position < BARS:
            counts[position][get_tone(entry.outcome)] += 1
    return [Bar(since + i * width, since + (i + 1) * width, **count) for i, count in enumerate(counts)]


async def show_timeline(page: PageRequest) -> Response:
    now = time.time()
    span = page.params.get("span", "week")
    span = span if span in SPANS else "week"
    until = _parse_time(page.params.get("until")) or now
    since = _parse_time(page.params.get("since")) or until - SPANS[span]
    chapters, sessions = await asyncio.gather(
        page.call("timeline", since=since, until=until, limit=ENTRIES_SHOWN),
        page.call("list_sessions", since=since, until=until, limit=30),
    )
    entries = [entry for chapter in chapters for entry in chapter.entries]
    bars = count_bars(entries, since, until)
    spans = list(SPANS)
    context = {
        "chapters": [(chapter, list(chapter.entries)[::-1]) for chapter in chapters][::-1],
        "sessions": sessions,
        "bars": bars,
        "most": max((bar.total for bar in bars), default=0),
        "left_out": sum(chapter.left_out for chapter in chapters),
        "span": span,
        "spans": spans,
        "next_span": spans[min(spans.index(span) + 1, len(spans) - 1)],
        "since": since,
        "until": until,
        "is_now": now - until < 60,
        "ticks": [time.strftime(TICK_FORMATS[span], time.localtime(since + i * (until - since) / 4)) for i in range(5)],
        "get_tone": get_tone,
    }
    return page.render("timeline_part.html" if page.is_fragment else "timeline.html", **context)


def _parse_time(text: str | None) -> float | None:
    try:
        return min(max(float(text), 0.0), 4e9) if text else None
    except ValueError:
        return None


async def show_session(page: PageRequest) -> Response:
    """Show one session: what it was told, what it did, and what was kept of it."""
    session = page.get_path("session")
    summary, told, chapters, learned = await asyncio.gather(
        page.call("session_summary", session_id=session),
        page.call("list_injections", session_id=session, limit=200),
        page.call("timeline", session_id=session, by="session", limit=ENTRIES_SHOWN),
        page.call("list_learned", session_id=session, limit=100),
    )
    entries = [entry for chapter in chapters for entry in chapter.entries]
    return page.render("session.html", summary=summary, told=told, entries=entries, learned=learned, get_tone=get_tone)


# --- tasks ------------------------------------------------------------------------------------------------------------


async def show_tasks(page: PageRequest) -> Response:
    open_tasks, done = await asyncio.gather(
        page.call("list_tasks", limit=TASKS_SHOWN), page.call("list_tasks", state="done", limit=20)
    )
    context = {"tasks": open_tasks, "done": done}
    if page.is_fragment:
        return page.render("tasks_part.html", **context)
    schema = page.find_operation("create_task").arguments_schema
    return page.render("tasks.html", fields=create_fields(schema, {}, TASK_FIELDS), **context)


async def show_task(page: PageRequest) -> Response:
    task_id = page.get_number("task_id")
    lists = await _list_tasks(page)
    task = _find_task(lists, task_id)
    history = await page.list_history(task_id, "task")
    if task is None:
        return page.render("forgotten.html", section="/tasks", ref=task_id, state=history[-1].before or {})
    others = [other for other in lists[0] if other.id != task_id]
    waits_for = [other for tasks in lists for other in tasks if other.id in task.depends_on]
    offered = [*waits_for, *(other for other in others if other not in waits_for)][:OTHERS_OFFERED]
    fields = _create_task_fields(page, task)
    return page.render("task.html", task=task, fields=fields, offered=offered, history=to_plain(history)[::-1])


async def _list_tasks(page: PageRequest) -> list[Any]:
    """Return all tasks: those that are not finished, those that are done, and those that were given up."""
    states = [None, "done", "cancelled"]
    return await asyncio.gather(*(page.call("list_tasks", state=state, limit=10_000) for state in states))


def _find_task(lists: list[Any], task_id: int) -> Any:
    return next((task for tasks in lists for task in tasks if task.id == task_id), None)


def _create_task_fields(page: PageRequest, task: Any) -> list[FormField]:
    values = to_plain(task) | {"due": time.strftime("%Y-%m-%d %H:%M", time.localtime(task.due)) if task.due else ""}
    return create_fields(page.find_operation("update_task").arguments_schema, values, (*TASK_FIELDS, "state"))


async def create_task(page: PageRequest) -> Response:
    arguments = parse_arguments(page.find_operation("create_task").arguments_schema, page.form)
    await page.call("create_task", **arguments)
    return page.redirect("/tasks", "Planned", undo=True)


async def update_task(page: PageRequest) -> Response:
    task_id, seen = page.get_number("task_id"), parse_updated(page.form)
    task = _find_task(await _list_tasks(page), task_id)
    if task is None:
        raise NotFound(f"there is no task {task_id}", hint="it was forgotten")
    arguments = parse_arguments(page.find_operation("update_task").arguments_schema, page.form)
    for name in ("due", "details"):
        if name in page.form and not page.form[name].strip():
            arguments[name] = ""  # an empty field takes it away
    for field in _create_task_fields(page, task):
        if page.form.get(field.name, "").split() == field.value.split():
            arguments.pop(field.name, None)
    arguments.pop("force", None)
    if "with_depends_on" in page.form:
        chosen = [parse_whole(text) for text in page.form_lists.get("depends_on", [])]
        if set(chosen) != set(task.depends_on):
            arguments["depends_on"] = chosen
    if not arguments:
        return page.redirect(f"/tasks/{task_id}", "Nothing was changed")
    await page.call("update_task", **arguments | {"task_id": task_id, "expect_updated": seen})
    return page.redirect(f"/tasks/{task_id}", "Saved", undo=True)


async def set_task_state(page: PageRequest) -> Response:
    """Complete a task, or open it again."""
    task_id, state = page.get_number("task_id"), page.form.get("state", "")
    if state == "done":
        done = await page.call("complete_task", task_id=task_id)
        freed = ", ".join(task.title for task in done.unblocked)
        text = f"Done; now possible: {freed}" if freed else "Done"
        return page.go_back("/tasks", text, undo=True)
    await page.call("update_task", task_id=task_id, state=state)
    return page.go_back("/tasks", "Open again" if state == "open" else "Saved")


async def forget_task(page: PageRequest) -> Response:
    task_id = page.get_number("task_id")
    await page.call("forget", memory_id=task_id, kind="task")
    return page.redirect("/tasks", "Forgotten", undo=True)


async def restore_task(page: PageRequest) -> Response:
    task_id = page.get_number("task_id")
    await page.call("restore_memory", memory_id=task_id, kind="task")
    return page.redirect(f"/tasks/{task_id}", "It is back")


# --- patterns ---------------------------------------------------------------------------------------------------------


async def show_patterns(page: PageRequest) -> Response:
    patterns, status = await asyncio.gather(page.call("list_patterns", limit=200), page.call("consolidation_status"))
    return page.render("patterns.html", patterns=patterns, status=status, words=PATTERN_WORDS)


async def show_pattern(page: PageRequest) -> Response:
    pattern = await page.call("get_pattern", pattern_id=page.get_number("pattern_id"))
    return page.render("pattern.html", pattern=pattern, words=PATTERN_WORDS, seen=hash_text(pattern.summary))


async def consolidate(page: PageRequest) -> Response:
    result = await page.call("consolidate")
    text = f"{result.examined} looked at, {result.new} new, {result.merged} merged"
    return page.redirect("/patterns", text, undo=True)


async def accept_pattern(page: PageRequest) -> Response:
    """Keep a pattern as a memory, in the person's name."""
    pattern = await page.call("get_pattern", pattern_id=page.get_number("pattern_id"))
    if page.form.get("seen", "") != hash_text(pattern.summary):
        raise Conflict("this pattern says something else by now", hint="look at it again, and decide then")
    await page.call("remember", content=pattern.summary, tags=["pattern"], memory_type="pattern")
    return page.redirect("/patterns", "Kept as a memory", undo=True)


async def forget_pattern(page: PageRequest) -> Response:
    pattern_id = page.get_number("pattern_id")
    await page.call("forget", memory_id=pattern_id, kind="pattern")
    return page.redirect("/patterns", "Silenced", undo=True)


VIEWS = (
    View("GET", "/timeline", show_timeline),
    View("GET", "/timeline/sessions/{session:path}", show_session),
    View("GET", "/tasks", show_tasks),
    View("GET", "/tasks/{task_id}", show_task),
    View("POST", "/tasks", create_task),
    View("POST", "/tasks/{task_id}", update_task),
    View("POST", "/tasks/{task_id}/state", set_task_state),
    View("POST", "/tasks/{task_id}/forget", forget_task),
    View("POST", "/tasks/{task_id}/restore", restore_task),
    View("GET", "/patterns", show_patterns),
    View("GET", "/patterns/{pattern_id}", show_pattern),
    View("POST", "/patterns/look", consolidate),
    View("POST", "/patterns/{pattern_id}/accept", accept_pattern),
    View("POST", "/patterns/{pattern_id}/forget", forget_pattern),
)
