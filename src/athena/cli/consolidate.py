"""`athena consolidate`: find what recurs, leads somewhere or contradicts, with a bar on a terminal."""

import sys
from typing import Any

import click

from athena.app import connect
from athena.cli import output
from athena.core.threads import run_sync, start_in_thread
from athena.memory.consolidation.stages import STRATEGY_PLANS

STAGES = ["reading", "duplicates", "recurring", "sequences", "topics", "contradictions", "done"]
POLL_INTERVAL_S = 0.3  # seconds between two looks at how far it is


@click.command()
@click.option(
    "--strategy", type=click.Choice(list(STRATEGY_PLANS)), default="balanced", show_default=True, help="How far to go."
)
@click.option("--days", type=click.FloatRange(0, 36_500), default=7, show_default=True, help="How many to look at.")
@click.option("--dry-run", is_flag=True, help="Report only, change nothing.")
@click.option("--project", help="Whose memories; by default the git root of this folder, else 'default'.")
@click.option("--json", "json_output", is_flag=True, help="Print JSON.")
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
    """Call the operation on another thread, and look from time to time how far it is."""

    def invoke_operation(name: str, given: dict[str, Any]) -> Any:
        return run_sync(connect.AppConnection(connect.shared_app, project, "cli").call(name, given)).data

    if not sys.stderr.isatty():
        return invoke_operation("consolidate", arguments)
    working = start_in_thread(invoke_operation, "consolidate", arguments)
    with click.progressbar(length=len(STAGES), label="Consolidating", file=sys.stderr) as bar:
        while not working.wait(POLL_INTERVAL_S):
            states = [one for one in invoke_operation("consolidation_status", {}) if one["state"] == "running"]
            place = STAGES.index(states[0]["stage"]) if states else 0
            bar.update(max(place - bar.pos, 0))
        bar.update(len(STAGES) - bar.pos)
    return working.result()
