"""Times and amounts in one notation, so that the same value compares equal however it is written."""

import re

CLOCK_TIME_PATTERN = re.compile(
    r"\b(\d{1,2})(?:[:.](\d\d))?\s*([ap])\.?m\b\.?|\b(\d{1,2}):(\d\d)(?::\d\d)?\b", re.IGNORECASE
)
NAMED_TIMES = {"noon": "12:00", "midday": "12:00", "midnight": "00:00"}
NAMED_TIME_PATTERN = re.compile(r"\b(?:noon|midday|midnight)\b", re.IGNORECASE)
NUMBER_WORDS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60,
    "ninety": 90, "hundred": 100, "twice": 2,
}  # fmt: skip
NUMBER_WORD_PATTERN = re.compile(rf"\b(?:{'|'.join(NUMBER_WORDS)})\b", re.IGNORECASE)
HALF_UNIT_PATTERN = re.compile(r"\b(?:half an?|a half)[ -](?=minute|hour|day|year)", re.IGNORECASE)
QUARTER_HOUR_PATTERN = re.compile(r"\b(?:a )?quarter of an? (?=hour)", re.IGNORECASE)
SINGLE_UNIT_PATTERN = re.compile(r"\b(?:an|a|one|1) (?=(?:second|minute|hour|day|week)\b)", re.IGNORECASE)
VALUE_LEAD_PATTERN = re.compile(r"\b(?:is|after|within|for|to|of|was|lasts?|takes?)\s*$", re.IGNORECASE)
RATE_PATTERN = re.compile(r"(?<=[a-z])\s?/\s?(s|sec|second|min|minute|h|hr|hour|day|week|month)\b", re.IGNORECASE)
RATE_UNITS = {"s": "second", "sec": "second", "min": "minute", "h": "hour", "hr": "hour"}
UNIT_SECONDS = {
    "ms": 0.001, "millisecond": 0.001, "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3_600,
    "hr": 3_600, "hour": 3_600, "d": 86_400, "day": 86_400, "week": 604_800,
}  # fmt: skip
UNIT_KILOBYTES = {"kb": 1, "kib": 1, "mb": 1_024, "mib": 1_024, "gb": 1_024**2, "gib": 1_024**2, "tb": 1_024**3}
MULTIPLIERS = {"k": 1_000, "thousand": 1_000, "million": 1_000_000}
AMOUNT_PATTERN = re.compile(
    r"(?<![\w.:,#-])(\d+(?:,\d{3})+|\d+(?:\.\d+)?)(\s*)"
    r"(milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?"
    r"|[kmgt]i?b|k|thousand|million|percent|per cent)?(?![\w.:,]*\d)(?!\w)",
    re.IGNORECASE,
)
SHORT_UNITS = frozenset({"m", "d", "k", "s", "h"})  # units only right behind a number


def normalize_quantities(text: str) -> str:
    """Write times as 14:30, durations in seconds, sizes in kilobytes and numbers in digits without separators."""
    text = CLOCK_TIME_PATTERN.sub(_format_clock, text)
    text = NAMED_TIME_PATTERN.sub(lambda found: NAMED_TIMES[found[0].lower()], text)
    text = HALF_UNIT_PATTERN.sub("0.5 ", QUARTER_HOUR_PATTERN.sub("0.25 ", text))
    text = SINGLE_UNIT_PATTERN.sub(
        lambda found: "1 " if VALUE_LEAD_PATTERN.search(text[: found.start()]) else found[0], text
    )
    text = RATE_PATTERN.sub(lambda found: f" per {RATE_UNITS.get(found[1].lower(), found[1])}", text)
    text = NUMBER_WORD_PATTERN.sub(lambda found: str(NUMBER_WORDS[found[0].lower()]), text)
    return AMOUNT_PATTERN.sub(_format_amount, text)


def _format_clock(found: re.Match[str]) -> str:
    hour, minute = int(found[1] or found[4]), found[2] or found[5] or "00"
    if found[3]:
        if hour > 12:
            return found[0]
        hour = hour % 12 + (12 if found[3].lower() == "p" else 0)
    return f"{hour:02d}:{minute}"


def _format_amount(found: re.Match[str]) -> str:
    number, unit = float(found[1].replace(",", "")), (found[3] or "").lower()
    if unit in SHORT_UNITS and found[2]:
        return found[0]
    if unit in ("percent", "per cent"):
        return f"{number:g}%"
    single = unit.removesuffix("s") if len(unit) > 2 else unit
    if single in UNIT_SECONDS:
        return f"{number * UNIT_SECONDS[single]:.10g} seconds"
    if unit in UNIT_KILOBYTES:
        return f"{number * UNIT_KILOBYTES[unit]:.12g} kilobytes"
    if unit in MULTIPLIERS:
        return f"{number * MULTIPLIERS[unit]:.12g}"
    return f"{found[1].replace(',', '')}{found[2]}{found[3] or ''}"
