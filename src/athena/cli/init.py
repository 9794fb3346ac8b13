"""`athena init`: sets up a coding agent's client, and takes that back."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from athena.app import settings as configuration
from athena.cli import output
from athena.core.home.paths import git_root, home_folder
from athena.errors import AthenaError, InvalidInput
from athena.hooks import launcher

if TYPE_CHECKING:
    from athena.cli.clients.client import Client
    from athena.cli.clients.files import Change
    from athena.cli.clients.setup import Place, Told

NAMES = ("claude-code", "codex", "cursor", "vscode", "gemini", "windsurf")
TOOLS = 500  # o200k tokens of the four tools' definitions, about
INSTRUCTIONS = 310  # of what the server says about their use, which some clients show the model
SKILL = 80  # of the skill's line in the list of skills
PLUGINS = ("/plugins/claude-code/", "/.claude/skills/athena/")
CHANGED = " (changed by you)"


@click.command()
@click.argument("client", required=False, type=click.Choice(NAMES))
@click.option("--project", "in_project", is_flag=True, help="Only for the project of this folder.")
@click.option("--user", "for_user", is_flag=True, help="For all projects of this user (the default).")
@click.option("--dry-run", is_flag=True, help="Show what would be changed, and change nothing.")
@click.option("--remove", is_flag=True, help="Take out what was put in.")
@click.option("--json", "json_output", is_flag=True, help="Print JSON.")
def init(client: str | None, in_project: bool, for_user: bool, dry_run: bool, remove: bool, json_output: bool) -> None:
    """Set up a coding agent's client: hooks, MCP server, skill, as far as it has them.

    Without CLIENT: what is found on this machine, and what would be done.

    Example: athena init claude-code --dry-run
    """
    if in_project and for_user:
        raise click.UsageError("either --project or --user")
    from athena.cli import clients  # other commands do without

    place = _place(in_project)
    if client is None:
        return _list(place, json_output)
    chosen = clients.CLIENTS[client]
    if in_project and not chosen.per_project:
        raise InvalidInput(f"{chosen.title} has no settings for single projects", hint=f"athena init {client} --user")
    if dry_run:
        return _tell(chosen, place, clients.plan(chosen, place, remove), dry_run, remove, json_output)
    settings = configuration.load()
    if not remove:
        launcher.install(place.home, settings.hooks_python_path, settings.hooks_timeout_ms)
    done = clients.run(chosen, place, remove)
    return _tell(chosen, place, done, dry_run, remove, json_output)


def _place(in_project: bool) -> "Place":
    from athena.cli.clients.setup import Place

    project = Path(git_root(os.getcwd()) or os.path.realpath(os.curdir)) if in_project else None
    return Place(home_folder(), Path(os.path.expanduser("~")), project, os.environ)


def _list(place: "Place", json_output: bool) -> None:
    from athena.cli import clients

    found = [client for client in clients.CLIENTS.values() if client.found(place)]
    rows: list[dict[str, Any]] = []
    for client in found:
        row: dict[str, Any] = {
            "client": client.name,
            "set_up": False,
            "changed_by_you": False,
            "gets": client.gets,
            "would": [],
        }
        try:
            row["would"] = _brief(clients.plan(client, place, False))
            row["set_up"] = not row["would"]
            row["notes"] = clients.notes(client, place)
            row["changed_by_you"] = clients.differs(client, place)
        except AthenaError as error:
            row["trouble"] = str(error)
        rows.append(row)
    if json_output:
        return output.as_json({"found": rows, "known": list(clients.CLIENTS)})
    for row in rows:
        what = (
            f"is set up{CHANGED * row['changed_by_you']}"
            if row["set_up"]
            else f"would get {row['gets']}: {'; '.join(row['would'])}"
        )
        what = f"cannot be set up: {row['trouble']}" if "trouble" in row else what
        click.echo(f"{row['client']:<12} {output.safe(what)}")
        _note(row.get("notes", []))
    if not rows:
        click.echo(f"none of these is found here: {', '.join(clients.CLIENTS)}")
    return click.echo("to set one up: athena init CLIENT; --dry-run shows each change")


def _brief(changes: "list[Change | Told]") -> list[str]:
    """Name what is done, each command and then each file in a few words."""
    from athena.cli.clients.setup import Told

    return [f"$ {' '.join(one.words)}" for one in changes if isinstance(one, Told)] + _written(changes)


def _written(changes: "list[Change | Told]") -> list[str]:
    """Name the files that are changed; the plugin's are one folder."""
    from athena.cli.clients.setup import Told

    made = [str(one.writes if isinstance(one, Told) else one.path) for one in changes]
    for folder in PLUGINS:
        made = [name.partition(folder)[0] + folder if folder in name else name for name in made]
    return list(dict.fromkeys(made))


def _tell(
    client: "Client", place: "Place", changes: "list[Change | Told]", dry_run: bool, remove: bool, json_output: bool
) -> None:
    """Say what was done, what it costs, and how to see, limit and remove it."""
    from athena.cli import clients

    notes = [] if remove else clients.notes(client, place)
    if json_output:
        return output.as_json(
            {
                "client": client.name,
                "scope": "user" if place.project is None else str(place.project),
                "dry_run": dry_run,
                "removed": remove,
                "changed": _brief(changes),
                "diff": "".join(change.diff() for change in changes),
                "notes": notes,
                "tokens": {} if remove else _costs(client),
            }
        )
    if not changes:
        click.echo(f"{client.title}: nothing to do, {_state(client, place, remove)}")
        return _note(notes)
    if dry_run:
        click.echo(output.safe("".join(change.diff() for change in changes)), nl=False)
        return _note(notes)
    for name in _brief(changes):
        click.echo(output.safe(name if name.startswith("$") else f"changed {name}"))
    if remove:
        return click.echo(f"{client.title}: removed; memories are kept")
    costs = ", ".join(f"{count:,} for {what}" for what, count in _costs(client).items())
    click.echo(f"{client.title} has {client.gets}. Then: {client.after}.")
    click.echo(f"tokens of a session, at most about: {costs}")
    if inside := [name for name in _written(changes) if place.project and name.startswith(f"{place.project}{os.sep}")]:
        click.echo(output.safe(f"the paths there are of this machine: do not share {' and '.join(inside)}"))
    _note(notes)
    click.echo(f"see: {'athena call list_injections; ' * client.hooks}athena savings   limit: {_limit(client)}")
    return click.echo(f"remove: athena init {client.name}{' --project' if place.project else ''} --remove")


def _state(client: "Client", place: "Place", remove: bool) -> str:
    from athena.cli import clients

    if not remove and clients.covers(client, place):
        return "it is set up for all projects already"
    return "nothing of ours is there" if remove else f"it is set up{CHANGED * clients.differs(client, place)}"


def _limit(client: "Client") -> str:
    if client.hooks:
        return f"budget_tokens and off in [hooks] of {os.path.join(home_folder(), 'config.toml')}"
    return "--tools code at the end of its args leaves two tools"


def _note(notes: list[str]) -> None:
    for note in notes:
        click.echo(f"note: {output.safe(note)}")


def _costs(client: "Client") -> dict[str, int]:
    made = {"the tools": TOOLS, "their instructions": INSTRUCTIONS}
    if client.name == "claude-code":
        made["the skill"] = SKILL
    if client.hooks:
        made["the briefing"] = configuration.load().hooks_budget_tokens
    return made
