"""Finds when a sentence speaks of: "what we decided about auth last week" is a question and a week.

A wrong period hides memories and a missed one costs little, so a word counts as time only when hardly
anything else is possible. The rules, as seen from `now`, in its timezone, with weeks from Monday:

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

`parse` reads the same words without doubt: no preposition is needed, and moments and clock times stay exact.
It also reads epoch numbers, "7d" as the moment 7 days ago, and complete dates in other common languages.

`due` reads them as what is to come: a name alone is the first that is not over, so on a Wednesday "Friday" is in
two days and "9am" tomorrow; "3 days" is in three days. What is due on a day, in a week or in a month is due when
that ends; with a clock time it is due then.
"""

import math
import re
from datetime import datetime, timedelta
from typing import NamedTuple

from athena.errors import InvalidInput
from athena.memory.time.calendar import SECONDS, Period, Span
from athena.memory.time.rules import pieces
from athena.memory.time.timestamps import distance, foreign, number
from athena.memory.time.vocabulary import Piece, Size, Weight, pattern

__all__ = ["Period", "Phrase", "coming", "due", "find", "parse"]

_EXAMINED = 2_000  # characters; a text with its time further in than this is a document, not a question
_HINT = """Write a time such as "yesterday 14:00", "2 weeks ago", "last Tuesday", "March 2024", "Q3 2025", \
"2025-03-01", "2025-03-01T14:00:00Z", "7d" or epoch seconds."""
_START, _END = "start", "end"
# Each word: which side of the time stays open, and which end of the time is the other side.
_DIRECTION = {"since": (_END, _START), "after": (_END, _END), "before": (_START, _START)}
_DIRECTION |= {"prior to": (_START, _START), "until": (_START, _END), "till": (_START, _END)}
_DIRECTION |= {"up to": (_START, _END), "up until": (_START, _END)}
_AGO_DIRECTION = {"more than": (_START, _END), "over": (_START, _END), "at least": (_START, _END)}
_AGO_DIRECTION |= {"less than": (_END, _START)}
_NOT_A_PERIOD = {"by", "every", "each", "any", "per"}
_LEADS_DAY = {"on", "from", "around", "since", "after", "before", "prior to", "until", "till"}
_LEADS_MONTH = _LEADS_DAY - {"on"} | {"in", "during", "throughout"}
_TAKES_YEAR = {Size.DATE, Size.PORTION, Size.MONTH, Size.SEASON}
_FLUFF = "(?:(?:earlier|later|sometime|some time|way back|back|ever) )?"
_WORDS = "|".join([*_DIRECTION, *_AGO_DIRECTION, *_NOT_A_PERIOD])
_PLAIN = "in|on|at|during|from|within|throughout|around|for|of|between"
_LEAD = rf"(?<![\w-]){_FLUFF}(?:(?P<word>{_WORDS}|{_PLAIN}) )?{_FLUFF}(?:the )?$"
_TAIL = r"(?P<own>'s\b)|(?P<open> (?:onwards?|(?:and|or) (?:later|after|onwards?))\b| on(?=\s*(?:$|[?.!,;])))"
_JOIN = r"[\s,]{0,3}(?:(?:of|on|in|at|from|around) )?(?:the )?"
_TO = r" ?(?P<to>to|until|till|through|and|or|vs|up to|-) (?:the )?"
# What `due` reads as other words, since nothing else is left of its text.
_SHORT = {"eod|cob|end of (?:the )?day": "today", "eow|end of (?:the )?week": "this week", "tonight": "this evening"}
_SHORT |= {"eom|end of (?:the )?month": "this month", "eoy|end of (?:the )?year": "this year"}
_SHORT |= {r"at ([01]?[0-9]|2[0-3])(?! ?[:ap0-9])": r"at \1:00"}
_FROM_NOW = "(?P<amount>.{1,60}) (?:from (?:now|today)|hence)"
_FOLD = {i: i + 32 for i in range(65, 91)} | {0x2019: "'", 0x2013: "-", 0x2014: "-"}


