"""Texts of others on the page: hidden characters are shown, and no other call waits while a long text is rendered."""

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from athena.app.compose import App
from athena.core.catalog import invoke
from athena.core.threads import get_running_loop, run_sync
from athena.server.admission import CallDispatcher
from athena.server.page import memories, rendering
from athena.server.page.comparison import Comparer, DiffPiece
from athena.server.page.site import PageRequest, PendingPage, render_pending
from athena.server.page.views import create_site


def test_hidden_characters_are_shown() -> None:
    shown = rendering.show_hidden('<b>&\u200b"\u202e\u202e\u202e\u202e\u202e')
    assert shown == (
        '&lt;b&gt;&amp;<span class="codepoint">U+200B</span>&#34;<span class="codepoint">5 hidden characters</span>'
    )
    assert rendering.show_hidden("<U+200B>") == "&lt;U+200B&gt;"  # what somebody wrote, not what we show
    assert '<span class="codepoint">50 spaces</span>' in rendering.show_code_line(f"x = 1{50 * ' '}# y")


def test_page_is_rendered_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    render, on_loop = rendering.render, []

    def note_thread(template: str, context: Any) -> str:
        on_loop.append(get_running_loop() is not None)
        return render(template, context)

    monkeypatch.setattr(rendering, "render", note_thread)
    response = asyncio.run(render_pending(PendingPage("door.html", {"text": "closed"}, 403)))
    assert (response.status_code, b"closed" in response.body) == (403, True)
    assert on_loop == [False]


def test_versions_are_compared_beside_the_event_loop(isolated: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may write 50 versions of 4 MB each."""
    compare, on_loop = Comparer.compare_texts, []

    def note_thread(comparer: Comparer, old: str, new: str) -> list[DiffPiece]:
        on_loop.append(get_running_loop() is not None)
        return compare(comparer, old, new)

    def call(name: str, **arguments: Any) -> Any:
        return run_sync(invoke(isolated.catalog, name, arguments, isolated.create_context("test", "cli")))

    async def show(ref: int) -> Any:
        dispatcher = CallDispatcher(isolated.catalog, is_stopping=lambda: False, max_concurrent=2)
        site = create_site(isolated, dispatcher, "test", "cookie", lambda _: True)
        opened = site.sessions.open_session(site.sessions.create_link("test"))
        assert opened is not None
        scope = {"type": "http", "method": "GET", "path": f"/memories/{ref}", "headers": [], "query_string": b""}
        request = Request(scope | {"path_params": {"ref": str(ref)}})
        return await memories.show_memory(PageRequest(site, request, opened[2], "test"))

    monkeypatch.setattr(Comparer, "compare_texts", note_thread)
    stored = call("remember", content="Deploys run on Fridays")
    call("update_memory", memory_id=stored.id, content="Deploys run on Mondays")
    shown = asyncio.run(show(stored.id))
    assert shown.context["steps"][0]["version"] == stored.hash
    assert on_loop == [False]
