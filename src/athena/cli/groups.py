"""Commands made from operations: task, event, graph, tag, session, stats, document and pattern."""

from collections.abc import Sequence
from typing import Any

from athena.cli import formats, output
from athena.cli.operation_commands import OperationCommand, create_group
from athena.cli.output import format_count

TASK_COLUMNS = ("id", "state", "priority", "due", "title", "tags", "blocked_by")
EVENT_COLUMNS = ("id", "happened", "event_type", "outcome", "content", "session_id", "score")
MEMORY_COLUMNS = ("hash", "created", "tags", "content")
UNDO_HINT = "to take that back: athena undo"


def _say_task(task: dict[str, Any]) -> str:
    due = f", due {formats.format_cell('due', task['due'])}" if task["due"] else ""
    return f"{task['kind']} {task['id']} ({task['state'].replace('_', ' ')}{due}): {task['title']}"


def _say_completed(task: dict[str, Any]) -> str:
    freed = [f"can be begun now: {item['id']} {item['title']}" for item in task["unblocked"]]
    return "\n".join([_say_task(task), *freed])


def _say_forgotten(is_forgotten: bool) -> str:
    return f"forgotten; {UNDO_HINT}" if is_forgotten else ""


def _say_event(event: dict[str, Any]) -> str:
    outcome = f" ({event['outcome']})" if event["outcome"] else ""
    return f"event {event['id']}: {event['event_type']}{outcome}: {event['content']}"


def _say_relations(relations: Sequence[dict[str, Any]]) -> str:
    return "\n".join(f"new: {output.format_relation(relation)}" for relation in relations)


def _say_entity(entity: dict[str, Any]) -> str:
    observations = "".join(f"\n  {text}" for text in entity["observations"])
    return f"{entity['outcome']}: {entity['name']} ({entity['entityType']}){observations}"


def _say_added(added: Sequence[dict[str, Any]]) -> str:
    return "\n".join(f"new: {item['entityName']}: {text}" for item in added for text in item["addedObservations"])


def _say_done(done: dict[str, Any]) -> str:
    return f"{done['message'].removesuffix(' successfully')}; {UNDO_HINT}"


def _say_neighbors(hood: dict[str, Any]) -> str:
    columns = ("name", "entityType", "distance", "observations")
    parts = ["\n".join(formats.format_table(*formats.pick_columns(hood["neighbors"], columns)))]
    return "\n\n".join([*parts, "\n".join(map(output.format_relation, hood["relations"]))]) if hood["neighbors"] else ""


def _say_path(path: dict[str, Any]) -> str:
    return (
        "\n".join(map(output.format_relation, path["relations"])) or " = ".join(path["names"]) if path["found"] else ""
    )


def _say_timeline(chapters: Sequence[dict[str, Any]]) -> str:
    lines: list[str] = []
    for chapter in chapters:
        lines.append(str(chapter["name"] or "without a session"))
        for entry in chapter["entries"]:
            outcome = f" ({entry['outcome']})" if entry["outcome"] else ""
            lines.append(f"  {formats.format_cell('at', entry['at'])}  {entry['type']}{outcome}: {entry['text']}")
        if chapter["left_out"]:
            lines.append(f"  {chapter['left_out']:,} more: --offset shows them")
    return "\n".join(lines)


def _say_session(summary: dict[str, Any]) -> str:
    times = f"{formats.format_cell('at', summary['started'])} to {formats.format_cell('at', summary['ended'])}"
    counts = format_count(summary["events"], "event", "events")
    return f"{summary['session_id']}: {counts}, {times}\n{summary['text']}"


def _say_topics(expertise: dict[str, Any]) -> str:
    rows = [topic for part in ("well_covered", "thin", "stale") for topic in expertise[part]]
    columns = ("topic", "reading", "memories", "days_since_newest", "days_since_recalled", "contradicted")
    return "\n".join(formats.format_table(*formats.pick_columns(rows, columns))) if rows else ""


def _say_stats(stats: dict[str, Any]) -> str:
    """Return the counts as lines, those of zero left out but for memories."""
    kinds = ("memories", "events", "tasks", "entities", "observations", "relations", "patterns", "skills")
    lines = [(name, f"{stats[name]:,}") for name in kinds if stats[name] or name == "memories"]
    lines += [(name, f"{stats[name]:,}") for name in ("forgotten", "waiting_programs", "tags") if stats[name]]
    lines += [(name, formats.format_cell(name, stats[name])) for name in ("by_type", "most_used_tags") if stats[name]]
    lines += [(name, formats.format_cell(name, stats[name])) for name in ("oldest", "newest") if stats[name]]
    size = f"{stats['bytes'] / 1_000_000:,.1f} MB, {format_count(stats['projects'], 'project', 'projects')}"
    return "\n".join(f"{name.replace('_', ' '):<16}  {text}" for name, text in [*lines, ("whole store", size)])


def _say_use(report: dict[str, Any]) -> str:
    """Return a table for each part of the report that has rows."""
    tables = [
        f"{name}\n" + "\n".join(formats.format_table(*formats.pick_columns(rows, tuple(rows[0]))))
        for name, rows in report.items()
        if isinstance(rows, list) and rows and isinstance(rows[0], dict)
    ]
    return "\n\n".join(tables)


def _create_forget(what: str) -> OperationCommand:
    """Return the command that forgets one row of a kind: "a task"."""
    kind = what.split()[-1]
    return OperationCommand(
        "forget",
        say=_say_forgotten,
        fixed={"kind": kind},
        summary=f"Forget {what}; `athena undo` brings it back.",
        empty=f"there is no such {kind}",
    )


