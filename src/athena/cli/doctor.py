"""`athena doctor`: does everything work here, and if not, what to do."""

import os
import platform
import sys
import time

import click

from athena.app import connect
from athena.app import settings as configuration
from athena.cli import output, servers
from athena.cli.daemon import count_fallbacks, format_failure, hooks_log_path
from athena.cli.daemon import format_daemon as said_of
from athena.cli.invoke import json_option
from athena.core.home import daemon as warm
from athena.core.home import lock
from athena.core.home.paths import current_project, home_folder
from athena.core.threads import run_sync
from athena.core.version import __version__
from athena.errors import AthenaError


@click.command()
@json_option
def doctor(json_output: bool) -> None:
    """Check this installation: versions, folders, the store, the model.

    Example: athena doctor
    """
    rows = list(_run_checks())
    if json_output:
        output.print_json([{"check": name, "ok": ok, "detail": detail} for name, ok, detail in rows])
    else:
        for name, ok, detail in rows:
            mark = click.style("ok  ", fg="green") if ok else click.style("FAIL", fg="red")
            click.echo(f"{mark} {name:<10} {output.escape_control_chars(detail)}")
    if not all(ok for _, ok, _ in rows):
        raise click.exceptions.Exit(1)


def _run_checks() -> list[tuple[str, bool, str]]:
    import apsw  # here to name its version

    home = home_folder()
    rows = [
        ("athena", True, f"{__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"),
        ("sqlite", True, f"{apsw.sqlite_lib_version()} through apsw {apsw.apsw_version()}"),
        ("home", _is_writable(str(home)), f"{home}"),
        ("project", True, current_project()),
    ]
    try:
        settings = configuration.load_settings()
        file = os.path.join(home, configuration.CONFIG_FILE)
        rows.append(("config", True, file if os.path.exists(file) else f"there is no {file}, so all is as by default"))
    except AthenaError as error:
        rows.append(("config", False, f"{error}; {error.hint or 'mend it'}; until then no hook says anything"))
        return rows
    connection = connect.AppConnection(connect.shared_app, None, "cli")
    rows += _check_daemon(home)
    try:
        began = time.perf_counter()
        health = run_sync(connection.call("health", {})).data
        took = (time.perf_counter() - began) * 1000
        found = f"{health['location']}, {output.format_count(health['count'])} here"
        rows.append(("store", health["status"] != "error", found))
        if health["backend"] != "sqlite" and os.path.isabs(current_project()):
            rows.append(
                ("sharing", True, "this project is named by its path; to share it, set ATHENA_PROJECT to a name")
            )
        trouble = "; ".join(health["problems"])
        rows.append(("model", health["status"] == "healthy", trouble or f"{health['model']} (ready in {took:.0f} ms)"))
        verdict = run_sync(connection.call("verify", {})).data
        every = output.format_count(verdict["checked"].get("memories", 0))
        sound = f"{every} of all projects checked, forgotten ones too; all parts agree"
        rows.append(("integrity", verdict["ok"], "; ".join(verdict["problems"]) or sound))
        names = {one["name"] for one in run_sync(connection.call("list_projects", {})).data}
        rows += _check_hooks(settings, names)
        rows += _check_sandbox()
        rows += _check_servers()
    except AthenaError as error:
        rows.append(("store", False, f"{error}; {error.hint or ''}"))
    return rows


def _check_daemon(home: str) -> list[tuple[str, bool, str]]:
    """Say what serves this home; that nothing does is no fault, since hooks start one."""
    facts = lock.find_server(home)
    if facts is None:
        return [("daemon", True, "none runs; hooks and athena mcp start one")]
    good = warm.is_responding(home)
    return [("daemon", good, said_of(facts) + ("" if good else "; it does not answer: athena daemon stop ends it"))]


def _check_hooks(settings: configuration.Settings, names: set[str]) -> list[tuple[str, bool, str]]:
    """Say whether hooks are on, what is switched off that is not there, and why one had no answer."""
    strange = [one for one in settings.hooks_projects if one not in names and not os.path.isdir(one)]
    if strange:
        known = "neither a folder nor a project; projects are listed by athena projects"
        return [("hooks", False, f"hooks.projects names {', '.join(map(repr, strange))}: {known}")]
    said = "on" if settings.hooks_enabled else f"off; {settings.hooks_mcp_url or 'nobody'} is asked"
    if settings.hooks_off:
        said += f", without {', '.join(sorted(settings.hooks_off))}"
    silent = count_fallbacks(settings.home)[1]
    if silent:
        said += f"; the last one without an answer: {format_failure(silent)} (see {hooks_log_path(settings.home)})"
    return [("hooks", True, said)]


def _check_sandbox() -> list[tuple[str, bool, str]]:
    """Say behind which walls programs run; with bare workers that is said loudly."""
    from athena.programs.sandbox.jail import list_layer_choices

    rows: list[tuple[str, bool, str]] = []
    every = [list(one) for one in list_layer_choices()]
    for name, engine in connect.shared_app().programs.sandbox.probe_engines().items():
        layers = engine["layers"]
        walls = ", ".join("namespaces" if one == "ns" else one for one in layers) or "NO WALLS AROUND IT"
        if layers in every:
            walls += f" (choice {every.index(layers) + 1} of {len(every)}, the strongest first)"
        said = f"{engine['version']}: {walls}" if engine["works"] else f"{engine['why']} ({_explain_jail_failure()})"
        rows.append((name, engine["works"], said))
    return rows


def _check_servers() -> list[tuple[str, bool, str]]:
    """Connect every server that a person has approved, and say how each is."""
    app = connect.shared_app()
    try:
        app.catalog.refresh()
        if not (found := app.gateway.list_servers()):
            return []
    except AthenaError as error:
        return [("servers", False, f"{error}; {error.hint or ''}")]
    wrong = run_sync(app.gateway.check_servers())
    elsewhere = servers.fetch_server_problems(str(home_folder()))
    rows = []
    for one in app.gateway.list_servers() if wrong else found:
        bad = wrong.get(one.name) or one.detail or elsewhere.get(one.name, "")
        rows.append((f"mcp {one.name}", not bad or one.status == "disabled", bad or f"{one.status}, {one.tools} tools"))
    return rows


def _explain_jail_failure() -> str:
    from athena.programs.sandbox import jail  # only where something is wrong

    tried = [f"{'+'.join(one['layers'])}: {one['why']}" for one in jail.probe_layers()["tried"] if not one["works"]]
    return "; ".join(tried) or "Python itself starts there"


def _is_writable(folder: str) -> bool:
    """Tell whether we can write there, or create it."""
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return os.access(folder, os.W_OK) and sys.platform in ("linux", "darwin")
