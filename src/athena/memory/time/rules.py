"""Finds the single pieces of time in a text, such as "last week", "Tuesday", "14:00", "3 June".

A piece is either fixed ("last week") or comes round again ("Tuesday"); the latter is the newest one that has
begun, unless it stands next to a larger piece ("Tuesday last week"). `timephrase` joins them.
"""

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from functools import cache

from athena.memory.time.calendar import (
    SECONDS,
    Span,
    daily,
    dated,
    finest,
    floor,
    instant,
    local,
    moved,
    nth,
    portion,
    rolling,
    shift,
    weekly,
    whole,
    yearly,
)
from athena.memory.time.vocabulary import (
    MONTH_NUMBER,
    NTH,
    SEASON_MONTH,
    WEEKDAY_NUMBER,
    Match,
    Piece,
    Size,
    Weight,
    amounts,
    day_names,
    ends,
    fixed,
    modified,
    needy,
    part_of_day,
    pattern,
    patterns,
    recurring,
    size_of,
    zone_of,
)

Build = Callable[[Match, datetime], Piece | None]


def pieces(text: str, now: datetime) -> list[Piece]:
    """The pieces of lower-case text; of those that overlap the leftmost, and of those the longest."""
    found: list[Piece] = []
    for rule, build in _rules():
        match = rule.search(text)
        while match:
            try:
                piece = build(match, now)
            except (ValueError, OverflowError):  # 31 June, or beyond the calendar
                piece = None
            if piece:
                found.append(piece)
            # Not from its end on: in "June 3 to 10 July" both "3 to 10 July" and "10 July" must be seen.
            match = rule.search(text, match.start() + 1)
    found.sort(key=lambda piece: (piece.begin, -piece.end))
    kept: list[Piece] = []
    for piece in found:
        if not kept or piece.begin >= kept[-1].end:
            kept.append(piece)
    return kept


def _iso(m: Match, now: datetime) -> Piece | None:
    day = local(now, int(m["y"]), int(m["m"]), int(m["d"]))
    if m["hour"] is None:
        return fixed(m, Size.DATE, whole(day, "day"))
    part = m["part"] or ""
    start = day.replace(
        hour=int(m["hour"]),
        minute=int(m["minute"]),
        second=int(m["second"] or 0),
        microsecond=int(part[:6].ljust(6, "0")),
        tzinfo=zone_of(m["zone"]) or now.tzinfo,
    ).astimezone(now.tzinfo)
    length = timedelta(microseconds=10 ** max(0, 6 - len(part))) if part else timedelta(seconds=1)
    return fixed(m, Size.CLOCK, Span(start, start + (length if m["second"] else timedelta(minutes=1))))


def _iso_month(m: Match, now: datetime) -> Piece | None:
    return fixed(m, Size.MONTH, whole(local(now, int(m["year"]), int(m["m"])), "month"), Weight.LED)


def _iso_week(m: Match, now: datetime) -> Piece | None:
    day = date.fromisocalendar(int(m["year"]), int(m["week"]), int(m["d"] or 1))
    start = local(now, day.year, day.month, day.day)
    return fixed(m, Size.DATE, whole(start, "day")) if m["d"] else fixed(m, Size.WEEK, whole(start, "week"))


def _numeric(m: Match, now: datetime) -> Piece | None:
    month, day = (m["b"], m["a"]) if m["sep"] == "." else (m["a"], m["b"])
    if int(month) > 12:
        month, day = day, month
    return fixed(m, Size.DATE, whole(local(now, int(m["year"]), int(month), int(day)), "day"))


def _dated(m: Match, now: datetime) -> Piece | None:
    month, day, last = m["month"], int(m["day"]), int(m["last"] or m["day"])
    if not 1 <= day <= last <= 31:
        return None
    cycle = dated(MONTH_NUMBER[month], day, last, now.tzinfo)
    if m["year"]:
        return fixed(m, Size.DATE, cycle.at(int(m["year"])))
    # "tests 3 may fail", "you may 5 times", "8 oct" (octal): a bare number next to these is no date yet.
    number_first = m.start("day") < m.start("month")
    doubtful = (month == "may" and not ends(m)) or (number_first and month in ("mar", "oct", "dec", "sep"))
    clear = m["ord"] or m.groupdict().get("of")
    return recurring(m, Size.DATE, cycle, Weight.LED if doubtful and not clear else Weight.ALONE)


def _dated_in_words(m: Match, now: datetime) -> Piece | None:
    """ "the first of december"."""
    day = day_names()[m["name"]]
    cycle = dated(MONTH_NUMBER[m["month"]], day, day, now.tzinfo)
    return fixed(m, Size.DATE, cycle.at(int(m["year"]))) if m["year"] else recurring(m, Size.DATE, cycle, Weight.ALONE)


def _month(m: Match, now: datetime) -> Piece | None:
    cycle = yearly(MONTH_NUMBER[m["month"]], 1, now.tzinfo)
    if m["year"]:
        return fixed(m, Size.MONTH, cycle.at(int(m["year"])))
    if m["month"] == "may" and m["mod"] and not ends(m):
        return None  # "this may", "the next may": a verb more often than a month
    return modified(m, Size.MONTH, cycle, now) if m["mod"] else recurring(m, Size.MONTH, cycle, Weight.LED)


