"""Parse a sentence of a memory into a statement: its subject, predicates, values and negation."""

import re
from functools import cache
from typing import NamedTuple

from athena.core.words import STOP_WORDS
from athena.memory.consolidation.events import split_words, stem

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
SHORT_UNITS = frozenset({"m", "d", "k", "s", "h"})  # units only directly after a number, without a space
STATEMENT_TOKEN_PATTERN = re.compile(r"#?\d+(?:[.,:]\d+)*%?|[^\W\d_]+(?:['’][^\W\d_]+)?(?:[-_][^\W_]+)*\d{0,3}")
SENTENCE_BREAK_PATTERN = re.compile(r"(?<=[.!?;])\s+|\n+")
WEEKDAY_PATTERN = re.compile(r"(mon|tues|wednes|thurs|fri|satur|sun)days?")
MONTH_PATTERN = re.compile(r"(january|february|march|april|may|june|july|august|september|october|november|december)")
NUMBER_START_PATTERN = re.compile(r"#?\d")
NUMBER_PATTERN = re.compile(r"\d+(?:[.,:]\d+)*")
NORMALIZED_CLOCK_PATTERN = re.compile(r"\d\d:\d\d")
ANY_MORE_PATTERN = re.compile(r"\bany (?:more|longer)\b", re.IGNORECASE)
# Too vague to compare, unless the sentence has no other subject.
VAGUE_SUBJECTS = frozenset(split_words("team service office server company"))
LINKING_VERBS = frozenset(split_words("is are was were has have had"))  # the subject ends before these
GENERIC_PREDICATES = frozenset({"run", "use", "listen", "start", "named"})
TIMEOUT_PATTERN = re.compile(r"time[sd]? out\b", re.IGNORECASE)
AFTER_COLON_PATTERN = re.compile(r":\s+(\d+(?:[.,:]\d+)*%?)")
CURRENCIES = frozenset(split_words("euros dollars pounds francs yen eur usd gbp chf"))
SCOPE_PREPOSITIONS = frozenset(split_words("for of in about to at within into on"))
NEGATION_WORDS = frozenset(
    split_words(
        """not no never none nobody nothing cannot can't don't doesn't didn't isn't aren't wasn't won't mustn't
    shouldn't without neither nor unable"""
    )
)
CHANGE_WORDS = frozenset(
    split_words(
        """now switched moved replaced changed migrated renamed upgraded downgraded raised lowered cut instead longer
    anymore rather formerly previously became stopped dropped taken took over superseded increased reduced reverted"""
    )
)
# A number after one of these identifies a thing, it does not measure it.
NUMBERED_NOUNS = frozenset(
    split_words(
        """ticket issue pr pull request commit build run v version release invoice order task case bug step phase sprint
    chapter section page user customer account incident milestone iteration attempt batch job item round lesson exercise
    question story epic flight room server node shard experiment revision draft part volume track episode"""
    )
)
OCCASION_WORDS = frozenset(
    split_words(
        """took today yesterday tonight lasted happened crashed occurred met visited done peaked agreed finished
    completed measured observed reached"""
    )
)
QUALIFIER_PREPOSITIONS = frozenset(split_words("for in on at during by"))
MAX_QUALIFIER_WORDS = 3  # after a preposition
ADDITIVE_VERBS = frozenset(
    split_words(
        """likes like loves love knows know includes include contains contain supports support also enjoys plays speaks
    added adds"""
    )
)
# The words of one line are forms of the same predicate, named by the first.
PREDICATE_FORMS = [
    "own owns owner owned owning maintain maintains maintainer maintained responsible lead leads led charge",
    "live lives lived living home based base resides reside located",
    "expire expires expired expiry expiration timeout timeouts time-out valid",
    "deploy deploys deployed deploying deployment deployments ship ships shipped release releases released",
    "use uses used using usage work works working rely relies",
    "limit limits limited limitation cap capped allows allow allowed maximum",
    "listen listens listening bound",
    "run runs running ran pinned pin version requires require required needs need",
    "indent indents indented indentation",
    "cost costs budget",
    "start starts begin begins starting",
    "end ends stop stops finish",
    "prefer prefers preferred preference",
    "keep keeps kept retain retains retained retention store stores stored",
    "hosted host hosts hosting",
    "review reviews reviewed reviewer",
    "meeting meet meets",
    "retry retries retried",
    "named called name",
]
OPPOSITE_PAIRS = split_words(
    """enabled/disabled enable/disable on/off always/never allowed/forbidden allow/forbid open/closed
    public/private true/false required/optional mandatory/optional sync/async synchronous/asynchronous
    before/after success/failure active/inactive online/offline supported/unsupported visible/hidden tabs/spaces
    light/dark up/down increase/decrease accept/reject safe/unsafe stable/unstable manual/automatic
    manually/automatically hot/cold encrypted/unencrypted stateful/stateless paid/free strict/lenient
    must/mustn't blocked/unblocked deprecated/current"""
)
# Also plain words that take no side.
AMBIGUOUS_OPPOSITES = frozenset(split_words("on up before after down must free current off"))
# Words that are never the topic of a statement.
FILLER_WORDS = STOP_WORDS | frozenset(
    split_words("it's onto every everything still yet per via team service code base called way want")
)


