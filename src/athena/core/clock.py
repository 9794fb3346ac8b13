"""The time, as a parameter: whoever needs it is given a `Clock`."""

import os
import time
from collections.abc import Callable
from datetime import datetime, tzinfo
from functools import cache

Clock = Callable[[], float]  # seconds since 1970, as `time.time`

system_clock: Clock = time.time


def to_local_time(moment: float) -> datetime:
    """Return a moment in this machine's time zone, with its clock changes and not just today's offset."""
    return datetime.fromtimestamp(moment, _load_timezone(os.environ.get("TZ")))


@cache
def _load_timezone(name: str | None) -> tzinfo | None:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # only where a calendar is needed

    try:
        if name:
            return ZoneInfo(name.removeprefix(":"))
        with open("/etc/localtime", "rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError, ZoneInfoNotFoundError):
        return datetime.now().astimezone().tzinfo
