"""What a text mentions: entities known by name, code, files, addresses, @people, #topics. No model is asked.

A mention is a key and the memory that holds it. An entity's row mentions its own name, so one index serves both.
"""

import re
from collections.abc import Iterator
from itertools import islice

from athena.core.page import Page
from athena.core.scope import Scope
from athena.memory import rows as memory_rows
from athena.memory.graph import mention_rows
from athena.memory.graph import rows as graph_rows
from athena.memory.recall import Query, recall
from athena.memory.store import Store
from athena.memory.values import Filter, Memory
from athena.storage import scopes
from athena.storage.database import Transaction

LOOKED_AT = 20_000  # characters of a text
MOST = 100  # mentions of one memory
NAMED = 400  # words of a text that are compared with names
LONGEST_NAME = 4  # words
LONGEST_KEY = 200  # characters
NAMES = 5  # of an entity that was merged from others, under which memories are looked for
WORD = re.compile(r"\w+(?:[+#]+(?!\w))?")  # C++ and C# are not C
# Scripts that put no space between words: names are looked for inside of what looks like one.
DENSE = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]{2,}")
DENSEST = 10  # characters of a name in such a script
DENSE_RUNS = 3_000  # parts of a text that are compared with such names
# Words of every text: one of them is a name only where it is written as the name is.
COMMON = frozenset(
    """a able about after again all also am an and any are as ask at august back bash be bear been but by call can
    case change chase check chip claim clear close code come could dart data day do does done down drive drop each
    early edge end even ever fall fast field file find first flow for from get give go good grant had has have he her
    here hill him his hope hunter i if in into is it its just keep king know last late let like line link list little
    log long look lot made main make many march mark may me meet might mine more most must my name near need new next
    no node not note now of off ok old on once one only or order other our out over own page path people plan point
    port press put queue rail rails read ready red rich right rose ruby run rust said same save saw say see set sharp
    she should show side sky slack small so some spark spring square start state step still stone stop such summer
    swift take task team tell test than that the their them then there these they thing think this those time to today
    too tool two under up us use user very via view want was way we week well went were what when where which while
    who why will win wish with word work would write yes you your""".split()  # noqa: SIM905  # a list of so many would fill a page
)
MARKED = re.compile(
    r"""(?<![\w@\#/.~-])(?:
        (?P<url> https?://[^\s<>"'()\[\]{}]{1,300}+ )
      | (?P<quoted> `[^`\s]{2,60}+` )
      | (?P<tag> [@\#][A-Za-z_][\w-]{0,99}+ )
      | (?P<path> (?:~|\.{1,2})?/?[\w.-]++(?:/[\w.-]++)++ | /[\w.-]++ )
      | (?P<file> [\w-]++\.(?:py|pyi|js|jsx|ts|tsx|md|rst|json|toml|ya?ml|sql|go|rs|c|h|cc|cpp|java|rb|sh|txt|csv|html
                              |css|ini|cfg|lock|ipynb)\b(?!\.\w) )
      | (?P<code> [A-Za-z_]\w*+(?:\.[A-Za-z_]\w*+)*+(?:\(\))? )
    )""",
    re.VERBOSE,
)
CODE = re.compile(r"\w_\w|[a-z0-9][A-Z]|\(\)$|\..*\.")


def fold(name: str) -> str:
    """Return a name as mentions are compared: its words, whatever their case; a common word alone keeps its case."""
    return _key(WORD.findall(name))[:LONGEST_KEY]


def _key(words: list[str]) -> str:
    if len(words) == 1 and words[0].casefold() in COMMON:
        return words[0]
    return " ".join(words).casefold()


def forms(text: str) -> Iterator[tuple[str, str]]:
    """Yield what a text mentions by its form alone: of which form it is (url, tag, path, file, code), and its words."""
    for match in MARKED.finditer(text, 0, LOOKED_AT):
        kind, token = str(match.lastgroup), match[0].rstrip(".,;:!?-/")
        if kind == "quoted":
            inside = list(forms(match[0][1:-1]))
            yield from inside or [("code", match[0][1:-1])]
            continue
        if kind == "code" and not CODE.search(token):
            continue
        if kind == "path" and not (token[:1] in "/~." or token.count("/") > 1 or "." in token.rpartition("/")[2]):
            continue  # and/or, he/she
        if 1 < len(token) <= LONGEST_KEY:
            yield kind, token


def marked(text: str) -> set[str]:
    """Return the keys of what a text mentions by its form alone."""
    found: set[str] = set()
    for _, token in forms(text):
        found.add(key_of(token))
        if len(found) >= MOST:
            break
    return found


