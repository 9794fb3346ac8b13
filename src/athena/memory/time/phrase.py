"""Find the period that a sentence names: "what we decided about auth last week" is a question and a week.

A wrong period hides memories and a missed one costs little, so a word counts as time only if hardly any other reading
is possible. The rules, as seen from `now`, in its timezone, with weeks from Monday:

- A name alone is the newest that has begun: on a Wednesday "on Wednesday" is today and "on Friday" five days
  ago; in March "in March" is this month and "Q3" last year's. "last X" is over, "next X" has not begun, "this
  X" is of this week or year. Weekdays, months, quarters and years need a preposition, a companion ("Monday
  evening") or such a modifier.
- "N units ago" is that whole calendar day, week, month or year; for hours and minutes it is that moment, give
  or take half the distance, at most an hour. "a few days ago" is three days ago or one more or less; a couple
  is 2, several 5. "two or three days ago" is both.
- "last week" is the calendar week before this one. "the past week", "in the last week" and "the last 7 days"
  run from midnight seven days ago to the end of today; hours and minutes run from that moment to now.
- Morning is 4 to 12, afternoon 12 to 18, evening 17 to 24, night 18 to 6 of the next day. A clock time is the
  hour that begins then. Early, mid and late are thirds, of a week Mon-Wed, Wed-Fri and Thu-Sun. Seasons are
  northern and whole months; a winter belongs to the year in which it begins.
- 3/6/2025 is 6 March, 13/6/2025 is 13 June, 3.6.2025 is 3 June: dots are written day first.
- "since X" is from its start, "after X" from its end, "before X" to its start, "until X" to its end.
- No period: "by Friday" (a deadline), "every Friday" (a habit), "today's" (an adjective), "in two weeks" (a
  length as often), "recently", "now".

`parse_period` reads a text that is nothing but a time: it needs no preposition, and moments and clock times stay
exact. It also reads epoch numbers, "7d" as the moment 7 days ago, and complete dates in other formats and languages.

`parse_due_time` prefers times to come: a name alone is the first that is not over, so on a Wednesday "Friday" is in
two days and "9am" tomorrow; "3 days" is in three days. A task due on a day, in a week or in a month is due when that
ends; with a clock time it is due then.
"""

import math
import re
from datetime import datetime, timedelta
from typing import NamedTuple

from athena.errors import InvalidInput
from athena.memory.time.calendar import SECONDS_PER_UNIT, Period, Span
from athena.memory.time.dates import parse_written_date
from athena.memory.time.rules import find_pieces
from athena.memory.time.timestamps import parse_distance, parse_numeric_time
from athena.memory.time.vocabulary import PieceSize, PieceWeight, TimePiece, compile_pattern

__all__ = ["Period", "TimePhrase", "find_phrase", "parse_coming_period", "parse_due_time", "parse_period"]

