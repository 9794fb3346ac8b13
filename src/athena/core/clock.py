"""The clock, passed as a parameter so that tests can set the time."""

import os
import time
from collections.abc import Callable
from datetime import datetime, tzinfo
from functools import cache

Clock = Callable[[], float]  # seconds since 1970, as `time.time`

system_clock: Clock = time.time
# What a calendar can show, in every zone and some days around it: the years 1 to 9999.
MIN_CALENDAR_TIME, MAX_CALENDAR_TIME = -62_135_000_000.0, 253_402_000_000.0


def is_in_calendar(timestamp: float) -> bool:
    """Return whether a calendar can show a time."""
    return MIN_CALENDAR_TIME <= timestamp <= MAX_CALENDAR_TIME


def to_local_time(timestamp: float) -> datetime:
    """Return a time in this machine's zone, with the offset that held then; the nearest one that a calendar has."""
    timestamp = min(max(timestamp, MIN_CALENDAR_TIME), MAX_CALENDAR_TIME)  # a clock may be wrong by any time
    return datetime.fromtimestamp(timestamp, _load_timezone(os.environ.get("TZ")))


@cache
def _load_timezone(name: str | None) -> tzinfo | None:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # few calls need a calendar

    try:
        if name:
            return ZoneInfo(name.removeprefix(":"))
        with open("/etc/localtime", "rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError, ZoneInfoNotFoundError):
        return datetime.now().astimezone().tzinfo