def _weekday(m: Match, now: datetime) -> Piece | None:
    cycle = weekly(WEEKDAY_NUMBER[m["weekday"]], 1, now.tzinfo)
    if m["mod"]:
        if m["weekday"] in ("sat", "sun", "wed") and not ends(m):
            return None  # "since he last sat down"
        return modified(m, Size.DAY, cycle, now)
    if len(m["weekday"]) < 6 and (m["own"] is not None or m.string[: m.start()].endswith("the ")):
        return None  # "on the sun's surface"
    return recurring(m, Size.DAY, cycle, Weight.LED if m["own"] is None else Weight.ALONE)


def _quarter(m: Match, now: datetime) -> Piece | None:
    groups = m.groupdict()
    half = groups.get("kind") == "h"
    length = 6 if half else 3
    name = groups.get("nth")
    n = 3 if name == "last" else NTH[name] if name else int(m["n"]) - 1
    if n * length >= 12 or (name == "last" and not m["year"]):
        return None
    cycle = yearly(1 + n * length, length, now.tzinfo)
    if m["year"]:
        return fixed(m, Size.SEASON, cycle.at(int(m["year"])))
    if groups.get("mod"):
        return modified(m, Size.SEASON, cycle, now)
    return recurring(m, Size.SEASON, cycle, Weight.JOINED if half else Weight.LED)  # a bare h1 is a heading


def _season(m: Match, now: datetime) -> Piece | None:
    cycle = yearly(SEASON_MONTH[m["season"]], 3, now.tzinfo)
    if m["year"]:
        return fixed(m, Size.SEASON, cycle.at(int(m["year"])))
    if m["mod"]:
        return modified(m, Size.SEASON, cycle, now)
    word = m["season"] in ("spring", "fall")  # also a framework and a tumble
    return recurring(m, Size.SEASON, cycle, Weight.JOINED if word else Weight.LED)


def _year(m: Match, now: datetime) -> Piece | None:
    first, last = int(m["year"]), int(m["last"] or m["year"])
    span = Span(local(now, first), local(now, last + 1))
    return fixed(m, Size.YEAR, span, Weight.LED) if first <= last else None


def _decade(m: Match, now: datetime) -> Piece | None:
    return fixed(m, Size.YEAR, whole(local(now, int(m["decade"])), "decade"))


def _unit(m: Match, now: datetime) -> Piece | None:
    mod, unit = (m["mod"] or m["now"]).removeprefix("this").strip() or "this", m["unit"]
    step = {"this": 0, "current": 0, "next": 1, "coming": 1, "upcoming": 1}.get(mod, -1)
    if unit == "weekend":
        cycle = weekly(5, 2, now.tzinfo)
        if step < 0:
            return fixed(m, Size.WEEKEND, cycle.last(now))
        return fixed(m, Size.WEEKEND, cycle.at(cycle.turn(now) + step))
    if mod == "past" or (step < 0 and (m["over"] or unit == "fortnight")):
        return fixed(m, Size.ROLLING, rolling(now, [(2, "week") if unit == "fortnight" else (1, unit)]))
    if unit in ("day", "hour", "fortnight"):
        return None  # "the next day" is told from another day than ours
    return fixed(m, size_of(unit), whole(shift(floor(now, unit), step, unit), unit))


def _weekend(m: Match, now: datetime) -> Piece | None:
    return recurring(m, Size.WEEKEND, weekly(5, 2, now.tzinfo), Weight.LED)


def _counted(m: Match, now: datetime) -> Piece | None:
    counts, _ = amounts(m["amount"])
    if not counts or m["amount"] in ("2d", "3d"):  # "the last 3d model"
        return None
    sign = 1 if m["mod"] in ("next", "coming", "following") else -1
    return fixed(m, Size.ROLLING, rolling(now, counts, sign))