_MAX_EXAMINED_CHARS = 2_000  # a longer text is a document, not a question
_TIME_HINT = """Write a time such as "yesterday 14:00", "2 weeks ago", "last Tuesday", "March 2024", "Q3 2025", \
"2025-03-01", "2025-03-01T14:00:00Z", "7d" or epoch seconds."""
_START_EDGE, _END_EDGE = "start", "end"
# For each word: the open side of the period, and the edge of the time that is its other side.
_DIRECTION_EDGES = {
    "since": (_END_EDGE, _START_EDGE),
    "after": (_END_EDGE, _END_EDGE),
    "before": (_START_EDGE, _START_EDGE),
    "prior to": (_START_EDGE, _START_EDGE),
    "until": (_START_EDGE, _END_EDGE),
    "till": (_START_EDGE, _END_EDGE),
    "up to": (_START_EDGE, _END_EDGE),
    "up until": (_START_EDGE, _END_EDGE),
}
_AGO_DIRECTION_EDGES = {
    "more than": (_START_EDGE, _END_EDGE),
    "over": (_START_EDGE, _END_EDGE),
    "at least": (_START_EDGE, _END_EDGE),
    "less than": (_END_EDGE, _START_EDGE),
}
_NON_PERIOD_WORDS = {"by", "every", "each", "any", "per"}
_DAY_PREPOSITIONS = {"on", "from", "around", "since", "after", "before", "prior to", "until", "till"}
_MONTH_PREPOSITIONS = _DAY_PREPOSITIONS - {"on"} | {"in", "during", "throughout"}
_SIZES_WITH_YEAR = {PieceSize.DATE, PieceSize.PORTION, PieceSize.MONTH, PieceSize.SEASON}
_FILLER_PATTERN = "(?:(?:earlier|later|sometime|some time|way back|back|ever) )?"
_DIRECTION_WORD_PATTERN = "|".join([*_DIRECTION_EDGES, *_AGO_DIRECTION_EDGES, *_NON_PERIOD_WORDS])
_PREPOSITION_PATTERN = "in|on|at|during|from|within|throughout|around|for|of|between"
_LEAD_PATTERN = (
    rf"(?<![\w-]){_FILLER_PATTERN}(?:(?P<word>{_DIRECTION_WORD_PATTERN}|{_PREPOSITION_PATTERN}) )?"
    rf"{_FILLER_PATTERN}(?:the )?$"
)
_TAIL_PATTERN = r"(?P<own>'s\b)|(?P<open> (?:onwards?|(?:and|or) (?:later|after|onwards?))\b| on(?=\s*(?:$|[?.!,;])))"
_JOIN_PATTERN = r"[\s,]{0,3}(?:(?:of|on|in|at|from|around) )?(?:the )?"
_RANGE_PATTERN = r" ?(?P<to>to|until|till|through|and|or|vs|up to|-) (?:the )?"
# Abbreviations that `parse_coming_period` expands; in a sentence they could mean something else.
_SHORT_FORMS = {
    "eod|cob|end of (?:the )?day": "today",
    "eow|end of (?:the )?week": "this week",
    "tonight": "this evening",
    "eom|end of (?:the )?month": "this month",
    "eoy|end of (?:the )?year": "this year",
    r"at ([01]?[0-9]|2[0-3])(?! ?[:ap0-9])": r"at \1:00",
}
_FROM_NOW_PATTERN = "(?P<amount>.{1,60}) (?:from (?:now|today)|hence)"
_FOLD_TABLE = {i: i + 32 for i in range(65, 91)} | {0x2019: "'", 0x2013: "-", 0x2014: "-"}


class TimePhrase(NamedTuple):
    """A period, the text without it, and the words that name it."""

    period: Period
    rest: str
    matched_text: str


class _PieceChain(NamedTuple):
    """Neighbouring pieces, "Tuesday evening last week", and the preposition before them."""

    pieces: tuple[TimePiece, ...]
    lead_start: int  # where the preposition begins
    preposition: str
    is_possessive: bool  # "last week's"
    tail_end: int  # where "'s" or "onwards" ends
    counts: bool

    @property
    def begin(self) -> int:
        return self.pieces[0].begin

    @property
    def end(self) -> int:
        return self.pieces[-1].end

    @property
    def largest_piece(self) -> TimePiece:
        """The piece inside which the others are read."""
        return max((p for p in self.pieces if p.span or p.cycle), key=lambda p: p.size)

    def resolve(self, moment: datetime, *, forward: bool = False) -> Span | None:
        top = self.largest_piece
        span = top.span
        if top.cycle:
            span = top.cycle.find_next(moment) if forward else top.cycle.find_latest(moment)
        for piece in sorted(self.pieces, key=lambda p: -p.size):
            if span and piece.narrow and piece.size < top.size:
                try:
                    # A part that does not fit or fits twice, "Tuesday last month", leaves the whole.
                    span = piece.narrow(span) or span
                except (ValueError, OverflowError):  # beyond the calendar
                    return None
        return span

    def resolve_ahead(self, now: datetime) -> Span | None:
        """Resolve a recurring name to the first turn that is not over."""
        span = self.resolve(now)
        is_over = span is not None and self.largest_piece.cycle is not None and span.end <= now
        return self.resolve(now, forward=True) if is_over else span


class _TimeCandidate(NamedTuple):
    """A possible time of a text: its period, the words that name it, and the text to cut."""

    period: Period
    text_spans: tuple[tuple[int, int], ...]
    cut_spans: tuple[tuple[int, int], ...]
    chain: _PieceChain | None = None  # when it is one chain without a direction


