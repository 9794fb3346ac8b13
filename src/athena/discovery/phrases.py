"""What people say when they want a tool: short requests, which the model compares with a request one by one.

They stand in `phrases.txt` under terms. An operation of ours is found by its path; a tool of another server by the
words of its name and category, where a verb also stands for its like. Of the terms that fit a tool only those count
that say most of its name: "create issue comment" before "create issue".
"""

from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from athena.discovery.entry import Entry, split_name
from athena.discovery.stems import stem_text
from athena.programs.skill_values import KeptSkill

# Verbs that tools use for the same.
VERB_GROUPS = (
    "create add new insert append make",
    "get read retrieve fetch show view describe return open",
    "search find query lookup",
    "update edit modify change set adjust",
    "delete remove",
    "list",
    "send post",
    "start run launch",
    "stop pause",
    "reply respond",
    "upload put",
    "download",
)


class _PhraseLine(NamedTuple):
    words: frozenset[str]
    requests: tuple[str, ...]


@lru_cache(maxsize=4_096)
def find_phrases(entry: Entry) -> tuple[str, ...]:
    """Return what people say when they want this tool; nothing for one that nobody thought of."""
    paths, lines = _load_phrases()
    if isinstance(entry.target, KeptSkill):
        return ()
    if not entry.target.is_foreign:
        return paths.get(entry.path, ())
    name = frozenset(stem_text(split_name(entry.name)))
    kinds = _map_verbs()
    verbs = name & kinds.keys() or frozenset(stem_text(entry.summary)[:1]) & kinds.keys()
    having = (name | frozenset(stem_text(split_name(entry.category)))) - kinds.keys() | {kinds[verb] for verb in verbs}
    named = name - kinds.keys() | {kinds[verb] for verb in verbs}
    fitting = [(len(line.words & named), line.requests) for line in lines if line.words <= having]
    most = max((count for count, _ in fitting), default=0)
    return tuple(dict.fromkeys(one for count, requests in fitting if count == most for one in requests))


@cache
def _map_verbs() -> dict[str, str]:
    """Return for the stem of each verb one that stands for all of its like."""
    return {stem: group.split()[0] for group in VERB_GROUPS for stem in stem_text(group)}


@cache
def _load_phrases() -> tuple[dict[str, tuple[str, ...]], list[_PhraseLine]]:
    """Return the requests by the paths of operations, and the lines for tools of other servers."""
    paths: dict[str, tuple[str, ...]] = {}
    lines = []
    for terms, requests in _parse_phrases(Path(__file__).with_name("phrases.txt").read_text("utf-8")):
        for term in terms.split(", "):
            if "." in term:
                paths[term] = requests
            else:
                lines.append(_PhraseLine(frozenset(_map_verbs().get(stem, stem) for stem in stem_text(term)), requests))
    return paths, lines


def _parse_phrases(text: str) -> list[tuple[str, tuple[str, ...]]]:
    made: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith(" "):
            made[-1][1].append(line.strip())
        elif line and not line.startswith("#"):
            made.append((line, []))
    return [(terms, tuple(" ".join(parts).split("; "))) for terms, parts in made]
