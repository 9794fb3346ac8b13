"""The skills that come with Athena. They are programs like any other, and a saved one of the same name takes over."""

from functools import cache

from athena.programs.skill_source import parse_skill
from athena.programs.skill_values import Skill

_BACK_UP_SOURCE = '''
def back_up_entities(path: str = "backups/entities.json") -> dict:
    """Write all entities and relations of the knowledge graph to a file of the workspace."""
    graph_now = graph.read_graph()
    written = workspace.write(path=path, content=graph_now)
    return {
        "path": written["path"],
        "bytes": written["size"],
        "entities": len(graph_now["entities"]),
        "relations": len(graph_now["relations"]),
    }
'''

_DUPLICATES_SOURCE = '''
def duplicate_report(threshold: float = 0.92, path: str = "reports/duplicates.json") -> dict:
    """List memories that say nearly the same, with which to keep and which to forget; nothing is changed."""
    groups = []
    for group in memory.find_duplicates(threshold=threshold, k=200):
        found = sorted(group["memories"], key=lambda one: (one["importance"], one["updated"]), reverse=True)
        tags = []
        for one in found:
            tags.extend(tag for tag in one["tags"] if tag not in tags)
        groups.append({
            "keep": found[0]["hash"],
            "says": found[0]["content"][:200],
            "forget": [one["hash"] for one in found[1:]],
            "tags": tags,
        })
    if groups:
        workspace.write(path=path, content=groups)
    superfluous = sum(len(group["forget"]) for group in groups)
    return {"groups": len(groups), "superfluous": superfluous, "path": path if groups else None, "first": groups[:5]}
'''

_WEEKLY_SOURCE = '''
def weekly_summary(days: int = 7, limit: int = 20) -> dict:
    """Sum up the last days: what was kept, what happened, what is due, and the most used tags."""
    since = f"{days} days ago"
    kept = memory.list_memories(k=500, since=since)
    counts = {}
    for one in kept:
        for tag in one["tags"]:
            counts[tag] = counts.get(tag, 0) + 1
    tags = sorted(counts, key=lambda tag: (-counts[tag], tag))[:10]
    happened = events.recall_events(since=since, limit=500)
    outcomes = {}
    for one in happened:
        name = one["outcome"] or "none"
        outcomes[name] = outcomes.get(name, 0) + 1
    return {
        "days": days,
        "memories": len(kept),
        "newest": [one["content"][:120] for one in kept[:limit]],
        "tags": {tag: counts[tag] for tag in tags},
        "events": len(happened),
        "outcomes": outcomes,
        "due": [one["title"] for one in tasks.due_tasks(within="7 days", limit=limit)],
    }
'''


@cache
def load_shipped_skills() -> dict[str, Skill]:
    """Return them by name."""
    return {
        one.name: one
        for one in (
            parse_skill("back_up_entities", _BACK_UP_SOURCE.lstrip(), example="back_up_entities()"),
            parse_skill("duplicate_report", _DUPLICATES_SOURCE.lstrip(), example="duplicate_report(threshold=0.95)"),
            parse_skill("weekly_summary", _WEEKLY_SOURCE.lstrip(), example="weekly_summary(days=7)"),
        )
    }
