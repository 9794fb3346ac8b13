"""Read the labelled sessions of `data/sessions`, whose README describes their form."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from athena.embedding.minilm import MiniLM
from athena.memory.sessions.classifier import KINDS
from athena.memory.sessions.fragments import Fragment
from athena.memory.sessions.select import find_specific_words

FOLDER = Path(__file__).parents[1] / "data" / "sessions"
NUMBER_PATTERN = re.compile(r"\d[\w.:/]*")
MIN_GOLD_SIMILARITY, MIN_GOLD_WORDS = 0.5, 0.6  # of the words that say what is replaced, to a statement
JUDGES = ("rafa", "olek", "hugo")  # writers whose sessions show what a language model could add
# the latest writers of changes of mind, in two halves: what learns from one judges by the other
FOLDS = (
    ("tess", "dina", "edda", "keiko", "sorin", "milo", "uri"),
    ("arlo", "ravi", "jory", "pavel", "wanda", "fern"),
)


class Clause(NamedTuple):
    """A clause of a turn, by its position in the text."""

    start: int
    end: int
    kind: str
    is_worth_keeping: bool
    statement: str  # the same for a stranger
    replaced: str  # what it replaces


class Turn(NamedTuple):
    text: str
    answer: str  # what the agent said before
    clauses: list[Clause]


class NamedStatement(NamedTuple):
    """A statement that a later one may name as replaced."""

    number: int  # of the statement in its project
    text: str  # the writer's statement and the words of the talk
    vector: Any  # of the writer's statement


class Session(NamedTuple):
    name: str
    writer: str
    project: str
    turns: list[Turn]


def read_sessions(folder: Path = FOLDER) -> list[Session]:
    """Read the sessions of all writers."""
    return [session for file in sorted(folder.glob("*.txt")) for session in parse_sessions(file.read_text("utf-8"))]


def parse_sessions(text: str) -> Iterator[Session]:
    for block in text.split("@session ")[1:]:
        head, *lines = block.splitlines()
        facts = dict(re.findall(r"(\w+)=(\S+)", head))
        session = Session(facts["id"], facts["id"].partition("-")[0], facts["project"], [])
        answer = ""
        for line in lines:
            mark, _, rest = line.partition(" ")
            if mark == "A":
                answer = rest
            elif mark == "U":
                session.turns.append(Turn(rest.replace("\\n", "\n"), answer, []))
            elif mark == "=":
                session.turns[-1].clauses.append(parse_clause(rest, session.turns[-1]))
        yield session


def parse_clause(line: str, turn: Turn) -> Clause:
    """Return the clause of a `=` line, which continues its turn."""
    label, words, *more = (field.strip() for field in line.split("|"))
    kind, _, plus = label.partition(" ")
    if kind not in KINDS:
        raise ValueError(f"unknown label: {label!r} (use one of {', '.join(KINDS)})")
    start, end = find_words(turn.text, words.replace("\\n", "\n"), turn.clauses[-1].end if turn.clauses else 0)
    replaced = next((field[1:].strip() for field in more[1:] if field.startswith("~")), "")
    return Clause(start, end, kind, plus == "+", more[0] if more else "", replaced)


def find_words(text: str, words: str, start: int) -> tuple[int, int]:
    """Return where words stand in a text, in any case and with any spaces, after `start` if possible."""
    places = [i for i, char in enumerate(text) if not char.isspace()]
    flat = "".join(text[i].lower()[0] for i in places)
    wanted = "".join(char.lower()[0] for char in words if not char.isspace())
    first = flat.find(wanted, sum(i < start for i in places))
    if first < 0:
        first = flat.find(wanted)
    if first < 0 or not wanted:
        raise ValueError(f"the turn does not have these words: {words!r} (copy them from the U line)")
    return places[first], places[first + len(wanted) - 1] + 1


def find_target(gold: Sequence[NamedStatement], words: str, model: MiniLM) -> int | None:
    """Return which statement a writer's words name: by meaning, words and numbers; of equal ones the latest."""
    if not gold:
        return None
    (vector,) = model.embed([words])
    similarities = [float(one.vector @ vector) for one in gold]
    names, numbers = find_specific_words(words), set(NUMBER_PATTERN.findall(words))
    best, best_score = None, -1.0
    for one, similarity in zip(gold, similarities, strict=True):
        shared = len(names & find_specific_words(one.text)) / max(1, len(names))
        same = len(numbers & set(NUMBER_PATTERN.findall(one.text))) / len(numbers) if numbers else 0.0
        score = similarity + 0.3 * shared + (0.15 * same if same or not numbers else -0.2)
        if score >= best_score:
            is_named = similarity >= MIN_GOLD_SIMILARITY or shared >= MIN_GOLD_WORDS
            best, best_score = (one.number if is_named else None), score
    return best


def match_clauses(fragments: Sequence[Fragment], clauses: Sequence[Clause]) -> list[int | None]:
    """Return for each fragment the number of the clause that it shares most characters with, if any."""
    matches: list[int | None] = []
    for fragment in fragments:
        shared = [min(fragment.end, clause.end) - max(fragment.start, clause.start) for clause in clauses]
        best = max(range(len(clauses)), key=shared.__getitem__, default=None)
        matches.append(best if best is not None and shared[best] > 0 else None)
    return matches
