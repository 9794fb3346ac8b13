"""Find what a person said that may hold in all projects: it says so, or the person said it in two projects.

It is only offered: nothing goes to the project `user` unless a person keeps it there.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Literal

from athena.core.home.paths import USER_PROJECT
from athena.core.values import Scope
from athena.memory.sessions import learning_rows
from athena.memory.sessions.learning_rows import MAX_COMPARED_CHARS
from athena.memory.sessions.learning_rules import MIN_SAME_OVERLAP, is_same_statement
from athena.memory.sessions.select import extract_words
from athena.memory.sessions.values import EVERYWHERE_KEY, Candidate
from athena.memory.values import Memory
from athena.storage.database import Transaction

Offer = Literal["said", "repeated"]  # it says that it holds everywhere, or was said in another project too
SAID_TYPES = ("preference", "convention", "decision", "fact")
REPEATED_TYPES = ("preference", "convention")  # two projects may decide alike, for reasons of their own
_PLACE = r"(?:projects?|repos?|repositor(?:y|ies)|code ?bases?)"
_WORK = rf"(?:{_PLACE}|work|code|apps?|scripts?|stuff)"
EVERYWHERE_PATTERN = re.compile(
    rf"\b(?:all|any|each|every (?:single )?one)(?: of)? my (?:(?!other)\w+ )?{_WORK}\b|"
    rf"\b(?:every|each|any)(?: single)? {_PLACE} (?:of mine|(?:that |which )?i\b)|"
    r"\b(?:everywhere|wherever) i (?:work|code|go|write)\b|"
    r"\b(?:everything|anything|whatever) i (?:do|write|build|code|work on)\b|"
    r"\balways with me\b|\bwith me,? always\b|"
    rf"\b(?:no matter|regardless of|independent of|whatever|whichever)(?: which| what| the)? {_PLACE}\b|"
    r", everywhere[.!]*$",
    re.IGNORECASE,
)
LIMIT_PATTERN = re.compile(r"\b(?:not|n't|unlike|except|only|instead of)\b[^.;:!?]{0,20}$", re.IGNORECASE)
# "That goes for all my repos.": says it of the sentence before
FOLLOWING_PATTERN = re.compile(
    r"(?:and |so )?(?:that|this|the same|same|it|these|those)\b[^.;:!?\n]{0,40}?\b"
    r"(?:in|for|across|everywhere|wherever|whatever|no matter|always)\b",
    re.IGNORECASE,
)
SENTENCE_PATTERN = re.compile(r"[^.!?;\n]+[.!?;\n]*")


def says_everywhere(text: str) -> bool:
    """Return whether a statement says that it holds in all projects of its speaker."""
    return any(not LIMIT_PATTERN.search(text[: match.start()]) for match in EVERYWHERE_PATTERN.finditer(text))


def mark_everywhere(candidates: Sequence[Candidate], prompts: Sequence[str]) -> list[Candidate]:
    """Return the statements with a mark on those that hold everywhere by their words or by the sentence after them."""
    marked = []
    for candidate in candidates:
        prompt = prompts[candidate.turn - 1] if candidate.turn and candidate.turn <= len(prompts) else ""
        is_marked = candidate.role == "user" and (says_everywhere(candidate.text) or _is_followed(candidate, prompt))
        marked.append(candidate._replace(holds_everywhere=is_marked))
    return marked


def _is_followed(candidate: Candidate, prompt: str) -> bool:
    """Return whether the sentence after a statement says of it that it holds everywhere."""
    start = prompt.casefold().find(candidate.text.casefold().rstrip(".!?; "))
    if start < 0:
        return False
    sentences = SENTENCE_PATTERN.findall(prompt[start + len(candidate.text.rstrip(".!?; ")) :].lstrip(".!?;, \n"))
    following = sentences[0].strip() if sentences else ""
    return FOLLOWING_PATTERN.match(following) is not None and says_everywhere(following)


class OtherStatements:
    """What a person prefers in other projects and told `user`, by its words."""

    def __init__(self, rows: Sequence[tuple[str, str]]) -> None:
        self._rows = rows  # project and text
        self._indexes_by_word: dict[str, list[int]] = defaultdict(list)
        for i, (_, text) in enumerate(rows):
            for word in extract_words(text):
                self._indexes_by_word[word].append(i)

    def find_projects(self, text: str) -> set[str]:
        """Return the projects in which a person said the same."""
        words = extract_words(text)
        shared = Counter(i for word in words for i in self._indexes_by_word.get(word, ()))
        alike = [self._rows[i] for i, count in shared.items() if count >= MIN_SAME_OVERLAP * len(words)]
        return {project for project, other in alike if is_same_statement(text, other)}


async def find_offers(tx: Transaction, scope: Scope, memories: Sequence[Memory]) -> dict[int, Offer]:
    """Return which of a project's learned memories may hold in all projects, and why; not what `user` knows."""
    offers: dict[int, Offer] = {}
    for memory in memories:
        if memory.author != "person" or memory.memory_type not in SAID_TYPES or memory.project == USER_PROJECT:
            continue
        if memory.metadata.get(EVERYWHERE_KEY) or says_everywhere(memory.content):
            offers[memory.id] = "said"
        elif memory.memory_type in REPEATED_TYPES:
            offers[memory.id] = "repeated"
    if not offers:
        return {}
    others = OtherStatements(await learning_rows.list_statements_elsewhere(tx, scope, SAID_TYPES, REPEATED_TYPES))
    projects = {
        memory.id: others.find_projects(memory.content[:MAX_COMPARED_CHARS])
        for memory in memories
        if memory.id in offers
    }
    return {
        memory_id: offer
        for memory_id, offer in offers.items()
        if USER_PROJECT not in projects[memory_id] and (offer == "said" or projects[memory_id])
    }
