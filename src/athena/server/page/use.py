"""Use: calls, tokens, savings and times over the last days, by operation, project and client."""

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
    "private": "Programs that read something private",
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
        chart=create_chart(report.days, report.daily_speeds, days),
        groups=[
            ("By what was called", [(share.name, share) for share in _sort_shares(report.operations)]),
            ("By project", [(share.name, share) for share in _sort_shares(report.projects)]),
            ("By client", clients),
        ],
        speeds=report.speeds[:ROWS_SHOWN],
        calls=sum(share.calls for share in report.days),
        read=sum(share.read for share in report.days),
        spared=sum(share.tokens - share.read for share in report.days),
    )


async def show_savings(page: PageRequest) -> Response:
    """Show what was saved, as a part: to count the tokens of all tools takes long."""
    return page.render("savings_part.html", savings=await page.call("token_savings"))


def _sort_shares(shares: Any) -> list[Any]:
    return sorted(shares, key=lambda share: -share.calls)[:ROWS_SHOWN]


def create_chart(shares: Any, speeds: Any, days: int) -> dict[str, list[float | None]]:
    """Return times and figures for each day, those without any included."""
    by_day = {int(share.name): share for share in shares}
    speed_by_day = {int(speed.name): speed for speed in speeds}
    last = int(time.time() // DAY_S)
    numbers = range(last - days + 1, last + 1)
    used = [by_day.get(number) for number in numbers]
    timed = [speed_by_day.get(number) for number in numbers]
    return {
        "times": [number * DAY_S for number in numbers],
        "calls": [share.calls if share else 0 for share in used],
        "read": [share.read if share else 0 for share in used],
        "spared": [share.tokens - share.read if share else 0 for share in used],
        "median": [speed.median_ms if speed else None for speed in timed],
        "slow": [speed.slow_ms if speed else None for speed in timed],
    }


VIEWS = (View("GET", "/use", show_use), View("GET", "/use/savings", show_savings))
