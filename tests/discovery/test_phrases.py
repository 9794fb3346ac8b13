"""Everyday phrases for tools, and the words of a request that count."""

from athena.core.words import stem_words
from athena.discovery import entry, lexicon
from athena.discovery.query import CONTENT_WEIGHT, weigh_stems
from athena.operations import CATALOG
from discovery_tools import make_tool


def phrases_of(path: str, summary: str = "Something") -> tuple[str, ...]:
    return lexicon.find_phrases(entry.create_operation_entry(make_tool(path, summary), ""))


def stem_weight(word: str, request: str) -> float:
    return weigh_stems(request)[stem_words(word)[0]]


def test_own_operations_have_everyday_phrases() -> None:
    assert all(operation.asks for operation in CATALOG)
    requests = [lexicon.find_phrases(one) for one in entry.list_catalog_entries(CATALOG)]
    for phrases in [*requests, *(line.requests for line in lexicon._load_phrases())]:
        assert phrases
        assert all(one and one == one.strip() for one in phrases)


def test_foreign_tool_is_found_by_name() -> None:
    for path in ("github.create_issue", "bugs.newIssue", "tracker.tracker_add_issue"):
        assert "report a bug" in phrases_of(path), path
    assert "report a bug" in phrases_of("bugs.issue", "Create one")
    for path in ("bugs.list_issues", "bugs.issue", "bugs.create_report", "pets.feed_cat"):
        assert "report a bug" not in phrases_of(path), path
    assert phrases_of("pets.feed_cat") == ()
    assert phrases_of("memory.recall") == ()  # a tool of another server, even if its name is like ours


def test_distinctive_word_of_name_counts() -> None:
    assert "report a bug" not in phrases_of("bugs.add_issue_comment")
    assert "leave a remark on the bug" in phrases_of("bugs.add_issue_comment")


def test_quoted_text_counts_less_than_verb() -> None:
    for request in (
        "log that the deploy failed",
        "log: the deploy failed",
        'log "deploy failed"',
        "log something about the deploy",
        "log 'deploy failed'",
    ):
        assert stem_weight("log", request) == 1.0, request
        assert stem_weight("deploy", request) == CONTENT_WEIGHT, request
    for request in ("save the log of that deploy", "deploy: https://example.com", "undo that deploy", "don't deploy"):
        assert stem_weight("deploy", request) == 1.0, request


def test_value_counts_as_its_type() -> None:
    assert weigh_stems("tell #general")["channel"] == 1.0
    for request in ("close #12", "close AB-12"):
        assert stem_words("issue")[0] in weigh_stems(request)
    assert list(weigh_stems("who is it")) == stem_words("who is it")  # nothing but stop words
    assert weigh_stems("?!") == {}
