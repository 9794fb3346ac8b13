"""The vocabulary of time: names, numbers, amounts, and the patterns that find them."""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from athena.memory.time.calendar import SECONDS_PER_UNIT, Cycle, Span, UnitCounts, create_daily_cycle


class PieceSize(IntEnum):
    """A smaller piece is read inside a larger one; ROLLING and MOMENT join with nothing."""

    ROLLING, MOMENT, CLOCK, PART, STEP, DAY, DATE, WEEKEND, PORTION, WEEK, MONTH, SEASON, YEAR = range(-2, 11)


class PieceWeight(IntEnum):
    """The context that makes a piece count as time: a piece that counts; a preposition or any piece; none."""

    JOINED, LED, ALONE = range(3)


class TimePiece(NamedTuple):
    begin: int
    end: int
    size: PieceSize
    weight: PieceWeight
    span: Span | None = None
    cycle: Cycle | None = None
    narrow: Callable[[Span], Span | None] | None = None


Match = re.Match[str]

_MONTH_NAMES = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
MONTH_NUMBER = {name[:size]: i + 1 for i, name in enumerate(_MONTH_NAMES) for size in (3, len(name))} | {"sept": 9}
_WEEKDAY_NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
WEEKDAY_NUMBER = {name[:size]: i for i, name in enumerate(_WEEKDAY_NAMES) for size in (3, len(name))}
WEEKDAY_NUMBER |= {"tues": 1, "thur": 3, "thurs": 3}
SEASON_MONTH = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
ORDINAL_INDEX = {"first": 0, "second": 1, "third": 2, "fourth": 3, "1st": 0, "2nd": 1, "3rd": 2, "4th": 3, "last": -1}
PART_HOURS = {"morning": (4, 8), "afternoon": (12, 6), "evening": (17, 7), "night": (18, 12)}
_UNIT_ALIASES = {
    "sec": "second",
    "s": "second",
    "min": "minute",
    "m": "minute",
    "hr": "hour",
    "h": "hour",
    "d": "day",
}
_UNIT_ALIASES |= {"wk": "week", "w": "week", "mo": "month", "yr": "year", "y": "year"}
_UNIT_ALIASES |= {
    name: name
    for name in ("second", "minute", "hour", "day", "week", "fortnight", "month", "quarter", "year", "decade")
}
_ONES_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_TEEN_STEMS = ("thir", "four", "fif", "six", "seven", "eigh", "nine")
_NUMBER_WORDS = {word: i for i, word in enumerate((*_ONES_WORDS, *(f"{word}teen" for word in _TEEN_STEMS)), 1)}
_TENS_WORDS = {
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
}
_HALF_UNITS = {"minute": (30, "second"), "hour": (30, "minute"), "day": (12, "hour"), "week": (3, "day")}
_HALF_UNITS |= {"month": (15, "day"), "quarter": (6, "week"), "year": (6, "month"), "decade": (5, "year")}


def join_alternatives(alternatives: Iterable[str]) -> str:
    return "|".join(sorted(alternatives, key=len, reverse=True))


# compile_pattern reads a space in a pattern as one to three white space characters.
_FOUR_DIGIT_YEAR_PATTERN = "(?:19|20)[0-9]{2}"
_YEAR_PATTERN = f"(?P<year>{_FOUR_DIGIT_YEAR_PATTERN})"
_MODIFIER_PATTERN = "(?P<mod>last|(?:this )?past|previous|this|next|coming|upcoming)"
_ZONE_PATTERN = "(?: ?(?P<zone>z|utc|gmt|[+-][0-9]{2}:?[0-9]{2}))?"
_CLOCK_TIME_PATTERN = (
    rf"(?P<hour>\d\d?):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<part>\d{{1,9}}))?)?{_ZONE_PATTERN}"
)
_SPELT_NUMBER_PATTERN = (
    rf"(?:{join_alternatives(_TENS_WORDS)})(?:[\s-](?:{join_alternatives(_ONES_WORDS[:9])}))?"
    rf"|{join_alternatives(_NUMBER_WORDS)}"
)
_NUMBER_PATTERN = (
    rf"\d{{1,9}}(?:\.\d{{1,3}})?|(?:a )?(?:couple(?: of)?|few)|several|half(?: an?)?|an?|{_SPELT_NUMBER_PATTERN}"
)
_LONG_UNIT_PATTERN = "(?:(?:second|sec|minute|min|hour|hr|day|week|wk|fortnight|month|quarter|year|yr|decade)s?)"
AMOUNT_PATTERN = (
    f"(?:(?:{_NUMBER_PATTERN})(?: and a half)? {_LONG_UNIT_PATTERN}(?: and a half)?"
    f"|[0-9]{{1,9}}(?:{_LONG_UNIT_PATTERN}|mo|[smhdwy]))"
)
_COUNT_PATTERN = (
    f"(?P<num>{_NUMBER_PATTERN})(?P<a> and a half)? ?(?P<unit>{_LONG_UNIT_PATTERN}|mo|[smhdwy])(?P<b> and a half)?"
)
# Not inside a name, path, number, call, address or option: "v2024", "/2024-03-01", "monday.com", "today()".
_LEFT_BOUNDARY_PATTERN = r"(?:(?<=mid-)|(?<!\w[.'])(?<![0-9],)(?<![\w#$/\\@&=~+*-]))"
_RIGHT_BOUNDARY_PATTERN = r"(?![\w@%$=(]|[./:\\-]\w|'(?!s\b))"


