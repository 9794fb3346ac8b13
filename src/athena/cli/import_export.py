"""`athena export` and `athena import`: everything out, and in again; and the files of other programs in."""

import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import IO, Any

import click

from athena.app import compose, connect
from athena.app.settings import Settings, load_settings
from athena.cli import output
from athena.cli.approval import Terminal
from athena.cli.invoke import json_option
from athena.cli.progress import explain_stop, show_progress
from athena.core import clock
from athena.core.files import NewFile, create_private_folder
from athena.core.hashing import hash_text
from athena.core.home.paths import current_project
from athena.core.threads import run_sync
from athena.core.values import Call, Scope
from athena.errors import Conflict, InvalidInput, NotFound
from athena.hooks import past_messages
from athena.memory.projects import list_projects
from athena.memory.store import Store
from athena.memory.transfer import exports, markdown, peers, server_memory, session_page, stores
from athena.memory.transfer.records import (
    HideValues,
    ImportedEntity,
    ImportedMemory,
    ImportReport,
    Record,
    RecordImport,
    SkippedRecord,
)
from athena.storage import copying, jsonl
from athena.storage.counts import count_kinds
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.restore import is_store_file, remove_store_files, restore_backup
from athena.storage.sqlite.store import Sqlite

EXPORT_FORMATS = ["jsonl", "markdown", "graphml", "server-memory"]
FOREIGN_FORMATS = {
    "markdown": peers.PeerFormat(markdown.read_folder, markdown.MAPPING),
    **peers.FORMATS,
    **past_messages.FORMATS,
}
IMPORT_FORMATS = ["athena", "server-memory", *FOREIGN_FORMATS]
STANDARD_OUTPUT = "-"
GRAPH_COUNTS = ("entities", "observations", "relations")
GO_ON_HINT = "run it again: it adds only what is new"


# --- export -----------------------------------------------------------------------------------------------------------


@click.command("export")
@click.argument("file", type=click.Path(allow_dash=True))
@click.option(
    "--format",
    "file_format",
    type=click.Choice(EXPORT_FORMATS),
    help="jsonl: everything, exactly; markdown: a folder of memories and graphs to read; graphml and server-memory: "
    "the graph of a project. By default as the file's name ends.",
)
@click.option("--session", metavar="ID", help="Only this session, by its id or how that begins: a page to read.")
@click.option("--project", help="Only this project (markdown; graphs and sessions are of one project anyway).")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@json_option
def export_file(
    file: str, file_format: str | None, session: str | None, project: str | None, force: bool, json_output: bool
) -> None:
    """Write everything to a file or a Markdown folder. '-' writes to standard output.

    \b
    athena export athena.jsonl        every row of the store; athena import takes it in again
    athena export notes/              a file for each memory and entity; again, it brings the folder up to date
    athena export graph.graphml       the graph of this project
    athena export talk.html --session 3f2a    what was said, done and kept in a session; or talk.md
    """
    if session is not None and file_format not in (None, "markdown"):
        raise InvalidInput(f"a session is a page, not {file_format}", hint="name a file that ends with .md or .html")
    file_format = file_format or _guess_export_format(file)
    if session is not None:
        file_format = "page"
        counts = _export_session(file, session, project or current_project(), force)
    elif file_format == "markdown":
        counts = _export_markdown(file, project)
    elif file_format == "jsonl":
        if project is not None:
            raise InvalidInput("jsonl is the whole store", hint="leave out --project, or add --format markdown")
        counts = _export_rows(file, force)
    else:
        counts = _export_graph(file, file_format, project or current_project(), force)
    if json_output and file != STANDARD_OUTPUT:
        return output.print_data(counts)
    if file_format == "jsonl":
        line = f"wrote the whole store to {file}: {output.format_kinds(counts) or 'nothing is kept yet'}"
    else:
        line = f"wrote {output.format_kinds(counts) or 'nothing'} to {file}"
    return click.echo(output.escape_control_chars(line), err=file == STANDARD_OUTPUT)


def _guess_export_format(file: str) -> str:
    if file.endswith(os.sep) or os.path.isdir(file) or not os.path.splitext(file)[1]:
        return "markdown" if file != STANDARD_OUTPUT else "jsonl"
    return "graphml" if file.endswith(".graphml") else "jsonl"


