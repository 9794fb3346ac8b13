"""Find the single pieces of time in a text, such as "last week", "Tuesday", "14:00", "3 June".

A piece is either fixed ("last week") or recurring ("Tuesday"). A recurring one means the latest that has begun, unless
it stands next to a larger piece ("Tuesday last week"). `phrase` joins the pieces.
"""

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from functools import cache

from athena.memory.time.calendar import (
    SECONDS_PER_UNIT,
    Span,
    create_daily_cycle,
    create_date_cycle,
    create_instant,
    create_local_date,
    create_rolling_span,
    create_weekly_cycle,
    create_yearly_cycle,
    expand_to_units,
    find_finest_unit,
    floor_to_unit,
    shift_by_counts,
    shift_by_unit,
    take_nth,
    take_portion,
)
from athena.memory.time.vocabulary import (
    MONTH_NUMBER,
    ORDINAL_INDEX,
    SEASON_MONTH,
    WEEKDAY_NUMBER,
    Match,
    PieceSize,
    PieceWeight,
    TimePiece,
    build_day_names,
    compile_pattern,
    create_day_part_cycle,
    create_dependent_piece,
    create_fixed_piece,
    create_modified_piece,
    create_recurring_piece,
    ends_clause,
    get_unit_size,
    iter_piece_patterns,
    parse_amounts,
    parse_zone,
)

PieceReader = Callable[[Match, datetime], TimePiece | None]


def find_pieces(text: str, now: datetime) -> list[TimePiece]:
    """Return the pieces of a lower-case text; of overlapping ones the leftmost, then the longest."""
    pieces: list[TimePiece] = []
    for pattern, read_piece in _compile_rules():
        match = pattern.search(text)
        while match:
            try:
                piece = read_piece(match, now)
            except (ValueError, OverflowError):  # 31 June, or beyond the calendar
                piece = None
            if piece:
                pieces.append(piece)
            # Overlapping matches count: "June 3 to 10 July" holds both "3 to 10 July" and "10 July".
            match = pattern.search(text, match.start() + 1)
    pieces.sort(key=lambda piece: (piece.begin, -piece.end))
    selected: list[TimePiece] = []
    for piece in pieces:
        if not selected or piece.begin >= selected[-1].end:
            selected.append(piece)
    return selected


def _read_iso_date(m: Match, now: datetime) -> TimePiece | None:
    day = create_local_date(now, int(m["y"]), int(m["m"]), int(m["d"]))
    if m["hour"] is None:
        return create_fixed_piece(m, PieceSize.DATE, expand_to_units(day, "day"))
    part = m["part"] or ""
    start = day.replace(
        hour=int(m["hour"]),
        minute=int(m["minute"]),
        second=int(m["second"] or 0),
        microsecond=int(part[:6].ljust(6, "0")),
        tzinfo=parse_zone(m["zone"]) or now.tzinfo,
    ).astimezone(now.tzinfo)
    length = timedelta(microseconds=10 ** max(0, 6 - len(part))) if part else timedelta(seconds=1)
    return create_fixed_piece(
        m, PieceSize.CLOCK, Span(start, start + (length if m["second"] else timedelta(minutes=1)))
    )


def _read_iso_month(m: Match, now: datetime) -> TimePiece | None:
    return create_fixed_piece(
        m,
        PieceSize.MONTH,
        expand_to_units(create_local_date(now, int(m["year"]), int(m["m"])), "month"),
        PieceWeight.LED,
    )


def _read_iso_week(m: Match, now: datetime) -> TimePiece | None:
    day = date.fromisocalendar(int(m["year"]), int(m["week"]), int(m["d"] or 1))
    start = create_local_date(now, day.year, day.month, day.day)
    return (
        create_fixed_piece(m, PieceSize.DATE, expand_to_units(start, "day"))
        if m["d"]
        else create_fixed_piece(m, PieceSize.WEEK, expand_to_units(start, "week"))
    )


def _read_numeric_date(m: Match, now: datetime) -> TimePiece | None:
    month, day = (m["b"], m["a"]) if m["sep"] == "." else (m["a"], m["b"])
    if int(month) > 12:
        month, day = day, month
    return create_fixed_piece(
        m, PieceSize.DATE, expand_to_units(create_local_date(now, int(m["year"]), int(month), int(day)), "day")
    )