class Phrase(NamedTuple):
    """A period, the text without it, and the words that told it."""

    period: Period
    rest: str
    words: str


class _Chain(NamedTuple):
    """Pieces that stand together, "Tuesday evening last week", and the preposition before them."""

    pieces: tuple[Piece, ...]
    lead: int  # where the preposition begins
    word: str
    own: bool  # "last week's"
    tail: int  # where "'s" or "onwards" ends
    counts: bool

    @property
    def begin(self) -> int:
        return self.pieces[0].begin

    @property
    def end(self) -> int:
        return self.pieces[-1].end

    @property
    def top(self) -> Piece:
        """The piece inside which the others are read."""
        return max((p for p in self.pieces if p.span or p.cycle), key=lambda p: p.size)

    def read(self, moment: datetime, *, forward: bool = False) -> Span | None:
        top = self.top
        span = top.span
        if top.cycle:
            span = top.cycle.next(moment) if forward else top.cycle.latest(moment)
        for piece in sorted(self.pieces, key=lambda p: -p.size):
            if span and piece.inside and piece.size < top.size:
                try:
                    # A part that does not fit or fits twice, "Tuesday last month", leaves the whole.
                    span = piece.inside(span) or span
                except (ValueError, OverflowError):  # beyond the calendar
                    return None
        return span

    def ahead(self, now: datetime) -> Span | None:
        """Read a name as the first that is not over."""
        span = self.read(now)
        over = span is not None and self.top.cycle is not None and span.end <= now
        return self.read(now, forward=True) if over else span


class _Time(NamedTuple):
    """A candidate: what it means, which text tells it, and which text to cut."""

    period: Period
    words: tuple[tuple[int, int], ...]
    cuts: tuple[tuple[int, int], ...]
    chain: _Chain | None = None  # when it is one chain without a direction


def find(text: str, now: datetime, *, ahead: bool = False) -> Phrase | None:
    """Find the period that a sentence speaks of; None when it speaks of none. `ahead` prefers what is to come."""
    return _find(text, now, whole_text=False, ahead=ahead)


def coming(text: str, now: datetime) -> Period:
    """Read a period to come, unless the words name one that was."""
    for short, words in _SHORT.items():
        text = re.sub(rf"\b(?:{short})\b", words, text, flags=re.IGNORECASE)
    if far := pattern(_FROM_NOW).fullmatch(text.strip().translate(_FOLD)):
        return distance(f"in {far['amount']}", now) or parse(text, now, ahead=True)
    return parse(text, now, ahead=True)


def due(text: str, now: datetime) -> float:
    """Read when something is due: a moment to come, unless the words name one that was."""
    start, end = coming(text, now)
    if math.isinf(end) or end - start <= SECONDS["hour"]:
        return start
    return end - 1 if end == float(int(end)) else end


def parse(text: str, now: datetime, *, ahead: bool = False) -> Period:
    """Read a text that is a time and nothing else; `ahead` prefers what is to come."""
    stripped = text.strip()
    if 0 < len(stripped) <= 200:
        low = stripped.translate(_FOLD)
        period = number(low, now) or distance(low, now, ahead=ahead)
        if period is None:
            phrase = _find(stripped, now, whole_text=True, ahead=ahead)
            period = phrase.period if phrase and not re.search(r"\w", phrase.rest) else foreign(stripped, now)
        if period is not None:
            return period
    shown = stripped if len(stripped) <= 80 else f"{stripped[:80]}..."
    raise InvalidInput(f"Not a time: {shown!r}", hint=_HINT)


