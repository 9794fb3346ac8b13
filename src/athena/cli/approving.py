"""Looking at what a server offers, and allowing it: what a person sees before agreeing."""

import json
import os
import sys
from difflib import unified_diff
from typing import Any

import click

from athena.app import connect
from athena.cli import consent, output, running
from athena.core.threads import drive
from athena.errors import AthenaError, Conflict, InvalidInput
from athena.gateway import approvals, sanitize, working_directory
from athena.gateway.config import Entry, checked, foreign_entries, not_ourselves
from athena.gateway.gateway import Gateway, Known

SHOWN = 200  # characters of what each says of itself
WIDEST = 2_000  # characters of a line of a difference
LONGEST = 200  # lines of it


def opened() -> Gateway:
    """Return the servers as they are configured now."""
    app = connect.shared_app()
    app.catalog.version  # noqa: B018  # reads what is configured
    return app.gateway


def entry(name: str, command: tuple[str, ...], options: dict[str, Any]) -> Entry:
    """Make an entry of what was typed."""
    given: dict[str, Any] = {"command": command[0], "args": list(command[1:])} if command else {}
    given |= {key: options[key] for key in ("url", "cwd", "timeout", "approval") if options[key] is not None}
    given |= {key: dict(map(_pair, options[key])) for key in ("headers", "env") if options[key]}
    made = not_ourselves(checked(name, working_directory.rooted(given, os.getcwd())))
    if made.given.get("cwd") and not options["cwd"]:
        click.echo(f"it runs here, since its words mean something here: {made.given['cwd']}", err=True)
    return made


def entries(file: str) -> tuple[list[Entry], dict[str, str]]:
    """Read another client's file: what can be taken, and why the rest cannot."""
    try:
        with open(file, "rb") as opened:
            return foreign_entries(opened.read(), file)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from None


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key.strip() and equals):
        raise InvalidInput(f"{text!r:.60} is no K=V", hint="for example: --header 'Authorization=Bearer ${TOKEN}'")
    return key.strip(), value


def _log_in(gateway: Gateway, name: str) -> None:
    """Have a person log in with a browser."""

    def show(address: str) -> None:
        click.echo(f"to log in, open this address:\n{sanitize.visible(address)}", err=True)
        if sys.stdin.isatty() and click.confirm("Open it in a browser now?", default=True, err=True):
            click.launch(address)

    gateway.login(name, show)
    click.echo(f"logged in to {name}", err=True)


def tried(entry: Entry, json_output: bool) -> str:
    """Approve a server that was just added; return what is wrong with it."""
    gateway = opened()
    name = gateway.named(entry.name)
    try:
        offered, left_out = drive(_looked_at(gateway, name))
    except AthenaError as error:
        trouble = f"{error}; {error.hint}"
        if not json_output:
            click.echo(f"{name}: {sanitize.visible(trouble)}")
        return trouble
    if not json_output:
        _show(offered, {}, None)
    made = gateway.approve(name, offered, left_out)
    if not json_output:
        click.echo(f"{name}: added, {len(made.tools)} tools can be called, as {name}.{_first(made)}(...)")
    return ""


async def _looked_at(gateway: Gateway, name: str) -> tuple[approvals.Tools, int]:
    """Connect a server and return what it offers; where that fails, say what becomes of it."""
    try:
        return await gateway.offered(name)
    except Conflict:  # it is ourselves
        if gateway.is_new(gateway.known(name).entry.name):
            gateway.remove(name)
        raise
    except AthenaError as error:
        kept = f"{name} is kept, not connected; when it works: athena servers approve {name}"
        error.hint = f"{error.hint}; {kept}" if error.hint else kept
        raise