def _read_day_and_month(m: Match, now: datetime) -> TimePiece | None:
    month, day, last = m["month"], int(m["day"]), int(m["last"] or m["day"])
    if not 1 <= day <= last <= 31:
        return None
    cycle = create_date_cycle(MONTH_NUMBER[month], day, last, now.tzinfo)
    if m["year"]:
        return create_fixed_piece(m, PieceSize.DATE, cycle.span_of(int(m["year"])))
    # "tests 3 may fail", "you may 5 times", "8 oct" (octal): a bare number next to these is no date yet.
    number_first = m.start("day") < m.start("month")
    doubtful = (month == "may" and not ends_clause(m)) or (number_first and month in ("mar", "oct", "dec", "sep"))
    clear = m["ord"] or m.groupdict().get("of")
    return create_recurring_piece(
        m, PieceSize.DATE, cycle, PieceWeight.LED if doubtful and not clear else PieceWeight.ALONE
    )


def _read_spelt_date(m: Match, now: datetime) -> TimePiece | None:
    """Read "the first of december"."""
    day = build_day_names()[m["name"]]
    cycle = create_date_cycle(MONTH_NUMBER[m["month"]], day, day, now.tzinfo)
    return (
        create_fixed_piece(m, PieceSize.DATE, cycle.span_of(int(m["year"])))
        if m["year"]
        else create_recurring_piece(m, PieceSize.DATE, cycle, PieceWeight.ALONE)
    )


def _read_month(m: Match, now: datetime) -> TimePiece | None:
    cycle = create_yearly_cycle(MONTH_NUMBER[m["month"]], 1, now.tzinfo)
    if m["year"]:
        return create_fixed_piece(m, PieceSize.MONTH, cycle.span_of(int(m["year"])))
    if m["month"] == "may" and m["mod"] and not ends_clause(m):
        return None  # "this may", "the next may": a verb more often than a month
    return (
        create_modified_piece(m, PieceSize.MONTH, cycle, now)
        if m["mod"]
        else create_recurring_piece(m, PieceSize.MONTH, cycle, PieceWeight.LED)
    )


def _read_weekday(m: Match, now: datetime) -> TimePiece | None:
    cycle = create_weekly_cycle(WEEKDAY_NUMBER[m["weekday"]], 1, now.tzinfo)
    if m["mod"]:
        if m["weekday"] in ("sat", "sun", "wed") and not ends_clause(m):
            return None  # "since he last sat down"
        return create_modified_piece(m, PieceSize.DAY, cycle, now)
    if len(m["weekday"]) < 6 and (m["own"] is not None or m.string[: m.start()].endswith("the ")):
        return None  # "on the sun's surface"
    return create_recurring_piece(m, PieceSize.DAY, cycle, PieceWeight.LED if m["own"] is None else PieceWeight.ALONE)


def _read_quarter(m: Match, now: datetime) -> TimePiece | None:
    groups = m.groupdict()
    half = groups.get("kind") == "h"
    length = 6 if half else 3
    name = groups.get("nth")
    n = 3 if name == "last" else ORDINAL_INDEX[name] if name else int(m["n"]) - 1
    if n * length >= 12 or (name == "last" and not m["year"]):
        return None
    cycle = create_yearly_cycle(1 + n * length, length, now.tzinfo)
    if m["year"]:
        return create_fixed_piece(m, PieceSize.SEASON, cycle.span_of(int(m["year"])))
    if groups.get("mod"):
        return create_modified_piece(m, PieceSize.SEASON, cycle, now)
    return create_recurring_piece(
        m, PieceSize.SEASON, cycle, PieceWeight.JOINED if half else PieceWeight.LED
    )  # a bare h1 is a heading


def _read_season(m: Match, now: datetime) -> TimePiece | None:
    cycle = create_yearly_cycle(SEASON_MONTH[m["season"]], 3, now.tzinfo)
    if m["year"]:
        return create_fixed_piece(m, PieceSize.SEASON, cycle.span_of(int(m["year"])))
    if m["mod"]:
        return create_modified_piece(m, PieceSize.SEASON, cycle, now)
    is_ambiguous = m["season"] in ("spring", "fall")  # also a framework and a verb
    return create_recurring_piece(m, PieceSize.SEASON, cycle, PieceWeight.JOINED if is_ambiguous else PieceWeight.LED)


def _read_year(m: Match, now: datetime) -> TimePiece | None:
    first, last = int(m["year"]), int(m["last"] or m["year"])
    span = Span(create_local_date(now, first), create_local_date(now, last + 1))
    return create_fixed_piece(m, PieceSize.YEAR, span, PieceWeight.LED) if first <= last else None


