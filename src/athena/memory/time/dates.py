"""Complete dates as programs and people write them: RFC 2822, access logs, `3. März 2026`, `Mar 3, 2026 2:05 PM EST`.

The rules of `phrase` read English; this module reads the formats they do not know, in seven languages. It reads
whole texts only, and refuses a text with any word that it does not know.
"""

import re
import unicodedata
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from athena.core.text import normalize_text
from athena.memory.time.calendar import Period, create_instant, create_local_date, expand_to_units

# Without accents: English, German, French, Spanish, Italian, Portuguese, Dutch.
_MONTH_WORDS = (
    "jan janv january januar janner janvier ene enero gen gennaio janeiro januari",
    "feb february februar fev fevr fevrier febrero febbraio fevereiro februari",
    "mar march mrz marz maerz mars marzo marco maa maart mrt",
    "apr april avr avril abr abril aprile",
    "may mai mayo mag maggio maio mei",
    "jun june juni juin junio giu giugno junho",
    "jul july juli juil juillet julio lug luglio julho",
    "aug august aou aout ago agosto augustus",
    "sep sept september septembre septiembre setiembre set settembre setembro",
    "oct october okt oktober octobre octubre ott ottobre out outubro",
    "nov november novembre noviembre novembro",
    "dec december dez dezember decembre dic diciembre dicembre dezembro",
)
_MONTHS = {word: month for month, words in enumerate(_MONTH_WORDS, 1) for word in words.split()}
_WEEKDAY_WORDS = """
mon monday tue tues tuesday wed wednesday thu thur thurs thursday fri friday sat saturday sun sunday
mo montag di dienstag mi mittwoch do donnerstag fr freitag sa samstag sonnabend so sonntag
lun lundi mar mardi mer mercredi jeu jeudi ven vendredi sam samedi dim dimanche
lunes martes mie miercoles jue jueves vie viernes sab sabado dom domingo
lunedi martedi mercoledi gio giovedi venerdi sabato domenica
seg segunda ter terca qua quarta qui quinta sex sexta
ma maandag dinsdag wo woensdag donderdag vr vrijdag za zaterdag zo zondag
"""
_WEEKDAYS = frozenset(_WEEKDAY_WORDS.split())
_FILLERS = "the|of|at|on|um|uhr|den|der|am|le|la|las|el|il|de|del|a|alle|ore|as|om|op"
_ZONE_HOURS = {"utc": 0, "gmt": 0, "z": 0, "est": -5, "edt": -4, "cst": -6, "cdt": -5, "mst": -7, "mdt": -6}
_ZONE_HOURS |= {"pst": -8, "pdt": -7, "wet": 0, "west": 1, "bst": 1, "cet": 1, "cest": 2, "mez": 1, "mesz": 2}
_ZONE_HOURS |= {"eet": 2, "eest": 3, "msk": 3, "jst": 9, "kst": 9, "aest": 10, "aedt": 11}

# Texts, because importing must stay cheap: `re` compiles and caches them at first use.
_CLOCK_PATTERN = (
    r"(?<![\d:.])(?P<hour>\d\d?)(?:[:h](?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?)?)?"
    r"(?![\d:])(?: ?(?P<noon>[ap])\.?m\b\.?)?"
)
_OFFSET_PATTERN = r" ?(?:utc|gmt| )(?P<sign>[+-])(?P<hours>\d\d?)(?::?(?P<minutes>\d\d))?(?![\d:])"
_ZONE_NAME_PATTERN = rf"(?<=[ \d])(?:{'|'.join(_ZONE_HOURS)})\b"
_COMMENT_PATTERN = r"(?<=[+-]\d{4}) \([^()]+\)$"  # RFC 2822: "-0500 (EST)"
_MONTH = f"(?P<month>{'|'.join(sorted(_MONTHS, key=len, reverse=True))})"
_DAY = r"(?P<day>\d\d?)(?:st|nd|rd|th|er|o)?"
_YEAR = r"(?P<year>\d{4})"
_ANY_YEAR = r"(?P<year>\d{4}|'?\d\d)"
_DATE_PATTERNS = (
    rf"{_DAY}[ ./-]{{0,2}}{_MONTH}[ .,/-]{{1,2}}{_ANY_YEAR}",
    rf"{_MONTH}[ .-]{{1,2}}{_DAY}[ ,-]{{1,2}}{_ANY_YEAR}",
    rf"{_YEAR}[ -]{_MONTH}[ .-]{{1,2}}{_DAY}",
    rf"{_MONTH}[ .,-]{{1,2}}{_YEAR}",
    rf"{_YEAR}[ -]{_MONTH}",
    rf"{_YEAR}(?P<separator>[./ -])(?P<month>\d\d?)(?P=separator){_DAY}",
    rf"(?P<first>\d\d?) ?(?P<separator>[./-]) ?(?P<second>\d\d?) ?(?P=separator) ?{_ANY_YEAR}",
    rf"(?P<month>0\d|1[0-2])/{_YEAR}",
)


