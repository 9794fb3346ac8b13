"""Programs: what ran, what waits for a person and what it would do; workspaces and skills."""

import asyncio
import json
import secrets
from typing import Any

from starlette.responses import Response

from athena.core.threads import start_in_thread
from athena.errors import ApprovalNeeded, AthenaError, Conflict, InvalidInput
from athena.programs.skill_source import parse_skill
from athena.server.page.forms import create_fields, parse_arguments
from athena.server.page.site import PageRequest, View, to_plain

RUNS_SHOWN = 50
SHORT_WAIT_S = 4.0  # for a program's end, before the page shows it as running
MAX_VALUE_CHARS = 20_000
MAX_LINE_CHARS = 100
MEMORY_ARGUMENTS = ("memory_id", "memory_ids", "other_id", "other_ids")
NAMED_SHOWN = 20
MAX_FILE_CHARS = 200_000
STATUS_WORDS = {
    "done": ("Done", "good"),
    "failed": ("Failed", "bad"),
    "refused": ("Refused", "refused"),
    "running": ("Running", "info"),
    "needs_approval": ("Waits for you", "warn"),
    "unknown": ("Ended unseen", ""),
}
_started: set[asyncio.Task[Any]] = set()  # so that no running program is garbage


async def show_programs(page: PageRequest) -> Response:
    status = page.params.get("status", "")
    runs, waiting = await asyncio.gather(
        page.call("list_runs", limit=RUNS_SHOWN, status=status if status in STATUS_WORDS else None),
        page.call("list_runs", limit=RUNS_SHOWN, status="needs_approval"),
    )
    watched = {program.run_id: program for program in await page.call("watch_runs")}
    context: dict[str, Any] = {
        "runs": runs,
        "waiting": waiting,
        "watched": watched,
        "status": status,
        "status_words": STATUS_WORDS,
    }
    if page.is_fragment:
        return page.render("programs_part.html", **context)
    schema = page.find_operation("execute_code").arguments_schema
    return page.render("programs.html", fields=create_fields(schema, {}, ("code", "workspace", "timeout_s")), **context)


async def show_run(page: PageRequest) -> Response:
    run_id = page.get_path("run_id")
    run, watched = await asyncio.gather(page.call("get_run", run_id=run_id), page.call("watch_runs", run_id=run_id))
    program = watched[0] if watched else None
    if page.is_fragment:
        return page.render("run_part.html", run=run, program=program)
    review, problem = None, None
    if run.status == "needs_approval":
        try:
            review = await page.call("review_run", run_id=run_id)
        except AthenaError as error:  # sealed by another installation
            problem = error
    return page.render(
        "run.html",
        run=run,
        program=program,
        answer=run.answer or (program.answer if program else None),
        review=review,
        problem=problem,
        status_words=STATUS_WORDS,
        rest=describe_rest(review) if review else "",
        has_passphrase=review is not None and await start_in_thread(page.site.approver.has_passphrase),
        stale=await start_in_thread(_find_other_passphrase, page, review) if review else None,
        format_value=format_value,
        arguments=to_plain(review.arguments) if review else {},
        purgeable=await _find_purgeable(page, review) if review else None,
        named=await _find_named(page, review) if review else [],
        summary=page.describe_operation(review.operation) if review else "",
        format_whole=format_whole,
    )


def _find_other_passphrase(page: PageRequest, review: Any) -> Conflict | None:
    """Return why a run can be approved no more: the passphrase was set or changed after it paused."""
    try:
        page.site.approver.require_passphrase(review.passphrase, review.run_id)
    except Conflict as error:
        return error
    return None


async def _find_purgeable(page: PageRequest, review: Any) -> Any:
    """Return what a purge would remove, exactly as the review means it; None where it would remove nothing."""
    if review.removal is None or not review.removal.digest:
        return None
    found = await page.call("list_purgeable", memory_ids=review.removal.refs, k=NAMED_SHOWN)
    if found.digest != review.removal.digest:
        raise Conflict("what the program would remove has changed just now", hint="load the page again")
    return found


async def _find_named(page: PageRequest, review: Any) -> list[Any]:
    """Return the memories that a call names, so that a person sees them; those of a purge are found in another way."""
    if review.removal is not None:
        return []
    values = [value for name in MEMORY_ARGUMENTS for value in _to_list(review.arguments.get(name))]
    refs = [value for value in values if isinstance(value, int | str)][:NAMED_SHOWN]
    found = []
    for ref in refs:
        try:
            found.append(await page.call("get_memory", memory_id=ref))
        except AthenaError:  # forgotten, or of another kind
            continue
    return found


def _to_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def describe_rest(review: Any) -> str:
    """Say which lines of the program may follow the call."""
    last = len(review.lines)
    if not review.call_lines:
        return "No line of the program names this call; any line may follow it."
    if review.next_line is None:
        return "The marked lines name the call; any line may follow it."
    if review.next_line > last:
        return "The marked line is the call; nothing follows it."
    if review.next_line in review.call_lines:
        return "The marked line is the call; the rest of it and all lines below follow."
    follow = f"line {last} follows" if review.next_line == last else f"lines {review.next_line} to {last} follow"
    return f"The marked line is the call; {follow} it."


def format_value(value: Any) -> str:
    """Return a value as a person reads it, a long one cut."""
    text = format_whole(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}\n… {len(text):,} characters in all"


def format_whole(value: Any) -> str:
    if isinstance(value, str):
        return value
    short = json.dumps(to_plain(value), ensure_ascii=False)
    return short if len(short) <= MAX_LINE_CHARS else json.dumps(to_plain(value), ensure_ascii=False, indent=2)


