"""`athena ingest`: keep files and folders as memories, once or as long as they change."""

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any, Self

import click

from athena.app import connect
from athena.cli import output
from athena.cli.invoke import json_option, project_option, tags_option
from athena.cli.progress import explain_stop, show_progress
from athena.core.catalog import invoke
from athena.core.home.paths import current_project
from athena.core.threads import run_sync, start_in_thread
from athena.core.types import to_json
from athena.core.values import CallProgress
from athena.errors import NotFound

PROGRESS_INTERVAL_S = 0.2
CHECK_INTERVAL_MS = 500  # between two looks whether a watched folder was replaced
MAX_GONE_S = 10.0  # for which a watched folder may be missing, as while another program writes it anew
MAX_LINES_FOR_REASON = 20  # a folder of pictures is named in one line


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@tags_option("Tags between commas.")
@click.option("--watch", is_flag=True, help="Go on, and follow every change until Ctrl-C.")
@project_option
@json_option
def ingest(paths: tuple[str, ...], tags: str | None, watch: bool, project: str | None, json_output: bool) -> None:
    """Keep files and folders as memories that recall finds. Again, it brings them up to date.

    Reads text, Markdown, HTML, PDF, DOCX, PPTX, XLSX, EPUB, CSV, JSON, notebooks, e-mail and source code, and leaves
    out what .gitignore names. Can be stopped and run again: what has not changed is not read again. Documents whose
    files are gone are forgotten; `athena undo` takes a run back.

    Example: athena ingest docs README.md --tags docs
    """
    if missing := [path for path in paths if not os.path.exists(os.path.expanduser(path))]:
        raise NotFound(f"there is no file or folder {missing[0]}", hint="nothing was read; check the path")
    reports = [_ingest_path(path, tags, project, json_output) for path in paths]
    if json_output:
        output.print_data(
            {name: sum((report[name] for report in reports), type(reports[0][name])()) for name in reports[0]}
        )
    if watch:
        click.echo("watching; Ctrl-C ends it", err=True)
        with suppress(KeyboardInterrupt):
            for path in _iter_changed(paths):
                report = _ingest_path(path, tags, project, json_output)
                if json_output:
                    output.print_data(report)


def _ingest_path(path: str, tags: str | None, project: str | None, json_output: bool) -> dict[str, Any]:
    """Ingest one path, print what was done unless JSON is wanted, and return the report."""
    report: dict[str, Any] = _run_with_progress({"path": path, "tags": tags}, project)
    if connect.shared_app().store.encoder.last_error is not None:
        click.echo("search by meaning is off, words still work: see athena doctor", err=True)
    if json_output:
        return report
    for line in _format_skipped(report["skipped"]):
        click.echo(output.escape_control_chars(line), err=True)
    if report["redacted"]:
        click.echo(f"taken out before storing: {', '.join(dict.fromkeys(report['redacted']))}", err=True)
    click.echo(output.escape_control_chars(f"{path}: {_format_report(report)}"))
    return report


def _format_report(report: dict[str, Any]) -> str:
    counts = {"new": report["new"], "changed": report["changed"], "unchanged": report["unchanged"]}
    counts |= {"withdrawn": report["withdrawn"], "left out": len(report["skipped"])}
    details = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    documents = output.format_count(report["documents"], "document", "documents")
    return f"{documents}, {output.format_count(report['pieces'], 'piece', 'pieces')}" + (
        f" ({details})" * bool(details)
    )


def _format_skipped(skipped: list[str]) -> Iterator[str]:
    """Yield a line for each file that was left out; of many for the same reason the first and how many more."""
    shown: Counter[str] = Counter()
    totals = Counter(line.rpartition(": ")[2] for line in skipped)
    for line in skipped:
        reason = line.rpartition(": ")[2]
        shown[reason] += 1
        if shown[reason] <= MAX_LINES_FOR_REASON:
            yield f"left out {line}"
        if shown[reason] == MAX_LINES_FOR_REASON and totals[reason] > MAX_LINES_FOR_REASON:
            yield f"left out {totals[reason] - MAX_LINES_FOR_REASON:,} more: {reason} (--json names them)"


def _run_with_progress(arguments: dict[str, Any], project: str | None) -> Any:
    """Ingest in another thread, and show on a terminal how far that is."""
    app = connect.shared_app()
    context = app.create_context(project or current_project(), "cli")
    task = start_in_thread(lambda: run_sync(invoke(app.catalog, "ingest_document", arguments, context)))
    with show_progress("Reading") as bar, explain_stop(lambda: _describe_stop(arguments["path"], context.progress)):
        while not task.wait(PROGRESS_INTERVAL_S):
            progress = context.progress
            bar.update(progress.done, progress.total, progress.stage.capitalize())
    return to_json(task.result())


def _describe_stop(path: str, progress: CallProgress) -> str:
    done = f"{progress.stage} {progress.done:,} of {progress.total:,}" if progress.total else "nothing was kept yet"
    return f"{path}: {done}; run it again to go on, what is kept stays"


def _iter_changed(paths: tuple[str, ...]) -> Iterator[str]:
    """Yield a path whenever something at or below it has changed, until Ctrl-C."""
    from watchfiles import watch  # only here, since it loads a native module

    full_paths = {path: os.path.abspath(os.path.expanduser(path)) for path in paths}
    folders = [os.path.dirname(path) if os.path.isfile(path) else path for path in full_paths.values()]
    is_missed = False
    while True:  # a watch is of the folders that were there when it began: of new ones, begin a new watch
        with ExitStack() as stack, suppress(FileNotFoundError):
            opened = [stack.enter_context(_OpenFolder(folder)) for folder in folders]
            real_paths = {path: os.path.realpath(full_path) for path, full_path in full_paths.items()}
            for changes in watch(*folders, yield_on_timeout=True, rust_timeout=CHECK_INTERVAL_MS):
                if any(folder.is_replaced() for folder in opened):
                    break
                for path, real_path in real_paths.items():
                    if is_missed or any(os.path.realpath(changed).startswith(real_path) for _, changed in changes):
                        yield path
                is_missed = False
        is_missed = True


class _OpenFolder:
    """A folder that is held open, for `with`: so no other one can have its inode, and its end is seen."""

    def __init__(self, path: str) -> None:
        deadline = time.monotonic() + MAX_GONE_S
        while not os.path.isdir(path):
            if time.monotonic() > deadline:
                raise NotFound(f"{path} is gone", hint="watch it again once it is back; what was kept stays")
            time.sleep(CHECK_INTERVAL_MS / 1_000)
        self._path, self._descriptor = path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def is_replaced(self) -> bool:
        try:
            return not os.path.samestat(os.fstat(self._descriptor), os.stat(self._path))
        except OSError:
            return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
