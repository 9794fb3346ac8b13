"""All views of the page, and its navigation."""

from collections.abc import Callable
from typing import Any

from athena.app.compose import App
from athena.server.admission import CallDispatcher
from athena.server.page import (
    documents,
    graph,
    home,
    learned,
    live,
    memories,
    programs,
    servers,
    settings,
    timeline,
    use,
)
from athena.server.page.site import SURFACE, PageSite, Section

SECTIONS = (
    Section("/", "Home", "house"),
    Section("/memories", "Memories", "brain"),
    Section("/graph", "Graph", "network"),
    Section("/timeline", "Timeline", "calendar"),
    Section("/tasks", "Tasks", "list-checks"),
    Section("/patterns", "Patterns", "lightbulb"),
    Section("/programs", "Programs", "terminal"),
    Section("/servers", "Tools and servers", "plug"),
    Section("/use", "Use", "activity"),
    Section("/settings", "Settings", "settings"),
)
VIEWS = (
    *documents.VIEWS,  # and `learned`: their addresses are below those of memories
    *learned.VIEWS,
    *graph.VIEWS,
    *home.VIEWS,
    *memories.VIEWS,
    *programs.VIEWS,
    *servers.VIEWS,
    *settings.VIEWS,
    *timeline.VIEWS,
    *use.VIEWS,
    *live.VIEWS,
)


def create_site(
    app: App, dispatcher: CallDispatcher, project: str, cookie_name: str, is_owner: Callable[[Any], bool]
) -> PageSite:
    site = PageSite(
        VIEWS,
        SECTIONS,
        app.catalog,
        dispatcher,
        lambda name, approval, key: app.create_context(name, SURFACE, key, approval=approval),
        app.approver,
        project,
        cookie_name,
        is_owner,
    )
    site.feeds = live.Feeds(site)
    return site