@cache
def _load_tables() -> tuple[dict[str, str], dict[str, tuple[str, int]]]:
    """Return the predicate of each form, and of each opposite its axis with its side, 1 or -1."""
    predicates = {word: line.split()[0] for line in PREDICATE_FORMS for word in line.split()}
    axes: dict[str, tuple[str, int]] = {}
    for pair in OPPOSITE_PAIRS:
        positive, negative = pair.split("/")
        axis = axes.get(negative, (pair, -1))[0]  # "required" and "mandatory" are both the opposite of "optional"
        axes.setdefault(positive, (axis, 1))
        axes.setdefault(negative, (axis, -1))
    return predicates, axes


NO_WORDS: frozenset[str] = frozenset()


class StatementValue(NamedTuple):
    """A number, clock time, weekday or currency that a statement gives."""

    value_type: str
    text: str


NO_VALUES: frozenset[StatementValue] = frozenset()


class Statement(NamedTuple):
    memory_id: int
    at: float
    text: str
    subject_stems: frozenset[str]
    capitalized_stems: frozenset[str]  # subject stems that are written with a capital
    leading_stems: frozenset[str]  # subject stems before the predicate
    qualifiers: frozenset[str]  # words that say for whom, where or when it holds
    stems: frozenset[str]  # all words
    scope_stems: frozenset[str]  # subject stems after "for", "in", "of" ...
    predicates: frozenset[str]
    values: frozenset[StatementValue]
    identifiers: frozenset[str]  # numbers of tickets, versions ...
    axes: dict[str, int]  # the side that it takes of each pair of opposites
    is_negated: bool
    says_change: bool
    is_one_time: bool
    is_additive: bool


def split_sentences(text: str, limit: int = 6) -> list[str]:
    """Return the first sentences of 2 to 40 words."""
    sentences = SENTENCE_BREAK_PATTERN.split(text[:3_000])
    return [sentence for sentence in sentences if 2 <= sentence.count(" ") + 1 <= 40][:limit]


def is_one_sentence(text: str) -> bool:
    return len(SENTENCE_BREAK_PATTERN.split(text.strip())) == 1


def to_template(text: str) -> str:
    """Return a sentence with N for its numbers."""
    return NUMBER_PATTERN.sub("N", " ".join(text.split()))


def differs_in_one_value(text: str, other: str) -> bool:
    """Return whether two sentences are the same except for one number, one weekday or one pair of opposites."""
    words, other_words = (sentence.strip().rstrip(".!").split() for sentence in (text, other))
    differences = [(a.lower(), b.lower()) for a, b in zip(words, other_words, strict=False) if a != b]
    if len(words) != len(other_words) or len(differences) != 1:
        return False
    axes = _load_tables()[1]
    first, second = (word.strip(",;:()'\"") for word in differences[0])
    if first in axes and second in axes:
        return axes[first][0] == axes[second][0] and axes[first][1] != axes[second][1]
    return all(map(NUMBER_PATTERN.match, (first, second))) or all(map(WEEKDAY_PATTERN.fullmatch, (first, second)))