def approve(key: str, json_output: bool, *, ask: bool, login: bool = False) -> None:
    """Show what a server offers now, after a login where it needs one, ask, and pin it."""
    gateway = opened()
    name = gateway.named(key)
    known = gateway.known(name)
    before = known.pins
    ask = ask or (login and before is not None)  # to log in again is not to agree to what has changed
    same_server = before is not None and before.fingerprint == known.entry.fingerprint
    if not same_server and (ask or before is not None):
        _introduce(name, known, json_output, ask=ask)
    if login:
        _log_in(gateway, name)
    offered, left_out = drive(_looked_at(gateway, name))
    changes = approvals.compared(before, offered) if before else {}
    if not json_output:
        _show(offered, changes, before)
    if before is not None and same_server and not changes and not before.refused:
        return output.as_json(_said(name, before)) if json_output else click.echo(f"{name}: all as approved")
    if ask:
        if json_output or not consent.is_interactive():
            raise consent.nobody(f"approve {name}")
        click.confirm(f"Allow these {len(offered)} tools of {name}?", abort=True, err=True)
    made = gateway.approve(name, offered, left_out)
    if there := running.troubles(gateway.config.home).get(name):
        click.echo(f"{name} will not work yet {there}", err=True)
    if json_output:
        return output.as_json(_said(name, made))
    renamed = ({} if key == name else {key: name}) | made.renamed
    for theirs, ours in renamed.items():
        click.echo(f"called in programs: {sanitize.visible(theirs[:80])} -> {ours}")
    if left_out:
        click.echo(
            f"{left_out} tools were left out: more than {approvals.MOST_TOOLS:,}, too large, or named twice", err=True
        )
    return click.echo(f"{name}: {len(made.tools)} tools can be called, as {name}.{_first(made)}(...)")


def _introduce(name: str, known: Known, json_output: bool, *, ask: bool) -> None:
    """Show what would run, or what is different about it, and ask, before it does."""
    told = consent.differences("{}" if known.pins is None else known.pins.fingerprint, known.entry)
    if not json_output:
        click.echo(f"{name} is not the one that was approved:" if known.pins else f"{name} was never approved:")
        for line in told:
            click.echo(f"  {line}")
    if ask:
        if json_output or not consent.is_interactive():
            raise consent.nobody(f"approve {name}")
        click.confirm("Run it, and see what it offers?", abort=True, err=True)


def _first(made: approvals.Pins) -> str:
    return next((pin.called for pin in made.tools.values()), "tool")


def _said(name: str, made: approvals.Pins) -> dict[str, Any]:
    called = {pin.called: tool for tool, pin in made.tools.items()}
    return {"name": name, "tools": sorted(called), "renamed": made.renamed, "left_out": made.left_out}


def _show(offered: approvals.Tools, changes: dict[str, Any], before: approvals.Pins | None) -> None:
    """Print the tools, or what is different about them; nothing that hides stays hidden."""
    for tool, definition in offered.items():
        why = changes.get(tool, "") if before else ""
        if before and not why:
            continue
        hides = click.style("  HIDDEN CHARACTERS", fg="red") if sanitize.hides(definition) else ""
        if why == "changed" and before is not None:
            click.echo(f"changed: {sanitize.visible(tool)}{hides}")
            for line in _difference(before.tools[tool].definition, definition):
                click.echo(f"  {line}")
        else:
            about = sanitize.visible(" ".join(str(definition.get("description") or "").split()))
            click.echo(f"{why or '+'} {sanitize.visible(tool)}  {_hints(definition)}{_cut(about, SHOWN)}{hides}")
    for tool, why in changes.items():
        if why == "gone":
            click.echo(f"gone: {sanitize.visible(tool)}")


def _hints(definition: Any) -> str:
    hints = definition.get("annotations") or {}
    if hints.get("readOnlyHint") is True:
        return "(reads) "
    return "(destroys) " if hints.get("destructiveHint") is True else ""


def _difference(old: Any, new: Any) -> list[str]:
    before, now = (json.dumps(one, indent=1, sort_keys=True, ensure_ascii=False).splitlines() for one in (old, new))
    found = [one for one in unified_diff(before, now, n=0, lineterm="") if not one.startswith(("---", "+++", "@@"))]
    lines = [_cut(sanitize.visible(line), WIDEST) for line in found[:LONGEST]]
    return [*lines, f"... and {len(found) - LONGEST} more lines"] if len(found) > LONGEST else lines


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"
