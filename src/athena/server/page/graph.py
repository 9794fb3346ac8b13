"""The graph: names, what is known of them and how they relate; from one neighbourhood to all at once."""

import asyncio
from collections import Counter
from typing import Any

from starlette.responses import JSONResponse, Response

from athena.errors import AthenaError, InvalidInput, NotFound
from athena.server.page.forms import parse_whole
from athena.server.page.site import PAGE_HEADERS, PageRequest, View

NAMES_A_PAGE = 200
NEIGHBORS_SHOWN = 2_000
MENTIONS_SHOWN = 10
DEFAULT_DEPTH = 2
DEPTHS = (1, 2, 3, 4)


async def show_graph(page: PageRequest) -> Response:
    """Show the graph, with what is known of the chosen name or the way between two."""
    params = page.params
    source, target = params.get("source", ""), params.get("target", "")
    stats = await page.call("stats")
    path, problem, entity = None, None, None
    try:
        if source and target:
            path = await page.call("find_path", source=source, target=target, at="any")
        elif params.get("name"):
            entity = await load_entity(page, params["name"])
    except AthenaError as error:
        problem = error
    return page.render(
        "graph.html",
        stats=stats,
        path=path,
        problem=problem,
        source=source,
        target=target,
        near=params.get("near", ""),
        depth=_read_depth(page),
        depths=DEPTHS,
        **(entity or {"entity": None}),
    )


def _read_depth(page: PageRequest) -> int:
    text = page.params.get("depth", "")
    return int(text) if text in [str(depth) for depth in DEPTHS] else DEFAULT_DEPTH


async def send_graph(page: PageRequest) -> Response:
    """Send names and relations for the picture: all, or those around one name."""
    if near := page.params.get("near"):
        found = await page.call("neighbors", name=near, depth=_read_depth(page), at="any", limit=NEIGHBORS_SHOWN)
        own = await page.call("open_nodes", names=[near])
        nodes = [(entity["name"], entity["entityType"]) for entity in own["entities"]]
        nodes += [(neighbor["name"], neighbor["entityType"] or "") for neighbor in found["neighbors"]]
        relations = found["relations"]
    else:
        graph = await page.call("read_graph")
        nodes = [(entity["name"], entity["entityType"]) for entity in graph["entities"]]
        relations = graph["relations"]
    positions = {name: position for position, (name, _) in enumerate(nodes)}
    edges = [
        [positions[edge["from"]], positions[edge["to"]], edge["relationType"], edge.get("since"), edge.get("until")]
        for edge in relations
        if edge["from"] in positions and edge["to"] in positions
    ]
    return JSONResponse({"nodes": nodes, "edges": edges}, headers=PAGE_HEADERS)


async def show_names(page: PageRequest) -> Response:
    """List all names, those with the most relations first."""
    if question := page.params.get("find"):
        entities = await page.call("search_graph", query=question, max_results=NAMES_A_PAGE)
        counts = Counter({entity["name"]: len(entity["relations"]) for entity in entities})
    else:
        graph = await page.call("read_graph")
        counts = Counter(name for edge in graph["relations"] for name in (edge["from"], edge["to"]))
        entities = sorted(graph["entities"], key=lambda entity: (-counts[entity["name"]], entity["name"]))
    offset = parse_whole(page.params.get("offset"))
    return page.render(
        "graph_names.html",
        entities=entities[offset : offset + NAMES_A_PAGE],
        counts=counts,
        total=len(entities),
        find=question or "",
        next_offset=offset + NAMES_A_PAGE if offset + NAMES_A_PAGE < len(entities) else None,
    )


async def load_entity(page: PageRequest, name: str) -> dict[str, Any]:
    opened, mentions = await asyncio.gather(
        page.call("open_nodes", names=[name]), page.call("mentions", name=name, k=MENTIONS_SHOWN)
    )
    entity = next((entity for entity in opened["entities"] if entity["name"] == name), None)
    if entity is None and not opened["relations"]:
        raise NotFound(f"there is no {name!r:.80} in the graph")
    known = entity or {"name": name, "entityType": "", "observations": []}
    return {"entity": known, "relations": opened["relations"], "mentions": mentions}


