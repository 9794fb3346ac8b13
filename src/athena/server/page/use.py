"""Use: calls, tokens and times over the last days; settings, and where each value comes from."""

import asyncio
import time
from typing import Any

from starlette.responses import Response

from athena.server.page.site import PageRequest, View

PERIODS = (7, 30, 90, 365)
ROWS_SHOWN = 15
CLIENT_WORDS = {
    "mcp": "Agents over MCP",
    "http": "Applications over HTTP",
    "python": "Python",
    "program": "Programs of agents",
    "hook": "Session hooks",
    "evaluation": "Evaluation",
}
DAY_S = 86_400


async def show_use(page: PageRequest) -> Response:
    wanted = page.params.get("days", "")
    days = int(wanted) if wanted in [str(period) for period in PERIODS] else 30
    report = await page.call("report_use", days=days)
    clients = [(CLIENT_WORDS.get(share.name, share.name), share) for share in _sort_shares(report.clients)]
    return page.render(
        "use.html",
        days=days,
        periods=PERIODS,
        chart=create_chart(report.days, days),
        groups=[
            ("By what was called", [(share.name, share) for share in _sort_shares(report.operations)]),
            ("By project", [(share.name, share) for share in _sort_shares(report.projects)]),
            ("By client", clients),
        ],
        speeds=report.speeds[:ROWS_SHOWN],
        calls=sum(share.calls for share in report.days),
        tokens=sum(share.tokens for share in report.days),
    )


async def show_savings(page: PageRequest) -> Response:
    """Show what was saved, as a part: to count the tokens of all tools takes long."""
    return page.render("savings_part.html", savings=await page.call("token_savings"))


def _sort_shares(shares: Any) -> list[Any]:
    return sorted(shares, key=lambda share: -share.calls)[:ROWS_SHOWN]


def create_chart(shares: Any, days: int) -> dict[str, list[float]]:
    """Return times, calls and tokens for each day, those without any included."""
    by_day = {int(share.name): share for share in shares}
    last = int(time.time() // DAY_S)
    numbers = range(last - days + 1, last + 1)
    return {
        "times": [number * DAY_S for number in numbers],
        "calls": [by_day[number].calls if number in by_day else 0 for number in numbers],
        "tokens": [by_day[number].tokens if number in by_day else 0 for number in numbers],
        "read": [by_day[number].read if number in by_day else 0 for number in numbers],
    }


async def show_settings(page: PageRequest) -> Response:
    settings, health, rules = await asyncio.gather(
        page.call("list_settings"), page.call("health"), page.call("list_learning_rules")
    )
    return page.render("settings.html", settings=settings, health=health, rules=rules)


async def remove_rule(page: PageRequest) -> Response:
    await page.call("remove_learning_rule", number=int(page.form.get("number", "0")))
    return page.redirect("/settings", "It may be learned again", (("undo", {}),))


VIEWS = (
    View("GET", "/use", show_use),
    View("GET", "/use/savings", show_savings),
    View("GET", "/settings", show_settings),
    View("POST", "/settings/rules/remove", remove_rule),
)
