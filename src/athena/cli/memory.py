"""Commands for memories and the store: remember, recall, edit, consolidate, projects, savings and others."""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any, get_args

import click

from athena.app.compact import format_weaker, split_hits
from athena.cli import output
from athena.cli.invoke import invoke_operation, invoke_page, json_option, project_option, read_stdin, tags_option
from athena.cli.progress import explain_stop, show_progress
from athena.cli.quick import RECALLED_KINDS
from athena.core.clock import to_local_time
from athena.core.home.paths import USER_PROJECT
from athena.core.threads import start_in_thread
from athena.core.values import Kind
from athena.errors import Conflict, InvalidInput
from athena.memory.consolidation.values import Strategy
from athena.memory.values import format_place

CONSOLIDATION_STAGES = ["reading", "duplicates", "recurring", "sequences", "topics", "contradictions", "done"]
PROGRESS_INTERVAL_S = 0.3
MEMORY_COLUMNS = ("hash", "score", "created", "kind", "tags", "place", "content")
REEMBED_BATCH_SIZE = 128
PURGED_SHOWN = 50
MAX_NAME_CHARS = 1_000  # of an entity
GO_ON_HINT = "run it again to go on"
REEMBED_WAIT_S = 1.0  # for passages that another process has claimed
MAX_REEMBED_WAITS = 70  # longer than a claim lasts
WORKING_DAYS_PER_YEAR = 250
MAX_LISTED_CHANGES = 20  # of an undo: an import or an ingestion has thousands


@click.command()
@click.argument("text")
@tags_option("Tags between commas.")
@click.option("--type", "memory_type", default="note", show_default=True, help="The type of memory.")
@click.option("--everywhere", is_flag=True, help="Make it known in every project.")
@project_option
@json_option
def remember(
    text: str, tags: str | None, memory_type: str, everywhere: bool, project: str | None, json_output: bool
) -> None:
    """Keep a text; '-' reads it from standard input.

    Example: athena remember "The staging database is read-only" --tags db,staging
    """
    content = read_stdin() if text == "-" else text
    scope = USER_PROJECT if everywhere else project
    stored = invoke_operation("remember", scope, content=content, tags=tags, memory_type=memory_type)
    _report_redactions(stored)
    if json_output:
        return output.print_data(stored)
    outcome = {"new": "kept", "known": "known already", "revived": "kept again"}[stored["outcome"]]
    return click.echo(f"{output.style(stored['hash'], fg='yellow')} {outcome}")


def _report_redactions(stored: dict[str, Any]) -> None:
    if stored["redacted"]:
        click.echo(f"taken out before storing: {', '.join(stored['redacted'])}", err=True)


@click.command()
@click.argument("query")
@click.option("-k", "--limit", "k", default=5, show_default=True, help="How many.")
@tags_option("Only with one of these tags.")
@click.option("--since", help="Only from this time on, e.g. 'last week'.")
@click.option("--until", help="Only up to this time.")
@click.option("--min-score", type=float, help="Only what answers with at least this probability; 0 shows everything.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(get_args(Kind)),
    help=f"What to look through; can be repeated. By default {', '.join(RECALLED_KINDS)}.",
)
@project_option
@json_option
def recall(query: str, k: int, kinds: tuple[str, ...], json_output: bool, project: str | None, **filters: Any) -> None:
    """Find memories, entities, events and documents. Time in plain words is a filter.

    Each hit has its score, the probability that it answers; --min-score 0 also shows the improbable ones.

    \b
    athena recall "what we decided about auth last week" -k 3
    athena recall "who owns billing" --kind entity
    """
    looked_through = list(kinds or RECALLED_KINDS)
    page = invoke_page("recall", project, query=query, k=k, understand_time=True, kinds=looked_through, **filters)
    is_whole = json_output or filters["min_score"] is not None
    hits, left_out = (page.data, 0) if is_whole else split_hits(page.data)
    _print_memories(hits, json_output)
    if (weaker := page.weaker + left_out) and not json_output:
        click.echo(format_weaker(weaker, "--min-score 0"), err=True)


@click.command("list")
@click.option("-k", "--limit", "k", default=20, show_default=True, help="How many.")
@click.option("--offset", default=0, help="How many to pass over first.")
@click.option("--after", help="The last memory of the page before: go on after it.")
@tags_option("Only with one of these tags.")
@click.option("--type", "memory_type", help="Only of this kind.")
@click.option("--since", help="Only from this time on, e.g. 'last week'.")
@click.option("--until", help="Only up to this time.")
@project_option
@json_option
def list_memories(json_output: bool, project: str | None, **filters: Any) -> None:
    """List memories, the newest first.

    Example: athena list --since "two days ago" --tags deploy
    """
    memories = invoke_operation("list_memories", project, **filters)
    if not json_output:  # which file a piece of a document is of
        memories = [{**memory, "place": format_place(memory["metadata"])} for memory in memories]
    _print_memories(memories, json_output)