def find_phrase(text: str, now: datetime, *, ahead: bool = False) -> TimePhrase | None:
    """Return the period that a sentence names, or None. `ahead` prefers times to come."""
    return _find_time(text, now, whole_text=False, ahead=ahead)


def parse_coming_period(text: str, now: datetime) -> Period:
    """Read a period to come, unless the words name one in the past."""
    for pattern, expansion in _SHORT_FORMS.items():
        text = re.sub(rf"\b(?:{pattern})\b", expansion, text, flags=re.IGNORECASE)
    if match := compile_pattern(_FROM_NOW_PATTERN).fullmatch(text.strip().translate(_FOLD_TABLE)):
        return parse_distance(f"in {match['amount']}", now) or parse_period(text, now, ahead=True)
    return parse_period(text, now, ahead=True)


def parse_due_time(text: str, now: datetime) -> float:
    """Read when something is due: a moment to come, unless the words name one in the past."""
    start, end = parse_coming_period(text, now)
    if math.isinf(end) or end - start <= SECONDS_PER_UNIT["hour"]:
        return start
    return end - 1 if end == float(int(end)) else end


def parse_period(text: str, now: datetime, *, ahead: bool = False) -> Period:
    """Read a text that is a time and nothing else; `ahead` prefers times to come."""
    stripped = text.strip()
    if 0 < len(stripped) <= 200:
        low = stripped.translate(_FOLD_TABLE)
        period = parse_numeric_time(low, now) or parse_distance(low, now, ahead=ahead)
        if period is None:
            phrase = _find_time(stripped, now, whole_text=True, ahead=ahead)
            is_whole = phrase is not None and not re.search(r"\w", phrase.rest)
            period = phrase.period if phrase and is_whole else parse_written_date(stripped, now)
        if period is not None:
            return period
    shown = stripped if len(stripped) <= 80 else f"{stripped[:80]}..."
    raise InvalidInput(f"Not a time: {shown!r}", hint=_TIME_HINT)


def _find_time(text: str, now: datetime, *, whole_text: bool, ahead: bool = False) -> TimePhrase | None:
    head = text
    if len(text) > _MAX_EXAMINED_CHARS:
        head = text[:_MAX_EXAMINED_CHARS]
        head = head[: max(head.rfind(" "), head.rfind("\n")) + 1] or head  # not half a word
    low = head.translate(_FOLD_TABLE)
    chains = _build_chains(low, now, whole_text)
    times: list[_TimeCandidate] = []
    i = 0
    while i < len(chains):
        time = _read_range(chains[i], chains[i + 1], low, now) if i + 1 < len(chains) else None
        i += 2 if time else 1
        time = time or _read_single(chains[i - 1], low, now, exact=whole_text, ahead=ahead)
        if time:
            times.append(time)
    if not times:
        return None
    time = _combine_times(times, now) or max(times, key=_rank_specificity)
    return TimePhrase(time.period, _remove_spans(text, time.cut_spans), " ".join(text[a:b] for a, b in time.text_spans))


def _build_chains(low: str, now: datetime, whole_text: bool) -> list[_PieceChain]:
    groups: list[list[TimePiece]] = []
    for piece in find_pieces(low, now):
        if groups and _can_join(groups[-1], piece, low):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return [_build_chain(group, low, whole_text) for group in groups if any(p.span or p.cycle for p in group)]


def _can_join(group: list[TimePiece], piece: TimePiece, low: str) -> bool:
    if not compile_pattern(_JOIN_PATTERN).fullmatch(low, group[-1].end, piece.begin):
        return False
    # "yesterday, the day before the launch": a step or a portion refers to the words after it.
    if piece.size in (PieceSize.STEP, PieceSize.PORTION) and any(p.size > PieceSize.PART for p in group):
        return False
    pieces = sorted([*group, piece], key=lambda p: -p.size)
    sizes = {p.size for p in pieces}
    if len(sizes) < len(pieces) or pieces[-1].size < PieceSize.CLOCK:
        return False
    anchors = [p for p in pieces if p.span or p.cycle]
    if any(p.narrow is None for p in anchors[1:]):
        return False
    # A number such as 2024 after a weekday or a time of day may count anything.
    largest = pieces[0]
    return largest.size != PieceSize.YEAR or largest.weight > PieceWeight.LED or bool(sizes & _SIZES_WITH_YEAR)