def parse_written_date(text: str, now: datetime) -> Period | None:
    """Read a complete date, with or without a clock time and a zone, or a month with its year."""
    try:
        if re.match(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}.[0-9]{2}", text):
            return create_instant(_to_zone(datetime.fromisoformat(text), now.tzinfo)).to_period()
    except (ValueError, OverflowError):
        pass
    try:
        return _parse_folded(_fold(text), now)
    except (ValueError, OverflowError):  # 30 February; the last day of the calendar
        return None


def _fold(text: str) -> str:
    """Return the text in lower case, without accents, with single spaces."""
    plain = "".join(c for c in normalize_text("NFKD", text) if not unicodedata.combining(c))
    plain = re.sub(r"[\s_]+", " ", plain.casefold()).strip()
    plain = re.sub(_COMMENT_PATTERN, "", plain, flags=re.ASCII)
    # Between date and clock: "2026-03-03T14:05 PST", and access logs, "03/Mar/2026:14:05:09".
    return re.sub(r"(?<=[0-9])t(?=[0-9]{2}:)|(?<=/[0-9]{4}):(?=[0-9]{2}:)", " ", plain)


def _parse_folded(text: str, now: datetime) -> Period | None:
    numbers = re.finditer(_CLOCK_PATTERN, text, re.ASCII)
    clock = next((match for match in numbers if match["minute"] or match["noon"]), None)
    zone: tzinfo | None = None
    if clock:
        text = f"{text[: clock.start()]} {text[clock.end() :]}"
        text, zone = _cut_zone(text)
    date = _parse_date(text)
    if date is None:
        return None
    year, month, day = date
    if clock is None:
        start = create_local_date(now, year, month, day or 1)
        return expand_to_units(start, "day" if day else "month").to_period()
    if day is None:
        return None
    moment = datetime(year, month, day, *_read_clock(clock), tzinfo=zone or now.tzinfo)
    return create_instant(_to_zone(moment, now.tzinfo)).to_period()


def _cut_zone(text: str) -> tuple[str, tzinfo | None]:
    if match := re.search(_OFFSET_PATTERN, text, re.ASCII):
        offset = timedelta(hours=int(match["hours"]), minutes=int(match["minutes"] or 0))
        zone = timezone(-offset if match["sign"] == "-" else offset)
    elif match := re.search(_ZONE_NAME_PATTERN, text, re.ASCII):
        zone = timezone(timedelta(hours=_ZONE_HOURS[match[0]])) if _ZONE_HOURS[match[0]] else UTC
    else:
        return text, None
    return f"{text[: match.start()]} {text[match.end() :]}", zone


def _parse_date(text: str) -> tuple[int, int, int | None] | None:
    """Return year, month and day; the day is None in "March 2026"."""
    text = re.sub(rf"\b(?:{_FILLERS})\b", " ", text)
    text = re.sub(" +", " ", text).strip(" ,")
    match = _match_date(text)
    if match is None:
        # Only now, because "mar" is Tuesday in French and March in English.
        weekday = re.match(r"([a-z]+)(?:-feira)?[ .,]+", text)
        match = _match_date(text[weekday.end() :]) if weekday and weekday[1] in _WEEKDAYS else None
    if match is None:
        return None
    groups = match.groupdict()
    year = _expand_year(groups["year"])
    if "first" in groups:
        first, second = int(groups["first"]), int(groups["second"])
        day_first = groups["separator"] == "." or first > 12
        return (year, second, first) if day_first else (year, first, second)
    month = _MONTHS.get(groups["month"]) or int(groups["month"])
    return year, month, int(groups["day"]) if groups.get("day") else None


def _match_date(text: str) -> re.Match[str] | None:
    return next((match for pattern in _DATE_PATTERNS if (match := re.fullmatch(pattern, text, re.ASCII))), None)


def _expand_year(text: str) -> int:
    """Read two digits as POSIX does: 69 to 99 are of the 20th century."""
    year = int(text.lstrip("'"))
    return year if len(text) == 4 else year + (1900 if year >= 69 else 2000)


def _read_clock(match: re.Match[str]) -> tuple[int, int, int, int]:
    hour = int(match["hour"])
    if match["noon"]:
        if not 1 <= hour <= 12:
            raise ValueError(f"not an hour of a 12-hour clock: {hour}")
        hour = hour % 12 + (12 if match["noon"] == "p" else 0)
    microseconds = (match["fraction"] or "0")[:6].ljust(6, "0")
    return hour, int(match["minute"] or 0), int(match["second"] or 0), int(microseconds)


def _to_zone(moment: datetime, zone: tzinfo | None) -> datetime:
    return moment.astimezone(zone) if moment.tzinfo else moment.replace(tzinfo=zone)
