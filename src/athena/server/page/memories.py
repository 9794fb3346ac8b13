"""Memories: search and browse them, see why one was found, correct, tag, relate, merge and forget them."""

import asyncio
from functools import partial
from typing import Any

from starlette.responses import Response

from athena.app.compact import WEAK_SCORE
from athena.core.threads import start_in_thread
from athena.core.values import Page
from athena.errors import AthenaError, InvalidInput
from athena.memory.values import format_place
from athena.server.page.comparison import Comparer, DiffPiece
from athena.server.page.forms import create_fields, parse_arguments, parse_ref, parse_updated, parse_whole
from athena.server.page.rendering import cut_text
from athena.server.page.site import PageRequest, View, to_plain

PAGE_SIZE = 25
MAX_TAGS_SHOWN = 200
KINDS = {"event": "Events", "task": "Tasks", "entity": "Names", "pattern": "Patterns"}  # beside memories
KIND_PAGES = {"event": "/timeline", "task": "/tasks", "entity": "/graph/names", "pattern": "/patterns"}
CANDIDATES_SHOWN = 5
SEARCH_PARAMS = ("q", "tags", "memory_type", "since", "until", "kind")
MAX_COMPARED_CHARS = 400
MAX_QUESTION_CHARS = 500
EDITED_FIELDS = ("content", "tags", "memory_type", "importance")
# The terms of the ranking, in words; the order is that of the list.
WHY_WORDS = {
    "words": "Same words",
    "meaning": "Same meaning",
    "tokens": "Close wording",
    "personal": "About you",
    "session": "Its conversation",
    "recency": "How new",
    "strength": "Often needed",
    "feedback": "Helped before",
    "length": "Length",
    "role": "Not your own words",
    "contradicted": "Contradicted",
}


async def show_memories(page: PageRequest) -> Response:
    """Show hits for a question, or the newest memories."""
    params = page.params
    question, kind = params.get("q", ""), params.get("kind", "")
    offset = parse_whole(params.get("offset"))
    filters = {name: params.get(name) for name in ("tags", "memory_type", "since", "until")}
    if question:
        kinds = [kind] if kind in KINDS else None
        found = await page.call(
            "recall", query=question, k=PAGE_SIZE, offset=offset, explain=True, kinds=kinds, **filters
        )
    else:
        found = await page.call("list_memories", k=PAGE_SIZE, offset=offset, **filters)
    total = found.total if isinstance(found, Page) else len(found)
    context: dict[str, Any] = {
        "memories": found,
        "question": question,
        "filters": filters | {"kind": kind},
        "is_filtered": bool(question or any(filters.values())),
        "kinds": KINDS,
        "kind_page": KIND_PAGES.get(kind, "") if not question else "",
        "strong": [hit for hit in found if not question or hit.score >= WEAK_SCORE],
        "weak": [hit for hit in found if question and hit.score < WEAK_SCORE],
        "explain": explain_hit,
        "format_place": format_place,
        "locate": partial(locate_hit, page, {"q": question, **filters, "kind": kind}),
        "total": total,
        "offset": offset,
        "next_offset": offset + PAGE_SIZE if len(found) == PAGE_SIZE and offset + PAGE_SIZE < total else None,
        "page_size": PAGE_SIZE,
    }
    if page.is_fragment:
        return page.render("memories_part.html", **context)
    fields = create_fields(page.find_operation("remember").arguments_schema, {}, ("content", "tags", "memory_type"))
    return page.render("memories.html", fields=fields, **context)


async def show_known_filters(page: PageRequest) -> Response:
    """Show the types and tags in use, as a part: to count them takes longer than the list in a large store."""
    tags, stats = await asyncio.gather(page.call("list_tags"), page.call("stats"))
    return page.render("filters_part.html", tags=tags[:MAX_TAGS_SHOWN], types=sorted(stats["by_type"]))


def locate_hit(page: PageRequest, search: dict[str, Any], hit: Any) -> str:
    """Return the address of what was found; that of a memory has the search, to which it leads back."""
    kind = getattr(hit, "kind", "memory")
    if kind == "entity":
        return page.url("/graph", name=hit.content.partition("\n")[0].partition(":")[0])
    folder = {"task": "/tasks", "pattern": "/patterns"}.get(kind, "/memories")
    return page.url(f"{folder}/{hit.id}", **search if folder == "/memories" else {})


def explain_hit(why: dict[str, float] | None) -> list[tuple[str, float, float]]:
    """Return the terms of a hit that matter, in words, each with its value and its share of the largest."""
    if not why:
        return []
    shown = [(WHY_WORDS[name], why[name]) for name in WHY_WORDS if abs(why.get(name, 0)) >= 0.01]
    largest = max((abs(value) for _, value in shown), default=1.0)
    return [(words, value, abs(value) / largest) for words, value in shown]


