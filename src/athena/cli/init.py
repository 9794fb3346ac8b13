"""`athena init`: sets up a coding agent's client, and takes that back."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from athena.app import settings as configuration
from athena.cli import output
from athena.cli.invoke import json_option
from athena.core.home.paths import find_git_root, home_folder
from athena.errors import AthenaError, InvalidInput
from athena.hooks import launcher

if TYPE_CHECKING:
    from athena.cli.clients.files import Change
    from athena.cli.clients.setup import Client, SetupTarget, Told

CLIENT_NAMES = ("claude-code", "codex", "cursor", "vscode", "gemini", "windsurf")
TOOLS_TOKENS = 500  # o200k tokens of the four tools' definitions, about
INSTRUCTIONS_TOKENS = 310  # of what the server says about their use, which some clients show the model
SKILL_TOKENS = 80  # of the skill's line in the list of skills
PLUGIN_FOLDERS = ("/plugins/claude-code/", "/.claude/skills/athena/")
CHANGED_SUFFIX = " (changed by you)"


@click.command()
@click.argument("client", required=False, type=click.Choice(CLIENT_NAMES))
@click.option("--project", "in_project", is_flag=True, help="Only for the project of this folder.")
@click.option("--user", "for_user", is_flag=True, help="For all projects of this user (the default).")
@click.option("--dry-run", is_flag=True, help="Show what would be changed, and change nothing.")
@click.option("--remove", is_flag=True, help="Take out what was put in.")
@json_option
def init(client: str | None, in_project: bool, for_user: bool, dry_run: bool, remove: bool, json_output: bool) -> None:
    """Set up a coding agent's client: hooks, MCP server, skill, as far as it has them.

    Without CLIENT: what is found on this machine, and what would be done.

    Example: athena init claude-code --dry-run
    """
    if in_project and for_user:
        raise click.UsageError("either --project or --user")
    from athena.cli import clients  # other commands do without

    place = _create_target(in_project)
    if client is None:
        return _list_clients(place, json_output)
    chosen = clients.CLIENTS[client]
    if in_project and not chosen.per_project:
        raise InvalidInput(f"{chosen.title} has no settings for single projects", hint=f"athena init {client} --user")
    if dry_run:
        return _print_changes(chosen, place, clients.plan_setup(chosen, place, remove), dry_run, remove, json_output)
    settings = configuration.load_settings()
    if not remove:
        launcher.install_launchers(place.home, settings.hooks_python_path, settings.hooks_timeout_ms)
    done = clients.apply_setup(chosen, place, remove)
    return _print_changes(chosen, place, done, dry_run, remove, json_output)


def _create_target(in_project: bool) -> "SetupTarget":
    from athena.cli.clients.setup import SetupTarget

    project = Path(find_git_root(os.getcwd()) or os.path.realpath(os.curdir)) if in_project else None
    return SetupTarget(home_folder(), Path(os.path.expanduser("~")), project, os.environ)


def _list_clients(place: "SetupTarget", json_output: bool) -> None:
    from athena.cli import clients

    found = [client for client in clients.CLIENTS.values() if client.is_installed(place)]
    rows: list[dict[str, Any]] = []
    for client in found:
        row: dict[str, Any] = {
            "client": client.name,
            "set_up": False,
            "changed_by_you": False,
            "gets": client.features,
            "would": [],
        }
        try:
            row["would"] = _summarize_changes(clients.plan_setup(client, place, False))
            row["set_up"] = not row["would"]
            row["notes"] = clients.list_notes(client, place)
            row["changed_by_you"] = clients.is_setup_modified(client, place)
        except AthenaError as error:
            row["trouble"] = str(error)
        rows.append(row)
    if json_output:
        return output.print_json({"found": rows, "known": list(clients.CLIENTS)})
    for row in rows:
        what = (
            f"is set up{CHANGED_SUFFIX * row['changed_by_you']}"
            if row["set_up"]
            else f"would get {row['gets']}: {'; '.join(row['would'])}"
        )
        what = f"cannot be set up: {row['trouble']}" if "trouble" in row else what
        click.echo(f"{row['client']:<12} {output.escape_control_chars(what)}")
        _print_notes(row.get("notes", []))
    if not rows:
        click.echo(f"none of these is found here: {', '.join(clients.CLIENTS)}")
    return click.echo("to set one up: athena init CLIENT; --dry-run shows each change")


def _summarize_changes(changes: "list[Change | Told]") -> list[str]:
    """Name what is done, each command and then each file in a few words."""
    from athena.cli.clients.setup import Told

    return [f"$ {' '.join(one.argv)}" for one in changes if isinstance(one, Told)] + _changed_files(changes)


def _changed_files(changes: "list[Change | Told]") -> list[str]:
    """Name the files that are changed; the plugin's are one folder."""
    from athena.cli.clients.setup import Told

    made = [str(one.config_path if isinstance(one, Told) else one.path) for one in changes]
    for folder in PLUGIN_FOLDERS:
        made = [name.partition(folder)[0] + folder if folder in name else name for name in made]
    return list(dict.fromkeys(made))


