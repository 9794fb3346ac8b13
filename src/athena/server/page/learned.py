"""What Athena learned from sessions by itself: confirm, correct, drop, or rule it out; settle contradictions."""

import asyncio

from starlette.responses import Response

from athena.errors import InvalidInput
from athena.server.page.forms import parse_ref, parse_whole
from athena.server.page.site import PageRequest, View

LEARNED_A_PAGE = 30


async def show_learned(page: PageRequest) -> Response:
    offset = parse_whole(page.params.get("offset"))
    items, questions, rules = await asyncio.gather(
        page.call("list_learned", limit=LEARNED_A_PAGE + 1, offset=offset),
        page.call("list_open_questions"),
        page.call("list_learning_rules", with_dropped=True),
    )
    return page.render(
        "learned_part.html" if page.is_fragment else "learned.html",
        items=items[:LEARNED_A_PAGE],
        questions=questions,
        rules=rules,
        offset=offset,
        next_offset=offset + LEARNED_A_PAGE if len(items) > LEARNED_A_PAGE else None,
    )


def _find_id(page: PageRequest) -> int | str:
    text = page.form.get("memory_id", "").strip()
    if not text:
        raise InvalidInput("the form names no statement", hint="go back, reload the page and try again")
    return parse_ref(text)


async def keep_learned(page: PageRequest) -> Response:
    """Confirm a statement; of two that contradict each other, this settles which one holds."""
    is_everywhere = page.form.get("everywhere") == "on"
    await page.call("keep_learned", memory_id=_find_id(page), everywhere=is_everywhere)
    text = "Confirmed, for all your projects" if is_everywhere else "Confirmed"
    return page.go_back("/memories/learned", text, undo=True)


async def edit_learned(page: PageRequest) -> Response:
    content = page.form.get("content", "").replace("\r\n", "\n").strip()
    if not content:
        raise InvalidInput("a statement needs a text", hint="to remove it, choose Not true")
    await page.call("edit_learned", memory_id=_find_id(page), content=content)
    return page.go_back("/memories/learned", "Corrected", undo=True)


async def drop_learned(page: PageRequest) -> Response:
    """Forget something that was learned, and do not learn it again."""
    await page.call("drop_learned", memory_ids=[_find_id(page)])
    return page.go_back("/memories/learned", "Forgotten, and not learned again", undo=True)


async def refuse_learned(page: PageRequest) -> Response:
    """Forget something that was learned, and learn nothing like it from now on."""
    topic = page.form.get("topic", "").strip() or None
    is_everywhere = page.form.get("everywhere") == "on"
    await page.call("refuse_learned", memory_id=_find_id(page), topic=topic, everywhere=is_everywhere)
    return page.go_back("/memories/learned", "Forgotten; nothing like it is learned from now on", undo=True)


async def remove_rule(page: PageRequest) -> Response:
    number = parse_whole(page.form.get("number"))
    if not number:
        raise InvalidInput("the form names no rule", hint="go back, reload the page and try again")
    await page.call("remove_learning_rule", number=number)
    return page.redirect("/memories/learned", "It may be learned again", undo=True)


VIEWS = (
    View("GET", "/memories/learned", show_learned),
    View("POST", "/memories/learned/keep", keep_learned),
    View("POST", "/memories/learned/edit", edit_learned),
    View("POST", "/memories/learned/drop", drop_learned),
    View("POST", "/memories/learned/refuse", refuse_learned),
    View("POST", "/memories/learned/rules/remove", remove_rule),
)
