"""`athena daemon`: the warm server in the background."""

import json
import os
import time
from typing import Any

import click

from athena import daemon as warm
from athena import hookclient, lock, logs
from athena.cli import shown
from athena.home import home_folder

as_json = click.option("--json", "json_output", is_flag=True, help="Print JSON.")


@click.group()
def daemon() -> None:
    """Start, stop or look at the warm server in the background.

    Example: athena daemon status
    """


@daemon.command("start")
@as_json
def start_it(json_output: bool) -> None:
    """Start it, unless it runs.

    Example: athena daemon start
    """
    facts = warm.start(home_folder())
    shown.as_json(facts) if json_output else click.echo(_line(facts))


@daemon.command("stop")
@as_json
def stop_it(json_output: bool) -> None:
    """Stop it; what it has begun is answered first.

    Example: athena daemon stop
    """
    facts = warm.stop(home_folder())
    if json_output:
        return shown.as_json({"stopped": None if facts is None else facts["pid"]})
    return click.echo("no daemon runs" if facts is None else f"stopped process {facts['pid']}")


@daemon.command()
@as_json
def status(json_output: bool) -> None:
    """Tell what serves this home, and which hooks it did not answer.

    Example: athena daemon status --json
    """
    home = home_folder()
    facts = lock.served(home)
    unanswered = fallbacks(home)
    answers = facts is not None and warm.answers(home)
    if json_output:
        told = {"running": facts is not None, "answers": answers, **(facts or {})}
        return shown.as_json(told | {"home": home, "fallbacks": unanswered})
    click.echo("no daemon runs" if facts is None else _line(facts))
    if facts is not None and not answers:
        click.echo("it does not answer; athena daemon stop ends it")
    click.echo(f"its log: {os.path.join(home, logs.FOLDER, warm.LOG)}")
    for link, count in unanswered.items():
        click.echo(f"hooks answered without it ({link}): {count}")
    return None


def _line(facts: dict[str, Any]) -> str:
    kind = "the daemon" if facts.get("daemon") else "athena serve"
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(facts["since"]))
    return f"{kind} {facts.get('version')} runs as process {facts['pid']} at {facts['url']} since {since}"


def fallbacks(home: str) -> dict[str, int]:
    """Count who answered the hooks that the daemon did not, as far as the log goes back."""
    counts: dict[str, int] = {}
    for name in (f"{hookclient.LOG}.1", hookclient.LOG):
        try:
            with open(os.path.join(home, logs.FOLDER, name), encoding="utf-8", errors="replace") as file:
                lines = file.readlines()
        except OSError:
            continue
        for line in lines:
            try:
                link = str(json.loads(line)["link"])
            except (ValueError, KeyError, TypeError):
                continue
            counts[link] = counts.get(link, 0) + 1
    return counts
