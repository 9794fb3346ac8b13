"""Tools and servers: find a tool as an agent does, try it, see how servers are, decide on what they changed."""

import json
from typing import Any

from starlette.responses import Response

from athena.core.operation import ONLY_PERSONS, CallerKind, Effect
from athena.core.threads import start_in_thread
from athena.errors import ApprovalNeeded, Conflict, Denied
from athena.server.page.forms import create_fields, parse_arguments
from athena.server.page.programs import format_value
from athena.server.page.site import PageRequest, View

TOOLS_SHOWN = 20
STATUS_WORDS = {
    "ready": ("Ready", "good"),
    "connected": ("Connected", "good"),
    "waiting": ("Waits for you", "warn"),
    "changed": ("Changed", "warn"),
    "failing": ("Does not work", "bad"),
    "disabled": ("Off", ""),
}
EFFECT_WORDS = {
    Effect.READ: ("reads", "good"),
    Effect.WRITE: ("changes, can be undone", "info"),
    Effect.DESTROY: ("removes for good", "bad"),
    Effect.EXECUTE: ("runs or reaches out", "warn"),
    Effect.APPROVE: ("decides", "warn"),
}


async def show_servers(page: PageRequest) -> Response:
    question = page.params.get("find", "")
    lines = (
        await page.call("search_tools", query=question, k=TOOLS_SHOWN, detail="names", budget=100_000)
        if question
        else []
    )
    context: dict[str, Any] = {"tools": [parse_tool_line(line) for line in lines], "find": question}
    if page.is_fragment:
        return page.render("tools_part.html", **context)
    servers = await page.call("list_servers")
    return page.render("servers.html", servers=servers, status_words=STATUS_WORDS, **context)


def parse_tool_line(line: str) -> tuple[str, str]:
    """Split a line such as `memory.recall  # Find the memories` into the name and the summary."""
    name, _, summary = line.partition("  # ")
    return name.partition("(")[0].strip(), summary


async def show_tool(page: PageRequest, result: Any = None, values: dict[str, Any] | None = None) -> Response:
    """Show how a tool is called, with a form to try it."""
    operation = page.find_operation(page.get_path("name"))
    if CallerKind.PERSON not in operation.callers:
        raise Denied("this one is not for people", hint=operation.format_callers_hint())
    return page.render(
        "tool.html",
        operation=operation,
        effect=EFFECT_WORDS[operation.effect],
        usage=await page.call("describe_tool", name=operation.path),
        fields=create_fields(operation.arguments_schema, values),
        may_try=_may_try(operation),
        result=result,
    )


def _may_try(operation: Any) -> bool:
    """Return whether the form may call it: decisions and calls that need approval have pages of their own."""
    return operation.effect is not Effect.APPROVE and not operation.approval and operation.callers != ONLY_PERSONS


async def try_tool(page: PageRequest) -> Response:
    operation = page.find_operation(page.get_path("name"))
    if not _may_try(operation):
        raise Denied("this call needs more than a form", hint="call it in a program, which can wait for your approval")
    arguments = parse_arguments(operation.arguments_schema, page.form)
    return await show_tool(page, format_value(await page.call(operation.name, **arguments)), arguments)


async def show_server(page: PageRequest, review: Any = None) -> Response:
    details = await page.call("describe_server", name=page.get_path("name"))
    return page.render(
        "server.html",
        details=details,
        server=details.server,
        status_words=STATUS_WORDS,
        review=review,
        format_definition=format_definition,
        has_passphrase=review is not None and await start_in_thread(page.site.approver.has_passphrase),
    )


def format_definition(text: str) -> str:
    """Return a definition over several lines."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    except ValueError:  # an escaped character within it
        return text


async def review_server(page: PageRequest) -> Response:
    """Connect a server and show what it offers now."""
    return await show_server(page, await page.call("review_server", name=page.get_path("name")))


async def approve_server(page: PageRequest) -> Response:
    """Allow what a server offers, exactly as the person has seen it."""
    name = page.get_path("name")
    review = await page.call("review_server", name=name)
    if review.subject != page.form.get("subject", ""):
        raise Conflict("the server does not offer what you have seen", hint="look at it again, and decide then")
    approver = page.site.approver
    if not await start_in_thread(approver.has_passphrase):
        raise ApprovalNeeded(
            "approving here needs a passphrase, and none is set", hint="in a terminal: athena passphrase set"
        )
    [approval] = await start_in_thread(approver.grant, [review.subject], page.form.get("passphrase", ""))
    count = await page.call_approved("approve_server", {"name": name}, approval)
    return page.redirect(f"/servers/{name}", f"{count} tools of {name} can be called")


VIEWS = (
    View("GET", "/servers", show_servers),
    View("GET", "/servers/tools/{name}", show_tool),
    View("GET", "/servers/{name}", show_server),
    View("POST", "/servers/tools/{name}", try_tool),
    View("POST", "/servers/{name}/review", review_server),
    View("POST", "/servers/{name}/approve", approve_server),
)
