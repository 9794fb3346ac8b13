"""Cut texts into words, stem them and tell stop words, for every comparison outside the database; names of one meaning.

The database's full text has a tokenizer of its own (storage/terms.py) and shares STOP_WORDS. Names of one
meaning are aliases, which every surface accepts, and synonyms, which lead from an unknown name to the right one.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from heapq import nlargest
from itertools import islice

STOP_WORDS = frozenset(
    """a about above after again against all also am an and any are as at be because been before being below
    between both but by can could d did do does doing done down during each few for from further had has have
    having he her here hers him his how i if in into is it its just ll m may me might more most must my no nor
    not of off on once only or other our ours out over own re s same shall she should so some such t than that
    the their theirs them then there these they this those through to too under until up us ve very was we were
    what when where which while who whom whose why will with would you your yours""".split()  # noqa: SIM905  # readable as a text
)
WORD_PATTERN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# Names of one parameter: an operation that has one of them accepts the others.
PARAMETER_ALIASES = (frozenset({"k", "limit", "max_results"}),)
# Words that callers try for the same thing; the name that exists is the one that was meant.
SYNONYMS = tuple(
    tuple(words.split())
    for words in (
        "remember store add save put insert create write memorize note set",
        "recall search find query lookup look_up retrieve ask semantic_search",
        "get get_memory fetch show read load open",
        "update update_memory edit change modify patch set",
        "forget delete remove erase drop rm delete_memory",
        "restore restore_memory undelete recover",
        "remember_batch store_batch store_many add_many add_batch remember_many bulk_store",
        "forget_batch delete_batch delete_many forget_many",
        "list_memories list all recent latest",
        "list_tags tags get_tags",
        "list_tasks tasks todos get_tasks",
        "create_task add_task new_task task todo",
        "complete_task finish_task close_task done",
        "recall_events events list_events get_events search_events",
        "record_event add_event log_event create_event event",
        "list_sessions sessions get_sessions",
        "learn create_session start_session new_session add_session",
        "memory_history history get_history changes versions",
        "read_graph graph get_graph",
        "relate_memories link relate link_memories add_relation",
        "stats count statistics get_stats info",
        "execute_code run execute run_code exec",
        "health status ping",
        "ingest ingest_document add_document index",
        "AthenaClient Client Athena client connect",
        "limit k max_results n top_k n_results num_results count size max",
        "url base_url host address endpoint server server_url",
        "token api_key auth auth_token bearer password key",
        "hash id memory_id key ref digest uuid",
        "hashes ids memory_ids keys",
        "content text body message memory value note",
        "query q question phrase text prompt",
        "memory_type type kind category",
        "tags tag labels label",
        "metadata meta extra",
        "since after start from_date start_time",
        "until before end to_date end_time",
        "min_score threshold score min_similarity",
    )
)
STEM_CACHE_WORDS = 50_000
MIN_NAME_SIMILARITY = 0.6  # difflib's ratio
MAX_COMPARED_NAME_CHARS = 60  # the end of a longer name is compared
MAX_COMPARED_NAMES = 1_000  # by the letters that they have
MAX_ALIGNED_NAMES = 20  # by the order of their letters, which costs up to 2 ms for a pair
MIN_STEM_CHARS = 4
SUFFIXES = (
    "ations", "ation", "ments", "ment", "ings", "ing", "als", "al", "ers", "ied", "ies", "ed", "es", "er", "ly", "s",
)  # fmt: skip


def tokenize(text: str) -> list[str]:
    """Return the words of a text in their order, in lower case: letters and digits, with inner apostrophes."""
    return WORD_PATTERN.findall(text.lower())


@lru_cache(maxsize=STEM_CACHE_WORDS)
def stem_word(word: str) -> str:
    """Return the stem of a lower-case English word: a rough suffix stripper, not a dictionary."""
    for suffix in SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= MIN_STEM_CHARS:
            word = word[: -len(suffix)]
            break
    if len(word) == 4 and word[-1] == "s" and word[-2] not in "sui":
        return word[:3]  # "tags", but not "pass", "plus", "this"
    if len(word) > 4 and word[-1] == word[-2]:
        word = word[:-1]  # "planning" and "plan" differ by the doubled letter
    return word[:-1] if len(word) > 4 and word[-1] in "ey" else word


def stem_words(text: str) -> list[str]:
    """Return the stems of all words of a text, in their order."""
    return [stem_word(word) for word in tokenize(text)]


def stem_content_words(text: str) -> list[str]:
    """Return the stems of a text's words that are not stop words, in their order."""
    return [stem_word(word) for word in tokenize(text) if word not in STOP_WORDS]


def resolve_parameter_aliases(names: Iterable[str]) -> dict[str, str]:
    """Return the other names that a call may use for its parameters, each with the parameter."""
    known = set(names)
    return {
        alias: name
        for group in PARAMETER_ALIASES
        if len(group & known) == 1
        for name in group & known
        for alias in group - known
    }


def find_synonym(name: str, names: Iterable[str]) -> str | None:
    """Return the name of the same meaning."""
    known = list(names)
    groups = (group for group in SYNONYMS if name in group)
    return next((other for group in groups for other in group if other in known), None)


def find_similar_names(
    name: str, names: Iterable[str], count: int = 1, min_similarity: float = MIN_NAME_SIMILARITY
) -> list[str]:
    """Return the names that are spelled most alike, the best first; the work is bounded, since others choose names."""
    from difflib import SequenceMatcher  # needed only after an error

    matcher = SequenceMatcher(None, "", name[-MAX_COMPARED_NAME_CHARS:])
    candidates = []
    for known in dict.fromkeys(islice(names, MAX_COMPARED_NAMES)):
        matcher.set_seq1(known[-MAX_COMPARED_NAME_CHARS:])
        if matcher.real_quick_ratio() >= min_similarity and (most := matcher.quick_ratio()) >= min_similarity:
            candidates.append((most, known))
    matches = []
    for _, known in nlargest(MAX_ALIGNED_NAMES, candidates):
        matcher.set_seq1(known[-MAX_COMPARED_NAME_CHARS:])
        if (similarity := matcher.ratio()) >= min_similarity:
            matches.append((similarity, known))
    return [known for _, known in nlargest(count, matches)]


def find_similar_name(name: str, names: Iterable[str]) -> str | None:
    """Return the name that was probably meant: a synonym, else one that is spelled alike."""
    known = list(names)
    return find_synonym(name, known) or next(iter(find_similar_names(name, known)), None)


def suggest_name(name: str, names: Iterable[str]) -> str:
    """Return a question with the name that was probably meant, for an error message; empty if there is none."""
    meant = find_similar_name(name, names)
    return f"; did you mean {meant!r}?" if meant else ""
