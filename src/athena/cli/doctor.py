"""`athena doctor`: check the installation, and say what to do about each problem."""

import contextlib
import os
import platform
import re
import shlex
import stat
import time
from functools import partial
from typing import Any

import apsw
import click

from athena.app import connect
from athena.app import settings as configuration
from athena.app.backups import find_backups_folder
from athena.cli import output, servers
from athena.cli.daemon import count_fallbacks, format_daemon, format_failure, hooks_log_path
from athena.cli.invoke import call_operation, json_option
from athena.cli.progress import show_progress
from athena.core.catalog import invoke
from athena.core.home import daemon as daemon_process
from athena.core.home import lock
from athena.core.home.paths import current_project, find_home_problem, home_folder, is_home_writable
from athena.core.threads import run_sync, start_in_thread
from athena.core.types import to_json
from athena.core.version import __version__
from athena.errors import AthenaError
from athena.programs.sandbox import jail
from athena.storage import backups
from athena.storage.counts import count_kinds

PROGRESS_INTERVAL_S = 0.3


@click.command()
@json_option
def doctor(json_output: bool) -> None:
    """Check this installation, and say what to do. Versions, folders, the store, the model, servers.

    Example: athena doctor
    """
    rows = list(_run_checks())
    if json_output:
        output.print_data([{"check": name, "ok": ok, "detail": detail} for name, ok, detail in rows])
    else:
        for name, ok, detail in rows:
            mark = output.style("ok  ", fg="green") if ok else output.style("FAIL", fg="red")
            click.echo(f"{mark} {name:<10} {output.escape_control_chars(detail)}")
    if not all(ok for _, ok, _ in rows):
        raise click.exceptions.Exit(1)


def _run_checks() -> list[tuple[str, bool, str]]:
    home = home_folder()
    rows = [
        ("athena", True, f"{__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"),
        ("sqlite", True, f"{apsw.sqlite_lib_version()} through apsw {apsw.apsw_version()}"),
        _check_home(home),
        ("project", True, current_project()),
    ]
    try:
        settings = configuration.load_settings()
        file = os.path.join(home, configuration.CONFIG_FILE)
        detail = file if os.path.exists(file) else f"there is no {file}; defaults apply"
        unknown = configuration.list_unknown_variables()
        rows.append(("config", not unknown, "; ".join([*unknown, detail])))
    except AthenaError as error:
        rows.append(("config", False, f"{error}; {error.hint or 'repair it'}; until then hooks return nothing"))
        return rows
    rows += _check_daemon(home)
    try:
        start = time.perf_counter()
        health = call_operation("health")
        elapsed_ms = (time.perf_counter() - start) * 1000
        detail = f"{health['location']}, {output.format_count(health['count'])} here"
        rows.append(("store", health["status"] != "error", detail))
        if health["backend"] != "sqlite" and os.path.isabs(current_project()):
            rows.append(
                ("sharing", True, "this project is named by its path; to share it, set ATHENA_PROJECT to a name")
            )
        problems = "; ".join(health["problems"])
        model = f"{health['model']} (ready in {elapsed_ms:.0f} ms)"
        if progress := health["reembedding"]:
            total = progress["done"] + progress["remaining"]
            model += f"; re-reading memories with the new model: {progress['done']:,} of {total:,} passages"
        rows.append(("model", health["status"] == "healthy", problems or model))
        report = _verify_with_progress()
        kept = run_sync(connect.shared_app().store.database.read(partial(count_kinds, forgotten=True)))
        records = output.format_kinds(kept) or "nothing is kept yet"
        summary = f"all tables consistent: {records} of all projects, including forgotten"
        rows.append(("integrity", report["ok"], "; ".join(report["problems"]) or summary))
        rows += _check_backups(settings)
        rows += _check_hooks(settings, {project["name"] for project in call_operation("list_projects")})
        rows += _check_sandbox()
        rows += _check_servers()
    except AthenaError as error:
        rows.append(("store", False, f"{error}; {error.hint or ''}"))
    except OSError as error:  # the home, which cannot be written, has its own line
        rows.append(("files", False, f"{error.filename or home} cannot be used: {error.strerror}"))
    return rows


def _verify_with_progress() -> Any:
    """Check the store in another thread, and show on a terminal how far that is."""
    app = connect.shared_app()
    context = app.create_context(current_project(), "cli")
    task = start_in_thread(lambda: run_sync(invoke(app.catalog, "verify", {}, context)))
    with show_progress("Checking the store") as bar:
        while not task.wait(PROGRESS_INTERVAL_S):
            progress = context.progress
            bar.update(progress.done, progress.total, f"Checking the store: {progress.stage}")
    return to_json(task.result())


def _check_daemon(home: str) -> list[tuple[str, bool, str]]:
    """Check the running server; none is no problem, since hooks start one."""
    server_info = lock.find_server(home)
    if server_info is None:
        return [("daemon", True, "not running; hooks and athena mcp start one")]
    responds = daemon_process.is_responding(home)
    problem = "" if responds else "; it does not answer: athena daemon stop ends it"
    return [("daemon", responds, format_daemon(server_info) + problem)]


