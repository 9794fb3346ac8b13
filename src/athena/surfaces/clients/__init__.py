"""Setting up coding agents' clients: which there are, and what is said to each of them."""

from athena.surfaces.clients.claude_code import CLAUDE_CODE
from athena.surfaces.clients.client import Client
from athena.surfaces.clients.codex import CODEX
from athena.surfaces.clients.cursor import CURSOR
from athena.surfaces.clients.files import Change, Record
from athena.surfaces.clients.gemini import GEMINI
from athena.surfaces.clients.steps import Place, Told
from athena.surfaces.clients.vscode import VSCODE
from athena.surfaces.clients.windsurf import WINDSURF

CLIENTS = {client.name: client for client in (CLAUDE_CODE, CODEX, CURSOR, VSCODE, GEMINI, WINDSURF)}


def plan(client: Client, place: Place, remove: bool) -> list[Change | Told]:
    """Say what setting a client up would change, or removing us from it."""
    record = Record(place.home)
    steps = client.steps(place)
    return [change for step in (reversed(steps) if remove else steps) for change in step.plan(record, remove)]


def run(client: Client, place: Place, remove: bool) -> list[Change | Told]:
    """Set a client up, or remove us from it; what cannot be done whole is found before anything is touched."""
    plan(client, place, remove)
    record = Record(place.home)
    steps = client.steps(place)
    return [change for step in (reversed(steps) if remove else steps) for change in step.run(record, remove)]


def differs(client: Client, place: Place) -> bool:
    """Tell whether somebody has changed what we put into a client; that is kept."""
    return any(step.differs() for step in client.steps(place))
