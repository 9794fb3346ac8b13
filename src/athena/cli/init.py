"""`athena init`: set up a coding agent's client, or remove Athena from it."""

import os
from pathlib import Path
from typing import Any

import click

from athena.app import settings as configuration
from athena.cli import clients, output
from athena.cli.clients.files import FileChange
from athena.cli.clients.setup import Client, ClientCommand, SetupTarget
from athena.cli.invoke import json_option
from athena.core.home.paths import find_git_root, home_folder
from athena.core.words import find_similar_names
from athena.errors import AthenaError, InvalidInput
from athena.hooks import launcher
from athena.hooks.transcript import CLIENT_FOLDERS

# o200k tokens, about
TOOLS_TOKENS = 500  # the definitions of the four tools
INSTRUCTIONS_TOKENS = 310  # the server's instructions, which some clients show the model
SKILL_TOKENS = 80  # the line in the list of skills
PLUGIN_FOLDERS = ("/plugins/claude-code/", "/.claude/skills/athena/")
CHANGED_SUFFIX = " (changed by you)"


class ClientName(click.Choice[str]):
    """The name of a client; another one is refused with those that it may mean."""

    name = "client"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        word = str(value).casefold().replace(" ", "-").replace("_", "-")
        if word not in self.choices:
            alike = [name for name in self.choices if name.replace("-", "").startswith(word.replace("-", "")[:4])]
            meant = alike or find_similar_names(word, self.choices)
            known = f"did you mean {meant[0]}?" if meant else f"the clients are {', '.join(self.choices)}."
            raise click.UsageError(f"There is no client {value!r:.60}; {known}", ctx)
        return word

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return "[CLIENT]"


@click.command()
@click.argument("client", required=False, type=ClientName(list(clients.CLIENTS)))
@click.option("--project", "in_project", is_flag=True, help="Only for the project of this folder.")
@click.option("--user", "for_user", is_flag=True, help="For all projects of this user (the default).")
@click.option("--dry-run", is_flag=True, help="Show what would be changed, and change nothing.")
@click.option("--remove", is_flag=True, help="Take out what was put in.")
@json_option
def init(client: str | None, in_project: bool, for_user: bool, dry_run: bool, remove: bool, json_output: bool) -> None:
    """Set up a coding agent: hooks, MCP server, skill. Each client gets what it has room for.

    CLIENT is claude-code, codex, cursor, vscode, gemini or windsurf. Without it: what is found on this machine, and
    what would be done.

    Example: athena init claude-code --dry-run
    """
    if in_project and for_user:
        raise click.UsageError("either --project or --user")
    target = _create_target(in_project)
    if client is None:
        return _list_clients(target, json_output)
    selected = clients.CLIENTS[client]
    if in_project and not selected.per_project:
        raise InvalidInput(f"{selected.title} has no settings for single projects", hint=f"athena init {client} --user")
    if dry_run:
        changes = clients.plan_setup(selected, target, remove)
        return _print_changes(selected, target, changes, dry_run, remove, json_output)
    settings = configuration.load_settings()
    if not remove:
        launcher.install_launchers(target.home, settings.hooks_python_path, settings.hooks_timeout_ms)
    changes = clients.apply_setup(selected, target, remove)
    if not remove and configuration.set_daemon_auto(target.home):
        click.echo("programs and commands start the daemon, too: daemon.auto in config.toml", err=True)
    return _print_changes(selected, target, changes, dry_run, remove, json_output)


def _create_target(in_project: bool) -> SetupTarget:
    project = Path(find_git_root(os.getcwd()) or os.path.realpath(os.curdir)) if in_project else None
    return SetupTarget(home_folder(), Path(os.path.expanduser("~")), project, os.environ)


def _list_clients(target: SetupTarget, json_output: bool) -> None:
    rows: list[dict[str, Any]] = []
    for client in clients.CLIENTS.values():
        if not client.is_installed(target):
            continue
        row: dict[str, Any] = {
            "client": client.name,
            "set_up": False,
            "changed_by_you": False,
            "gets": client.features,
            "would": [],
        }
        try:
            row["would"] = _summarize_changes(clients.plan_setup(client, target, False))
            row["set_up"] = not row["would"]
            row["notes"] = clients.list_notes(client, target)
            row["changed_by_you"] = clients.is_setup_modified(client, target)
        except AthenaError as error:
            row["trouble"] = str(error)
        rows.append(row)
    if json_output:
        return output.print_data({"found": rows, "known": list(clients.CLIENTS)})
    for row in rows:
        if "trouble" in row:
            state = f"cannot be set up: {row['trouble']}"
        elif row["set_up"]:
            state = f"is set up{CHANGED_SUFFIX * row['changed_by_you']}"
        else:
            state = f"would get {row['gets']}: {'; '.join(row['would'])}"
        click.echo(f"{row['client']:<12} {output.escape_control_chars(state)}")
        _print_notes(row.get("notes", []))
    if not rows:
        click.echo(f"none of these is found here: {', '.join(clients.CLIENTS)}")
    return click.echo("to set one up: athena init CLIENT; --dry-run shows each change")


