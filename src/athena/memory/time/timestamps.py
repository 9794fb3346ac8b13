"""Times as programs write them: epoch numbers, "20250301", "20250301140000", "7d"."""

import math
import re
from datetime import datetime

from athena.memory.time.calendar import Period, create_instant, create_local_date, expand_to_units, shift_by_counts
from athena.memory.time.vocabulary import AMOUNT_PATTERN, compile_pattern, parse_amounts


def parse_numeric_time(low: str, now: datetime) -> Period | None:
    """Read a year, a date (and time) without separators, or epoch seconds (or milli-, micro-, nanoseconds by size)."""
    match = re.fullmatch(r"([+-]?[0-9]{1,19})(?:\.([0-9]{1,9}))?", low)
    if not match:
        return None
    digits, fraction = match[1], match[2] or ""
    try:
        if len(digits) == 4 and digits.isdigit() and not fraction:
            return expand_to_units(create_local_date(now, int(digits)), "year").to_period()
        if re.fullmatch("(?:19|20)[0-9]{6}", digits) and not fraction:
            day = create_local_date(now, int(digits[:4]), int(digits[4:6]), int(digits[6:]))
            return expand_to_units(day, "day").to_period()
        if re.fullmatch("(?:19|20)[0-9]{12}", digits) and not fraction:  # as milliseconds it would be after 2570
            moment = datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=now.tzinfo)
            return create_instant(moment).to_period()
    except (ValueError, OverflowError):  # 20251399, year 0
        return None
    value = float(low)
    if len(digits.lstrip("+-")) < 5 and value != 0:
        return None  # "12" is more likely a mistake than a moment in 1970
    length = 10.0 ** -len(fraction)
    while abs(value) >= 1e11:
        value, length = value / 1000, length / 1000
    return Period(value, max(value + length, math.nextafter(value, math.inf)))


def parse_distance(low: str, now: datetime, *, ahead: bool = False) -> Period | None:
    """Read "7d", "24h", "2 weeks" as the moment so long ago, "in 2 weeks" as one to come; with `ahead`, all to come."""
    match = compile_pattern(rf"(?P<sign>-|\+|in )?(?P<amount>{AMOUNT_PATTERN})").fullmatch(low)
    counts, _ = parse_amounts(match["amount"]) if match else ([], False)
    if not match or not counts:
        return None
    try:
        prefix = (match["sign"] or " ")[0]
        sign = 1 if prefix in "+i" or (ahead and prefix != "-") else -1
        return create_instant(shift_by_counts(now, counts, sign)).to_period()
    except (ValueError, OverflowError):  # beyond the calendar
        return None
