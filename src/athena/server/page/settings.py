"""Settings: what is in force and where it comes from; what privacy does and who received what; backups."""

import asyncio
from itertools import groupby

from starlette.responses import Response

from athena.server.page.site import PageRequest, View

DAY_S = 86_400
GROUP_WORDS = {
    "": "In general",
    "backup": "Backups",
    "daemon": "The server in the background",
    "documents": "Documents",
    "embedding": "Another model for meaning",
    "hooks": "Sessions of coding agents",
    "llm": "A language model for wordings and lessons",
    "personal": "What is personal",
    "ranking": "Search",
    "sandbox": "Programs",
    "vault": "The vault",
}
MODE_WORDS = {
    "off": ("Off", "", "Personal data is stored and shown as it is. Keys and passwords are removed in any case."),
    "boundary": ("On", "good", "Models see tokens in place of personal data; your programs and tools get the values."),
    "strict": ("Strict", "good", "Models and programs see tokens only; a tool gets a value only where you allowed it."),
}


async def show_settings(page: PageRequest) -> Response:
    settings, health = await asyncio.gather(page.call("list_settings"), page.call("health"))
    ordered = sorted(settings, key=lambda setting: setting.key.rpartition(".")[0])
    groups = [
        (GROUP_WORDS.get(name, name.capitalize()), list(values))
        for name, values in groupby(ordered, lambda setting: setting.key.rpartition(".")[0])
    ]
    return page.render("settings.html", groups=groups, health=health)


async def show_privacy(page: PageRequest) -> Response:
    report, tokens = await asyncio.gather(page.call("privacy_report"), page.call("list_tokens"))
    return page.render(
        "privacy.html",
        report=report,
        mode=MODE_WORDS[report.mode],
        secrets=[token for token in tokens if token.kind == "SECRET"],
        tokens=[token for token in tokens if token.kind != "SECRET"],
        day_s=DAY_S,
    )


async def show_backups(page: PageRequest) -> Response:
    backups, settings = await asyncio.gather(page.call("list_backups"), page.call("list_settings"))
    values = {setting.key: setting.value for setting in settings}
    return page.render(
        "backups.html", backups=backups, hours=float(values["backup.every_hours"] or 0), keep=values["backup.keep"]
    )


async def create_backup(page: PageRequest) -> Response:
    backup = await page.call("create_backup")
    return page.redirect("/settings/backups", f"Backed up and checked: {backup.path.rpartition('/')[2]}")


VIEWS = (
    View("GET", "/settings", show_settings),
    View("GET", "/settings/privacy", show_privacy),
    View("GET", "/settings/backups", show_backups),
    View("POST", "/settings/backups", create_backup),
)
