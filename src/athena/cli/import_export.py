"""`athena export` and `athena import`: everything out, and in again; and the files of other programs in."""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import IO, Any

import click

from athena.app import compose, connect
from athena.app.settings import Settings, load_settings
from athena.cli import output
from athena.cli.approval import Terminal
from athena.cli.invoke import invoke_operation, json_option
from athena.cli.progress import explain_stop, show_progress
from athena.core import clock
from athena.core.files import create_private_folder
from athena.core.home.paths import current_project
from athena.core.threads import run_sync
from athena.core.values import Call, Scope
from athena.errors import Conflict, InvalidInput, NotFound
from athena.memory.graph.values import NewRelation
from athena.memory.projects import list_projects
from athena.memory.transfer import exports, markdown, peers, stores
from athena.memory.transfer.records import (
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
from athena.storage.sqlite.restore import remove_store_files, restore_backup
from athena.storage.sqlite.store import Sqlite

EXPORT_FORMATS = ["jsonl", "markdown", "graphml", "server-memory"]
IMPORT_FORMATS = ["athena", "markdown", "server-memory", *peers.FORMATS]
STANDARD_OUTPUT = "-"
IMPORT_BATCH_SIZE = 1_000
GO_ON_HINT = "run it again: it adds only what is new"
REQUIRED_FIELDS = {"entity": ("name", "entityType"), "relation": ("from", "to", "relationType")}
ENTITY_TYPE, RELATION_TYPE = REQUIRED_FIELDS


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
@click.option("--project", help="Only this project (markdown; graphs are of one project anyway).")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@json_option
def export_file(file: str, file_format: str | None, project: str | None, force: bool, json_output: bool) -> None:
    """Write everything to a file or a Markdown folder. '-' writes to standard output.

    \b
    athena export athena.jsonl        every row of the store; athena import takes it in again
    athena export notes/              a file for each memory and entity; again, it brings the folder up to date
    athena export graph.graphml       the graph of this project
    """
    file_format = file_format or _guess_export_format(file)
    if file_format == "markdown":
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
    store = connect.shared_app().store
    write_graph = exports.write_graphml if file_format == "graphml" else exports.write_server_memory

    def write_text(stream: IO[bytes]) -> dict[str, int]:
        with open(stream.fileno(), "w", encoding="utf-8", newline="\n", closefd=False) as text:
            return run_sync(write_graph(store, project, text))

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
        return run_sync(exports.write_markdown(store, projects, os.path.abspath(folder)))


def _write_whole_file(file: str, force: bool, write: Callable[[IO[bytes]], dict[str, int]]) -> dict[str, int]:
    """Write a file that appears only when it is complete and on disk; nobody but its owner may read it."""
    if file == STANDARD_OUTPUT:
        return write(sys.stdout.buffer)
    if os.path.lexists(file) and not force:
        raise Conflict(f"{file} exists", hint="name another file, or add --force to replace it")
    part = f"{file}.part"
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NotFound(f"{file} cannot be written: {error.strerror}", hint="name a file in a folder of yours") from None
    try:
        with open(descriptor, "wb") as stream:
            counts = write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, file)
    except BaseException:
        os.unlink(part)
        raise
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
    "an account's export. By default found out.",
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
    elif source == "markdown":
        result = _import_foreign(file, lambda now: markdown.read_folder(file, now), project, dry_run, is_trusted)
    elif source in peers.FORMATS:
        peer = peers.FORMATS[source]
        result = _import_foreign(file, lambda now: peer.read(file, now), project, dry_run, is_trusted)
        result |= {"mapping": peer.mapping} if dry_run else {}
    else:
        result = _import_graph(file, project, dry_run)
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
    if os.path.isdir(file) or file.endswith(markdown.SUFFIXES):
        return "markdown"
    if peer := peers.guess_peer_format(file):
        return peer
    return "athena" if jsonl.is_export(file) else "server-memory"


def _import_foreign(
    file: str, read: Callable[[float], Iterator[Record]], project: str | None, dry_run: bool, is_trusted: bool
) -> dict[str, Any]:
    """Add what a file has; take its word for authors and projects where a person says so, or the store is empty."""
    is_trusted = is_trusted and _confirm_trust(file, read(clock.system_clock()))
    return _import_records(read, project, dry_run, is_trusted=is_trusted or _is_empty_file(load_settings()))


def _confirm_trust(file: str, records: Iterator[Record]) -> bool:
    """Show a person whose words a file says it has, and for which projects; raise Abort unless they agree."""
    counts: Counter[tuple[str, str]] = Counter()
    for record in records:
        if isinstance(record, ImportedMemory):
            counts[record.project or "", record.author] += 1
        elif isinstance(record, ImportedEntity):
            counts[record.project or "", "graph"] += 1
    with Terminal(f"import {file} --trust") as terminal:
        terminal.show(
            f"{author}, {f'project {project}' if project else 'this project'}: {output.format_count(count, 'record')}"
            for (project, author), count in sorted(counts.items())
        )
        terminal.confirm("Take them in as these authors' words, and into these projects?")
    return True


