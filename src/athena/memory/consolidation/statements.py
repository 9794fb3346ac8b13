"""One sentence of a memory as a statement: what it is about, the values that it gives, and whether it denies."""

import re
from functools import lru_cache
from typing import NamedTuple

from athena.memory.consolidation.quantity import plain
from athena.memory.consolidation.signature import listed, stem

TOKEN = re.compile(r"#?\d+(?:[.,:]\d+)*%?|[^\W\d_]+(?:['’][^\W\d_]+)?(?:[-_][^\W_]+)*\d{0,3}")
SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+")
WEEKDAY = re.compile(r"(mon|tues|wednes|thurs|fri|satur|sun)days?")
MONTH = re.compile(r"(january|february|march|april|may|june|july|august|september|october|november|december)")
NUMBER = re.compile(r"#?\d")
ANY_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
CLOCK = re.compile(r"\d\d:\d\d")
ANY_MORE = re.compile(r"\bany (?:more|longer)\b", re.IGNORECASE)
# Too vague to be compared, unless there is nothing else before the predicate.
VAGUE_SUBJECTS = frozenset(listed("team service office server company"))
VERBS = frozenset(listed("is are was were has have had"))  # end a subject
GENERIC = frozenset({"run", "use", "listen", "start", "named"})  # predicates that say little
TIMEOUT = re.compile(r"time[sd]? out\b", re.IGNORECASE)
AFTER_COLON = re.compile(r":\s+(\d+(?:[.,:]\d+)*%?)")
CURRENCIES = frozenset(listed("euros dollars pounds francs yen eur usd gbp chf"))
SCOPING = frozenset(listed("for of in about to at within into on"))
DENIALS = frozenset(
    listed(
        """not no never none nobody nothing cannot can't don't doesn't didn't isn't aren't wasn't won't mustn't
    shouldn't without neither nor unable"""
    )
)
CHANGES = frozenset(
    listed(
        """now switched moved replaced changed migrated renamed upgraded downgraded raised lowered cut instead longer
    anymore rather formerly previously became stopped dropped taken took over superseded increased reduced reverted"""
    )
)
# Numbers behind these name a thing, they do not measure it.
NAMING = frozenset(
    listed(
        """ticket issue pr pull request commit build run v version release invoice order task case bug step phase sprint
    chapter section page user customer account incident milestone iteration attempt batch job item round lesson exercise
    question story epic flight room server node shard experiment revision draft part volume track episode"""
    )
)
OCCASIONS = frozenset(
    listed(
        """took today yesterday tonight lasted happened crashed occurred met visited done peaked agreed finished
    completed measured observed reached"""
    )
)
QUALIFYING = frozenset(listed("for in on at during by"))  # the words behind these say of what a statement holds
QUALIFIED = 3  # words behind one of these
ADDING = frozenset(
    listed(
        """likes like loves love knows know includes include contains contain supports support also enjoys plays speaks
    added adds"""
    )
)
# One word of each line stands for all: they say that something is so, and what it is about stands beside them.
PREDICATES = [
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
OPPOSITES = listed(
    """enabled/disabled enable/disable on/off always/never allowed/forbidden allow/forbid open/closed
    public/private true/false required/optional mandatory/optional sync/async synchronous/asynchronous
    before/after success/failure active/inactive online/offline supported/unsupported visible/hidden tabs/spaces
    light/dark up/down increase/decrease accept/reject safe/unsafe stable/unstable manual/automatic
    manually/automatically hot/cold encrypted/unencrypted stateful/stateless paid/free strict/lenient
    must/mustn't blocked/unblocked deprecated/current"""
)
VAGUE = frozenset(listed("on up before after down must free current off"))  # take a side only by chance
FILLER = frozenset(
    listed(
        """a an the of in on at to for from with by as is are was were be been being it its it's this that these those
    and or but if then than so i we you he she they our my your his her their me us them do does did done will
    would can could should may might must about into onto over under after before while when where which who
    what how every each all any some there here just still yet very team service everything per via code base
    called way want us up out has have had"""
    )
)


@lru_cache(maxsize=1)
def _tables() -> tuple[dict[str, str], dict[str, tuple[str, int]]]:
    predicates = {word: line.split()[0] for line in PREDICATES for word in line.split()}
    axes: dict[str, tuple[str, int]] = {}
    for pair in OPPOSITES:
        one, other = pair.split("/")
        axis = axes.get(other, (pair, -1))[0]  # required and mandatory are both the opposite of optional
        axes.setdefault(one, (axis, 1))
        axes.setdefault(other, (axis, -1))
    return predicates, axes


class Value(NamedTuple):
    """A number, a day or another word that fills a place in a statement."""

    kind: str
    text: str


class Statement(NamedTuple):
    note: int
    at: float
    text: str
    words: frozenset[str]  # what it is about
    capitals: frozenset[str]  # of these, the words written with a capital
    before: frozenset[str]  # of these, the words before the predicate
    qualifiers: frozenset[str]  # words that say for whom, where or when it holds
    stems: frozenset[str]  # all of its words
    scoped: frozenset[str]  # of these, what the statement is said of: "for X", "in X", "of X"
    predicates: frozenset[str]
    values: frozenset[Value]
    names: frozenset[str]  # numbers that name a thing: a ticket's, a version's
    axes: dict[str, int]  # opposites that it takes a side of
    denies: bool
    changes: bool
    occasion: bool
    adds: bool


def sentences(text: str, most: int = 6) -> list[str]:
    """Return the first sentences that are neither too short nor too long to be one statement."""
    return [one for one in SENTENCE.split(text[:3_000]) if 2 <= one.count(" ") + 1 <= 40][:most]


def is_one_sentence(text: str) -> bool:
    return len(SENTENCE.split(text.strip())) == 1


@lru_cache(maxsize=20_000)
def template(text: str) -> str:
    """Return what sentences share that differ only in their numbers."""
    return ANY_NUMBER.sub("N", " ".join(text.split()))


def is_one_value_apart(one: str, other: str) -> bool:
    """Tell whether two sentences are the same word for word, but for one number, one day or one opposite."""
    mine, theirs = (text.strip().rstrip(".!").split() for text in (one, other))
    apart = [(a.lower(), b.lower()) for a, b in zip(mine, theirs, strict=False) if a != b]
    if len(mine) != len(theirs) or len(apart) != 1:
        return False
    axes = _tables()[1]
    first, second = (word.strip(",;:()'\"") for word in apart[0])
    if first in axes and second in axes:
        return axes[first][0] == axes[second][0] and axes[first][1] != axes[second][1]
    return all(map(ANY_NUMBER.match, (first, second))) or all(map(WEEKDAY.fullmatch, (first, second)))


def _is_opposite(word: str) -> bool:
    """Tell whether a word denies, or takes a side that its opposite takes just as surely."""
    axis = _tables()[1].get(word)
    return word in DENIALS or (axis is not None and VAGUE.isdisjoint(axis[0].split("/")))


def _qualifiers(lower: list[str]) -> frozenset[str]:
    found: set[str] = set()
    left = 0
    for word in lower:
        if word in QUALIFYING:
            left = QUALIFIED
        elif word in VERBS or word in SCOPING or NUMBER.match(word):
            left = 0
        elif left and word not in FILLER and not _is_opposite(word) and not WEEKDAY.fullmatch(word):
            found.add(stem(word))
            left -= 1
    return frozenset(found)


def read(note: int, at: float, text: str) -> Statement:
    """Take a sentence apart."""
    predicates, axes = _tables()
    text = text.replace("’", "'")
    even = plain(ANY_MORE.sub("anymore", TIMEOUT.sub("timeout", text)))
    raw = TOKEN.findall(even)
    after_colon = set(AFTER_COLON.findall(even))
    subject = len(TOKEN.findall(even.partition(": ")[0]))  # "billing invoices: euros"
    lower = [token.lower().removesuffix("'s") for token in raw]
    words: dict[str, str] = {}
    found: set[str] = set()
    values: set[Value] = set()
    names: set[str] = set()
    sides: dict[str, int] = {}
    before: set[str] = set()
    scoped: set[str] = set()
    inverted = " is what " in text
    denials, months, told, vague = 0, False, False, ""
    spoken: set[str] = set()
    for i, word in enumerate(lower):
        previous = lower[i - 1] if i else ""
        told = told or word in VERBS or word in CHANGES
        if word in VAGUE_SUBJECTS and not told and not found and not before:
            vague = word
        following = lower[i + 1] if i + 1 < len(lower) else ""
        if NUMBER.match(word):
            if word.startswith("#") or (previous in NAMING and word not in after_colon) or MONTH.fullmatch(previous):
                names.add(word)
            elif CLOCK.fullmatch(word):
                values.add(Value("clock", word))
            else:
                values.add(Value(f"number {_unit('' if word in after_colon else previous, following)}", word))
        elif match := WEEKDAY.fullmatch(word):
            values.add(Value("weekday", match[1]))
        elif word in CURRENCIES and not NUMBER.match(previous):
            values.add(Value("currency", stem(word)))
        elif MONTH.fullmatch(word) and ((raw[i][0].isupper() and word != "may") or NUMBER.match(following)):
            months = True
            names.add(word)
        elif len(word) > 1 and word[0] == "v" and word[1:].isdigit():
            names.add(word)
        elif word in DENIALS:
            denials += not (word == "no" and following == "longer")
            if word in axes:
                sides[axes[word][0]] = axes[word][1]
        elif "longer" in lower[max(i - 2, 0) : i] and word in axes:
            continue  # what was so, and is no longer
        elif word in axes and word not in VAGUE:
            sides[axes[word][0]] = axes[word][1]
        elif word in predicates:
            found.add(predicates[word])
            if predicates[word] not in GENERIC:
                spoken.add(stem(word))
        elif word not in FILLER and word not in CHANGES and not NUMBER.match(previous):
            key = stem(word)
            words.setdefault(key, raw[i])
            if not found and not inverted and not told and i < subject:
                before.add(key)
            if previous in SCOPING or (previous == "the" and i > 1 and lower[i - 2] in SCOPING):
                scoped.add(key)
    if vague and not before:  # "the team moved to Oslo" is about the team
        words.setdefault(vague, "")
        before.add(vague)
    if not words:  # "deploys run on Fridays" is about the deploys
        words = dict.fromkeys(spoken or found, "")
    changing = [word for word in lower if word in CHANGES]
    return Statement(
        note, at, text, frozenset(words), frozenset(k for k, shown in words.items() if shown[:1].isupper()),
        frozenset(before), _qualifiers(lower), frozenset(map(stem, lower)), frozenset(scoped),
        frozenset(found), frozenset(values), frozenset(names), sides,
        denials % 2 == 1,
        bool(changing) and not (changing == ["took"] and "over" not in lower),
        months or (any(word in OCCASIONS for word in lower) and "over" not in lower),
        any(word in ADDING for word in lower),
    )  # fmt: skip


def _unit(previous: str, following: str) -> str:
    """Return what a number counts: the word behind it, else the one before it."""
    for word in (following, previous):
        if word and word not in FILLER and not NUMBER.match(word) and word not in CHANGES:
            return stem(word)
    return ""