def _is_opposite(word: str) -> bool:
    """Return whether a word negates or is one of an unambiguous pair of opposites."""
    axis = _load_tables()[1].get(word)
    return word in NEGATION_WORDS or (axis is not None and AMBIGUOUS_OPPOSITES.isdisjoint(axis[0].split("/")))


def _extract_qualifiers(words: list[str]) -> frozenset[str]:
    qualifiers: set[str] = set()
    left = 0
    for word in words:
        if word in QUALIFIER_PREPOSITIONS:
            left = MAX_QUALIFIER_WORDS
        elif word in LINKING_VERBS or word in SCOPE_PREPOSITIONS or NUMBER_START_PATTERN.match(word):
            left = 0
        elif left and word not in FILLER_WORDS and not _is_opposite(word) and not WEEKDAY_PATTERN.fullmatch(word):
            qualifiers.add(stem(word))
            left -= 1
    return frozenset(qualifiers)


def parse_statement(memory_id: int, at: float, text: str) -> Statement:
    """Parse one sentence of a memory."""
    predicates, axes = _load_tables()
    text = text.replace("’", "'")
    normalized = normalize_quantities(ANY_MORE_PATTERN.sub("anymore", TIMEOUT_PATTERN.sub("timeout", text)))
    raw = STATEMENT_TOKEN_PATTERN.findall(normalized)
    after_colon = set(AFTER_COLON_PATTERN.findall(normalized))
    subject_length = len(STATEMENT_TOKEN_PATTERN.findall(normalized.partition(": ")[0]))  # "billing invoices: euros"
    lower = [token.lower().removesuffix("'s") for token in raw]
    subject: dict[str, str] = {}  # stem -> the word as written
    found_predicates: set[str] = set()
    predicate_stems: set[str] = set()
    values: set[StatementValue] = set()
    identifiers: set[str] = set()
    sides: dict[str, int] = {}
    leading: set[str] = set()
    scoped: set[str] = set()
    inverted = " is what " in text
    negations, has_month, after_verb, vague_subject = 0, False, False, ""
    for i, word in enumerate(lower):
        previous = lower[i - 1] if i else ""
        after_verb = after_verb or word in LINKING_VERBS or word in CHANGE_WORDS
        if word in VAGUE_SUBJECTS and not after_verb and not found_predicates and not leading:
            vague_subject = word
        following = lower[i + 1] if i + 1 < len(lower) else ""
        if NUMBER_START_PATTERN.match(word):
            if (
                word.startswith("#")
                or (previous in NUMBERED_NOUNS and word not in after_colon)
                or MONTH_PATTERN.fullmatch(previous)
            ):
                identifiers.add(word)
            elif NORMALIZED_CLOCK_PATTERN.fullmatch(word):
                values.add(StatementValue("clock", word))
            else:
                values.add(
                    StatementValue(f"number {_find_unit('' if word in after_colon else previous, following)}", word)
                )
        elif match := WEEKDAY_PATTERN.fullmatch(word):
            values.add(StatementValue("weekday", match[1]))
        elif word in CURRENCIES and not NUMBER_START_PATTERN.match(previous):
            values.add(StatementValue("currency", stem(word)))
        elif MONTH_PATTERN.fullmatch(word) and (
            (raw[i][0].isupper() and word != "may") or NUMBER_START_PATTERN.match(following)
        ):
            has_month = True
            identifiers.add(word)
        elif len(word) > 1 and word[0] == "v" and word[1:].isdigit():
            identifiers.add(word)
        elif word in NEGATION_WORDS:
            negations += not (word == "no" and following == "longer")
            if word in axes:
                sides[axes[word][0]] = axes[word][1]
        elif "longer" in lower[max(i - 2, 0) : i] and word in axes:
            continue  # it was so before
        elif word in axes and word not in AMBIGUOUS_OPPOSITES:
            sides[axes[word][0]] = axes[word][1]
        elif word in predicates:
            found_predicates.add(predicates[word])
            if predicates[word] not in GENERIC_PREDICATES:
                predicate_stems.add(stem(word))
        elif word not in FILLER_WORDS and word not in CHANGE_WORDS and not NUMBER_START_PATTERN.match(previous):
            key = stem(word)
            subject.setdefault(key, raw[i])
            if not found_predicates and not inverted and not after_verb and i < subject_length:
                leading.add(key)
            if previous in SCOPE_PREPOSITIONS or (previous == "the" and i > 1 and lower[i - 2] in SCOPE_PREPOSITIONS):
                scoped.add(key)
    if vague_subject and not leading:  # "the team moved to Oslo" is about the team
        subject.setdefault(vague_subject, "")
        leading.add(vague_subject)
    if not subject:  # "deploys run on Fridays" is about the deploys
        subject = dict.fromkeys(predicate_stems or found_predicates, "")
    changing = [word for word in lower if word in CHANGE_WORDS]
    # A store has many statements, and most of their sets are empty or equal to another one: these share one object.
    stems = frozenset(map(stem, lower))
    subject_stems = stems if subject.keys() == stems else frozenset(subject)
    return Statement(
        memory_id, at, text, subject_stems,
        frozenset(k for k, shown in subject.items() if shown[:1].isupper()) or NO_WORDS,
        subject_stems if leading == subject_stems else frozenset(leading) or NO_WORDS,
        _extract_qualifiers(lower) or NO_WORDS, stems, frozenset(scoped) or NO_WORDS,
        frozenset(found_predicates) or NO_WORDS, frozenset(values) or NO_VALUES, frozenset(identifiers) or NO_WORDS,
        sides, negations % 2 == 1,
        bool(changing) and not (changing == ["took"] and "over" not in lower),
        has_month or (any(word in OCCASION_WORDS for word in lower) and "over" not in lower),
        any(word in ADDITIVE_VERBS for word in lower),
    )  # fmt: skip