def key_of(token: str) -> str:
    """Return the key of something that has a form of its own."""
    return f":{token.removesuffix('()').casefold()}"


def aliases(name: str, digest: str) -> set[str]:
    """Return the keys of a name by which an entity of another name is found: as a text has it, and exactly."""
    return {key for key in (fold(name), key_of(name)[:LONGEST_KEY], exact(digest)) if key}


def exact(digest: str) -> str:
    return f"={digest}"


async def note(tx: Transaction, scope: int, memory: int, text: str, *, anew: bool = False) -> None:
    """Write down what a memory mentions."""
    keys = marked(text)
    where = await mention_rows.graphs(tx, scope)
    if where:
        keys |= await _names(tx, where, text)
    await mention_rows.put(tx, scope, memory, keys, anew=anew)


async def _names(tx: Transaction, graphs: list[int], text: str) -> set[str]:
    """Return the names of entities in a text, the longest where one is a part of another."""
    words = WORD.findall(text[:LOOKED_AT])[:NAMED]
    dense = DENSE.findall(text[:LOOKED_AT])
    runs = _runs(words) | {part for _, part in _parts(dense)}
    known = await mention_rows.known(tx, graphs, [run for run in runs if len(run) <= LONGEST_KEY])
    found: set[str] = set()
    at = 0
    while known and at < len(words):
        fitting = [n for n in range(LONGEST_NAME, 0, -1) if _key(words[at : at + n]) in known]
        if fitting:
            found.add(_key(words[at : at + fitting[0]]))
        at += fitting[0] if fitting else 1
    return found | _longest(dense, known)


def _runs(words: list[str]) -> set[str]:
    """Return every run of words that could be a name."""
    return {_key(words[i : i + n]) for n in range(1, LONGEST_NAME + 1) for i in range(len(words) + 1 - n)}


def _parts(dense: list[str]) -> Iterator[tuple[tuple[int, int], str]]:
    """Return every part of texts without spaces that could be a name, and where each begins, longer ones first."""
    parts = (
        ((which, at), text[at : at + size])
        for which, text in enumerate(dense)
        for at in range(len(text) - 1)
        for size in range(min(DENSEST, len(text) - at), 1, -1)
    )
    return islice(parts, DENSE_RUNS)


def _longest(dense: list[str], known: set[str]) -> set[str]:
    """Return the known names in texts without spaces, going on behind each."""
    found: set[str] = set()
    behind = (0, 0)
    for (which, at), part in _parts(dense):
        if part in known and (which, at) >= behind:
            found.add(part)
            behind = which, at + len(part)
    return found


def names(said: str, text: str) -> bool:
    """Tell whether a text has a name, as it is compared, among its words."""
    words = WORD.findall(text)
    count = said.count(" ") + 1
    if any(_key(words[i : i + count]) == said for i in range(len(words) + 1 - count)):
        return True
    return DENSE.fullmatch(said) is not None and said in text


async def _all_names(tx: Transaction, scope: Scope, name: str) -> list[str]:
    """Return the keys of a name, and of the others that the entity of this name has had."""
    keys = {key: None for key in (fold(name), key_of(name)) if key}
    for number in await scopes.visible(tx, scope.of("entity")):
        rows = await graph_rows.numbered(tx, [number], await mention_rows.memories_of(tx, [number], list(keys)))
        for row in rows:
            keys |= dict.fromkeys(await mention_rows.keys_of(tx, number, row.id))
    return list(keys)


async def of(store: Store, name: str, limit: int, offset: int, scope: Scope) -> Page[Memory]:
    """Return the memories that mention a name, the newest first; also those kept before there was such an entity."""
    keys = await store.database.read(lambda tx: _all_names(tx, scope, name))
    also: list[int] = []
    for said in [key for key in keys if key[:1] not in (":", "=", "")][:NAMES]:
        older = await recall(store, Query(said, Filter(scope), 100), used=False)  # to look is not to recall
        also += [hit.id for hit in older if names(said, hit.content)]

    async def work(tx: Transaction) -> Page[Memory]:
        numbers = await scopes.visible(tx, scope)
        every = {*await mention_rows.memories_of(tx, numbers, keys), *also}
        found = sorted((await memory_rows.fetch(tx, numbers, every)).values(), key=lambda m: (m.created, m.id))
        return Page(found[::-1][offset : offset + limit], len(found))

    return await store.database.read(work)
