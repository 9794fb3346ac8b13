"""`athena learned` and `athena learn`: review what was learned from sessions, and learn from past ones."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import click

from athena.app import connect
from athena.app import settings as configuration
from athena.cli import output
from athena.cli.command_group import CommandGroup
from athena.cli.invoke import invoke_operation, json_option, project_option, read_stdin
from athena.cli.progress import Progress, show_progress
from athena.core.threads import run_sync
from athena.core.types import to_json
from athena.errors import InvalidInput, NotFound
from athena.hooks import past_sessions
from athena.hooks.past_sessions import PastLesson
from athena.hooks.transcript import CLIENT_FOLDERS, ClientName

LISTED_COUNT = 20
MAX_LISTED = 10_000
MAX_LINE_CHARS = 160
DAY_S = 86_400.0


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--session", help="Only of this session, by its id or how that begins.")
@click.option("--all", "show_all", is_flag=True, help=f"All of it, not only the newest {LISTED_COUNT}.")
@project_option
@json_option
@click.pass_context
def learned(
    context: click.Context, session: str | None, show_all: bool, project: str | None, json_output: bool
) -> None:
    """See what was learned from sessions; confirm or correct it. Or drop it, or rule it out.

    Example: athena learned --session 3f2a
    """
    if context.invoked_subcommand is not None:
        if session or show_all or project or json_output:
            raise click.UsageError(f"options go after {context.invoked_subcommand}")
        return None
    items = invoke_operation(
        "list_learned", project, session_id=session, limit=MAX_LISTED if show_all or session else LISTED_COUNT
    )
    if json_output:
        return output.print_data(items)
    for item in items:
        click.echo(_format_item(item))
    for question in [] if session else invoke_operation("list_open_questions", project):
        click.echo(_format_question(question))
    if not items:
        click.echo("nothing was learned here yet" if session is None else "nothing was learned there", err=True)
    elif len(items) == LISTED_COUNT and not (show_all or session):
        click.echo("older: athena learned --all", err=True)
    return None


def _format_item(item: dict[str, Any]) -> str:
    """Format something learned: the statement, where it comes from, and whether it is offered for all projects."""
    confidence = "" if item["confidence"] is None else f", {item['confidence']:.2f} sure"
    turn = "" if item["turn"] is None else f", turn {item['turn']}"
    speakers = {"user": "you said it", "assistant": "the agent said it"}
    speaker = speakers.get(item["role"], f"stored by: {item['role']}")
    session = f"session {item['session_id'][:8]}" if item["session_id"] else "no session known"
    words = f': "{_cut_line(item["words"])}"' if item["words"] else ""
    origin = f"{speaker}, {session}{turn}, {_format_age(item['created'])}{confidence}{words}"
    name = output.style(item["hash"], fg="yellow")
    kind = output.style(f"{item['kind']:<10}", fg="cyan")
    lines = [f"{name} {kind} {_escape(_cut_line(item['content']))}", _escape(origin)]
    if item["offer"]:
        reason = "" if item["offer"] == "said" else ", as you said it in another one too"
        lines.append(f"offered for all your projects{reason}: athena learned keep {item['hash']} --user")
    return "\n         ".join(lines)


def _format_question(question: dict[str, Any]) -> str:
    pairs = ((question["content"], question["hash"]), (question["older_content"], question["older_hash"]))
    quoted = " or ".join(f'"{_cut_line(text)}" [{name}]' for text, name in pairs)
    return _escape(f"? Which holds: {quoted}? athena learned keep HASH")


def _escape(text: str) -> str:
    return output.escape_control_chars(text)


def _cut_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_LINE_CHARS else line[: MAX_LINE_CHARS - 1].rstrip() + "…"


def _format_age(moment: float) -> str:
    days = int(max(0.0, time.time() - moment) // DAY_S)
    return "today" if days == 0 else f"{days} d ago" if days < 60 else output.format_day(moment)


@learned.command("keep")
@click.argument("memory_id", metavar="HASH")
@click.option("--user", "--everywhere", "everywhere", is_flag=True, help="Keep it for all your projects.")
@project_option
@json_option
def keep(memory_id: str, everywhere: bool, project: str | None, json_output: bool) -> None:
    """Confirm it: it no longer counts as automatic. Example: athena learned keep 7d49c4b4 --user"""
    memory = invoke_operation("keep_learned", project, memory_id=memory_id, everywhere=everywhere)
    what = "kept for all your projects" if everywhere else "confirmed"
    return output.print_data(memory) if json_output else click.echo(f"{what}: {output.format_memory_line(memory)}")


@learned.command("drop")
@click.argument("memory_ids", metavar="HASH...", nargs=-1, required=True)
@project_option
@json_option
def drop(memory_ids: tuple[str, ...], project: str | None, json_output: bool) -> None:
    """Forget it, and do not learn it again. Example: athena learned drop 7d49c4b4 1ee78a09"""
    items = invoke_operation("drop_learned", project, memory_ids=list(memory_ids))
    if json_output:
        return output.print_data(items)
    for item in items:
        click.echo(f"dropped: {output.style(item['hash'], fg='yellow')} {_escape(_cut_line(item['content']))}")
    return click.echo("to take that back: athena undo")


@learned.command("edit")
@click.argument("memory_id", metavar="HASH")
@click.argument("text")
@project_option
@json_option
def edit(memory_id: str, text: str, project: str | None, json_output: bool) -> None:
    """Correct it, which confirms it. Example: athena learned edit 7d49c4b4 "Tabs are for Makefiles only\""""
    content = read_stdin() if text == "-" else text
    memory = invoke_operation("edit_learned", project, memory_id=memory_id, content=content)
    if memory["redacted"]:
        click.echo(f"taken out before storing: {', '.join(memory['redacted'])}", err=True)
    return output.print_data(memory) if json_output else click.echo(f"corrected: {output.format_memory_line(memory)}")