def _summarize_changes(changes: list[FileChange | ClientCommand]) -> list[str]:
    """Return a line for each command, then for each changed file."""
    return [f"$ {' '.join(change.argv)}" for change in changes if isinstance(change, ClientCommand)] + _changed_files(
        changes
    )


def _changed_files(changes: list[FileChange | ClientCommand]) -> list[str]:
    """Return the paths of the changed files; those of the plugin as one folder."""
    paths = [str(change.config_path if isinstance(change, ClientCommand) else change.path) for change in changes]
    for folder in PLUGIN_FOLDERS:
        paths = [path.partition(folder)[0] + folder if folder in path else path for path in paths]
    return list(dict.fromkeys(paths))


def _print_changes(
    client: Client,
    target: SetupTarget,
    changes: list[FileChange | ClientCommand],
    dry_run: bool,
    remove: bool,
    json_output: bool,
) -> None:
    """Print the changes, their cost in tokens, and how to inspect, limit and remove the set-up."""
    notes = [] if remove else clients.list_notes(client, target)
    if json_output:
        return output.print_data(
            {
                "client": client.name,
                "scope": "user" if target.project is None else str(target.project),
                "dry_run": dry_run,
                "removed": remove,
                "changed": _summarize_changes(changes),
                "diff": "".join(change.format_diff() for change in changes),
                "notes": notes,
                "tokens": {} if remove else _estimate_tokens(client),
            }
        )
    if not changes:
        click.echo(f"{client.title}: nothing to do, {_describe_state(client, target, remove)}")
        return _print_notes(notes)
    if dry_run:
        click.echo(output.escape_control_chars("".join(change.format_diff() for change in changes)), nl=False)
        return _print_notes(notes)
    for line in _summarize_changes(changes):
        click.echo(output.escape_control_chars(line if line.startswith("$") else f"changed {line}"))
    if remove:
        return click.echo(f"{client.title}: removed; memories are kept")
    costs = ", ".join(f"{count:,} for {part}" for part, count in _estimate_tokens(client).items())
    click.echo(f"{client.title} has {client.features}. Then: {client.next_step}.")
    click.echo(f"tokens of a session, at most about: {costs}")
    if target.project:
        in_project = [path for path in _changed_files(changes) if path.startswith(f"{target.project}{os.sep}")]
        if in_project:
            warning = f"the paths there are of this machine: do not share {' and '.join(in_project)}"
            click.echo(output.escape_control_chars(warning))
    _print_notes(notes)
    if client.name in CLIENT_FOLDERS and target.project is None:
        click.echo(f"learn from its past sessions: athena learn --from-transcripts --client {client.name} --dry-run")
    click.echo(f"see: {'athena session told; ' * client.hooks}athena savings   limit: {_limit_hint(client)}")
    return click.echo(f"remove: athena init {client.name}{' --project' if target.project else ''} --remove")


def _describe_state(client: Client, target: SetupTarget, remove: bool) -> str:
    if not remove and clients.is_covered_by_user_setup(client, target):
        return "it is set up for all projects already"
    if remove:
        return "nothing of ours is there"
    return f"it is set up{CHANGED_SUFFIX * clients.is_setup_modified(client, target)}"


def _limit_hint(client: Client) -> str:
    if client.hooks:
        return f"budget_tokens and off in [hooks] of {os.path.join(home_folder(), 'config.toml')}"
    return "--tools code at the end of its args leaves two tools"


def _print_notes(notes: list[str]) -> None:
    for note in notes:
        click.echo(f"note: {output.escape_control_chars(note)}")


def _estimate_tokens(client: Client) -> dict[str, int]:
    tokens = {"the tools": TOOLS_TOKENS, "their instructions": INSTRUCTIONS_TOKENS}
    if client.name == "claude-code":
        tokens["the skill"] = SKILL_TOKENS
    if client.hooks:
        tokens["the briefing"] = configuration.load_settings().hooks_budget_tokens
    return tokens