def _print_memories(memories: Sequence[dict[str, Any]], json_output: bool) -> None:
    if json_output:
        return output.print_data(memories, MEMORY_COLUMNS)
    output.print_lines(map(output.format_memory_line, memories))
    if not memories:
        click.echo("nothing found", err=True)
    return None


@click.command()
@click.argument("memory_id", metavar="ID")
@click.option("--history", is_flag=True, help="Show its changes instead.")
@project_option
@json_option
def show(memory_id: str, history: bool, project: str | None, json_output: bool) -> None:
    """Show one memory whole, by its hash or id.

    Example: athena show 7d49c4b4 --history
    """
    result = invoke_operation("memory_history" if history else "get_memory", project, memory_id=memory_id)
    if json_output:
        return output.print_data(result)
    if not history:
        entity = _find_entity(result, project)
        return output.print_lines((entity or output.format_memory(result)).splitlines())
    for change in result:
        text = (change["before"] or {}).get("content")
        before = f"  was: {output.escape_control_chars(text[:200])!r}" if text else ""
        click.echo(f"{output.format_day(change['at'])} {change['action']} ({change['operation']}){before}")
    return None


def _find_entity(memory: dict[str, Any], project: str | None) -> str | None:
    """Return an entity with what is known of it, where a memory's text is its name; else None."""
    name = memory["content"]
    if len(name) > MAX_NAME_CHARS or "\n" in name:
        return None
    graph = invoke_operation("open_nodes", project, names=[name])
    if not any((item["name"], item["entityType"]) == (name, memory["memory_type"]) for item in graph["entities"]):
        return None
    return output.format_graph(graph)


@click.command()
@click.argument("memory_id", metavar="ID")
@click.argument("text", required=False)
@click.option("--content", help="The new text, as TEXT; without any change an editor opens.")
@tags_option("New tags between commas.")
@click.option("--type", "memory_type", help="A new kind.")
@project_option
@json_option
def edit(memory_id: str, text: str | None, project: str | None, json_output: bool, **changes: str | None) -> None:
    """Change a memory; its history keeps what it said before.

    Example: athena edit 7d49c4b4 "Deploys run on Mondays"
    """
    if text is not None:
        if changes["content"] is not None:
            raise click.UsageError("TEXT and --content are the same: give one of them")
        changes["content"] = text
    if not any(value is not None for value in changes.values()):
        if not sys.stdin.isatty() and not (os.environ.get("VISUAL") or os.environ.get("EDITOR")):
            raise InvalidInput("nothing to change", hint="give a text, --tags or --type")
        updated = _edit_text(invoke_operation("get_memory", project, memory_id=memory_id), project)
        if updated is None:
            return click.echo("not changed", err=True)
    else:
        updated = invoke_operation("update_memory", project, memory_id=memory_id, **changes)
    _report_redactions(updated)
    return output.print_data(updated) if json_output else click.echo(output.format_memory_line(updated))


def _edit_text(memory: dict[str, Any], project: str | None) -> Any:
    """Let the person change a text in their editor; None if they did not. A text that changed meanwhile stays."""
    content = click.edit(memory["content"])
    if content is None:
        return None
    changes = {"content": content.rstrip("\n"), "expect_updated": memory["updated"]}
    try:
        return invoke_operation("update_memory", project, memory_id=memory["id"], **changes)
    except Conflict:
        click.echo(content, err=True)  # what they wrote is nowhere else
        raise


def _refuse_tags(context: click.Context, parameter: click.Parameter, tags: str | None) -> None:
    if tags is not None:
        raise InvalidInput("forget takes memories by hash or id, no tags", hint=f"athena tag forget {tags}")


@click.command()
@click.argument("memory_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--tags", "--tag", hidden=True, is_eager=True, expose_value=False, callback=_refuse_tags)
@project_option
@json_option
def forget(memory_ids: tuple[str, ...], project: str | None, json_output: bool) -> None:
    """Forget memories; `athena undo` brings them back.

    \b
    athena forget 7d49c4b4
    athena tag forget obsolete    by tag
    """
    memories = [invoke_operation("get_memory", project, memory_id=memory_id) for memory_id in memory_ids]
    memories_by_id = {memory["id"]: memory for memory in memories}
    count = invoke_operation("forget_batch", project, memory_ids=list(memories_by_id))
    if json_output:
        return output.print_data(count)
    for memory in memories_by_id.values():
        click.echo(f"forgotten: {output.format_memory_line(memory)}")
    return click.echo("to take that back: athena undo")