def _ago(m: Match, now: datetime) -> Piece | None:
    counts, vague = amounts(m["amounts"])
    if not counts:
        return None
    sign = -1 if m["way"] in ("ago", "back") else 1
    unit, moment = finest(counts), moved(now, counts, sign)
    if m["low"] and len(counts) == 1:  # "two or three days ago"
        near = moved(now, amounts(f"{m['low']} {unit}")[0], sign)
        first, last = min(near, moment), max(near, moment)
        return fixed(m, Size.ROLLING, Span(floor(first, unit), whole(last, unit).end))
    if not vague and unit in SECONDS:
        return fixed(m, Size.MOMENT, instant(moment))
    if not vague:
        return fixed(m, size_of(unit), whole(moment, unit))
    count = max(1, counts[-1][0])
    if unit in SECONDS:
        near, far = (shift(now, sign * n * SECONDS[unit], "second") for n in (max(1, count // 2), count * 2))
        return fixed(m, Size.ROLLING, Span(min(near, far), max(near, far)))
    slack = count // 2
    first = floor(shift(moment, -slack, unit), unit)
    return fixed(m, Size.ROLLING, Span(first, whole(first, unit, 2 * slack + 1).end))


def _step(m: Match, now: datetime) -> Piece | None:
    """ "the day before", "two weeks after": needs the time that follows."""
    counts = amounts(m["amount"])[0] if m["amount"] else [(1, m["unit"])]
    if not counts:
        return None
    unit, before = finest(counts), m["way"] == "before"

    def inside(span: Span) -> Span:
        edge = span.start if before else span.end - timedelta(microseconds=1)
        return whole(moved(edge, counts, -1 if before else 1), unit)

    return needy(m, Size.STEP, inside)


def _before_last(m: Match, now: datetime) -> Piece | None:
    unit, step = m["unit"], -2 if m["way"].startswith("before") else 2
    if unit == "night":
        day = whole(shift(now, step, "day"), "day")
        return fixed(m, Size.PART, part_of_day(unit, now.tzinfo).inside(day))
    if unit == "weekend":
        cycle = weekly(5, 2, now.tzinfo)
        return fixed(m, Size.WEEKEND, cycle.at(cycle.turn(now) + step))
    return fixed(m, size_of(unit), whole(shift(floor(now, unit), step, unit), unit))


def _week_of(m: Match, now: datetime) -> Piece | None:
    def inside(span: Span) -> Span | None:
        if span.end - span.start > timedelta(days=2):
            return None
        week = whole(span.start, "week")
        return Span(shift(week.start, 5, "day"), week.end) if m["unit"] == "weekend" else week

    return needy(m, Size.STEP, inside)


def _word(m: Match, now: datetime) -> Piece | None:
    word = m["word"]
    if word == "now":
        return fixed(m, Size.CLOCK, instant(now), Weight.JOINED)
    if word in ("yesterday", "today", "tomorrow"):
        step = ("yesterday", "today", "tomorrow").index(word) - 1
        return fixed(m, Size.DATE, whole(shift(now, step, "day"), "day"))
    part = "night" if word == "tonight" else word.split()[-1]
    day = whole(shift(now, -1 if word.startswith("last") else 0, "day"), "day")
    return fixed(m, Size.PART, part_of_day(part, now.tzinfo).inside(day))


def _part(m: Match, now: datetime) -> Piece | None:
    return recurring(m, Size.PART, part_of_day(m["part"], now.tzinfo), Weight.JOINED)


def _clock(m: Match, now: datetime) -> Piece | None:
    groups = m.groupdict()
    if groups.get("named"):
        hour, minute, second = 0 if m["named"] == "midnight" else 12, 0, 0
    else:
        hour, minute, second = (int(groups.get(name) or 0) for name in ("hour", "minute", "second"))
        noon = (groups.get("noon") or "")[:1]
        if hour > 23 or minute > 59 or second > 59 or (noon and not 1 <= hour <= 12):
            return None
        hour = hour % 12 + (12 if noon == "p" else 0) if noon else hour
    length = timedelta(seconds=1) if groups.get("second") else timedelta(minutes=1)
    begin = timedelta(hours=hour, minutes=minute, seconds=second)
    cycle = daily(begin, length, now.tzinfo, zone_of(groups.get("zone")))
    return recurring(m, Size.CLOCK, cycle, Weight.JOINED)


def _portion(m: Match, now: datetime) -> Piece | None:
    words, unit = m["portion"], m.groupdict().get("unit")
    parts = 2 if "half" in words else 3
    first = words.startswith(("early", "beg", "start", "first"))
    part = 0 if first else 1 if words.startswith("mid") else parts - 1
    if unit:
        return fixed(m, Size.PORTION, portion(whole(now, unit), part, parts))
    return needy(m, Size.PORTION, lambda span: portion(span, part, parts))


def _nth(m: Match, now: datetime) -> Piece | None:
    """ "the first week of", "the last Friday of"."""
    days = 7 if m["unit"] == "week" else 2 if m["unit"] == "weekend" else 1
    weekday = 5 if m["unit"] == "weekend" else WEEKDAY_NUMBER.get(m["unit"])
    if m["whole"]:
        return fixed(m, Size.PORTION, nth(whole(now, m["whole"]), NTH[m["nth"]], weekday, days))
    return needy(m, Size.PORTION, lambda span: nth(span, NTH[m["nth"]], weekday, days))


@cache
def _rules() -> tuple[tuple[re.Pattern[str], Build], ...]:
    builds: dict[str, Build] = {
        "iso": _iso,
        "iso_month": _iso_month,
        "iso_week": _iso_week,
        "numeric": _numeric,
        "dated": _dated,
        "dated_in_words": _dated_in_words,
        "month": _month,
        "weekday": _weekday,
        "quarter": _quarter,
        "season": _season,
        "year": _year,
        "decade": _decade,
        "unit": _unit,
        "weekend": _weekend,
        "counted": _counted,
        "ago": _ago,
        "step": _step,
        "before_last": _before_last,
        "week_of": _week_of,
        "word": _word,
        "part": _part,
        "clock": _clock,
        "portion": _portion,
        "nth": _nth,
    }
    return tuple((pattern(text), builds[kind]) for kind, text in patterns())
