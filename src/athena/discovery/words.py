"""Tools by the words they share with a request: BM25 over their fields, and everyday words for what they do."""

import math
import re
import threading
from functools import cache, lru_cache
from typing import Any, NamedTuple

from athena.discovery import thesaurus
from athena.discovery.entry import Entry, legible, spaced

# What a word counts in the name, category, summary, details, parameters, their help, the category's purpose, and
# among the everyday words.
WEIGHTS = (2.5, 2.0, 1.5, 0.5, 0.4, 0.3, 0.5, 1.2)
SATURATION, LENGTH_WEIGHT = 0.8, 0.3  # BM25's k1 and b
INTENT = 0.15  # what it counts that a request asks and the tool only looks, or that both do something
LONGEST = 2_000  # characters of a request whose words are looked at
ACTION = 0.1  # and that both do the same sort of thing

POLITE = (
    r"(?:please|hey|hi|ok(?:ay)?|could you|can you|would you|i(?:'d| would) like to|i want to|i need to|let me|,|\s)*"
)
FIRST = re.compile(r"^" + POLITE + r"(\w+)")
WRITTEN = re.compile(r"\w+(?:\.\w+)+|\w+_\w+")  # `find_duplicates`, `memory.recall`
ASKING = re.compile(
    POLITE
    + r"(?:show|list|find|look|search|read|view|see|check|count|what|which|who|whose|where|when|why|how|is|are|was"
    r"|were|do|does|did|am|will|any|have|has)\b|.*\?",
    re.IGNORECASE | re.DOTALL,
)
DOING = re.compile(
    POLITE
    + r"(?:"
    + "|".join(
        """add make create open start put set write delete remove throw erase drop get\\srid move rename push send post
        email text tell submit file close approve merge commit bump run install apply stop pause play switch turn mark
        save store keep remember give bill log plan ship publish link attach fill press click type choose select decline
        accept answer reply prepare schedule bring call ring shut replace note tick learn clean skip join retry restart
        scale record share upload cancel change update edit correct build copy reset enable disable assign invite book
        order pay refund charge release deploy import insert append convert transfer register raise mute silence lock
        unlock archive tag label notify remind forget undo restore""".split()  # noqa: SIM905  # readable as a text
    )
    + r")\b",
    re.IGNORECASE,
)

