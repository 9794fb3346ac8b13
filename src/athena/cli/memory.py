"""Commands for memories and the store: remember, recall, edit, consolidate, projects, savings and others."""

import os
import sys
from typing import Any, get_args

import click

from athena.cli import output
from athena.cli.commands import CALL_HINT_PATTERN
from athena.cli.invoke import invoke_operation, json_option, parse_json_object, project_option, read_stdin
from athena.core.clock import to_local_time
from athena.core.home.paths import USER_PROJECT
from athena.core.threads import start_in_thread
from athena.errors import InvalidInput
from athena.memory.consolidation.values import Strategy

CONSOLIDATION_STAGES = ["reading", "duplicates", "recurring", "sequences", "topics", "contradictions", "done"]
PROGRESS_INTERVAL_S = 0.3
WORKING_DAYS_PER_YEAR = 250


@click.command()
@click.argument("text")
@click.option("--tags", help="Tags between commas.")
@click.option("--type", "memory_type", default="note", show_default=True, help="The kind of memory.")
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
        return output.print_json(stored)
    said = {"new": "kept", "known": "known already", "revived": "kept again"}[stored["outcome"]]
    return click.echo(f"{click.style(stored['hash'], fg='yellow')} {said}")


def _report_redactions(stored: dict[str, Any]) -> None:
    if stored["redacted"]:
        click.echo(f"taken out before storing: {', '.join(stored['redacted'])}", err=True)


@click.command()
@click.argument("query")
@click.option("-k", default=5, show_default=True, help="How many.")
@click.option("--tags", help="Only with one of these tags.")
@click.option("--since", help="Only from this time on, e.g. 'last week'.")
@click.option("--until", help="Only up to this time.")
@click.option("--min-score", default=0.0, help="Only those that fit at least this well, from 0 to 1.")
@project_option
@json_option
def recall(query: str, k: int, json_output: bool, project: str | None, **filters: Any) -> None:
    """Find memories; time in plain words is a filter.

    Example: athena recall "what we decided about auth last week" -k 3
    """
    _print_memories(invoke_operation("recall", project, query=query, k=k, understand_time=True, **filters), json_output)


@click.command("list")
@click.option("-k", default=20, show_default=True, help="How many.")
@click.option("--offset", default=0, help="How many to pass over first.")
@click.option("--tags", help="Only with one of these tags.")
@click.option("--type", "memory_type", help="Only of this kind.")
@click.option("--since", help="Only from this time on, e.g. 'last week'.")
@click.option("--until", help="Only up to this time.")
@project_option
@json_option
def list_memories(json_output: bool, project: str | None, **filters: Any) -> None:
    """List memories, the newest first.

    Example: athena list --since "two days ago" --tags deploy
    """
    _print_memories(invoke_operation("list_memories", project, **filters), json_output)


def _print_memories(found: list[dict[str, Any]], json_output: bool) -> None:
    if json_output:
        return output.print_json(found)
    for memory in found:
        click.echo(output.format_memory_line(memory))
    if not found:
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
    found = invoke_operation("memory_history" if history else "get_memory", project, memory_id=memory_id)
    if json_output:
        return output.print_json(found)
    if not history:
        click.echo(output.format_memory(found))
        return None
    for change in found:
        text = (change["before"] or {}).get("content")
        before = f"  was: {output.escape_control_chars(text[:200])!r}" if text else ""
        click.echo(f"{output.format_day(change['at'])} {change['action']} ({change['operation']}){before}")
    return None


@click.command()
@click.argument("memory_id", metavar="ID")
@click.option("--content", help="The new text; without any option an editor opens.")
@click.option("--tags", help="New tags between commas.")
@click.option("--type", "memory_type", help="A new kind.")
@project_option
@json_option
def edit(memory_id: str, project: str | None, json_output: bool, **changes: str | None) -> None:
    """Change a memory; what it said before stays in its history.

    Example: athena edit 7d49c4b4 --content "Deploys run on Mondays"
    """
    if not any(value is not None for value in changes.values()):
        if not sys.stdin.isatty() and not (os.environ.get("VISUAL") or os.environ.get("EDITOR")):
            raise InvalidInput("nothing to change", hint="give --content, --tags or --type")
        changes["content"] = click.edit(invoke_operation("get_memory", project, memory_id=memory_id)["content"])
        if changes["content"] is None:
            return click.echo("not changed", err=True)
        changes["content"] = changes["content"].rstrip("\n")
    updated = invoke_operation("update_memory", project, memory_id=memory_id, **changes)
    _report_redactions(updated)
    return output.print_json(updated) if json_output else click.echo(output.format_memory_line(updated))