def _import_records(
    read: Callable[[float], Iterator[Record]], project: str | None, dry_run: bool, *, is_trusted: bool = False
) -> dict[str, Any]:
    store, guard = (app := connect.shared_app()).store, app.guard
    now = store.clock()
    call = Call("import", "cli", Scope.from_name(project or current_project()), now, author="agent")
    with (
        show_progress("Importing") as progress,
        explain_stop(lambda: f"{output.format_count(progress.done, 'record', 'records')} taken in; {GO_ON_HINT}"),
    ):
        run = RecordImport(
            store,
            call,
            dry_run=dry_run,
            is_trusted=is_trusted,
            on_stored=progress.advance,
            hide=partial(guard.hide, secrets=False) if guard.is_on else None,
        )
        records = read(now) if project is None else map(_drop_project, read(now))
        report: ImportReport = run_sync(run.store_records(records))
    return {name: getattr(report, name) for name in ImportReport.__slots__}


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
        is_trusted = is_trusted and _confirm_trust(path, stores.read_store(path, project))
        return _import_records(lambda _: stores.read_store(path, project), project, dry_run, is_trusted=is_trusted)
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
    with show_progress("Importing") as progress, explain_stop(lambda: "nothing was changed"):
        jsonl.build_store(path, info, prepared, progress.advance)
    try:
        if settings.database_url is not None:
            with closing(Sqlite(prepared)) as new, closing(compose.open_database_at(None, "to")) as target:
                copying.copy_store(new, target)
        else:
            restored = restore_backup(prepared, settings.db_path)
            if is_replacing:
                result["earlier"] = restored.earlier
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


# --- the reference graph server ---------------------------------------------------------------------------------------


def _import_graph(file: str, project: str | None, dry_run: bool) -> dict[str, Any]:
    """Check a whole file, then add the entities and relations that the graph lacks."""
    for _ in _read_graph(file):
        pass
    if dry_run:
        result = _import_records(lambda _: _iter_graph_records(file), project, dry_run)
        return {name: result[name] for name in ("entities", "observations", "relations")}
    counts = {"entities": 0, "observations": 0, "relations": 0}
    for batch in _batch_rows(file, ENTITY_TYPE):
        entities: dict[str, dict[str, Any]] = {}
        for row in batch:
            entity = entities.setdefault(row["name"], {**row, "observations": []})
            entity["observations"] += row["observations"]
        created = invoke_operation("create_entities", project, entities=[*entities.values()])
        counts["entities"] += len(created)
        counts["observations"] += sum(len(entity["observations"]) for entity in created)
        created_names = {entity["name"] for entity in created}
        known = [entity for entity in entities.values() if entity["name"] not in created_names]
        observations = [{"entityName": entity["name"], "contents": entity["observations"]} for entity in known]
        added = invoke_operation("add_observations", project, observations=observations) if observations else []
        counts["observations"] += sum(len(row["addedObservations"]) for row in added)
    for batch in _batch_rows(file, RELATION_TYPE):
        counts["relations"] += len(invoke_operation("create_relations", project, relations=batch))
    return counts


def _iter_graph_records(file: str) -> Iterator[Record]:
    for row_type, row in _read_graph(file):
        if row_type == ENTITY_TYPE:
            yield ImportedEntity(file, row["name"], row["entityType"], tuple(row["observations"]))
        else:
            relation: NewRelation = {"from": row["from"], "to": row["to"], "relationType": row["relationType"]}
            yield ImportedEntity(file, row["from"], None, relations=(relation,))


def _batch_rows(file: str, wanted_type: str) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for row_type, row in _read_graph(file):
        if row_type == wanted_type:
            batch.append(row)
        if len(batch) >= IMPORT_BATCH_SIZE:
            yield batch
            batch = []
    if batch:
        yield batch


def _read_graph(file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the entities and relations of a file; raise an error at the first line that is neither."""
    for location, row in _read_json_lines(file):
        row_type = row.get("type")
        required = REQUIRED_FIELDS.get(row_type) if isinstance(row_type, str) else None
        if required is None or not all(isinstance(row.get(name), str) for name in required):
            raise InvalidInput(
                f"{location}: this is no entity and no relation", hint="is it a memory file of that server?"
            )
        fields: dict[str, Any] = {name: row[name] for name in required}
        if row_type == RELATION_TYPE:
            periods = {name: row.get(name) for name in ("since", "until")}
            yield RELATION_TYPE, fields | {k: v for k, v in periods.items() if isinstance(v, float)}
            continue
        observations = row.get("observations", [])
        if not isinstance(observations, list) or not all(isinstance(text, str) for text in observations):
            raise InvalidInput(f"{location}: observations must be a list of texts")
        yield ENTITY_TYPE, fields | {"observations": [text for text in observations if text.strip()]}


def _read_json_lines(file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with open(file, encoding="utf-8-sig", newline="\n") as stream:
            for line_number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                location = f"{os.path.basename(file)}, line {line_number}"
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    raise InvalidInput(f"{location}: not JSON: {line[:60]!r}") from None
                if not isinstance(row, dict):
                    raise InvalidInput(f"{location}: not an object: {line[:60]!r}")
                yield location, row
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is not text in UTF-8") from None