# --- forms ------------------------------------------------------------------------------------------------------------


async def decide_run(page: PageRequest) -> Response:
    """Approve or refuse the call of a waiting program, exactly as the person has seen it."""
    run_id, seen, is_refusal = (
        page.get_path("run_id"),
        page.form.get("subject", ""),
        page.form.get("decision") != "approve",
    )
    review = await page.call("review_run", run_id=run_id)
    if review.subject != seen:
        raise Conflict("this program is not as you have seen it", hint="look at it again, and decide then")
    approver = page.site.approver
    if is_refusal:
        approval = approver.grant_refusal(review.subject)
    elif not await start_in_thread(approver.has_passphrase):
        raise ApprovalNeeded(
            "approving here needs a passphrase, and none is set", hint="in a terminal: athena passphrase set"
        )
    else:
        [approval] = await start_in_thread(approver.grant, [review.subject], page.form.get("passphrase", ""))
    arguments = {"run_id": run_id, "refuse": is_refusal, "reason": page.form.get("reason", "")}
    await _start(page.call_approved("approve_run", arguments, approval))
    return page.redirect(f"/programs/{run_id}", "Refused: the program was told" if is_refusal else "Approved")


async def run_program(page: PageRequest) -> Response:
    """Run a program that a person wrote, and show it."""
    arguments = parse_arguments(page.find_operation("execute_code").arguments_schema, page.form)
    result = await _start(page.call_approved("execute_code", arguments, None, secrets.token_hex(16)))
    return page.redirect(
        f"/programs/{result.run_id}" if result is not None else "/programs", "" if result else "Started"
    )


async def _start(call: Any) -> Any:
    """Await a call for a short while; return None if it goes on without us."""
    task = asyncio.ensure_future(call)
    _started.add(task)
    task.add_done_callback(_forget_task)
    done, _ = await asyncio.wait({task}, timeout=SHORT_WAIT_S)
    return task.result() if done else None


def _forget_task(task: asyncio.Task[Any]) -> None:
    _started.discard(task)
    if not task.cancelled():
        task.exception()  # the run's row says how it ended


# --- workspaces and skills --------------------------------------------------------------------------------------------


async def show_workspaces(page: PageRequest) -> Response:
    workspaces = await page.call("list_workspaces")
    name = page.params.get("name") or (workspaces[0].name if workspaces else "")
    chosen = next((workspace for workspace in workspaces if workspace.name == name), None)
    files = await page.call("list_files", workspace=name) if chosen else []
    path, text = page.params.get("path", ""), None
    if chosen and path:
        text = await page.call("read_file", path=path, workspace=name, raw=True)
        text = text if isinstance(text, str) else format_value(text)
    return page.render(
        "workspaces.html",
        workspaces=workspaces,
        chosen=chosen,
        files=files,
        path=path,
        text=None if text is None else text[:MAX_FILE_CHARS],
        is_cut=text is not None and len(text) > MAX_FILE_CHARS,
        format_value=format_value,
    )


async def delete_file(page: PageRequest) -> Response:
    name, path = page.form.get("workspace", ""), page.form.get("path", "")
    await page.call("delete_file", path=path, workspace=name)
    return page.redirect("/programs/workspaces", f"{path} is deleted", name=name)


async def show_skills(page: PageRequest) -> Response:
    question = page.params.get("find")
    skills = await page.call("find_skills", query=question, k=200)
    return page.render("skills.html", skills=skills, find=question or "")


async def show_skill(page: PageRequest, result: Any = None, values: dict[str, Any] | None = None) -> Response:
    skill = await page.call("get_skill", name=page.get_path("name"))
    history = await page.list_history(skill.id, "skill") if skill.id is not None else []
    return page.render(
        "skill.html",
        skill=skill,
        lines=skill.code.rstrip("\n").split("\n"),
        fields=create_fields(await _describe_parameters(page, skill.name), values),
        history=to_plain(history)[::-1],
        result=result,
        result_text=format_value(result.result) if result is not None else "",
    )


async def run_skill(page: PageRequest) -> Response:
    name = page.get_path("name")
    arguments = parse_arguments(await _describe_parameters(page, name), page.form)
    result = await page.call("run_skill", name=name, arguments=arguments)
    return await show_skill(page, result, arguments)


async def delete_skill(page: PageRequest) -> Response:
    name = page.get_path("name")
    if not await page.call("delete_skill", name=name):
        raise InvalidInput("there is no such skill any more")
    return page.redirect("/programs/skills", f"The skill {name} is deleted", undo=True)


async def _describe_parameters(page: PageRequest, name: str) -> dict[str, Any]:
    """Return a skill's parameters as JSON Schema."""
    skill = await page.call("get_skill", name=name)
    return parse_skill(skill.name, skill.code, skill.description, skill.example, is_stored=True).parameters


VIEWS = (
    View("GET", "/programs", show_programs),
    View("GET", "/programs/workspaces", show_workspaces),
    View("GET", "/programs/skills", show_skills),
    View("GET", "/programs/skills/{name}", show_skill),
    View("GET", "/programs/{run_id}", show_run),
    View("POST", "/programs/run", run_program),
    View("POST", "/programs/workspaces/delete", delete_file),
    View("POST", "/programs/skills/{name}/run", run_skill),
    View("POST", "/programs/skills/{name}/delete", delete_skill),
    View("POST", "/programs/{run_id}/decide", decide_run),
)