@cache
def compile_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern at its first use, so that importing stays cheap."""
    # \d alone would take the digits of every script; white space is bounded to stay linear.
    return re.compile(text.replace(" ", r"(?:\s{1,3})").replace(r"\d", "[0-9]"))


@cache
def build_day_names() -> dict[str, int]:
    """Return the days of a month in words: "first", "twenty-first"."""
    ones = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"]
    teens = ["tenth", "eleventh", "twelfth", *(f"{ten}teenth" for ten in ("thir", "four", "fif", "six", "seven"))]
    teens += ["eighteenth", "nineteenth"]
    tens = ["twentieth", *(f"twenty-{ordinal}" for ordinal in ones), "thirtieth", "thirty-first"]
    return {name: day for day, name in enumerate([*ones, *teens, *tens], 1)}


def ends_clause(match: Match) -> bool:
    """Return whether a clause ends here, so that an ambiguous word before it cannot be a verb."""
    return compile_pattern(r"\s*(?:$|[?.!,;:)])").match(match.string, match.end()) is not None


def create_fixed_piece(
    match: Match, size: PieceSize, span: Span | None, weight: PieceWeight = PieceWeight.ALONE
) -> TimePiece | None:
    return TimePiece(match.start(), match.end(), size, weight, span) if span else None


def create_recurring_piece(match: Match, size: PieceSize, cycle: Cycle, weight: PieceWeight) -> TimePiece:
    return TimePiece(match.start(), match.end(), size, weight, None, cycle, cycle.find_inside)


def create_dependent_piece(match: Match, size: PieceSize, narrow: Callable[[Span], Span | None]) -> TimePiece:
    """Create a piece that means nothing without another: "early", "the day before"."""
    return TimePiece(match.start(), match.end(), size, PieceWeight.JOINED, narrow=narrow)


def get_unit_size(unit: str) -> PieceSize:
    sizes = {"day": PieceSize.DATE, "week": PieceSize.WEEK, "month": PieceSize.MONTH, "quarter": PieceSize.SEASON}
    return sizes.get(unit, PieceSize.YEAR)


def create_day_part_cycle(name: str, zone: tzinfo | None) -> Cycle:
    begin, length = PART_HOURS[name]
    return create_daily_cycle(timedelta(hours=begin), timedelta(hours=length), zone)


def create_modified_piece(match: Match, size: PieceSize, cycle: Cycle, now: datetime) -> TimePiece | None:
    """Create a piece for a name with a modifier: "last March", "this Tuesday", "next summer"."""
    mod = match["mod"]
    if mod == "this":
        return create_fixed_piece(match, size, cycle.find_current(now))
    return create_fixed_piece(
        match, size, cycle.find_next(now) if mod in ("next", "coming", "upcoming") else cycle.find_last_ended(now)
    )


def parse_amounts(text: str) -> tuple[UnitCounts, bool]:
    """Parse "2 weeks and 3 days"; return the counts (empty if invalid) and whether a number is vague ("a few")."""
    counts: UnitCounts = []
    vague = False
    for match in compile_pattern(_COUNT_PATTERN).finditer(text):
        num, unit = match["num"], match["unit"]
        unit = _UNIT_ALIASES[unit if unit in _UNIT_ALIASES else unit.removesuffix("s")]
        scale, unit = (2, "week") if unit == "fortnight" else (1, unit)
        if "." in num:
            if unit not in SECONDS_PER_UNIT:
                return [], False
            counts.append((round(float(num) * SECONDS_PER_UNIT[unit]), "second"))
        elif num.startswith("half"):
            half = _HALF_UNITS.get(unit, (0, unit))
            counts.append((half[0] * scale, half[1]))
        else:
            guess = 2 if "couple" in num else 3 if "few" in num else 5 if num == "several" else 0
            vague = vague or guess > 0
            spelt = sum(_TENS_WORDS.get(word, 0) or _NUMBER_WORDS.get(word, 0) for word in re.split(r"[\s-]", num))
            count = guess or (int(num) if num.isdigit() else spelt or 1)
            counts.append((count * scale, unit))
        if match["a"] or match["b"]:
            counts.append(_HALF_UNITS.get(unit, (0, unit)))
    return counts, vague


def parse_zone(text: str | None) -> tzinfo | None:
    if text is None or text in ("z", "utc", "gmt"):
        return UTC if text else None
    offset = timedelta(hours=int(text[1:3]), minutes=int(text[-2:]))
    return timezone(-offset if text[0] == "-" else offset)


def iter_piece_patterns() -> Iterator[tuple[str, str]]:
    """Yield the kind of each piece and its pattern in lower-case text."""
    for kind, text in _iter_bare_patterns():
        yield kind, f"{_LEFT_BOUNDARY_PATTERN}(?:{text}){_RIGHT_BOUNDARY_PATTERN}"
    yield "portion", rf"{_LEFT_BOUNDARY_PATTERN}(?P<portion>mid)-(?=\w)"


def _iter_bare_patterns() -> Iterator[tuple[str, str]]:
    month, weekday, season = (
        join_alternatives(MONTH_NUMBER),
        join_alternatives(WEEKDAY_NUMBER),
        join_alternatives(SEASON_MONTH),
    )
    nth = f"(?P<nth>{join_alternatives(ORDINAL_INDEX)})"
    units = "week|month|quarter|year"
    day = "(?P<day>[0-9]{1,2})(?P<ord>st|nd|rd|th)?"
    last_day = "(?P<last>[0-9]{1,2})(?:st|nd|rd|th)?"

    yield (
        "iso",
        rf"(?P<y>\d{{4}})(?P<sep>[-/])(?P<m>\d\d?)(?P=sep)(?P<d>\d\d?)(?:(?:t|,? (?:at )?){_CLOCK_TIME_PATTERN})?",
    )
    yield "iso_month", f"{_YEAR_PATTERN}-(?P<m>0[1-9]|1[0-2])"
    yield "iso_week", f"{_YEAR_PATTERN}-?w(?P<week>[0-5][0-9])(?:-(?P<d>[1-7]))?"
    yield "numeric", rf"(?P<a>\d\d?)(?P<sep>[./-])(?P<b>\d\d?)(?P=sep){_YEAR_PATTERN}"
    lead = r"(?:(?:between|from) (?=\d\d?(?:st|nd|rd|th)? (?:and|to) \d))?"
    yield (
        "dated",
        f"{lead}(?:the )?{day}(?:(?: ?- ?| to | and | through ){last_day})? (?P<of>of )?"
        f"(?P<month>{month})(?:,? {_YEAR_PATTERN})?",
    )
    yield (
        "dated_in_words",
        f"(?:the )?(?P<name>{join_alternatives(build_day_names())}) of (?P<month>{month})(?:,? {_YEAR_PATTERN})?",
    )
    # "from June 3 to 10 July": the 10 belongs to July.
    upto = rf"(?:(?: ?- ?| to | through ){last_day}(?! (?:of )?(?:{month})\b))?"
    yield "dated", rf"(?P<month>{month})\.? (?:the )?{day}{upto}(?:,? {_YEAR_PATTERN})?"
    verb = r"(?!(?<=may) (?:be|have|not|also|well|need)\b)"
    yield "month", f"(?:{_MODIFIER_PATTERN} )?(?P<month>{month})(?:,? (?:of |in )?{_YEAR_PATTERN})?{verb}"
    yield "weekday", f"(?:{_MODIFIER_PATTERN} )?(?P<weekday>{weekday})(?P<own>(?='s))?"
    yield "quarter", f"(?:{_MODIFIER_PATTERN} )?(?P<kind>[qh])(?P<n>[1-4])(?:(?:,? | of | ?/ ?|-){_YEAR_PATTERN})?"
    yield "quarter", rf"{_YEAR_PATTERN}[\s/-]?(?P<kind>[qh])(?P<n>[1-4])"
    yield "quarter", f"(?:the )?{nth} quarter(?:(?:,? | of ){_YEAR_PATTERN})?(?! of (?!the year|last|this|next))"
    product = r"(?! (?:boot|framework|data|security|cloud)\b)"
    yield "season", f"(?:{_MODIFIER_PATTERN} )?(?P<season>{season})(?:,? (?:of )?{_YEAR_PATTERN})?{product}"
    # "in 2000 requests", "from 2000 to 3000", "1920 x 1080" are numbers.
    not_counted = r"(?! (?!(?:was|is|has|does|as|this|its|vs)\b)(?:x|kb|mb|gb|px|people|percent|[a-z]+s)\b)"
    not_number = rf"(?! (?:to|and|or|of|-) (?!{_FOUR_DIGIT_YEAR_PATTERN}\b)[0-9])"
    yield "year", f"(?:the year )?{_YEAR_PATTERN}(?:-(?P<last>{_FOUR_DIGIT_YEAR_PATTERN}))?{not_number}{not_counted}"
    yield "decade", "(?:the )?(?P<decade>(?:19|20)[0-9]0)s"
    over = "(?P<over>(?:in|over|during|within|throughout|for) the )?"
    yield "unit", f"{over}(?:{_MODIFIER_PATTERN}|(?P<now>current)) (?P<unit>{units}|decade|fortnight|day|hour|weekend)"
    yield "weekend", "weekend"
    spread = rf"(?:(?P<low>{_NUMBER_PATTERN})(?: or | to |(?<=\d)-(?=\d)))?"
    yield (
        "counted",
        f"(?:the )?(?P<mod>last|past|previous|next|coming|following) {spread}(?P<amount>{AMOUNT_PATTERN})",
    )
    way = "ago|back(?! (?:to|in|and|from|up|at|on|off))|from (?:now|today)|hence"
    yield "ago", f"{spread}(?P<amounts>{AMOUNT_PATTERN}(?:(?:,? and |, | ){AMOUNT_PATTERN}){{0,3}}) (?P<way>{way})"
    yield "step", f"(?:(?P<amount>{AMOUNT_PATTERN})|(?:the )?(?P<unit>day|{units})) (?P<way>before|after)"
    other = rf"(?! (?:weekend|{units}|{season}|{month}|{weekday})\b)"
    yield "before_last", f"(?:the )?(?P<unit>night|weekend|{units}) (?P<way>before last|after next){other}"
    yield (
        "week_of",
        "(?:the )?(?P<unit>week|weekend) (?:of|starting|beginning|commencing|ending)(?: on)?(?: the)?",
    )
    yield "word", "(?P<word>today(?!')|yesterday|tomorrow|tonight|now|last (?:night|evening))"
    yield "word", "(?P<word>this (?:morning|afternoon|evening))"
    yield "part", f"(?P<part>{join_alternatives(PART_HOURS)})"
    yield "clock", f"(?:at )?{_CLOCK_TIME_PATTERN}"
    yield "clock", rf"(?:at )?(?P<hour>\d\d?)(?::(?P<minute>\d\d))? ?(?P<noon>[ap](?:m|\.m\.)){_ZONE_PATTERN}"
    yield "clock", "(?:at )?(?P<named>noon|midday|midnight)"
    portion = "early|mid|late|(?:beginning|start|middle|end|(?:first|second|latter) half) of"
    yield "portion", f"(?:the )?(?P<portion>{portion})(?: (?:the|this) (?P<unit>{units}))?"
    larger = rf"(?:(?= (?:this|last|next|q[1-4]|{_FOUR_DIGIT_YEAR_PATTERN}|{month})\b)| the (?P<whole>{units}))"
    led = "(?:(?:in|over|during|within|on) )?(?:the )?"
    yield "nth", f"{led}{nth} (?P<unit>week|day|weekend|{weekday}) (?:of|in){larger}"
