"""The words of one meaning: aliases that every surface accepts, and suggestions for a name that nothing has."""

from collections.abc import Iterable

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
        "execute_code run execute run_code exec",
        "health status ping",
        "ingest ingest_document add_document index",
        "AthenaClient Client Athena client connect",
        "limit k max_results n top_k n_results num_results count size max",
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


def find_similar_name(name: str, names: Iterable[str]) -> str | None:
    """Return the name that was probably meant: a synonym, else one that is spelled alike."""
    from difflib import get_close_matches  # needed only after an error

    known = list(names)
    for group in SYNONYMS:
        if name in group and (meant := next((other for other in group if other in known), None)):
            return meant
    close = get_close_matches(name[:60], known, 1)
    return close[0] if close else None


def suggest_name(name: str, names: Iterable[str]) -> str:
    """Return a question with the name that was probably meant, for an error message; empty if there is none."""
    meant = find_similar_name(name, names)
    return f"; did you mean {meant!r}?" if meant else ""