def _read_decade(m: Match, now: datetime) -> TimePiece | None:
    return create_fixed_piece(m, PieceSize.YEAR, expand_to_units(create_local_date(now, int(m["decade"])), "decade"))


def _read_modified_unit(m: Match, now: datetime) -> TimePiece | None:
    mod, unit = (m["mod"] or m["now"]).removeprefix("this").strip() or "this", m["unit"]
    step = {"this": 0, "current": 0, "next": 1, "coming": 1, "upcoming": 1}.get(mod, -1)
    if unit == "weekend":
        cycle = create_weekly_cycle(5, 2, now.tzinfo)
        if step < 0:
            return create_fixed_piece(m, PieceSize.WEEKEND, cycle.find_last_ended(now))
        return create_fixed_piece(m, PieceSize.WEEKEND, cycle.span_of(cycle.turn_of(now) + step))
    if mod == "past" or (step < 0 and (m["over"] or unit == "fortnight")):
        return create_fixed_piece(
            m, PieceSize.ROLLING, create_rolling_span(now, [(2, "week") if unit == "fortnight" else (1, unit)])
        )
    if unit in ("day", "hour", "fortnight"):
        return None  # "the next day" counts from another day than today
    return create_fixed_piece(
        m, get_unit_size(unit), expand_to_units(shift_by_unit(floor_to_unit(now, unit), step, unit), unit)
    )


def _read_weekend(m: Match, now: datetime) -> TimePiece | None:
    return create_recurring_piece(m, PieceSize.WEEKEND, create_weekly_cycle(5, 2, now.tzinfo), PieceWeight.LED)


def _read_rolling_amount(m: Match, now: datetime) -> TimePiece | None:
    counts, _ = parse_amounts(m["amount"])
    if not counts or m["amount"] in ("2d", "3d"):  # "the last 3d model"
        return None
    sign = 1 if m["mod"] in ("next", "coming", "following") else -1
    return create_fixed_piece(m, PieceSize.ROLLING, create_rolling_span(now, counts, sign))