def _build_chain(group: list[TimePiece], low: str, whole_text: bool) -> _PieceChain:
    begin, end = group[0].begin, group[-1].end
    lead = compile_pattern(_LEAD_PATTERN).search(low, max(0, begin - 48), begin)
    word = re.sub(r"\s+", " ", lead["word"] or "") if lead else ""
    tail = compile_pattern(_TAIL_PATTERN).match(low, end)
    if tail and tail["open"] and tail["open"].strip() == "on" and word != "from":
        tail = None
    is_possessive = bool(tail and tail["own"])
    start, stop = lead.start() if lead else begin, tail.end() if tail else end
    chain = _PieceChain(tuple(group), start, word, is_possessive, stop, counts=True)
    return chain._replace(counts=whole_text or _is_surely_time(chain))


def _is_surely_time(chain: _PieceChain) -> bool:
    """Return whether this is surely a time, not an ordinary word or number."""
    weight = max(piece.weight for piece in chain.pieces)
    if chain.preposition in _NON_PERIOD_WORDS or weight == PieceWeight.JOINED:
        return False
    if weight == PieceWeight.ALONE or len(chain.pieces) > 1:
        return True
    size = chain.largest_piece.size
    if size <= PieceSize.DATE:
        return chain.preposition in _DAY_PREPOSITIONS
    if size == PieceSize.WEEKEND:
        return chain.preposition in _DAY_PREPOSITIONS | {"over", "at", "during"}
    return chain.preposition in _MONTH_PREPOSITIONS or (chain.preposition == "over" and size < PieceSize.YEAR)


def _read_single(chain: _PieceChain, low: str, now: datetime, *, exact: bool, ahead: bool) -> _TimeCandidate | None:
    span = (chain.resolve_ahead(now) if ahead else chain.resolve(now)) if chain.counts else None
    if span is None:
        return None
    is_ago = low.endswith("ago", chain.begin, chain.end)
    direction = _DIRECTION_EDGES.get(chain.preposition) or (
        _AGO_DIRECTION_EDGES.get(chain.preposition) if is_ago else None
    )
    if chain.tail_end > chain.end and not chain.is_possessive:
        direction = _DIRECTION_EDGES["since"]
    if direction == _DIRECTION_EDGES["after"] and not ahead and chain.largest_piece.cycle and span.end > now:
        # In March "after March" must mean another March, else it would be a time to come.
        span = chain.resolve(span.start - timedelta(microseconds=1)) or span
    period = span.to_period()
    # The preposition of "before yesterday's deploy" belongs to the deploy, which was some time in that day.
    if direction:
        open_side, edge_side = direction
        if chain.is_possessive:
            edge_side = _START_EDGE if open_side == _END_EDGE else _END_EDGE
        edge = period.start if edge_side == _START_EDGE else period.end
        period = Period(edge, math.inf) if open_side == _END_EDGE else Period(-math.inf, edge)
    elif not exact:
        period = _widen_period(period, min(p.size for p in chain.pieces), now)
    has_foreign_preposition = chain.preposition == "between" or (
        chain.preposition in _AGO_DIRECTION_EDGES and chain.preposition != "over" and not is_ago
    )
    owns_preposition = not chain.is_possessive and not has_foreign_preposition
    cut_span = (chain.lead_start if owns_preposition else chain.begin, chain.tail_end)
    text_span = (chain.lead_start if direction else chain.begin, chain.tail_end)
    if chain.is_possessive:
        text_span = (chain.begin, chain.end)
    return _TimeCandidate(period, (text_span,), (cut_span,), None if direction else chain)


def _widen_period(period: Period, size: PieceSize, now: datetime) -> Period:
    """Widen a moment: people round clock times and distances, and memories are rarely written in that minute."""
    if size == PieceSize.CLOCK:
        return Period(period.start, max(period.end, period.start + 3600))
    if size == PieceSize.MOMENT:
        slack = min(3600.0, max(60.0, abs(now.timestamp() - period.start) / 2))
        return Period(period.start - slack, period.start + slack)
    return period