def _export_rows(file: str, force: bool) -> dict[str, int]:
    with (
        closing(compose.open_database_at(None, "from")) as database,
        show_progress("Exporting") as progress,
        explain_stop(lambda: f"{file} was not written"),
    ):
        now = clock.system_clock()
        rows = _write_whole_file(file, force, lambda stream: jsonl.write_store(database, stream, now, progress.advance))
        return {**run_sync(database.read(count_kinds)), "relations": rows["relations"], "rows": sum(rows.values())}


def _export_graph(file: str, file_format: str, project: str, force: bool) -> dict[str, int]:
    write_graph = exports.write_graphml if file_format == "graphml" else server_memory.write_server_memory
    return _write_text_file(file, force, partial(write_graph, connect.shared_app().store, project))


def _export_session(file: str, session: str, project: str, force: bool) -> dict[str, int]:
    page_format: session_page.PageFormat = "html" if file.endswith((".html", ".htm")) else "markdown"
    store = connect.shared_app().store
    write_page = partial(session_page.write_session_page, store, project, session, page_format)
    return _write_text_file(file, force, write_page)


def _write_text_file(
    file: str, force: bool, write: Callable[[IO[str]], Coroutine[Any, Any, dict[str, int]]]
) -> dict[str, int]:
    def write_text(stream: IO[bytes]) -> dict[str, int]:
        with open(stream.fileno(), "w", encoding="utf-8", newline="\n", closefd=False) as text:
            return run_sync(write(text))

    return _write_whole_file(file, force, write_text)


def _export_markdown(folder: str, project: str | None) -> dict[str, int]:
    if folder == STANDARD_OUTPUT:
        raise InvalidInput("a Markdown export is a folder", hint="name one")
    if not os.path.isdir(parent := os.path.dirname(os.path.abspath(folder))):
        raise NotFound(f"there is no folder {parent}", hint="make it first, or name another")
    store = connect.shared_app().store
    projects = [project] if project else [item.name for item in run_sync(list_projects(store))]
    create_private_folder(folder)
    with show_progress("Exporting"), explain_stop(lambda: f"{folder} has a part; run it again to go on"):
        return run_sync(exports.write_markdown(store, projects, os.path.abspath(folder), is_whole=project is None))


def _write_whole_file(file: str, force: bool, write: Callable[[IO[bytes]], dict[str, int]]) -> dict[str, int]:
    """Write a file that appears only when it is complete and on disk; nobody but its owner may read it."""
    if file == STANDARD_OUTPUT:
        return write(sys.stdout.buffer)
    settings = load_settings()
    if settings.database_url is None and is_store_file(file, settings.db_path):
        raise InvalidInput(f"{file} is the store itself", hint="name another file")
    if os.path.lexists(file) and not force:
        raise Conflict(f"{file} exists", hint="name another file, or add --force to replace it")
    try:
        new_file = NewFile(file)
    except OSError as error:
        raise NotFound(f"{file} cannot be written: {error.strerror}", hint="name a file in a folder of yours") from None
    with new_file, open(new_file.descriptor, "wb", closefd=False) as stream:
        counts = write(stream)
        stream.flush()
        os.fsync(new_file.descriptor)
        new_file.replace()
    return counts


# --- import -----------------------------------------------------------------------------------------------------------


@click.command("import")
@click.argument("file", type=click.Path())
@click.option(
    "--from",
    "source",
    type=click.Choice(IMPORT_FORMATS),
    help="Who wrote it; athena: a file of athena export; markdown: a file or folder of it, also of Obsidian and "
    "basic-memory; server-memory: the reference graph server's memory.jsonl; chatgpt and claude: conversations.json of "
    "an account's export; claude-code and codex: a transcript, or a folder of them. By default found out.",
)
@click.option("--project", help="Where to; by default as the file says, else the git root of this folder.")
@click.option("--dry-run", is_flag=True, help="Only say what would be new.")
@click.option(
    "--trust", "is_trusted", is_flag=True, help="Take authors and projects from the file; asks at a terminal."
)
@click.option("--replace", "is_replacing", is_flag=True, help="Put an athena export in place of the whole store.")
@json_option
def import_file(
    file: str,
    source: str | None,
    project: str | None,
    dry_run: bool,
    is_trusted: bool,
    is_replacing: bool,
    json_output: bool,
) -> None:
    """Take in an export, Markdown or files of other programs. Again, it adds only what is new.

    An export of Athena becomes the store itself if that is empty, exactly as it was; else its memories and graphs are
    added, as an agent's and to this project, unless you say --trust. What was forgotten here stays forgotten.

    \b
    athena import athena.jsonl
    athena import notes/ --dry-run
    athena import memory.jsonl --from server-memory
    athena import ~/.local/share/mcp-memory/sqlite_vec.db --dry-run
    athena import conversations.json
    """
    if not os.path.exists(file):
        raise NotFound(f"{file} cannot be read: there is no such file", hint="give a path that exists")
    source = source or _guess_import_format(file)
    if is_replacing and source != "athena":
        raise InvalidInput("--replace takes an export of Athena", hint="without it, the file is added to the store")
    if source == "athena":
        result = _import_export(
            os.path.abspath(file), project, dry_run=dry_run, is_trusted=is_trusted, is_replacing=is_replacing
        )
    elif source == "server-memory":
        result = _import_graph(file, project, dry_run)
    else:
        foreign = FOREIGN_FORMATS[source]
        result = _import_foreign(file, lambda now: foreign.read(file, now), project, dry_run, is_trusted)
        result |= {"mapping": foreign.mapping} if dry_run else {}
    if json_output:
        return output.print_data(result)
    for field, meaning in result.get("mapping", {}).items():
        click.echo(f"{field}: {meaning}")
    for skipped in result.get("skipped", ()):
        click.echo(f"left out {output.escape_control_chars(skipped)}", err=True)
    return click.echo(output.escape_control_chars(_format_result(result, dry_run)))