@learned.command("never")
@click.argument("memory_id", metavar="HASH")
@click.option("--about", help="Also learn nothing of this kind that has all of these words.")
@click.option("--everywhere", is_flag=True, help="In every project, not only in this one.")
@project_option
@json_option
def never(memory_id: str, about: str | None, everywhere: bool, project: str | None, json_output: bool) -> None:
    """Forget it, and learn nothing like it from now on.

    Like it: of the same kind, and alike in meaning.

    Example: athena learned never 7d49c4b4 --about lunch
    """
    rule = invoke_operation("refuse_learned", project, memory_id=memory_id, topic=about, everywhere=everywhere)
    if json_output:
        return output.print_data(rule)
    click.echo(f"from now on: {_format_rule(rule)}")
    return click.echo(f"to take that back: athena undo; later: athena learned rules --remove {rule['number']}")


@learned.command("rules")
@click.option("--remove", "number", type=click.IntRange(1), metavar="N", help="Remove the rule of this number.")
@click.option("--all", "show_all", is_flag=True, help="Also the single statements that were dropped.")
@project_option
@json_option
def rules(number: int | None, show_all: bool, project: str | None, json_output: bool) -> None:
    """List what is never learned; remove a rule. Example: athena learned rules --remove 12"""
    if number is not None:
        invoke_operation("remove_learning_rule", project, number=number)
        return output.print_data({"removed": number}) if json_output else click.echo(f"rule {number} removed")
    listed = invoke_operation("list_learning_rules", project, with_dropped=show_all)
    if json_output:
        return output.print_data(listed)
    for rule in listed:
        click.echo(_format_rule(rule))
    if not listed:
        click.echo("there are no rules: athena learned never HASH makes one", err=True)
    return None


def _format_rule(rule: dict[str, Any]) -> str:
    what = f"no {rule['kind']} like" if rule["mode"] == "like" else f"not this {rule['kind']}:"
    topic = f", none about {rule['topic']!r}" if rule["topic"] else ""
    where = " (everywhere)" if rule["everywhere"] else ""
    return _escape(f'{rule["number"]:>5}  {what} "{_cut_line(rule["example"])}"{topic}{where}')


