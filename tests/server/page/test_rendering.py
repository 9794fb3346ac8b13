"""Texts of others on the page: hidden characters are shown, and no other call waits while a long text is rendered."""

import asyncio
from typing import Any

import pytest

from athena.core.threads import get_running_loop
from athena.server.page import rendering
from athena.server.page.site import PendingPage, render_pending


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