def _read_ago(m: Match, now: datetime) -> TimePiece | None:
    counts, vague = parse_amounts(m["amounts"])
    if not counts:
        return None
    sign = -1 if m["way"] in ("ago", "back") else 1
    unit, moment = find_finest_unit(counts), shift_by_counts(now, counts, sign)
    if m["low"] and len(counts) == 1:  # "two or three days ago"
        near = shift_by_counts(now, parse_amounts(f"{m['low']} {unit}")[0], sign)
        first, last = min(near, moment), max(near, moment)
        return create_fixed_piece(
            m, PieceSize.ROLLING, Span(floor_to_unit(first, unit), expand_to_units(last, unit).end)
        )
    if not vague and unit in SECONDS_PER_UNIT:
        return create_fixed_piece(m, PieceSize.MOMENT, create_instant(moment))
    if not vague:
        return create_fixed_piece(m, get_unit_size(unit), expand_to_units(moment, unit))
    count = max(1, counts[-1][0])
    if unit in SECONDS_PER_UNIT:
        near, far = (
            shift_by_unit(now, sign * n * SECONDS_PER_UNIT[unit], "second") for n in (max(1, count // 2), count * 2)
        )
        return create_fixed_piece(m, PieceSize.ROLLING, Span(min(near, far), max(near, far)))
    slack = count // 2
    first = floor_to_unit(shift_by_unit(moment, -slack, unit), unit)
    return create_fixed_piece(m, PieceSize.ROLLING, Span(first, expand_to_units(first, unit, 2 * slack + 1).end))


def _read_step(m: Match, now: datetime) -> TimePiece | None:
    """Read "the day before" or "two weeks after"; the piece depends on the time after it."""
    counts = parse_amounts(m["amount"])[0] if m["amount"] else [(1, m["unit"])]
    if not counts:
        return None
    unit, before = find_finest_unit(counts), m["way"] == "before"

    def step_from(span: Span) -> Span:
        edge = span.start if before else span.end - timedelta(microseconds=1)
        return expand_to_units(shift_by_counts(edge, counts, -1 if before else 1), unit)

    return create_dependent_piece(m, PieceSize.STEP, step_from)


def _read_before_last(m: Match, now: datetime) -> TimePiece | None:
    unit, step = m["unit"], -2 if m["way"].startswith("before") else 2
    if unit == "night":
        day = expand_to_units(shift_by_unit(now, step, "day"), "day")
        return create_fixed_piece(m, PieceSize.PART, create_day_part_cycle(unit, now.tzinfo).find_inside(day))
    if unit == "weekend":
        cycle = create_weekly_cycle(5, 2, now.tzinfo)
        return create_fixed_piece(m, PieceSize.WEEKEND, cycle.span_of(cycle.turn_of(now) + step))
    return create_fixed_piece(
        m, get_unit_size(unit), expand_to_units(shift_by_unit(floor_to_unit(now, unit), step, unit), unit)
    )


def _read_week_of(m: Match, now: datetime) -> TimePiece | None:
    def week_around(span: Span) -> Span | None:
        if span.end - span.start > timedelta(days=2):
            return None
        week = expand_to_units(span.start, "week")
        return Span(shift_by_unit(week.start, 5, "day"), week.end) if m["unit"] == "weekend" else week

    return create_dependent_piece(m, PieceSize.STEP, week_around)


def _read_day_word(m: Match, now: datetime) -> TimePiece | None:
    word = m["word"]
    if word == "now":
        return create_fixed_piece(m, PieceSize.CLOCK, create_instant(now), PieceWeight.JOINED)
    if word in ("yesterday", "today", "tomorrow"):
        step = ("yesterday", "today", "tomorrow").index(word) - 1
        return create_fixed_piece(m, PieceSize.DATE, expand_to_units(shift_by_unit(now, step, "day"), "day"))
    part = "night" if word == "tonight" else word.split()[-1]
    day = expand_to_units(shift_by_unit(now, -1 if word.startswith("last") else 0, "day"), "day")
    return create_fixed_piece(m, PieceSize.PART, create_day_part_cycle(part, now.tzinfo).find_inside(day))


def _read_day_part(m: Match, now: datetime) -> TimePiece | None:
    return create_recurring_piece(m, PieceSize.PART, create_day_part_cycle(m["part"], now.tzinfo), PieceWeight.JOINED)


def _read_clock(m: Match, now: datetime) -> TimePiece | None:
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
    cycle = create_daily_cycle(begin, length, now.tzinfo, parse_zone(groups.get("zone")))
    return create_recurring_piece(m, PieceSize.CLOCK, cycle, PieceWeight.JOINED)


def _read_portion(m: Match, now: datetime) -> TimePiece | None:
    portion, unit = m["portion"], m.groupdict().get("unit")
    parts = 2 if "half" in portion else 3
    first = portion.startswith(("early", "beg", "start", "first"))
    part = 0 if first else 1 if portion.startswith("mid") else parts - 1
    if unit:
        return create_fixed_piece(m, PieceSize.PORTION, take_portion(expand_to_units(now, unit), part, parts))
    return create_dependent_piece(m, PieceSize.PORTION, lambda span: take_portion(span, part, parts))


def _read_nth(m: Match, now: datetime) -> TimePiece | None:
    """Read "the first week of", "the last Friday of"."""
    days = 7 if m["unit"] == "week" else 2 if m["unit"] == "weekend" else 1
    weekday = 5 if m["unit"] == "weekend" else WEEKDAY_NUMBER.get(m["unit"])
    if m["whole"]:
        return create_fixed_piece(
            m, PieceSize.PORTION, take_nth(expand_to_units(now, m["whole"]), ORDINAL_INDEX[m["nth"]], weekday, days)
        )
    return create_dependent_piece(
        m, PieceSize.PORTION, lambda span: take_nth(span, ORDINAL_INDEX[m["nth"]], weekday, days)
    )


@cache
def _compile_rules() -> tuple[tuple[re.Pattern[str], PieceReader], ...]:
    readers: dict[str, PieceReader] = {
        "iso": _read_iso_date,
        "iso_month": _read_iso_month,
        "iso_week": _read_iso_week,
        "numeric": _read_numeric_date,
        "dated": _read_day_and_month,
        "dated_in_words": _read_spelt_date,
        "month": _read_month,
        "weekday": _read_weekday,
        "quarter": _read_quarter,
        "season": _read_season,
        "year": _read_year,
        "decade": _read_decade,
        "unit": _read_modified_unit,
        "weekend": _read_weekend,
        "counted": _read_rolling_amount,
        "ago": _read_ago,
        "step": _read_step,
        "before_last": _read_before_last,
        "week_of": _read_week_of,
        "word": _read_day_word,
        "part": _read_day_part,
        "clock": _read_clock,
        "portion": _read_portion,
        "nth": _read_nth,
    }
    return tuple((compile_pattern(text), readers[kind]) for kind, text in iter_piece_patterns())