@click.command()
@click.argument("memory_ids", metavar="ID...", nargs=-1, required=True)
@project_option
@json_option
def forget(memory_ids: tuple[str, ...], project: str | None, json_output: bool) -> None:
    """Forget memories, by hash or id; `athena undo` brings them back.

    Example: athena forget 7d49c4b4
    """
    found = {
        m["id"]: m for m in (invoke_operation("get_memory", project, memory_id=memory_id) for memory_id in memory_ids)
    }
    count = invoke_operation("forget_batch", project, memory_ids=list(found))
    if json_output:
        return output.print_json(count)
    for memory in found.values():
        click.echo(f"forgotten: {output.format_memory_line(memory)}")
    return click.echo("to take that back: athena undo")


@click.command()
@project_option
@json_option
def undo(project: str | None, json_output: bool) -> None:
    """Take back the last change in this project.

    Example: athena undo
    """
    changes = invoke_operation("undo", project)
    if json_output:
        return output.print_json(changes)
    for change in changes:
        about = f"{change['before']['hash']} {output.escape_control_chars(change['before']['content'][:100])}".strip()
        click.echo(f"{change['action']}: {about}" if about else change["action"])
    return None


@click.command("call")
@click.argument("name")
@click.option("--json", "arguments", default="{}", help="The arguments, as a JSON object; '-' reads them.")
@project_option
def call_operation(name: str, arguments: str, project: str | None) -> None:
    """Call any operation; prints JSON.

    Example: athena call recall --json '{"query": "deploy", "k": 3}'
    """
    given = parse_json_object(read_stdin() if arguments == "-" else arguments)
    try:
        output.print_json(invoke_operation(name, project, **given))
    except InvalidInput as error:
        if error.hint and CALL_HINT_PATTERN.match(error.hint):
            raise InvalidInput(str(error), hint=f"it is called as {error.hint}") from None
        raise


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--tags", help="Tags between commas.")
@project_option
@json_option
def ingest(paths: tuple[str, ...], tags: str | None, project: str | None, json_output: bool) -> None:
    """Keep text files, or all below a folder, as memories; again, it brings them up to date.

    Example: athena ingest docs README.md --tags docs
    """
    whole: dict[str, Any] = {"documents": 0, "pieces": 0, "skipped": [], "redacted": []}
    for path in paths:
        done = invoke_operation("ingest_document", project, path=path, tags=tags)
        whole = {name: whole[name] + done[name] for name in whole}
        if not json_output:
            click.echo(f"{output.escape_control_chars(path)}: {done['documents']} documents, {done['pieces']} pieces")
    for skipped in whole["skipped"]:
        click.echo(f"left out {output.escape_control_chars(skipped)}", err=True)
    _report_redactions(whole)
    if json_output:
        output.print_json(whole)


@click.command()
@json_option
def reembed(json_output: bool) -> None:
    """Give every memory a vector of the model in use; can be stopped and run again.

    Example: athena reembed
    """
    first = invoke_operation("reembed", limit=1)
    total = first["remaining"]
    with click.progressbar(length=total, label="Embedding", file=sys.stderr) as bar:
        while total and (step := invoke_operation("reembed", limit=128))["done"]:
            bar.update(step["done"])
            if not step["remaining"]:
                break
    done = total + first["done"]
    if json_output:
        return output.print_json({"done": done})
    return click.echo(f"{output.format_count(done, 'passage', 'passages')} done" if done else "nothing to do")