async def show_memory(page: PageRequest) -> Response:
    """Show one memory whole, with its history and what it is related to."""
    ref = parse_ref(page.get_path("ref"))
    history = await page.list_history(ref)
    try:
        memory = await page.call("get_memory", memory_id=ref)
    except AthenaError:
        if not history or history[-1].before is None:
            raise
        return page.render("forgotten.html", section="/memories", ref=ref, state=history[-1].before)
    related = await asyncio.gather(*(_find_memory(page, other.id) for other in memory.related[:20]))
    values = {name: getattr(memory, name) for name in EDITED_FIELDS}
    return page.render(
        "memory.html",
        memory=memory,
        steps=await start_in_thread(describe_history, [*history], memory),
        older_changes=history.total - len(history),
        related=[(link, other) for link, other in zip(memory.related, related, strict=False) if other is not None],
        fields=create_fields(page.find_operation("update_memory").arguments_schema, values, EDITED_FIELDS),
        candidates=await _find_candidates(page, memory) if page.params.get("find") else None,
        find=page.params.get("find", ""),
        list_address=page.url("/memories", **{name: page.params.get(name) for name in SEARCH_PARAMS}),
    )


async def _find_candidates(page: PageRequest, memory: Any) -> list[Any]:
    """Return memories that may belong together with this one: alike, or found by words."""
    question = page.params.get("find") or memory.content[:MAX_QUESTION_CHARS]
    hits = await page.call("recall", query=question, k=CANDIDATES_SHOWN + 1)
    known = {memory.id, *(link.id for link in memory.related)}
    return [hit for hit in hits if hit.id not in known][:CANDIDATES_SHOWN]


async def show_candidates(page: PageRequest) -> Response:
    """Show what may belong together with a memory, as a part of its page."""
    memory = await page.call("get_memory", memory_id=parse_ref(page.get_path("ref")))
    if not page.is_fragment:
        return page.redirect(f"/memories/{memory.id}", find=page.params.get("find"))
    return page.render("relate_part.html", memory=memory, candidates=await _find_candidates(page, memory))


async def _find_memory(page: PageRequest, memory_id: int) -> Any:
    try:
        return await page.call("get_memory", memory_id=memory_id)
    except AthenaError:  # forgotten since, or not a memory
        return None


def describe_history(history: Any, memory: Any) -> list[dict[str, Any]]:
    """Return the changes of a memory, the newest first, each with the difference that it made; versions may be long."""
    comparer = Comparer()
    steps = []
    now = after = to_plain(memory)
    for change in reversed(to_plain(history)):
        before = change["before"] or {}
        step = {name: change[name] for name in ("at", "action", "operation", "by")} | {
            "text": [],
            "facts": [],
            "version": "",
        }
        if change["before"] is not None and "content" in before:
            if before["content"] != after.get("content"):
                step["text"] = comparer.compare_texts(before["content"], after.get("content", ""))
                words = before["content"].split()
                if words != now.get("content", "").split(None, len(words)):  # else nothing would come back
                    step["version"] = before.get("hash", "")
            for name in ("tags", "memory_type", "importance"):
                if name in before and list_or_same(before[name]) != list_or_same(after.get(name)):
                    step["facts"].append((name, format_fact(before[name]), format_fact(after.get(name))))
        steps.append(step)
        after = change["before"] or after
    return steps


def list_or_same(value: Any) -> Any:
    return sorted(value) if isinstance(value, list | tuple) else value


def format_fact(value: Any) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, list | tuple) else str(value)


# --- forms ------------------------------------------------------------------------------------------------------------


async def remember(page: PageRequest) -> Response:
    arguments = parse_arguments(page.find_operation("remember").arguments_schema, page.form)
    stored = await page.call("remember", **arguments)
    words = {"new": "Remembered", "known": "This was known already", "revived": "Remembered again"}
    text = words.get(stored.outcome, "Remembered")
    if stored.redacted:
        text += f"; removed from it: {', '.join(stored.redacted)}"
    return page.go_back("/memories", text, undo=True)


async def edit_memory(page: PageRequest) -> Response:
    ref = parse_ref(page.get_path("ref"))
    before = await page.call("get_memory", memory_id=ref)
    arguments = parse_arguments(page.find_operation("update_memory").arguments_schema, page.form)
    if "tags" in page.form and not page.form["tags"].strip():
        arguments["tags"] = []  # an empty field takes the tags away
    if not page.form.get("content", "x").strip():
        raise InvalidInput("a memory needs a text", hint="to remove it, choose Forget")
    changed = {
        name: value
        for name, value in arguments.items()
        if name in EDITED_FIELDS and _to_comparable(value) != _to_comparable(getattr(before, name))
    }
    if not changed:
        return page.redirect(f"/memories/{before.id}", "Nothing was changed")
    seen = parse_updated(page.form)
    stored = await page.call("update_memory", memory_id=before.id, expect_updated=seen, **changed)
    text = "Saved" + (f"; removed from it: {', '.join(stored.redacted)}" if stored.redacted else "")
    return page.redirect(f"/memories/{stored.id}", text, undo=True)