def _read_range(first: _PieceChain, last: _PieceChain, low: str, now: datetime) -> _TimeCandidate | None:
    """Read "between March and May", "from 3 June to 10 June", "last week and this week"."""
    joint = compile_pattern(_RANGE_PATTERN).fullmatch(low, first.end, last.begin)
    if not joint or first.preposition in _NON_PERIOD_WORDS:
        return None
    start, end = first.resolve(now), last.resolve(now)
    if joint["to"] in ("and", "or", "vs") and first.preposition != "between":
        is_same_size = (
            first.largest_piece.size == last.largest_piece.size and last.largest_piece.weight >= PieceWeight.LED
        )
        if (
            not start
            or not end
            or not first.counts
            or first.preposition in _DIRECTION_EDGES
            or not (is_same_size or last.counts)
        ):
            return None
        start, end = min(start, end), max(start, end)
    else:
        have_digits = all(re.search("[0-9]", low[c.begin : c.end]) for c in (first, last))
        is_range = (first.preposition == "between") == (joint["to"] == "and")
        is_range = is_range and (have_digits or first.preposition in ("between", "from", "since"))
        if not is_range or all(p.weight == PieceWeight.JOINED for p in first.pieces + last.pieces):
            return None
        # A name is read from the fixed end, or else from the later name: "between November and January".
        if end and first.largest_piece.cycle:
            start = first.resolve(end.start)
        elif start and last.largest_piece.cycle:
            end = last.resolve(start.start, forward=True)
    if not start or not end or end.end <= start.start:
        return None
    cut = (first.lead_start, last.tail_end)
    return _TimeCandidate(Period(start.start.timestamp(), end.end.timestamp()), (cut,), (cut,))


def _combine_times(times: list[_TimeCandidate], now: datetime) -> _TimeCandidate | None:
    """Read two times as one: "after June ... before August", "in 2024 ... in March"."""
    candidates = times[:8]  # the pairs grow with the square
    for a in candidates:
        for b in candidates:
            if a.period.end == math.inf and b.period.start == -math.inf and a.period.start < b.period.end:
                return _merge_times(a, b, Period(a.period.start, b.period.end))
            outer, inner = a.chain, b.chain
            if outer and inner and inner.largest_piece.cycle and inner.preposition in ("in", "on", "at", "during"):
                span = outer.resolve(now)
                if (
                    span
                    and outer.largest_piece.size > max(inner.largest_piece.size, PieceSize.DAY)
                    and inner.largest_piece.cycle.find_inside(span)
                ):
                    merged = outer._replace(pieces=outer.pieces + inner.pieces).resolve(now)
                    return _merge_times(a, b, merged.to_period()) if merged else None
    return None


def _merge_times(a: _TimeCandidate, b: _TimeCandidate, period: Period) -> _TimeCandidate:
    return _TimeCandidate(period, tuple(sorted(a.text_spans + b.text_spans)), tuple(sorted(a.cut_spans + b.cut_spans)))


def _rank_specificity(time: _TimeCandidate) -> tuple[int, float]:
    """Return a sort key: the longer wording, then the shorter period."""
    return sum(end - begin for begin, end in time.text_spans), time.period.start - time.period.end


def _remove_spans(text: str, cuts: tuple[tuple[int, int], ...]) -> str:
    """Cut spans, and close the gaps so that no double space, empty bracket or stray comma is left."""
    rest, after = text, len(text)
    for begin, end in reversed(cuts):
        # "after March and before June"
        end, after = (after if text[end:after].strip(" ,") in ("and", "but") else end), begin
        left, right = rest[:begin].rstrip(), rest[end:].lstrip()
        if left.endswith("(") and right.startswith(")"):
            left, right = left[:-1].rstrip(), right[1:].lstrip()
        if not left or left[-1] in ",;:-":
            right = right.lstrip(",;:- ")
        if not right or right[0] in "?.!,;:":
            left = left.rstrip(",;:- ")
        needs_no_space = not left or not right or right[0] in "?.!,;:)" or left[-1] == "("
        rest = left + right if needs_no_space else f"{left} {right}"
    return rest.strip()