@click.command()
@click.argument("memory_ids", metavar="[ID...]", nargs=-1)
@click.option("--yes", is_flag=True, help="Do not ask.")
@project_option
@json_option
def purge(memory_ids: tuple[str, ...], yes: bool, project: str | None, json_output: bool) -> None:
    """Remove memories for good: those named, else all forgotten ones of this project.

    Example: athena purge 7d49c4b4
    """
    chosen = list(memory_ids) or None
    count = invoke_operation("purge", project, memory_ids=chosen, dry_run=True)
    if count and not yes:
        click.confirm(f"Remove {output.format_count(count)} for good? Nothing brings them back", abort=True, err=True)
    before = invoke_operation("stats", project)
    removed = invoke_operation("purge", project, memory_ids=chosen, expect=count) if count else 0
    spaces, waiting = (before["workspaces"], before["waiting_programs"]) if removed else (0, 0)
    if json_output:
        return output.print_json({"removed": removed, "workspaces": spaces, "waiting_programs": waiting})
    click.echo(f"{output.format_count(removed)} removed for good" if removed else "nothing to remove")
    if spaces or waiting:
        variables = f"variables of {output.format_count(spaces, 'workspace', 'workspaces')}"
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
    """Find patterns in the last days, and merge, strengthen or fade memories accordingly.

    Can be stopped and run again: it goes on where it was. `athena undo` takes back all that a run did.

    Example: athena consolidate --days 30 --dry-run
    """
    found = _consolidate_with_progress(project, {"strategy": strategy, "days_back": days, "dry_run": dry_run})
    if json_output:
        return output.print_json(found)
    for one in found["patterns"]:
        click.echo(output.escape_control_chars(f"{one['confidence']:.2f}  {one['type']:<14}  {one['summary']}"))
    did = ", ".join(f"{found[name]:,} {name}" for name in ("new", "merged", "strengthened", "faded", "promoted"))
    count = output.format_count(len(found["patterns"]), "pattern", "patterns")
    return click.echo(f"{count} in {found['examined']:,} events and memories ({did})")


def _consolidate_with_progress(project: str | None, arguments: dict[str, Any]) -> Any:
    """Run the operation in another thread, and show its progress on a terminal."""
    if not sys.stderr.isatty():
        return invoke_operation("consolidate", project, **arguments)
    task = start_in_thread(invoke_operation, "consolidate", project, **arguments)
    with click.progressbar(length=len(CONSOLIDATION_STAGES), label="Consolidating", file=sys.stderr) as bar:
        while not task.wait(PROGRESS_INTERVAL_S):
            runs = [run for run in invoke_operation("consolidation_status", project) if run["state"] == "running"]
            stage = CONSOLIDATION_STAGES.index(runs[0]["stage"]) if runs else 0
            bar.update(max(stage - bar.pos, 0))
        bar.update(len(CONSOLIDATION_STAGES) - bar.pos)
    return task.result()


@click.command()
@click.option("--rename", nargs=2, metavar="NAME NEW", help="Give a project another name.")
@json_option
def projects(rename: tuple[str, str] | None, json_output: bool) -> None:
    """List the projects of the store.

    Example: athena projects --rename /home/ann/shop shop
    """
    if rename:
        listed = [invoke_operation("rename_project", name=rename[0], to=rename[1])]
    else:
        listed = invoke_operation("list_projects")
    if json_output:
        return output.print_json(listed)
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
    """Report tokens spent and saved by models; with --users, what that is in a year.

    Example: athena savings --users 20 --sessions-per-day 8 --price 3
    """
    found = invoke_operation("token_savings")
    if users:
        kept = (found["saved"] - found["definitions"] * found["days"]) / max(1, found["days"])  # results, on one day
        tokens = round((kept + found["definitions"] * sessions_per_day) * users * WORKING_DAYS_PER_YEAR)
        found["a_year"] = {"tokens": tokens, "price": round(tokens * price / 1_000_000, 2)}
    if json_output:
        return output.print_json(found)
    click.echo(f"{found['calls']:,} calls on {output.format_count(found['days'], 'day', 'days')} (o200k tokens, about)")
    click.echo(f"read by a model       {found['spent']:>12,}")
    click.echo(f"with direct tools     {found['direct']:>12,}  ({found['definitions']:,} of definitions a day)")
    click.echo(f"saved                 {found['saved']:>12,}  ({found['percent']} %)")
    if found["operations"]:
        click.echo(f"  {'by operation':<26} {'calls':>7} {'read':>12} {'as tool results':>16}")
    for one in found["operations"][:10]:
        moved = f"{one['shown']:>12,} {one['given'] + one['returned']:>16,}"
        click.echo(f"  {one['operation']:<18} {one['surface']:<7} {one['calls']:>7,} {moved}")
    for one in found["hooks"]:
        took = f"{one['median_ms']} ms in the middle, {one['slowest_ms']} at most"
        click.echo(f"  {one['event']:<18} {one['link']:<7} {one['calls']:>7,} hooks  {took}")
    if users:
        year = found["a_year"]
        click.echo(f"a year, {users:,} people   {year['tokens']:>12,}  ({year['price']:,.2f} at {price} a million)")
    click.echo("Results that a program got count as not read; what it printed of them is not known here.")
    return None