def _to_comparable(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip()
    return [str(item) for item in value] if isinstance(value, list | tuple) else value


async def restore_version(page: PageRequest) -> Response:
    """Let a memory say again what it said before, as the words of whoever said it."""
    ref, version = parse_ref(page.get_path("ref")), page.form.get("version", "")
    seen = parse_updated(page.form)
    stored = await page.call("restore_version", memory_id=ref, version=version, expect_updated=seen)
    return page.redirect(f"/memories/{stored.id}", "The earlier text is back", undo=True)


async def forget_memories(page: PageRequest) -> Response:
    """Forget the chosen memories; the notice offers to bring them back."""
    ids = _list_chosen(page)
    count = await page.call("forget_batch", memory_ids=ids)
    return page.go_back("/memories", "Forgotten" if count == 1 else f"{count} memories forgotten", undo=True)


async def restore_memory(page: PageRequest) -> Response:
    ref = parse_ref(page.get_path("ref"))
    is_back = await page.call("restore_memory", memory_id=ref)
    return page.redirect(f"/memories/{ref}", "It is back" if is_back else "It was not forgotten")


async def tag_memories(page: PageRequest) -> Response:
    """Add tags to the chosen memories, or take them away."""
    ids, tags, is_removal = _list_chosen(page), page.form.get("tags", "").strip(), bool(page.form.get("take"))
    count = await page.call("tag_memories", memory_ids=ids, **{"remove" if is_removal else "add": tags})
    return page.go_back("/memories", f"{count} changed", undo=True)


async def relate_memories(page: PageRequest) -> Response:
    ref = parse_ref(page.get_path("ref"))
    arguments = parse_arguments(page.find_operation("relate_memories").arguments_schema, page.form)
    arguments["other_id"] = parse_ref(str(arguments.get("other_id", "")).strip())
    await page.call("relate_memories", **arguments | {"memory_id": ref})
    return page.redirect(f"/memories/{ref}", "Related", undo=True)


async def show_duplicates(page: PageRequest) -> Response:
    groups = await page.call("find_duplicates", k=20, threshold=0.88)
    alike = [group for group in groups if len(group.memories) > 1]
    return page.render("duplicates.html", groups=alike, compare=partial(compare_pair, Comparer()))


def compare_pair(comparer: Comparer, memories: Any, memory: Any) -> list[DiffPiece]:
    """Return the text of a memory with what another of its group does not say as added."""
    other = next(each for each in memories if each.id != memory.id)
    pieces = comparer.compare_texts(
        cut_text(other.content, MAX_COMPARED_CHARS), cut_text(memory.content, MAX_COMPARED_CHARS)
    )
    return [piece for piece in pieces if piece.kind != "removed"]


async def merge_memories(page: PageRequest) -> Response:
    """Keep one memory with the tags of all, and forget the others."""
    keep, ids = parse_ref(page.form.get("keep", "")), _list_chosen(page)
    others = [memory_id for memory_id in ids if memory_id != keep]
    await page.call("merge_memories", memory_id=keep, other_ids=others)
    return page.redirect("/memories/duplicates", "Merged", undo=True)


async def undo(page: PageRequest) -> Response:
    """Take back what a notice told of."""
    project, changes = page.session.undo_offers.pop(page.form.get("key", ""), ("", ()))
    if not changes:
        raise InvalidInput("this was undone already, or is too long ago")
    page.project = project
    for number in changes:
        await page.call("undo_call", number=number)
    return page.go_back("/memories", "Undone")


def _list_chosen(page: PageRequest) -> list[int | str]:
    ids = [parse_ref(text) for text in page.form_lists.get("id", [])]
    if not ids:
        raise InvalidInput("nothing is selected", hint="go back and select at least one memory")
    return ids


VIEWS = (
    View("GET", "/memories", show_memories),
    View("GET", "/memories/duplicates", show_duplicates),
    View("GET", "/memories/filters", show_known_filters),
    View("GET", "/memories/{ref}", show_memory),
    View("GET", "/memories/{ref}/candidates", show_candidates),
    View("POST", "/memories/remember", remember),
    View("POST", "/memories/forget", forget_memories),
    View("POST", "/memories/tag", tag_memories),
    View("POST", "/memories/merge", merge_memories),
    View("POST", "/memories/{ref}/edit", edit_memory),
    View("POST", "/memories/{ref}/version", restore_version),
    View("POST", "/memories/{ref}/restore", restore_memory),
    View("POST", "/memories/{ref}/relate", relate_memories),
    View("POST", "/undo", undo),
)