def _find(text: str, now: datetime, *, whole_text: bool, ahead: bool = False) -> Phrase | None:
    head = text
    if len(text) > _EXAMINED:
        head = text[:_EXAMINED]
        head = head[: max(head.rfind(" "), head.rfind("\n")) + 1] or head  # not half a word
    low = head.translate(_FOLD)
    chains = _chains(low, now, whole_text)
    times: list[_Time] = []
    i = 0
    while i < len(chains):
        time = _range(chains[i], chains[i + 1], low, now) if i + 1 < len(chains) else None
        i += 2 if time else 1
        time = time or _single(chains[i - 1], low, now, exact=whole_text, ahead=ahead)
        if time:
            times.append(time)
    if not times:
        return None
    time = _together(times, now) or max(times, key=_specific)
    return Phrase(time.period, _without(text, time.cuts), " ".join(text[a:b] for a, b in time.words))


def _chains(low: str, now: datetime, whole_text: bool) -> list[_Chain]:
    groups: list[list[Piece]] = []
    for piece in pieces(low, now):
        if groups and _joins(groups[-1], piece, low):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return [_chain(group, low, whole_text) for group in groups if any(p.span or p.cycle for p in group)]


def _joins(group: list[Piece], piece: Piece, low: str) -> bool:
    if not pattern(_JOIN).fullmatch(low, group[-1].end, piece.begin):
        return False
    # "yesterday, the day before the launch": these words speak of what follows them.
    if piece.size in (Size.STEP, Size.PORTION) and any(p.size > Size.PART for p in group):
        return False
    together = sorted([*group, piece], key=lambda p: -p.size)
    sizes = {p.size for p in together}
    if len(sizes) < len(together) or together[-1].size < Size.CLOCK:
        return False
    anchors = [p for p in together if p.span or p.cycle]
    if any(p.inside is None for p in anchors[1:]):
        return False
    # A number such as 2024 after a weekday or a time of day may count anything.
    largest = together[0]
    return largest.size != Size.YEAR or largest.weight > Weight.LED or bool(sizes & _TAKES_YEAR)


def _chain(group: list[Piece], low: str, whole_text: bool) -> _Chain:
    begin, end = group[0].begin, group[-1].end
    lead = pattern(_LEAD).search(low, max(0, begin - 48), begin)
    word = re.sub(r"\s+", " ", lead["word"] or "") if lead else ""
    tail = pattern(_TAIL).match(low, end)
    if tail and tail["open"] and tail["open"].strip() == "on" and word != "from":
        tail = None
    own = bool(tail and tail["own"])
    start, stop = lead.start() if lead else begin, tail.end() if tail else end
    chain = _Chain(tuple(group), start, word, own, stop, counts=True)
    return chain._replace(counts=whole_text or _counts(chain))


def _counts(chain: _Chain) -> bool:
    """Whether this is surely a time and not an ordinary word or number."""
    weight = max(piece.weight for piece in chain.pieces)
    if chain.word in _NOT_A_PERIOD or weight == Weight.JOINED:
        return False
    if weight == Weight.ALONE or len(chain.pieces) > 1:
        return True
    size = chain.top.size
    if size <= Size.DATE:
        return chain.word in _LEADS_DAY
    if size == Size.WEEKEND:
        return chain.word in _LEADS_DAY | {"over", "at", "during"}
    return chain.word in _LEADS_MONTH or (chain.word == "over" and size < Size.YEAR)


def _single(chain: _Chain, low: str, now: datetime, *, exact: bool, ahead: bool) -> _Time | None:
    span = (chain.ahead(now) if ahead else chain.read(now)) if chain.counts else None
    if span is None:
        return None
    ago = low.endswith("ago", chain.begin, chain.end)
    direction = _DIRECTION.get(chain.word) or (_AGO_DIRECTION.get(chain.word) if ago else None)
    if chain.tail > chain.end and not chain.own:
        direction = _DIRECTION["since"]
    if direction == _DIRECTION["after"] and not ahead and chain.top.cycle and span.end > now:
        # In March "after March" must speak of another March, else it would be a time to come.
        span = chain.read(span.start - timedelta(microseconds=1)) or span
    period = span.period()
    # The preposition of "before yesterday's deploy" belongs to the deploy, which was some time in that day.
    if direction:
        opened, side = direction
        if chain.own:
            side = _START if opened == _END else _END
        edge = period.start if side == _START else period.end
        period = Period(edge, math.inf) if opened == _END else Period(-math.inf, edge)
    elif not exact:
        period = _widened(period, min(p.size for p in chain.pieces), now)
    stranger = chain.word == "between" or (chain.word in _AGO_DIRECTION and chain.word != "over" and not ago)
    belongs = not chain.own and not stranger
    cut = (chain.lead if belongs else chain.begin, chain.tail)
    words = (chain.lead if direction else chain.begin, chain.tail)
    if chain.own:
        words = (chain.begin, chain.end)
    return _Time(period, (words,), (cut,), None if direction else chain)