def _format_result(result: dict[str, Any], dry_run: bool) -> str:
    if "rows" in result:
        kept = f"; the earlier store is {result['earlier']}" if result.get("earlier") else ""
        verb = "would take in" if dry_run else "took in"
        return f"{verb} the whole store: {output.format_kinds(result) or 'nothing is in it'}{kept}"
    parts = output.format_kinds({name: result[name] for name in output.KIND_WORDS if name in result})
    return f"{'would be new' if dry_run else 'new'}: {parts}" if parts else "nothing new"


def _guess_import_format(file: str) -> str:
    if os.path.isfile(file) and jsonl.is_export(file):  # whatever it is called
        return "athena"
    if os.path.isdir(file) or file.endswith(markdown.SUFFIXES):
        return "markdown"
    if peer := peers.guess_peer_format(file):
        return peer
    return past_messages.guess_client(file) or "server-memory"


def _import_foreign(
    file: str, read: Callable[[float], Iterator[Record]], project: str | None, dry_run: bool, is_trusted: bool
) -> dict[str, Any]:
    """Add what a file has; take its word for authors and projects where a person says so, or the store is empty."""
    if not is_trusted:
        return _import_records(read, project, dry_run, is_trusted=_is_empty_file(load_settings()))
    read_now = partial(read, clock.system_clock())
    seen = _confirm_trust(file, read_now())
    return _import_records(lambda _: _require_same(file, seen, read_now()), project, dry_run, is_trusted=True)


def _confirm_trust(file: str, records: Iterator[Record]) -> list[str]:
    """Show a person whose words a file says it has, and for which projects; raise Abort unless they agree.

    Return what names each record: the file is read again to take it in, and may be another one by then.
    """
    counts: Counter[tuple[str, str]] = Counter()
    seen: list[str] = []
    for record in records:
        if not isinstance(record, SkippedRecord):
            seen.append(hash_text(repr(record)))
        if isinstance(record, ImportedMemory):
            counts[record.project or "", record.author] += 1
        elif isinstance(record, ImportedEntity):
            counts[record.project or "", "graph"] += 1
    with Terminal(f"import {file} --trust") as terminal:
        terminal.show(
            f"{author}, {f'project {project}' if project else 'this project'}: {count:,} record{'s' * (count != 1)}"
            for (project, author), count in sorted(counts.items())
        )
        terminal.confirm("Take them in as these authors' words, and into these projects?")
    return seen


def _require_same(file: str, seen: list[str], records: Iterator[Record]) -> Iterator[Record]:
    """Yield the records that a person agreed to, without what came since; raise Conflict if one of them is gone."""
    left = deque(seen)
    added = 0
    for record in records:
        if isinstance(record, SkippedRecord):
            yield record
        elif left and left[0] == hash_text(repr(record)):
            left.popleft()
            yield record
        else:
            added += 1
    if left:
        raise Conflict(f"{file} has changed since you were asked", hint="import it again")
    if added:
        yield SkippedRecord(file, f"{output.format_count(added, 'record', 'records')} came since you were asked")


