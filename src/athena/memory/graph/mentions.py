"""Find the mentions in a text, without a model: known entities, code, files, URLs, @people and #topics.

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
from athena.storage.database import PendingRows, Transaction
from athena.storage.filters import Filter

MAX_MENTION_TEXT_CHARS = 20_000
MAX_MENTIONS = 100  # of one memory
MAX_SCANNED_WORDS = 400  # of a text, that are compared with names of entities
MAX_NAME_WORDS = 4
MAX_KEY_CHARS = 200
MAX_SEARCHED_NAMES = 5  # of a merged entity, that a search for mentions looks for
NAME_WORD_PATTERN = re.compile(r"\w+(?:[+#]+(?!\w))?")  # C++ and C# are not C
# Scripts without spaces between words: names are searched inside of each run of characters.
UNSPACED_PATTERN = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]{2,}")
MAX_UNSPACED_NAME_CHARS = 10
MAX_UNSPACED_PARTS = 3_000  # of a text, that are compared with such names
# Common words: one of them matches a name only if it is written in the same case.
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
    who why will win wish with word work would write yes you your""".split()  # noqa: SIM905  # as a list it would fill a page
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
    """Return the key of a name: its words in lower case; a common word alone keeps its case."""
    return _join_key(NAME_WORD_PATTERN.findall(name))[:MAX_KEY_CHARS]


def _join_key(words: list[str]) -> str:
    if len(words) == 1 and words[0].casefold() in COMMON_WORDS:
        return words[0]
    return " ".join(words).casefold()


def find_forms(text: str) -> Iterator[tuple[str, str]]:
    """Yield the mentions that form alone shows, as (form, token); forms are url, tag, path, file and code."""
    for match in MENTION_PATTERN.finditer(text, 0, MAX_MENTION_TEXT_CHARS):
        form, token = str(match.lastgroup), match[0].rstrip(".,;:!?-/")
        if form == "quoted":
            quoted = match[0][1:-1]
            yield from list(find_forms(quoted)) or [("code", quoted)]
            continue
        if form == "code" and not CODE_PATTERN.search(token):
            continue
        if form == "path" and not (token[:1] in "/~." or token.count("/") > 1 or "." in token.rpartition("/")[2]):
            continue  # and/or, he/she
        if 1 < len(token) <= MAX_KEY_CHARS:
            yield form, token


def find_form_keys(text: str) -> set[str]:
    """Return the keys of the mentions that form alone shows."""
    keys: set[str] = set()
    for _, token in find_forms(text):
        keys.add(to_form_key(token))
        if len(keys) >= MAX_MENTIONS:
            break
    return keys


def to_form_key(token: str) -> str:
    """Return the key of a token that is mentioned by its form."""
    return f":{token.removesuffix('()').casefold()}"


def to_exact_key(digest: str) -> str:
    """Return the key of an entity's exact name, from the digest of the name."""
    return f"={digest}"


def list_alias_keys(name: str, digest: str) -> set[str]:
    """Return the keys by which a merged entity is found under another name."""
    return {key for key in (fold_name(name), to_form_key(name)[:MAX_KEY_CHARS], to_exact_key(digest)) if key}


async def write_mentions(
    tx: Transaction, scope: int, memory: int, text: str, entity_scopes: PendingRows, *, replace: bool = False
) -> None:
    """Store the mentions in the text of a memory: by form, and the names of entities of some scopes."""
    keys = find_form_keys(text)
    if entity_scope_ids := [row[0] for row in await entity_scopes]:
        keys |= await _find_entity_names(tx, entity_scope_ids, text)
    await graph_rows.insert_mentions(tx, scope, memory, keys, replace=replace)