def _find_unit(previous: str, following: str) -> str:
    """Return the stem of the thing that a number counts: the word after it, else the one before it."""
    for word in (following, previous):
        if word and word not in FILLER_WORDS and not NUMBER_START_PATTERN.match(word) and word not in CHANGE_WORDS:
            return stem(word)
    return ""


def normalize_quantities(text: str) -> str:
    """Write times as 14:30, durations in seconds, sizes in kilobytes and numbers in digits without separators."""
    text = CLOCK_TIME_PATTERN.sub(_format_clock, text)
    text = NAMED_TIME_PATTERN.sub(lambda match: NAMED_TIMES[match[0].lower()], text)
    text = HALF_UNIT_PATTERN.sub("0.5 ", QUARTER_HOUR_PATTERN.sub("0.25 ", text))
    text = SINGLE_UNIT_PATTERN.sub(
        lambda match: "1 " if VALUE_LEAD_PATTERN.search(text[: match.start()]) else match[0], text
    )
    text = RATE_PATTERN.sub(lambda match: f" per {RATE_UNITS.get(match[1].lower(), match[1])}", text)
    text = NUMBER_WORD_PATTERN.sub(lambda match: str(NUMBER_WORDS[match[0].lower()]), text)
    return AMOUNT_PATTERN.sub(_format_amount, text)


def _format_clock(match: re.Match[str]) -> str:
    hour, minute = int(match[1] or match[4]), match[2] or match[5] or "00"
    if match[3]:
        if hour > 12:
            return match[0]
        hour = hour % 12 + (12 if match[3].lower() == "p" else 0)
    return f"{hour:02d}:{minute}"


def _format_amount(match: re.Match[str]) -> str:
    amount, unit = float(match[1].replace(",", "")), (match[3] or "").lower()
    if unit in SHORT_UNITS and match[2]:
        return match[0]
    if unit in ("percent", "per cent"):
        return f"{amount:g}%"
    single = unit.removesuffix("s") if len(unit) > 2 else unit
    if single in UNIT_SECONDS:
        return f"{amount * UNIT_SECONDS[single]:.10g} seconds"
    if unit in UNIT_KILOBYTES:
        return f"{amount * UNIT_KILOBYTES[unit]:.12g} kilobytes"
    if unit in MULTIPLIERS:
        return f"{amount * MULTIPLIERS[unit]:.12g}"
    return f"{match[1].replace(',', '')}{match[2]}{match[3] or ''}"