def _check_backups(settings: configuration.Settings) -> list[tuple[str, bool, str]]:
    """Say how old the newest backup is; nothing where there is none and none is expected."""
    paths = backups.list_backups(find_backups_folder(settings))
    if not paths:
        return (
            [("backup", False, "there is none yet; a running server writes it")] if settings.backup_every_hours else []
        )
    age_hours = (time.time() - os.path.getmtime(paths[-1])) / 3_600
    is_late = 0 < settings.backup_every_hours * 2 < age_hours
    late = "; the server did not write one when it was due: see its log" if is_late else ""
    return [("backup", not is_late, f"{paths[-1]}, {output.format_count(round(age_hours), 'hour', 'hours')} old{late}")]


def _check_hooks(settings: configuration.Settings, projects: set[str]) -> list[tuple[str, bool, str]]:
    """Check that hooks.projects names projects that exist; say whether hooks are on, and why one had no answer."""
    unknown = [name for name in settings.hooks_projects if name not in projects and not os.path.isdir(name)]
    if unknown:
        problem = "neither a folder nor a project; athena projects lists these"
        return [("hooks", False, f"hooks.projects names {', '.join(map(repr, unknown))}: {problem}")]
    other_server = "no other server configured"
    if settings.hooks_mcp_url:  # without the token that may stand before the host
        other_server = f"{re.sub('//[^/]*@', '//', settings.hooks_mcp_url)} is asked"
    detail = "on" if settings.hooks_enabled else f"off; {other_server}"
    if settings.hooks_off:
        detail += f", without {', '.join(sorted(settings.hooks_off))}"
    failure = count_fallbacks(settings.home)[1]
    if failure:
        detail += f"; the last one without an answer: {format_failure(failure)} (see {hooks_log_path(settings.home)})"
    return [("hooks", True, detail)]


def _check_sandbox() -> list[tuple[str, bool, str]]:
    """Check the engines that run programs, and say which layers of isolation each has."""
    rows: list[tuple[str, bool, str]] = []
    choices = [list(layers) for layers in jail.list_layer_choices()]
    with show_progress("Checking the sandbox"):
        engines = connect.shared_app().programs.sandbox.probe_engines()
    for name, engine in engines.items():
        layers = engine["layers"]
        isolation = ", ".join("namespaces" if layer == "ns" else layer for layer in layers) or "NO ISOLATION"
        if layers in choices:
            isolation += f" (choice {choices.index(layers) + 1} of {len(choices)}, the strongest first)"
        if engine["works"]:
            detail = f"{engine['version']}: {isolation}"
        else:
            detail = f"{engine['why']} ({_explain_jail_failure()})"
        rows.append((name, engine["works"], detail))
    return rows


def _check_servers() -> list[tuple[str, bool, str]]:
    """Connect every approved server, and return the state of each."""
    app = connect.shared_app()
    try:
        app.catalog.refresh()
        if not (server_list := app.gateway.list_servers(for_person=True)):
            return []
    except AthenaError as error:
        return [("servers", False, f"{error}; {error.hint or ''}")]
    with show_progress("Asking the servers"):
        problems = run_sync(app.gateway.check_servers())
    daemon_problems = servers.fetch_server_problems(str(home_folder()))
    rows = []
    for server in app.gateway.list_servers(for_person=True) if problems else server_list:
        problem = problems.get(server.name) or server.detail or daemon_problems.get(server.name, "")
        is_ok = not problem or server.status == "disabled"
        rows.append(
            (
                f"mcp {server.name}",
                is_ok,
                problem or f"{server.status}, {output.format_count(server.tools, 'tool', 'tools')}",
            )
        )
    return rows


def _explain_jail_failure() -> str:
    attempts = jail.probe_layers()["tried"]
    failures = [f"{'+'.join(attempt['layers'])}: {attempt['why']}" for attempt in attempts if not attempt["works"]]
    return "; ".join(failures) or "Python starts in the jail"


def _check_home(home: str) -> tuple[str, bool, str]:
    """Check that the data folder can be written by its owner alone, and that nobody else can read what is in it."""
    if problem := find_home_problem(home):
        return "home", False, f"{problem[0]}: {problem[1]}"
    if not is_home_writable(home):
        return "home", False, f"{home} cannot be written: check its owner and mode, or set ATHENA_HOME"
    if readable := _find_readable_file(home):
        return "home", False, f"others can read {readable}: chmod -R go= {shlex.quote(home)}"
    return "home", True, home


def _find_readable_file(home: str) -> str | None:
    """Return a file that other users can read; none is, if they cannot enter the folder."""
    if not os.path.isdir(home) or not os.stat(home).st_mode & 0o011:
        return None
    for folder, subfolders, names in os.walk(home):
        subfolders[:] = [name for name in subfolders if os.lstat(os.path.join(folder, name)).st_mode & 0o011]
        for path in (os.path.join(folder, name) for name in sorted(names)):
            with contextlib.suppress(OSError):  # it was removed meanwhile
                facts = os.lstat(path)
                if stat.S_ISREG(facts.st_mode) and facts.st_mode & 0o066:
                    return path
    return None