async def show_entity(page: PageRequest) -> Response:
    """Show what is known of one name, as a part of the graph's page."""
    name = page.params.get("name", "")
    if not page.is_fragment:
        return page.redirect("/graph", name=name)
    return page.render("entity_part.html", **await load_entity(page, name))


# --- forms ------------------------------------------------------------------------------------------------------------


async def create_entity(page: PageRequest) -> Response:
    name, kind = page.form.get("name", "").strip(), page.form.get("entity_type", "").strip()
    texts = [line.strip() for line in page.form.get("observations", "").splitlines() if line.strip()]
    await page.call("create_entity", name=name, entity_type=kind or "thing", observations=texts)
    return page.redirect("/graph", "Added", name=name)


async def add_observation(page: PageRequest) -> Response:
    name, text = page.form.get("name", ""), page.form.get("text", "").strip()
    if not text:
        raise InvalidInput("there is no text", hint="go back and write what is known")
    await page.call("add_observations", observations=[{"entityName": name, "contents": [text]}])
    return page.redirect("/graph", "Added", undo=True, name=name)


async def edit_observation(page: PageRequest) -> Response:
    """Replace what is known by what is right."""
    name, old, new = page.form.get("name", ""), page.form.get("text", ""), page.form.get("new", "").strip()
    if not new:
        raise InvalidInput("there is no text", hint="to remove it, choose Delete")
    if new == old:
        return page.redirect("/graph", "Nothing was changed", name=name)
    await page.call("add_observations", observations=[{"entityName": name, "contents": [new]}])
    await page.call("delete_observations", deletions=[{"entityName": name, "observations": [old]}])
    return page.redirect("/graph", "Saved", undo=True, name=name)


async def merge_entities(page: PageRequest) -> Response:
    """Join two names of the same thing."""
    name, other = page.form.get("name", ""), page.form.get("other", "").strip()
    await page.call("merge_entities", source=other, into=name)
    return page.redirect("/graph", f"{other[:60]} is the same as {name[:60]} now", undo=True, name=name)


async def delete_observation(page: PageRequest) -> Response:
    name, text = page.form.get("name", ""), page.form.get("text", "")
    await page.call("delete_observations", deletions=[{"entityName": name, "observations": [text]}])
    return page.redirect("/graph", "Deleted", undo=True, name=name)


async def add_relation(page: PageRequest) -> Response:
    edge = {"from": page.form.get("from", ""), "to": page.form.get("to", "").strip()}
    edge["relationType"] = page.form.get("relation", "").strip() or "relates to"
    if since := page.form.get("since", "").strip():
        edge["since"] = since
    await page.call("create_relations", relations=[edge])
    return page.redirect("/graph", "Related", undo=True, name=page.form.get("name", edge["from"]))


async def delete_relation(page: PageRequest) -> Response:
    edge = {key: page.form.get(key, "") for key in ("from", "to", "relationType")}
    await page.call("delete_relations", relations=[edge])
    return page.redirect("/graph", "Deleted", undo=True, name=page.form.get("name"))


async def delete_entity(page: PageRequest) -> Response:
    await page.call("delete_entities", entityNames=[page.form.get("name", "")])
    return page.redirect("/graph", "Deleted, with what was known of it", undo=True)


VIEWS = (
    View("GET", "/graph", show_graph),
    View("GET", "/graph/data", send_graph),
    View("GET", "/graph/names", show_names),
    View("GET", "/graph/entity", show_entity),
    View("POST", "/graph/entity", create_entity),
    View("POST", "/graph/entity/delete", delete_entity),
    View("POST", "/graph/observation", add_observation),
    View("POST", "/graph/observation/edit", edit_observation),
    View("POST", "/graph/observation/delete", delete_observation),
    View("POST", "/graph/entity/merge", merge_entities),
    View("POST", "/graph/relation", add_relation),
    View("POST", "/graph/relation/delete", delete_relation),
)