@click.command()
@click.argument("folder", required=False, type=click.Path())
@click.option("--from-transcripts", is_flag=True, help="Learn from the transcripts that clients keep.")
@click.option("--client", type=click.Choice(list(CLIENT_FOLDERS)), help="Only sessions of this client.")
@click.option("--dry-run", is_flag=True, help="Show what would be kept of each session, and why; store nothing.")
@json_option
def learn(
    folder: str | None, from_transcripts: bool, client: ClientName | None, dry_run: bool, json_output: bool
) -> None:
    """Learn from past sessions of Claude Code and Codex. Can be stopped and run again.

    Each session is learned once, into the project of the folder where it took place, with the time at which it ended.
    FOLDER is where the transcripts are; by default the folders of both clients.

    Example: athena learn --from-transcripts --dry-run
    """
    if not from_transcripts:
        raise InvalidInput("what should be learned from?", hint="athena learn --from-transcripts [FOLDER] [--dry-run]")
    clients: list[ClientName] = [client] if client else list(CLIENT_FOLDERS)
    folders = past_sessions.list_default_folders(clients) if folder is None else [os.path.expanduser(folder)]
    if not folders or not all(map(os.path.isdir, folders)):
        missing = folder or " and ".join(CLIENT_FOLDERS[name][1] for name in clients)
        raise NotFound(f"there are no transcripts in {missing}", hint="name their folder after --from-transcripts")
    lessons, was_stopped = _learn_sessions(folders, clients, dry_run, quiet=json_output)
    if json_output:
        output.print_data({"stopped": was_stopped, "dry_run": dry_run, "sessions": [_to_json(one) for one in lessons]})
    else:
        _print_totals(lessons, dry_run)
    if was_stopped:
        raise KeyboardInterrupt(
            f"{output.format_count(len(lessons), 'session', 'sessions')} done; run it again to go on"
        )


def _learn_sessions(
    folders: list[str], clients: list[ClientName], dry_run: bool, *, quiet: bool
) -> tuple[list[PastLesson], bool]:
    """Learn from each session in order of time; return the lessons, and whether the user stopped it."""
    app, hook_rules = connect.shared_app(), configuration.create_hook_rules(configuration.load_settings())
    sessions = past_sessions.find_past_sessions(folders, clients, in_parts=not dry_run)
    lessons: list[PastLesson] = []
    show = nullcontext(Progress("Learning")) if quiet or dry_run else show_progress("Learning")
    with _catch_interrupts() as interrupts, show as progress:
        for session in sessions:
            if interrupts:
                break
            lesson = run_sync(past_sessions.learn_past_session(app, session, hook_rules, dry_run=dry_run))
            lessons.append(lesson)
            progress.advance(1, len(sessions))
            if dry_run and not quiet:
                _print_preview(lesson)
    return lessons, bool(interrupts)


@contextmanager
def _catch_interrupts() -> Iterator[list[int]]:
    """Collect Ctrl-C, so that the session in progress is learned to its end; the second one stops at once."""
    interrupts: list[int] = []

    def note_interrupt(number: int, frame: FrameType | None) -> None:
        if interrupts:
            raise KeyboardInterrupt
        interrupts.append(number)

    before = signal.signal(signal.SIGINT, note_interrupt)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


def _print_preview(past: PastLesson) -> None:
    """Print what would be kept of one session, and why."""
    if past.lesson is None or not (past.lesson.learned or past.lesson.refused):
        return
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(past.session.ended))
    click.echo(_escape(f"{when}  {past.session.client} {past.session.session_id[:8]}  {past.project}"))
    for item in past.lesson.learned:
        confidence = "" if item.confidence is None else f" {item.confidence:.2f}"
        turn = "" if item.turn is None else f" turn {item.turn}"
        click.echo(_escape(f"  {item.memory_type:<10} {item.role}{turn}{confidence}: {_cut_line(item.content)}"))
    if past.lesson.refused:
        click.echo(f"  ({past.lesson.refused} left out by your rules)")


def _print_totals(lessons: list[PastLesson], dry_run: bool) -> None:
    outcomes: dict[str, str] = {past.session.path: past.outcome for past in lessons}  # a session may have parts
    counts = Counter(outcomes.values())
    kept = sum(len(past.lesson.learned) for past in lessons if past.lesson)
    projects = {past.project for past in lessons if past.lesson and past.lesson.learned}
    things = output.format_count(kept, "thing", "things")
    sessions = output.format_count(counts["learned"], "session", "sessions")
    where = output.format_count(len(projects), "project", "projects")
    click.echo(f"{'would keep' if dry_run else 'kept'} {things} of {sessions} in {where}")
    for outcome, reason in (
        ("known", "learned from before"),
        ("outside", "outside of every repository, or switched off for hooks"),
        ("empty", "without talk"),
    ):
        if counts[outcome]:
            click.echo(f"  {output.format_count(counts[outcome], 'session', 'sessions')} {reason}: left out")
    if kept:
        click.echo("to learn it: the same without --dry-run" if dry_run else "see them in a project: athena learned")


def _to_json(past: PastLesson) -> dict[str, Any]:
    return {
        "session_id": past.session.session_id,
        "client": past.session.client,
        "ended": past.session.ended,
        "project": past.project,
        "outcome": past.outcome,
        "learned": to_json(past.lesson.learned) if past.lesson else [],
        "refused": past.lesson.refused if past.lesson else 0,
    }
