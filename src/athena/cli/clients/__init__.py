"""Setting up coding agents' clients: which there are, and what is said to each of them."""

from athena.cli.clients.claude_code import CLAUDE_CODE
from athena.cli.clients.files import BackupRecord, Change, setup_lock
from athena.cli.clients.others import CODEX, CURSOR, GEMINI, VSCODE, WINDSURF
from athena.cli.clients.setup import Client, SetupTarget, Told
from athena.errors import AthenaError
from athena.hooks import launcher

CLIENTS = {client.name: client for client in (CLAUDE_CODE, CODEX, CURSOR, VSCODE, GEMINI, WINDSURF)}


def plan_setup(client: Client, place: SetupTarget, remove: bool) -> list[Change | Told]:
    """Say what setting a client up would change, or removing us from it."""
    if not remove and is_covered_by_user_setup(client, place):
        return []
    record = BackupRecord(place.home)
    steps = client.steps(place)
    return [change for step in (reversed(steps) if remove else steps) for change in step.plan_changes(record, remove)]


def apply_setup(client: Client, place: SetupTarget, remove: bool) -> list[Change | Told]:
    """Set a client up, or remove us from it; what cannot be done whole is found before anything is touched."""
    with setup_lock(place.home):
        if not plan_setup(client, place, remove) and not remove:
            return []
        record = BackupRecord(place.home)
        steps = client.steps(place)
        return [
            change for step in (reversed(steps) if remove else steps) for change in step.apply_changes(record, remove)
        ]


def is_setup_modified(client: Client, place: SetupTarget) -> bool:
    """Tell whether somebody has changed what we put into a client; that is kept."""
    return any(step.is_modified() for step in client.steps(place))


def is_covered_by_user_setup(client: Client, place: SetupTarget) -> bool:
    """Tell whether a project has us already, with all others: hooks of its own would say everything twice."""
    if place.project is None or not client.runs_user_hooks:
        return False
    try:
        return _has_hooks(client, place._replace(project=None))
    except AthenaError:
        return False  # what is wrong elsewhere is said there


def list_notes(client: Client, place: SetupTarget) -> list[str]:
    """Say what else there is to know, and to do."""
    made = client.notes(place)
    if is_covered_by_user_setup(client, place) and _has_hooks(client, place):
        made.append(f"this project has hooks of its own as well: athena init {client.name} --project --remove")
    return made


def _has_hooks(client: Client, place: SetupTarget) -> bool:
    changes = plan_setup(client, place, True)
    return any(launcher.HOOK_LAUNCHER in (one.before or "") for one in changes if isinstance(one, Change))