def _widened(period: Period, size: Size, now: datetime) -> Period:
    """People round clock times and distances, and a memory is rarely written in that very minute."""
    if size == Size.CLOCK:
        return Period(period.start, max(period.end, period.start + 3600))
    if size == Size.MOMENT:
        slack = min(3600.0, max(60.0, abs(now.timestamp() - period.start) / 2))
        return Period(period.start - slack, period.start + slack)
    return period


def _range(first: _Chain, last: _Chain, low: str, now: datetime) -> _Time | None:
    """Read "between March and May", "from 3 June to 10 June", "last week and this week"."""
    between = pattern(_TO).fullmatch(low, first.end, last.begin)
    if not between or first.word in _NOT_A_PERIOD:
        return None
    start, end = first.read(now), last.read(now)
    if between["to"] in ("and", "or", "vs") and first.word != "between":
        like = first.top.size == last.top.size and last.top.weight >= Weight.LED
        if not start or not end or not first.counts or first.word in _DIRECTION or not (like or last.counts):
            return None
        start, end = min(start, end), max(start, end)
    else:
        digits = all(re.search("[0-9]", low[c.begin : c.end]) for c in (first, last))
        fits = (first.word == "between") == (between["to"] == "and")
        fits = fits and (digits or first.word in ("between", "from", "since"))
        if not fits or all(p.weight == Weight.JOINED for p in first.pieces + last.pieces):
            return None
        # A name is read from the fixed end, or else from the later name: "between November and January".
        if end and first.top.cycle:
            start = first.read(end.start)
        elif start and last.top.cycle:
            end = last.read(start.start, forward=True)
    if not start or not end or end.end <= start.start:
        return None
    cut = (first.lead, last.tail)
    return _Time(Period(start.start.timestamp(), end.end.timestamp()), (cut,), (cut,))


def _together(times: list[_Time], now: datetime) -> _Time | None:
    """Read two times as one: "after June ... before August", "in 2024 ... in March"."""
    few = times[:8]
    for a in few:
        for b in few:
            if a.period.end == math.inf and b.period.start == -math.inf and a.period.start < b.period.end:
                return _both(a, b, Period(a.period.start, b.period.end))
            outer, inner = a.chain, b.chain
            if outer and inner and inner.top.cycle and inner.word in ("in", "on", "at", "during"):
                span = outer.read(now)
                if span and outer.top.size > max(inner.top.size, Size.DAY) and inner.top.cycle.inside(span):
                    merged = outer._replace(pieces=outer.pieces + inner.pieces).read(now)
                    return _both(a, b, merged.period()) if merged else None
    return None


def _both(a: _Time, b: _Time, period: Period) -> _Time:
    return _Time(period, tuple(sorted(a.words + b.words)), tuple(sorted(a.cuts + b.cuts)))


def _specific(time: _Time) -> tuple[int, float]:
    """The longer wording first, then the shorter period."""
    return sum(end - begin for begin, end in time.words), time.period.start - time.period.end


def _without(text: str, cuts: tuple[tuple[int, int], ...]) -> str:
    """Cut, and close the gap so that no doubled space, empty bracket or stray comma stays."""
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
        glued = not left or not right or right[0] in "?.!,;:)" or left[-1] == "("
        rest = left + right if glued else f"{left} {right}"
    return rest.strip()