# What a tool would be given says what sort of thing it is about, not what is to be done with it.
GIVEN = (
    (re.compile(r"https?://\S+"), " url "),
    (re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+\.[\w.]+"), " person "),
    (re.compile(r"(?<![\w/])[~.]?/[\w.*-]+(?:/[\w.*-]*)+"), " file folder "),
    (re.compile(r"\b[\w-]+\.(?:[a-z]{2,4}|json|yaml|html|docx|xlsx|jpeg|toml|lock)\b(?!\.)"), " file "),
    (re.compile(r"\b[A-Z][A-Z0-9]+-\d+\b"), " issue "),
)

# What may be done, as tools name it and as people say it.
ACTIONS = (
    (
        "create add new insert append write put upload make register record save remember log draft open start",
        "add make create open start put set write file raise register log note jot record save store keep remember"
        " remind offer plan book build publish insert append upload submit new introduce enter draft prepare schedule",
    ),
    (
        "update edit modify set change adjust move rename transition merge convert restore relate link",
        "change update edit correct fix set move rename shift reassign raise bump close mark reschedule push replace"
        " overwrite adjust switch turn dim improve assign merge join link connect convert tick finish",
    ),
    (
        "delete remove forget cancel purge erase stop end drop",
        "delete remove drop erase throw rid forget cancel off kill clear discard end stop wipe shut destroy",
    ),
    (
        "send post reply comment respond call share message note",
        "send tell email mail text post reply answer respond comment notify inform write let ring phone message share",
    ),
    (
        "run execute invoke start restart install build launch play retry activate turn",
        "run execute call invoke launch start trigger bring play boot restart bounce install begin switch turn rerun",
    ),
)


class Analysed(NamedTuple):
    """One entry as it is compared: the stems of each field, and the everyday words for it."""

    fields: tuple[tuple[str, ...], ...]
    also: str


@lru_cache(maxsize=4_096)
def analysed(entry: Entry) -> Analysed:
    names = f"{spaced(entry.name)} {spaced(entry.category)}"
    also = ", ".join(everyday(frozenset(stems(f"{names} {entry.summary}"))))
    fields = (
        spaced(entry.name),
        spaced(entry.category),
        entry.summary,
        entry.details,
        " ".join(spaced(name) for name, _ in entry.parameters),
        " ".join(about for _, about in entry.parameters),
        entry.about,
        also,
    )
    return Analysed(tuple(tuple(stems(field)) for field in fields), also)


def everyday(having: frozenset[str]) -> list[str]:
    """Return what people say for a tool whose name and summary have these stems."""
    return [words for terms, words in _lines() if any(term <= having for term in terms)]


@cache
def _lines() -> list[tuple[list[frozenset[str]], str]]:
    made = []
    for line in thesaurus.LINES.strip().splitlines():
        terms, _, words = line.partition("=")
        if words:
            made.append(([frozenset(stems(term)) for term in terms.split(",")], words.strip()))
    return made


class Words:
    """The postings of some entries."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        every = [analysed(entry) for entry in entries]
        self._count = len(entries)
        self._names = [(entry.name.lower(), entry.path.lower()) for entry in entries]
        self._looks = [entry.looks for entry in entries]
        self._able = [_able(entry) for entry in entries]
        self._postings: dict[str, dict[int, float]] = {}
        for place, weight in enumerate(WEIGHTS):
            mean = sum(len(one.fields[place]) for one in every) / max(1, len(every)) or 1.0
            for number, one in enumerate(every):
                counts = weight / (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * len(one.fields[place]) / mean)
                for stem in one.fields[place]:
                    holding = self._postings.setdefault(stem, {})
                    holding[number] = holding.get(number, 0.0) + counts

    def scores(self, request: str) -> list[float]:
        """Return how well each entry fits a request: 1 for the best, 0 for those that share nothing with it."""
        found = [0.0] * self._count
        for stem in asked(request):
            holding = self._postings.get(stem, {})
            rare = math.log(1 + (self._count - len(holding) + 0.5) / (len(holding) + 0.5))
            weight = rare * (SATURATION + 1)
            for number, counts in holding.items():
                found[number] += weight * counts / (counts + SATURATION)
        best = max(found, default=0.0) or 1.0
        return [score / best for score in found]

    def named(self, request: str) -> list[float]:
        """Return 1 for those that the request calls by their name: as its first word, or as Python writes it."""
        request = request[:LONGEST].lower()
        said = {*WRITTEN.findall(request), *FIRST.findall(request)[:1]}
        return [float(name in said or path in said) for name, path in self._names]

    def intents(self, request: str) -> list[float]:
        """Return how well what each entry does, look or change, fits what is wanted."""
        request = request[:LONGEST]
        wanted = 1 if ASKING.match(request) else -1 if DOING.match(request) else 0
        acts = _actions(request) if wanted < 1 else set()
        return [
            INTENT * (wanted if looks else -wanted) + (ACTION if acts & able else 0.0)
            for looks, able in zip(self._looks, self._able, strict=True)
        ]


def _actions(request: str) -> set[int]:
    """Return what is to be done, by the first words that say so."""
    for word in re.findall(r"[a-z]+", request.lower())[:6]:
        if found := {place for place, (_, said) in enumerate(ACTIONS) if word in said.split()}:
            return found
    return set()


def _able(entry: Entry) -> set[int]:
    """Return what a tool does, by its name and its summary's first word."""
    words = {*spaced(entry.name).lower().split(), *entry.summary.lower().split()[:1]}
    stemmed = words | {word.removesuffix("s") for word in words}
    return {place for place, (named, _) in enumerate(ACTIONS) if stemmed & set(named.split())}


def asked(request: str) -> list[str]:
    """Cut a request into distinct stems, in their order."""
    from athena.storage import terms

    request = legible(request[:LONGEST])
    for pattern, sort in GIVEN:
        request = pattern.sub(sort, request)
    with _guard:
        return [term.stem for term in terms.terms_of(_tokenizer(), request)]


def stems(text: str) -> list[str]:
    from athena.storage import terms

    with _guard:
        return terms.stems(_tokenizer(), legible(text))


_guard = threading.RLock()


@cache
def _tokenizer() -> Any:
    import apsw

    from athena.storage import terms

    return terms.tokenizer(apsw.Connection(":memory:"))
