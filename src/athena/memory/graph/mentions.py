"""What a text mentions: entities known by name, code, files, addresses, @people, #topics. No model is asked.

A mention is a key and the memory that holds it. An entity's row mentions its own name, so one index serves both.
"""

import re
from collections.abc import Iterator
from itertools import islice

from athena.core.values import Page, Scope
from athena.memory import rows as memory_rows
from athena.memory.graph import rows as graph_rows
from athena.memory.recall import Query, recall
from athena.memory.store import Store
from athena.memory.values import Memory
from athena.storage import scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter

MAX_MENTION_TEXT_CHARS = 20_000  # characters of a text
MAX_MENTIONS = 100  # mentions of one memory
MAX_SCANNED_WORDS = 400  # words of a text that are compared with names
MAX_NAME_WORDS = 4  # words
MAX_KEY_CHARS = 200  # characters
MAX_SEARCHED_NAMES = 5  # of an entity that was merged from others, under which memories are looked for
NAME_WORD_PATTERN = re.compile(r"\w+(?:[+#]+(?!\w))?")  # C++ and C# are not C
# Scripts that put no space between words: names are looked for inside of what looks like one.
UNSPACED_PATTERN = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]{2,}")
MAX_UNSPACED_NAME_CHARS = 10  # characters of a name in such a script
MAX_UNSPACED_PARTS = 3_000  # parts of a text that are compared with such names
# Words of every text: one of them is a name only where it is written as the name is.
COMMON_WORDS = frozenset(
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
MENTION_PATTERN = re.compile(
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
CODE_PATTERN = re.compile(r"\w_\w|[a-z0-9][A-Z]|\(\)$|\..*\.")


def fold_name(name: str) -> str:
    """Return a name as mentions are compared: its words, whatever their case; a common word alone keeps its case."""
    return _join_key(NAME_WORD_PATTERN.findall(name))[:MAX_KEY_CHARS]


def _join_key(words: list[str]) -> str:
    if len(words) == 1 and words[0].casefold() in COMMON_WORDS:
        return words[0]
    return " ".join(words).casefold()


def find_forms(text: str) -> Iterator[tuple[str, str]]:
    """Yield what a text mentions by its form alone: of which form it is (url, tag, path, file, code), and its words."""
    for match in MENTION_PATTERN.finditer(text, 0, MAX_MENTION_TEXT_CHARS):
        kind, token = str(match.lastgroup), match[0].rstrip(".,;:!?-/")
        if kind == "quoted":
            inside = list(find_forms(match[0][1:-1]))
            yield from inside or [("code", match[0][1:-1])]
            continue
        if kind == "code" and not CODE_PATTERN.search(token):
            continue
        if kind == "path" and not (token[:1] in "/~." or token.count("/") > 1 or "." in token.rpartition("/")[2]):
            continue  # and/or, he/she
        if 1 < len(token) <= MAX_KEY_CHARS:
            yield kind, token


def find_form_keys(text: str) -> set[str]:
    """Return the keys of what a text mentions by its form alone."""
    found: set[str] = set()
    for _, token in find_forms(text):
        found.add(to_form_key(token))
        if len(found) >= MAX_MENTIONS:
            break
    return found


def to_form_key(token: str) -> str:
    """Return the key of something that has a form of its own."""
    return f":{token.removesuffix('()').casefold()}"


def list_alias_keys(name: str, digest: str) -> set[str]:
    """Return the keys of a name by which an entity of another name is found: as a text has it, and exactly."""
    return {key for key in (fold_name(name), to_form_key(name)[:MAX_KEY_CHARS], to_exact_key(digest)) if key}


def to_exact_key(digest: str) -> str:
    return f"={digest}"


async def write_mentions(tx: Transaction, scope: int, memory: int, text: str, *, replace: bool = False) -> None:
    """Write down what a memory mentions."""
    keys = find_form_keys(text)
    where = await graph_rows.list_entity_scope_ids(tx, scope)
    if where:
        keys |= await _find_entity_names(tx, where, text)
    await graph_rows.insert_mentions(tx, scope, memory, keys, replace=replace)


async def _find_entity_names(tx: Transaction, graphs: list[int], text: str) -> set[str]:
    """Return the names of entities in a text, the longest where one is a part of another."""
    words = NAME_WORD_PATTERN.findall(text[:MAX_MENTION_TEXT_CHARS])[:MAX_SCANNED_WORDS]
    dense = UNSPACED_PATTERN.findall(text[:MAX_MENTION_TEXT_CHARS])
    runs = _list_word_runs(words) | {part for _, part in _list_unspaced_parts(dense)}
    known = await graph_rows.find_entity_names(tx, graphs, [run for run in runs if len(run) <= MAX_KEY_CHARS])
    found: set[str] = set()
    at = 0
    while known and at < len(words):
        fitting = [n for n in range(MAX_NAME_WORDS, 0, -1) if _join_key(words[at : at + n]) in known]
        if fitting:
            found.add(_join_key(words[at : at + fitting[0]]))
        at += fitting[0] if fitting else 1
    return found | _find_unspaced_names(dense, known)


def _list_word_runs(words: list[str]) -> set[str]:
    """Return every run of words that could be a name."""
    return {_join_key(words[i : i + n]) for n in range(1, MAX_NAME_WORDS + 1) for i in range(len(words) + 1 - n)}


def _list_unspaced_parts(dense: list[str]) -> Iterator[tuple[tuple[int, int], str]]:
    """Return every part of texts without spaces that could be a name, and where each begins, longer ones first."""
    parts = (
        ((which, at), text[at : at + size])
        for which, text in enumerate(dense)
        for at in range(len(text) - 1)
        for size in range(min(MAX_UNSPACED_NAME_CHARS, len(text) - at), 1, -1)
    )
    return islice(parts, MAX_UNSPACED_PARTS)


def _find_unspaced_names(dense: list[str], known: set[str]) -> set[str]:
    """Return the known names in texts without spaces, going on behind each."""
    found: set[str] = set()
    behind = (0, 0)
    for (which, at), part in _list_unspaced_parts(dense):
        if part in known and (which, at) >= behind:
            found.add(part)
            behind = which, at + len(part)
    return found


def has_name(said: str, text: str) -> bool:
    """Tell whether a text has a name, as it is compared, among its words."""
    words = NAME_WORD_PATTERN.findall(text)
    count = said.count(" ") + 1
    if any(_join_key(words[i : i + count]) == said for i in range(len(words) + 1 - count)):
        return True
    return UNSPACED_PATTERN.fullmatch(said) is not None and said in text


async def _list_name_keys(tx: Transaction, scope: Scope, name: str) -> list[str]:
    """Return the keys of a name, and of the others that the entity of this name has had."""
    keys = {key: None for key in (fold_name(name), to_form_key(name)) if key}
    for number in await scopes.fetch_visible_ids(tx, scope.with_kind("entity")):
        rows = await graph_rows.fetch_entities_by_id(
            tx, [number], await graph_rows.list_mentioning_ids(tx, [number], list(keys))
        )
        for row in rows:
            keys |= dict.fromkeys(await graph_rows.list_mention_keys(tx, number, row.id))
    return list(keys)


async def find_mentioning(store: Store, name: str, limit: int, offset: int, scope: Scope) -> Page[Memory]:
    """Return the memories that mention a name, the newest first; also those kept before there was such an entity."""
    keys = await store.database.read(lambda tx: _list_name_keys(tx, scope, name))
    also: list[int] = []
    for said in [key for key in keys if key[:1] not in (":", "=", "")][:MAX_SEARCHED_NAMES]:
        older = await recall(store, Query(said, Filter(scope), 100), used=False)  # to look is not to recall
        also += [hit.id for hit in older if has_name(said, hit.content)]

    async def read_page(tx: Transaction) -> Page[Memory]:
        numbers = await scopes.fetch_visible_ids(tx, scope)
        every = {*await graph_rows.list_mentioning_ids(tx, numbers, keys), *also}
        found = sorted((await memory_rows.fetch_memories(tx, numbers, every)).values(), key=lambda m: (m.created, m.id))
        return Page(found[::-1][offset : offset + limit], len(found))

    return await store.database.read(read_page)
