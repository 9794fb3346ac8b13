"""Set up coding agents' clients for Athena, and remove it from them again."""

from athena.cli.clients.claude_code import CLAUDE_CODE
from athena.cli.clients.files import BackupRecord, FileChange, setup_lock
from athena.cli.clients.others import CODEX, CURSOR, GEMINI, VSCODE, WINDSURF
from athena.cli.clients.setup import Client, ClientCommand, SetupTarget
from athena.errors import AthenaError
from athena.hooks import launcher

CLIENTS = {client.name: client for client in (CLAUDE_CODE, CODEX, CURSOR, VSCODE, GEMINI, WINDSURF)}


def plan_setup(client: Client, target: SetupTarget, remove: bool) -> list[FileChange | ClientCommand]:
    """Return what setting up a client, or removing Athena from it, would change."""
    if not remove and is_covered_by_user_setup(client, target):
        return []
    record = BackupRecord(target.home)
    steps = client.steps(target)
    return [change for step in (reversed(steps) if remove else steps) for change in step.plan_changes(record, remove)]


def apply_setup(client: Client, target: SetupTarget, remove: bool) -> list[FileChange | ClientCommand]:
    """Set up a client, or remove Athena from it; errors are found before anything is changed."""
    with setup_lock(target.home):
        if not plan_setup(client, target, remove) and not remove:
            return []
        record = BackupRecord(target.home)
        steps = client.steps(target)
        return [
            change for step in (reversed(steps) if remove else steps) for change in step.apply_changes(record, remove)
        ]


def is_setup_modified(client: Client, target: SetupTarget) -> bool:
    """Return whether somebody has changed our entries in a client."""
    return any(step.is_modified() for step in client.steps(target))


def is_covered_by_user_setup(client: Client, target: SetupTarget) -> bool:
    """Return whether the user's own set-up covers a project: hooks of its own would inject everything twice."""
    if target.project is None or not client.runs_user_hooks:
        return False
    try:
        return _has_hooks(client, target._replace(project=None))
    except AthenaError:
        return False  # the set-up of the user reports its own errors


def list_notes(client: Client, target: SetupTarget) -> list[str]:
    """Return notes for the user about a client on this machine."""
    notes = client.notes(target)
    if is_covered_by_user_setup(client, target) and _has_hooks(client, target):
        notes.append(f"this project has hooks of its own as well: athena init {client.name} --project --remove")
    return notes


def _has_hooks(client: Client, target: SetupTarget) -> bool:
    changes = plan_setup(client, target, True)
    return any(launcher.HOOK_LAUNCHER in (change.before or "") for change in changes if isinstance(change, FileChange))