task = create_group(
    "task",
    "Plan, list and complete tasks, goals and reminders.",
    {
        "list": OperationCommand("list_tasks", columns=TASK_COLUMNS, empty="no tasks"),
        "add": OperationCommand("create_task", say=_say_task),
        "due": OperationCommand("due_tasks", columns=TASK_COLUMNS, empty="nothing is due"),
        "done": OperationCommand("complete_task", say=_say_completed),
        "edit": OperationCommand("update_task", say=_say_task),
        "forget": _create_forget("a task"),
    },
)
event = create_group(
    "event",
    "Record what happened, and look back at it.",
    {
        "list": OperationCommand(
            "recall_events",
            columns=EVENT_COLUMNS,
            empty="no events",
            hidden=("query",),
            summary="List events, the last first.",
            example="athena event list --outcome failure --since yesterday",
        ),
        "search": OperationCommand(
            "recall_events",
            ("query",),
            EVENT_COLUMNS,
            summary="Find events by words and meaning; time in plain words is a filter.",
            example='athena event search "what failed yesterday"',
        ),
        "add": OperationCommand("record_event", say=_say_event),
        "timeline": OperationCommand("timeline", say=_say_timeline, empty="nothing happened in this time"),
        "forget": _create_forget("an event"),
    },
)
graph = create_group(
    "graph",
    "See and change entities and how they relate.",
    {
        "list": OperationCommand("read_graph", say=output.format_graph, empty="the graph is empty"),
        "search": OperationCommand("search_graph", columns=output.ENTITY_COLUMNS, empty="no entity fits"),
        "show": OperationCommand("open_nodes", say=output.format_graph, empty="there is no entity of that name"),
        "neighbors": OperationCommand("neighbors", say=_say_neighbors, empty="it is related to nothing"),
        "path": OperationCommand("find_path", say=_say_path, empty="no path leads there"),
        "mentions": OperationCommand("mentions", columns=MEMORY_COLUMNS, empty="no memory mentions it"),
        "add": OperationCommand("create_entity", say=_say_entity),
        "observe": OperationCommand("add_observations", say=_say_added, empty="known already"),
        "relate": OperationCommand(
            "create_relations", ("from", "relationType", "to"), say=_say_relations, empty="known already"
        ),
        "merge": OperationCommand("merge_entities", say=_say_entity),
        "forget": OperationCommand("delete_entities", say=_say_done),
        "unobserve": OperationCommand("delete_observations", say=_say_done),
        "unrelate": OperationCommand("delete_relations", ("from", "relationType", "to"), say=_say_done),
    },
)
tag = create_group(
    "tag",
    "List tags, and put them on memories.",
    {
        "list": OperationCommand("list_tags", columns=("tag", "count"), empty="no tags"),
        "show": OperationCommand("search_by_tag", columns=MEMORY_COLUMNS),
        "add": OperationCommand(
            "tag_memories",
            ("add", "memory_ids"),
            hidden=("remove",),
            say=lambda count: f"{format_count(count)} changed",
            summary="Add a tag to memories.",
            example="athena tag add deploy 7d49c4b4",
        ),
        "remove": OperationCommand(
            "tag_memories",
            ("remove", "memory_ids"),
            hidden=("add",),
            say=lambda count: f"{format_count(count)} changed",
            summary="Take a tag away from memories.",
            example="athena tag remove deploy 7d49c4b4",
        ),
        "forget": OperationCommand("forget_by_tag", say=lambda count: f"{format_count(count)} forgotten; {UNDO_HINT}"),
    },
)
session = create_group(
    "session",
    "See what happened in sessions, and what new ones are told.",
    {
        "list": OperationCommand(
            "list_sessions",
            columns=("id", "started", "ended", "events", "outcomes", "began_with"),
            empty="no sessions; athena init sets up a coding agent",
        ),
        "show": OperationCommand("session_summary", say=_say_session),
        "briefing": OperationCommand("briefing", say=lambda told: str(told["text"]), empty="there is nothing to tell"),
        "told": OperationCommand(
            "list_injections",
            columns=("at", "session_id", "event", "reason", "text"),
            empty="no session was told anything yet",
        ),
    },
)
stats = create_group(
    "stats",
    "Count what is kept, and see what is well covered.",
    {
        "show": OperationCommand(
            "stats",
            say=_say_stats,
            summary="Count what this project can see: memories, events, tasks and others.",
            example="athena stats show",
        ),
        "topics": OperationCommand("expertise", ("topic",), say=_say_topics, empty="there are no tags yet"),
        "use": OperationCommand("report_use", say=_say_use, empty="it was not used yet"),
    },
    default="show",
)
document = create_group(
    "document",
    "List, read and forget ingested documents.",
    {
        "list": OperationCommand(
            "list_documents", columns=("source", "pieces", "updated"), empty="no documents; athena ingest keeps some"
        ),
        "show": OperationCommand("get_document", say="\n\n".join),
        "forget": OperationCommand(
            "delete_document", say=lambda count: f"{format_count(count, 'piece', 'pieces')} forgotten; {UNDO_HINT}"
        ),
    },
)
pattern = create_group(
    "pattern",
    "See which patterns `athena consolidate` found.",
    {
        "list": OperationCommand(
            "list_patterns",
            columns=("id", "confidence", "type", "support", "summary"),
            empty="no patterns; athena consolidate looks for some",
        ),
        "show": OperationCommand(
            "get_pattern",
            say=lambda found: "\n".join(
                [f"{found['type']}, {found['confidence']:.2f}: {found['summary']}"]
                + [f"  {item['kind']} {item['id']}: {item['content']}" for item in found["found_in"]]
            ),
        ),
    },
)
