"""`athena daemon`: start, stop and inspect the server in the background."""

import json
import os
import time
from typing import Any

import click

from athena.cli import output
from athena.cli.command_group import CommandGroup
from athena.cli.invoke import json_option
from athena.cli.progress import show_progress
from athena.core.home import daemon as daemon_process
from athena.core.home import lock, logs
from athena.core.home.paths import home_folder
from athena.hooks import client


@click.group(cls=CommandGroup)
def daemon() -> None:
    """Start, stop or look at the server in the background.

    Example: athena daemon status
    """


@daemon.command("start")
@json_option
def start_daemon(json_output: bool) -> None:
    """Start it, unless it runs.

    Example: athena daemon start
    """
    with show_progress("Starting the daemon"):
        facts = daemon_process.start_daemon(home_folder())
    output.print_data(facts) if json_output else click.echo(format_daemon(facts))


@daemon.command("stop")
@json_option
def stop_daemon(json_output: bool) -> None:
    """Stop it; what it has begun is answered first.

    Example: athena daemon stop
    """
    with show_progress("Stopping the daemon"):
        facts = daemon_process.stop_daemon(home_folder())
    if json_output:
        return output.print_data({"stopped": None if facts is None else facts["pid"]})
    return click.echo("no daemon runs" if facts is None else f"stopped process {facts['pid']}")


@daemon.command()
@json_option
def status(json_output: bool) -> None:
    """Tell what serves this home, and which hooks it did not answer.

    Example: athena daemon status --json
    """
    home = home_folder()
    facts = lock.find_server(home)
    counts, last_failure = count_fallbacks(home)
    answers = facts is not None and daemon_process.is_responding(home)
    if json_output:
        status_fields = {"running": facts is not None, "answers": answers, **(facts or {})}
        return output.print_data(status_fields | {"home": home, "fallbacks": counts, "last_failure": last_failure})
    click.echo("no daemon runs" if facts is None else format_daemon(facts))
    if facts is not None and not answers:
        click.echo("it does not answer; athena daemon stop ends it")
    log = os.path.join(home, logs.LOG_FOLDER, daemon_process.DAEMON_LOG_FILE)
    if os.path.exists(log) and (facts is None or facts.get("daemon")):  # `athena serve` writes to its terminal
        click.echo(f"{'the log of the last one' if facts is None else 'its log'}: {log}")
    for link, count in counts.items():
        click.echo(f"hooks answered without it ({link}): {count}")
    if counts:
        click.echo(f"their log: {hooks_log_path(home)}")
    if last_failure:
        click.echo(f"the last one without an answer: {output.escape_control_chars(format_failure(last_failure))}")
    return None


def format_daemon(facts: dict[str, Any]) -> str:
    """Describe the running server: what it is, its process, address and start."""
    server = "the daemon" if facts.get("daemon") else "athena serve"
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(facts["since"]))
    return f"{server} {facts.get('version')} runs as process {facts['pid']} at {facts['url']} since {since}"


def hooks_log_path(home: str) -> str:
    return os.path.join(home, logs.LOG_FOLDER, client.LOG_FILE)


def format_failure(line: dict[str, Any]) -> str:
    """Format a line of the hook log: when a hook had no answer, and why."""
    return f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(line['at']))}, {line['event']}: {line['why']}"


def count_fallbacks(home: str) -> tuple[dict[str, int], dict[str, Any] | None]:
    """Count in the log the hooks that the daemon did not answer, by who did; return also the last without an answer."""
    counts: dict[str, int] = {}
    last_failure: dict[str, Any] | None = None
    for path in (f"{hooks_log_path(home)}.1", hooks_log_path(home)):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.readlines()
        except OSError:
            continue
        for text in lines:
            try:
                line = json.loads(text)
                link = str(line["link"])
                line = {"at": float(line["at"]), "event": str(line["event"]), "why": str(line["why"])}
            except (ValueError, KeyError, TypeError):
                continue
            if link == client.DAEMON_LINK:  # it answered; the line tells of malformed input
                continue
            counts[link] = counts.get(link, 0) + 1
            last_failure = line if link == "nothing" else last_failure
    return counts, last_failure