async def _find_entity_names(tx: Transaction, scope_ids: list[int], text: str) -> set[str]:
    """Return the names of entities in a text; of two that overlap, the one that starts first, and the longest."""
    words = NAME_WORD_PATTERN.findall(text[:MAX_MENTION_TEXT_CHARS])[:MAX_SCANNED_WORDS]
    unspaced = UNSPACED_PATTERN.findall(text[:MAX_MENTION_TEXT_CHARS])
    candidates = _list_word_runs(words) | {part for _, part in _list_unspaced_parts(unspaced)}
    known = await graph_rows.find_entity_names(tx, scope_ids, [key for key in candidates if len(key) <= MAX_KEY_CHARS])
    names: set[str] = set()
    position = 0
    while known and position < len(words):
        sizes = [n for n in range(MAX_NAME_WORDS, 0, -1) if _join_key(words[position : position + n]) in known]
        if sizes:
            names.add(_join_key(words[position : position + sizes[0]]))
        position += sizes[0] if sizes else 1
    return names | _find_unspaced_names(unspaced, known)


def _list_word_runs(words: list[str]) -> set[str]:
    """Return every run of words that could be a name."""
    return {_join_key(words[i : i + n]) for n in range(1, MAX_NAME_WORDS + 1) for i in range(len(words) + 1 - n)}


def _list_unspaced_parts(texts: list[str]) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield every part of texts without spaces that could be a name, after its position, longer parts first."""
    parts = (
        ((index, start), text[start : start + size])
        for index, text in enumerate(texts)
        for start in range(len(text) - 1)
        for size in range(min(MAX_UNSPACED_NAME_CHARS, len(text) - start), 1, -1)
    )
    return islice(parts, MAX_UNSPACED_PARTS)


def _find_unspaced_names(texts: list[str], known: set[str]) -> set[str]:
    """Return the known names in texts without spaces; each search goes on after the end of the last name."""
    names: set[str] = set()
    next_position = (0, 0)
    for (index, start), part in _list_unspaced_parts(texts):
        if part in known and (index, start) >= next_position:
            names.add(part)
            next_position = index, start + len(part)
    return names


def has_name(key: str, text: str) -> bool:
    """Return whether a text holds the name of a key; of a very long text only the beginning counts."""
    text = text[:MAX_MENTION_TEXT_CHARS]
    words = NAME_WORD_PATTERN.findall(text)
    count = key.count(" ") + 1
    if any(_join_key(words[i : i + count]) == key for i in range(len(words) + 1 - count)):
        return True
    return UNSPACED_PATTERN.fullmatch(key) is not None and key in text


async def find_mentioning(store: Store, name: str, limit: int, offset: int, scope: Scope) -> Page[Memory]:
    """Return the memories that mention a name, the newest first, also those stored before the entity existed."""
    keys = await store.database.read(lambda tx: _list_name_keys(tx, scope, name))
    older_ids: list[int] = []
    for key in [key for key in keys if key[:1] not in (":", "=", "")][:MAX_SEARCHED_NAMES]:
        query = Query(key, Filter(scope), 100, longest=MAX_MENTION_TEXT_CHARS)
        hits = await recall(store, query, used=False)  # must not count as a recall
        older_ids += [hit.id for hit in hits if has_name(key, hit.content)]

    async def read_page(tx: Transaction) -> Page[Memory]:
        visible = await scopes.fetch_visible_ids(tx, scope)
        ids = {*await graph_rows.list_mentioning_ids(tx, visible, keys), *older_ids}
        starts = list((await memory_rows.fetch_memories(tx, visible, ids, longest=1)).values())
        starts.sort(key=lambda memory: (memory.created, memory.id), reverse=True)
        page = [memory.id for memory in starts[offset : offset + limit]]  # only these are read, since each may be long
        memories = await memory_rows.fetch_memories(tx, visible, page)
        return Page([memories[memory_id] for memory_id in page], len(starts))

    return await store.database.read(read_page)


async def _list_name_keys(tx: Transaction, scope: Scope, name: str) -> list[str]:
    """Return the keys of a name, and of all other names of its entity."""
    keys = {key: None for key in (fold_name(name), to_form_key(name)) if key}
    for scope_id in await scopes.fetch_visible_ids(tx, scope.with_kind("entity")):
        ids = await graph_rows.list_mentioning_ids(tx, [scope_id], list(keys))
        for entity in await graph_rows.fetch_entities_by_id(tx, [scope_id], ids):
            keys |= dict.fromkeys(await graph_rows.list_mention_keys(tx, scope_id, entity.id))
    return list(keys)
