"""Calendar arithmetic on local wall time: units, spans and recurring names ("Tuesday", "March").

All datetimes have the same timezone, so that Python adds and compares wall clocks: a day is from midnight to midnight
even if it has 23 hours. Only hours, minutes and seconds are counted in real time.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

SECONDS_PER_UNIT = {"second": 1, "minute": 60, "hour": 3600}
DAYS_PER_UNIT = {"day": 1, "week": 7}
MONTHS_PER_UNIT = {"month": 1, "quarter": 3, "year": 12, "decade": 120}
_UNITS_BY_LENGTH = ("second", "minute", "hour", "day", "week", "month", "quarter", "year", "decade")

UnitCounts = list[tuple[int, str]]


class Period(NamedTuple):
    """Epoch seconds from `start` up to, not including, `end`; an open end is infinite."""

    start: float
    end: float


class Span(NamedTuple):
    """From `start` up to, not including, `end`."""

    start: datetime
    end: datetime

    def to_period(self) -> Period:
        start = self.start.timestamp()
        return Period(start, max(start, self.end.timestamp()))


def floor_to_day(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)


def create_local_date(now: datetime, year: int, month: int = 1, day: int = 1) -> datetime:
    """Return midnight of a date in the timezone of `now`."""
    return datetime(year, month, day, tzinfo=now.tzinfo)


def shift_by_unit(moment: datetime, count: int, unit: str) -> datetime:
    """Move by calendar units; a day that the target month does not have becomes its last day."""
    if unit in SECONDS_PER_UNIT:
        # Through UTC, because "5 hours ago" is real time also when the clocks changed in between.
        return (moment.astimezone(UTC) + timedelta(seconds=count * SECONDS_PER_UNIT[unit])).astimezone(moment.tzinfo)
    if unit in DAYS_PER_UNIT:
        return moment + timedelta(days=count * DAYS_PER_UNIT[unit])
    year, month = divmod(moment.year * 12 + moment.month - 1 + count * MONTHS_PER_UNIT[unit], 12)
    first = moment.replace(year=year, month=month + 1, day=1)
    last_day = ((first + timedelta(days=31)).replace(day=1) - timedelta(days=1)).day
    return first.replace(day=min(moment.day, last_day))


def floor_to_unit(moment: datetime, unit: str) -> datetime:
    """Return the start of the calendar unit that contains the moment."""
    if unit in SECONDS_PER_UNIT:
        return moment.replace(
            microsecond=0,
            second=moment.second if unit == "second" else 0,
            minute=0 if unit == "hour" else moment.minute,
        )
    day = floor_to_day(moment)
    if unit in DAYS_PER_UNIT:
        return day - timedelta(days=day.weekday()) if unit == "week" else day
    months = day.year * 12 + day.month - 1
    return shift_by_unit(day.replace(day=1), -(months % MONTHS_PER_UNIT[unit]), "month")


def expand_to_units(moment: datetime, unit: str, count: int = 1) -> Span:
    """Return the span of the calendar unit that contains the moment and of the `count` - 1 units after it."""
    start = floor_to_unit(moment, unit)
    return Span(start, floor_to_unit(shift_by_unit(start, count, unit), unit))


def shift_by_counts(moment: datetime, counts: UnitCounts, sign: int) -> datetime:
    for count, unit in sorted(counts, key=lambda pair: -_UNITS_BY_LENGTH.index(pair[1])):
        moment = shift_by_unit(moment, sign * count, unit)
    return moment


def find_finest_unit(counts: UnitCounts) -> str:
    return min((unit for _, unit in counts), key=_UNITS_BY_LENGTH.index)


def create_instant(moment: datetime) -> Span:
    return Span(moment, moment + timedelta(seconds=1))


def create_rolling_span(now: datetime, counts: UnitCounts, sign: int = -1) -> Span:
    """Return the last or next units up to and including today; for hours and less, the present minute."""
    is_clock_unit = find_finest_unit(counts) in SECONDS_PER_UNIT
    present = expand_to_units(now, "minute" if is_clock_unit else "day")
    edge = shift_by_counts(now, counts, sign)
    if sign > 0:
        return Span(present.start, edge if is_clock_unit else expand_to_units(edge, "day").end)
    return Span(edge if is_clock_unit else floor_to_day(edge), present.end)


class Cycle(NamedTuple):
    """A recurring name: Tuesday, March, Q3, the evening, 3 June."""

    turn_of: Callable[[datetime], int]  # the number of the turn at a moment
    span_of: Callable[[int], Span]

    def _try_span(self, turn: int) -> Span | None:
        try:
            return self.span_of(turn)
        except (ValueError, OverflowError):  # 29 February in a common year; beyond the calendar
            return None

    def find_latest(self, moment: datetime) -> Span | None:
        """Return the latest turn that has begun."""
        turn = self.turn_of(moment)
        # Nine, because 29 February can be eight years away.
        spans = (self._try_span(i) for i in range(turn + 1, turn - 9, -1))
        return next((span for span in spans if span and span.start <= moment), None)

    def find_last_ended(self, moment: datetime) -> Span | None:
        """Return the latest turn that was over when the day began."""
        turn, today = self.turn_of(moment), floor_to_day(moment)
        spans = (self._try_span(i) for i in range(turn + 1, turn - 10, -1))
        return next((span for span in spans if span and span.end <= today), None)

    def find_current(self, moment: datetime) -> Span | None:
        return self._try_span(self.turn_of(moment))

    def find_next(self, moment: datetime) -> Span | None:
        """Return the first turn that has not begun."""
        turn = self.turn_of(moment)
        spans = (self._try_span(i) for i in range(turn - 1, turn + 9))
        return next((span for span in spans if span and span.start > moment), None)

    def find_inside(self, span: Span) -> Span | None:
        """Return the turn that begins inside a span; None if there is none or more than one."""
        first, last = self.turn_of(span.start) - 1, self.turn_of(span.end) + 1
        if last - first > 12:
            return None
        turns = [turn for i in range(first, last + 1) if (turn := self._try_span(i))]
        inside = [turn for turn in turns if span.start <= turn.start < span.end]
        return inside[0] if len(inside) == 1 else None


def create_daily_cycle(begin: timedelta, length: timedelta, zone: tzinfo | None, clock: tzinfo | None = None) -> Cycle:
    """Return the cycle of a part of every day, `begin` after midnight; `clock` is the zone of `begin` if another."""

    def span_of_day(ordinal: int) -> Span:
        start = datetime.fromordinal(ordinal).replace(tzinfo=clock or zone) + begin
        end = start + length
        return Span(start.astimezone(zone), end.astimezone(zone)) if clock else Span(start, end)

    return Cycle(datetime.toordinal, span_of_day)


def create_weekly_cycle(weekday: int, days: int, zone: tzinfo | None) -> Cycle:
    def span_of_week(week: int) -> Span:
        start = datetime.fromordinal(week * 7 + weekday + 1).replace(tzinfo=zone)  # 0001-01-01 was a Monday
        return Span(start, start + timedelta(days=days))

    return Cycle(lambda moment: (moment.toordinal() - 1) // 7, span_of_week)


def create_yearly_cycle(month: int, months: int, zone: tzinfo | None) -> Cycle:
    def span_of_year(year: int) -> Span:
        start = datetime(year, month, 1, tzinfo=zone)
        return Span(start, shift_by_unit(start, months, "month"))

    crosses = month + months > 13  # a winter belongs to the year in which it begins
    return Cycle(lambda moment: moment.year - (crosses and moment.month < 7), span_of_year)


def create_date_cycle(month: int, day: int, last_day: int, zone: tzinfo | None) -> Cycle:
    def span_of_date(year: int) -> Span:
        last = datetime(year, month, last_day, tzinfo=zone)
        return Span(datetime(year, month, day, tzinfo=zone), last + timedelta(days=1))

    return Cycle(lambda moment: moment.year, span_of_date)


def take_portion(span: Span, part: int, parts: int) -> Span | None:
    """Return one of the thirds or halves of a week, month, quarter or year; None for less than a week."""
    days = (floor_to_day(span.end) - floor_to_day(span.start)).days
    if days < 7:
        return None
    if days == 7:  # early is Monday to Wednesday, the end Thursday to Sunday
        first, last = ((0, 3), (2, 5), (3, 7))[part] if parts == 3 else ((0, 4), (3, 7))[part]
        return Span(span.start + timedelta(days=first), span.start + timedelta(days=last))
    months = round(days / 30.44)
    if months > 1 and months % parts == 0:
        bounds = [shift_by_unit(span.start, months * i // parts, "month") for i in range(parts)]
    else:
        step = days // parts if months > 1 else 30 // parts
        bounds = [span.start + timedelta(days=i * step) for i in range(parts)]
    return Span(*(*bounds, span.end)[part : part + 2])


def take_nth(span: Span, index: int, weekday: int | None, days: int) -> Span | None:
    """Return the n-th (from 0; -1 is the last) run of `days` days, or weekday, of a span."""
    if weekday is None:
        start = span.start + timedelta(days=index * days) if index >= 0 else span.end - timedelta(days=days)
    else:
        edge = span.end - timedelta(days=7) if index < 0 else span.start + timedelta(days=7 * index)
        start = edge + timedelta(days=(weekday - edge.weekday()) % 7)
    return Span(start, start + timedelta(days=days)) if span.start <= start < span.end else None