@click.command()
@click.option("--anyone", is_flag=True, help="Take back the last change, whoever made it.")
@project_option
@json_option
def undo(anyone: bool, project: str | None, json_output: bool) -> None:
    """Take back your last change in this project.

    Example: athena undo
    """
    changes = invoke_operation("undo", project, anyone=anyone)
    if json_output:
        return output.print_data(changes)
    for change in changes[:MAX_LISTED_CHANGES]:
        memory = change["before"]
        preview = f"{memory['hash']} {output.escape_control_chars(memory['content'][:100])}".strip()
        action = change["action"] if change["by"] in ("", "cli") else f"{change['action']} (by {change['by']})"
        click.echo(f"{action}: {preview}" if preview else action)
    if (rest := len(changes) - MAX_LISTED_CHANGES) > 0:
        click.echo(f"and {output.format_count(rest, 'change', 'changes')} more")
    return None


@click.command()
@json_option
def reembed(json_output: bool) -> None:
    """Give every memory a vector of the model in use. Can be stopped and run again.

    Example: athena reembed
    """
    first = invoke_operation("reembed", limit=1)
    total = remaining = first["remaining"]
    waits = 0

    def describe_done() -> str:
        return f"{output.format_count(total + first['done'] - remaining, 'passage', 'passages')} done; {GO_ON_HINT}"

    with show_progress("Embedding") as progress, explain_stop(describe_done):
        while remaining and waits < MAX_REEMBED_WAITS:
            step = invoke_operation("reembed", limit=REEMBED_BATCH_SIZE)
            progress.update(total - step["remaining"], total)
            waits = 0 if step["done"] or step["remaining"] < remaining else waits + 1
            remaining = step["remaining"]
            if waits:
                time.sleep(REEMBED_WAIT_S)  # the rest is claimed by others
    done = total + first["done"] - remaining
    if json_output:
        return output.print_data({"done": done, "remaining": remaining})
    if remaining:
        passages = output.format_count(remaining, "passage", "passages")
        click.echo(f"{passages} remain, which another process has claimed: run it again later", err=True)
    return click.echo(f"{output.format_count(done, 'passage', 'passages')} done" if done else "nothing to do")


@click.command()
@click.argument("memory_ids", metavar="[ID...]", nargs=-1)
@click.option("--yes", is_flag=True, help="Do not ask.")
@project_option
@json_option
def purge(memory_ids: tuple[str, ...], yes: bool, project: str | None, json_output: bool) -> None:
    """Remove memories for good, or all that were forgotten. Nothing brings them back.

    Example: athena purge 7d49c4b4
    """
    ids = list(memory_ids) or None
    found = invoke_operation("list_purgeable", project, memory_ids=ids, k=PURGED_SHOWN)
    count = found["count"]
    if count and not yes:
        for line in output.format_purgeable(found):
            click.echo(output.escape_control_chars(line), err=True)
        click.confirm(f"Remove {output.format_count(count)} for good? Nothing brings them back", abort=True, err=True)
    before = invoke_operation("stats", project)
    removed = invoke_operation("purge", project, memory_ids=ids, digest=found["digest"]) if count else 0
    workspaces, waiting = (before["workspaces"], before["waiting_programs"]) if removed else (0, 0)
    if json_output:
        return output.print_data({"removed": removed, "workspaces": workspaces, "waiting_programs": waiting})
    click.echo(f"{output.format_count(removed)} removed for good" if removed else "nothing to remove")
    if workspaces or waiting:
        variables = f"variables of {output.format_count(workspaces, 'workspace', 'workspaces')}"
        programs = output.format_count(waiting, "waiting program", "waiting programs")
        click.echo(f"{variables} and {programs} were removed too, since they may hold words of them")
    return None


@click.command()
@click.option(
    "--strategy", type=click.Choice(get_args(Strategy)), default="balanced", show_default=True, help="How far to go."
)
@click.option("--days", type=click.FloatRange(0, 36_500), default=7, show_default=True, help="How many to look at.")
@click.option("--dry-run", is_flag=True, help="Report only, change nothing.")
@project_option
@json_option
def consolidate(strategy: str, days: float, dry_run: bool, project: str | None, json_output: bool) -> None:
    """Find patterns, and merge, strengthen or fade memories. Looks at the last days; `athena undo` takes it back.

    Can be stopped and run again: it goes on where it was. `athena undo` takes back all that a run did.

    Example: athena consolidate --days 30 --dry-run
    """
    report = _consolidate_with_progress(project, {"strategy": strategy, "days_back": days, "dry_run": dry_run})
    if json_output:
        return output.print_data(report)
    for pattern in report["patterns"]:
        line = f"{pattern['confidence']:.2f}  {pattern['type']:<14}  {pattern['summary']}"
        click.echo(output.escape_control_chars(line))
    counts = ", ".join(f"{report[name]:,} {name}" for name in ("new", "merged", "strengthened", "faded", "promoted"))
    count = output.format_count(len(report["patterns"]), "pattern", "patterns")
    return click.echo(f"{count} in {report['examined']:,} events and memories ({counts})")