def _print_changes(
    client: "Client",
    place: "SetupTarget",
    changes: "list[Change | Told]",
    dry_run: bool,
    remove: bool,
    json_output: bool,
) -> None:
    """Say what was done, what it costs, and how to see, limit and remove it."""
    from athena.cli import clients

    notes = [] if remove else clients.list_notes(client, place)
    if json_output:
        return output.print_json(
            {
                "client": client.name,
                "scope": "user" if place.project is None else str(place.project),
                "dry_run": dry_run,
                "removed": remove,
                "changed": _summarize_changes(changes),
                "diff": "".join(change.format_diff() for change in changes),
                "notes": notes,
                "tokens": {} if remove else _estimate_tokens(client),
            }
        )
    if not changes:
        click.echo(f"{client.title}: nothing to do, {_describe_state(client, place, remove)}")
        return _print_notes(notes)
    if dry_run:
        click.echo(output.escape_control_chars("".join(change.format_diff() for change in changes)), nl=False)
        return _print_notes(notes)
    for name in _summarize_changes(changes):
        click.echo(output.escape_control_chars(name if name.startswith("$") else f"changed {name}"))
    if remove:
        return click.echo(f"{client.title}: removed; memories are kept")
    costs = ", ".join(f"{count:,} for {what}" for what, count in _estimate_tokens(client).items())
    click.echo(f"{client.title} has {client.features}. Then: {client.next_step}.")
    click.echo(f"tokens of a session, at most about: {costs}")
    if inside := [
        name for name in _changed_files(changes) if place.project and name.startswith(f"{place.project}{os.sep}")
    ]:
        click.echo(
            output.escape_control_chars(f"the paths there are of this machine: do not share {' and '.join(inside)}")
        )
    _print_notes(notes)
    click.echo(f"see: {'athena call list_injections; ' * client.hooks}athena savings   limit: {_limit_hint(client)}")
    return click.echo(f"remove: athena init {client.name}{' --project' if place.project else ''} --remove")


def _describe_state(client: "Client", place: "SetupTarget", remove: bool) -> str:
    from athena.cli import clients

    if not remove and clients.is_covered_by_user_setup(client, place):
        return "it is set up for all projects already"
    return (
        "nothing of ours is there"
        if remove
        else f"it is set up{CHANGED_SUFFIX * clients.is_setup_modified(client, place)}"
    )


def _limit_hint(client: "Client") -> str:
    if client.hooks:
        return f"budget_tokens and off in [hooks] of {os.path.join(home_folder(), 'config.toml')}"
    return "--tools code at the end of its args leaves two tools"


def _print_notes(notes: list[str]) -> None:
    for note in notes:
        click.echo(f"note: {output.escape_control_chars(note)}")


def _estimate_tokens(client: "Client") -> dict[str, int]:
    made = {"the tools": TOOLS_TOKENS, "their instructions": INSTRUCTIONS_TOKENS}
    if client.name == "claude-code":
        made["the skill"] = SKILL_TOKENS
    if client.hooks:
        made["the briefing"] = configuration.load_settings().hooks_budget_tokens
    return made