def _import_records(
    read: Callable[[float], Iterator[Record]], project: str | None, dry_run: bool, *, is_trusted: bool = False
) -> dict[str, Any]:
    store, call, hide = _begin_import(project)
    with (
        show_progress("Importing") as progress,
        explain_stop(lambda: f"{output.format_count(progress.done, 'record', 'records')} taken in; {GO_ON_HINT}"),
    ):
        run = RecordImport(store, call, dry_run=dry_run, is_trusted=is_trusted, on_stored=progress.advance, hide=hide)
        records = read(call.started) if project is None else map(_drop_project, read(call.started))
        report: ImportReport = run_sync(run.store_records(records))
    return {name: getattr(report, name) for name in ImportReport.__slots__}


def _begin_import(project: str | None) -> tuple[Store, Call, HideValues | None]:
    """Return the store, the call that all changes belong to, and what hides personal values."""
    store, guard = (app := connect.shared_app()).store, app.guard
    call = Call("import", "cli", Scope.from_name(project or current_project()), store.clock(), author="agent")
    return store, call, partial(guard.hide, secrets=False) if guard.is_on else None


def _import_graph(file: str, project: str | None, dry_run: bool) -> dict[str, Any]:
    if dry_run:
        result = _import_records(lambda _: server_memory.iter_graph_records(file), project, dry_run)
        result["mapping"] = server_memory.MAPPING
    else:
        store, call, hide = _begin_import(project)
        with show_progress("Importing"), explain_stop(lambda: f"a part may be taken in; {GO_ON_HINT}"):
            report = run_sync(server_memory.GraphImport(store, call, hide).store_file(file))
        result = {name: getattr(report, name) for name in ImportReport.__slots__}
    return {name: value for name, value in result.items() if name in ("mapping", *GRAPH_COUNTS)}


def _drop_project(record: Record) -> Record:
    """Return a record that belongs to the project of the call, whatever its file says."""
    return record if isinstance(record, SkippedRecord) else replace(record, project=None)


def _import_export(
    path: str, project: str | None, *, dry_run: bool, is_trusted: bool, is_replacing: bool
) -> dict[str, Any]:
    """Build the store from an export where there is none or it is empty; else add what it has."""
    info = jsonl.check_export(path)
    kinds = jsonl.check_rows(path, info)
    settings = load_settings()
    if not (is_replacing or (project is None and _is_empty(settings))):
        read = partial(stores.read_store, path, project)
        if not is_trusted:
            return _import_records(lambda _: read(), project, dry_run)
        seen = _confirm_trust(path, read())
        return _import_records(lambda _: _require_same(path, seen, read()), project, dry_run, is_trusted=True)
    result: dict[str, Any] = {
        **kinds,
        "relations": info.rows.get("relations", 0),
        "rows": sum(info.rows.values()),
        "earlier": None,
    }
    if dry_run:
        return result
    prepared = os.path.join(settings.home, "athena.db.importing")
    create_private_folder(settings.home)
    try:
        with show_progress("Importing") as progress, explain_stop(lambda: "nothing was changed"):
            jsonl.build_store(path, info, prepared, progress.advance)
            with closing(Sqlite(prepared)) as new:
                run_sync(new.write(copying.mark_import))
        if settings.database_url is not None:
            with closing(Sqlite(prepared)) as new, closing(compose.open_database_at(None, "to")) as target:
                copying.copy_store(new, target)
        else:
            restored = restore_backup(prepared, settings.db_path)
            if is_replacing or (restored.earlier and not _is_empty_store(restored.earlier)):
                result["earlier"] = restored.earlier  # others may have written to it since it was found empty
            elif restored.earlier:
                remove_store_files(restored.earlier)
    finally:
        remove_store_files(prepared)
    return result


def _is_empty_file(settings: Settings) -> bool:
    """Return whether there is no store yet, or an empty one."""
    is_in_memory = settings.db_path == IN_MEMORY_PATH and settings.database_url is None
    return not is_in_memory and _is_empty(settings)


def _is_empty(settings: Settings) -> bool:
    """Return whether the store has nothing to lose: it does not exist, has no row, or is an import that was stopped."""
    if settings.db_path == IN_MEMORY_PATH and settings.database_url is None:
        raise InvalidInput("a store in memory ends with this command", hint="unset ATHENA_DB_PATH")
    if settings.database_url is None and not os.path.exists(settings.db_path):
        return True
    with closing(compose.open_database_at(None, "to")) as database:
        return run_sync(database.read(copying.is_empty_or_unfinished))


def _is_empty_store(path: str) -> bool:
    with closing(Sqlite(path)) as store:
        return run_sync(store.read(copying.is_empty_or_unfinished))