def _consolidate_with_progress(project: str | None, arguments: dict[str, Any]) -> Any:
    """Run the operation in another thread, and show its progress on a terminal."""
    task = start_in_thread(invoke_operation, "consolidate", project, **arguments)
    with (
        show_progress("Consolidating") as progress,
        explain_stop(lambda: f"no memory was changed by what was not finished; {GO_ON_HINT}"),
    ):
        while not task.wait(PROGRESS_INTERVAL_S):
            runs = [run for run in invoke_operation("consolidation_status", project) if run["state"] == "running"]
            stage = runs[0]["stage"] if runs else CONSOLIDATION_STAGES[0]
            progress.update(CONSOLIDATION_STAGES.index(stage), len(CONSOLIDATION_STAGES), f"Consolidating: {stage}")
    return task.result()


@click.command()
@click.option("--rename", nargs=2, metavar="NAME NEW", help="Give a project another name.")
@json_option
def projects(rename: tuple[str, str] | None, json_output: bool) -> None:
    """List the projects of the store, or rename one.

    Example: athena projects --rename /home/ann/shop shop
    """
    if rename:
        listed = [invoke_operation("rename_project", name=rename[0], to=rename[1])]
    else:
        listed = invoke_operation("list_projects")
    if json_output:
        return output.print_data(listed)
    for project in listed:
        day = f"{to_local_time(project['updated']):%Y-%m-%d}" if project["updated"] else "-"
        click.echo(
            f"{output.format_count(project['memories']):>16}  {day:<10}  {output.escape_control_chars(project['name'])}"
        )
    return None


@click.command()
@click.option("--users", type=click.IntRange(1), help="Project it to so many people.")
@click.option("--sessions-per-day", type=click.IntRange(1), default=1, show_default=True, help="Of each of them.")
@click.option("--price", type=click.FloatRange(0), default=3.0, show_default=True, help="Of a million tokens.")
@json_option
def savings(users: int | None, sessions_per_day: int, price: float, json_output: bool) -> None:
    """Report tokens that models spent and saved. With --users, what that is in a year.

    Example: athena savings --users 20 --sessions-per-day 8 --price 3
    """
    report = invoke_operation("token_savings")
    if users:
        days = max(1, report["days"])
        saved_on_results = (report["saved"] - report["definitions"] * report["days"]) / days  # on one day
        daily = saved_on_results + report["definitions"] * sessions_per_day
        tokens = round(daily * users * WORKING_DAYS_PER_YEAR)
        report["a_year"] = {"tokens": tokens, "price": round(tokens * price / 1_000_000, 2)}
    if json_output:
        return output.print_data(report)
    click.echo(
        f"{report['calls']:,} calls on {output.format_count(report['days'], 'day', 'days')} (o200k tokens, about)"
    )
    click.echo(f"read by a model       {report['spent']:>12,}")
    click.echo(f"with direct tools     {report['direct']:>12,}  ({report['definitions']:,} of definitions a day)")
    click.echo(f"saved                 {report['saved']:>12,}  ({report['percent']} %)")
    if report["operations"]:
        click.echo(f"  {'by operation':<26} {'calls':>7} {'read':>12} {'as tool results':>16}")
    for row in report["operations"][:10]:
        tokens_read = f"{row['shown']:>12,} {row['given'] + row['returned']:>16,}"
        click.echo(f"  {row['operation']:<18} {row['surface']:<7} {row['calls']:>7,} {tokens_read}")
    for row in report["hooks"]:
        latency = f"{row['median_ms']} ms in the middle, {row['slowest_ms']} at most"
        click.echo(f"  {row['event']:<18} {row['link']:<7} {row['calls']:>7,} hooks  {latency}")
    if users:
        year = report["a_year"]
        click.echo(f"a year, {users:,} people   {year['tokens']:>12,}  ({year['price']:,.2f} at {price} a million)")
    click.echo("Results that a program got count as not read; what it printed of them is not known here.")
    return None
