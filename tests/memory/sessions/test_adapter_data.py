"""The labelled sessions and changes of data/, and the rows that the adapters are trained on."""

import sys
from pathlib import Path

import pytest

from athena.embedding.minilm import MiniLM
from athena.memory.sessions import classifier
from athena.memory.sessions.fragments import split_fragments
from athena.memory.sessions.values import Candidate

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from adapter_data import Project, Statement, create_pairs, create_turns, read_changes
from labelled_sessions import JUDGES, Session, match_clauses, parse_sessions, read_sessions

WRITERS = {
    "mira",
    "noor",
    "paul",
    "suki",
    "lena",
    "ines",
    "yara",
    "theo",
    "wren",
    "juno",
    "emil",
    "cleo",
    "hank",
    "faye",
    "omri",
    "kaya",
    "bram",
    "vera",
    "igor",
    "nela",
    "otto",
    "luna",
    "remi",
    "tess",
    "arlo",
    "dina",
    "ravi",
    "edda",
    "jory",
    "keiko",
    "pavel",
    "sorin",
    "wanda",
    "milo",
    "fern",
    "uri",
    *JUDGES,
}
CHANGE_WRITERS = {"ola", "kim", "zoe", "uma", "gil", "rhea", "nils", "abla", "pia", "sven", "mei", "dara"}


@pytest.fixture(scope="module")
def sessions() -> list[Session]:
    return read_sessions()


@pytest.fixture(scope="module")
def model() -> MiniLM:
    return MiniLM(threads=1)


def test_sessions_are_complete(sessions: list[Session]) -> None:
    clauses = [clause for session in sessions for turn in session.turns for clause in turn.clauses]
    assert (len(sessions), len(clauses)) == (584, 26_218)
    assert {session.writer for session in sessions} == WRITERS
    assert {clause.kind for clause in clauses} == set(classifier.KINDS)
    kept = [clause for clause in clauses if clause.is_worth_keeping]
    assert len(kept) == 11_207
    assert all(clause.statement for clause in kept)


def test_fragments_match_the_labelled_clauses(sessions: list[Session]) -> None:
    """Every fragment has a label; a clause such as "ok so" may lie in the fragment of another one."""
    turns = [turn for session in sessions for turn in session.turns]
    matches = [match_clauses(split_fragments(turn.text), turn.clauses) for turn in turns]
    shared = [
        clause
        for turn, match in zip(turns, matches, strict=True)
        for i, clause in enumerate(turn.clauses)
        if i not in match
    ]
    assert all(turn.clauses for turn in turns)
    assert sum(map(len, matches)) > 26_000
    assert sum(match.count(None) for match in matches) == 0
    assert len(shared) <= 0.04 * 26_218
    assert sum(clause.is_worth_keeping for clause in shared) <= 0.02 * 11_207


def test_parser_finds_words_in_order() -> None:
    text = (
        "@session id=kim-01 project=demo voice=calm\n"
        "A Done.\n"
        "U use tabs.\\nuse  tabs. not 80 but 81\n"
        "= order | use tabs.\n"
        "= rule + | use tabs. | Use tabs.\n"
        "= correction + | not 80 but 81 | It is 81. | ~ it is 80\n"
        "@ended asked=x done=y open=none\n"
    )
    (session,) = parse_sessions(text)
    (turn,) = session.turns
    assert (session.name, session.writer, session.project, turn.answer) == ("kim-01", "kim", "demo", "Done.")
    assert [turn.text[clause.start : clause.end] for clause in turn.clauses] == [
        "use tabs.", "use  tabs.", "not 80 but 81",
    ]  # fmt: skip
    assert [clause.is_worth_keeping for clause in turn.clauses] == [False, True, True]
    assert turn.clauses[2].replaced == "it is 80"


@pytest.mark.parametrize(
    ("line", "error"), [("= idea | use tabs", "unknown label"), ("= rule | use spaces", "does not have these words")]
)
def test_parser_refuses_wrong_lines(line: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        list(parse_sessions(f"@session id=kim-01 project=demo\nU use tabs\n{line}\n"))


def test_turns_are_as_the_classifier_reads_them(sessions: list[Session], model: MiniLM) -> None:
    chosen = [session for session in sessions if session.name == "paul-01"]
    rows = list(create_turns(chosen, model))
    assert len(rows) == len(chosen[0].turns)
    for row, turn in zip(rows, chosen[0].turns, strict=True):
        fragments = split_fragments(turn.text)
        ((window,),) = classifier.read_windows(model, [classifier.Turn(turn.text, fragments, turn.answer)], None)
        assert (row["ids"], row["spans"]) == (window.ids, window.spans)
        assert len(row["labels"]) == len(row["words"]) == len(row["sentences"]) == len(fragments)
        assert all(0 < first < last < len(row["ids"]) for first, last in row["spans"])
    assert sum(label[0] for row in rows for label in row["labels"]) > 10


def test_changes_are_complete() -> None:
    projects = list(read_changes())
    statements = [statement for project in projects for statement in project.statements]
    assert {project.writer for project in projects} == CHANGE_WRITERS
    assert (len(projects), len(statements)) == (353, 13_903)
    assert sum(len(statement.replaced) for statement in statements) == 4_721


def test_parser_of_changes_refuses_wrong_numbers(tmp_path: Path) -> None:
    (tmp_path / "kim.txt").write_text("@project name=x voice=y\n1 | use tabs\n--\n2 > 1 | use spaces\n")
    (project,) = read_changes(tmp_path)
    assert [statement.replaced for statement in project.statements] == [(), (0,)]
    assert [statement.session for statement in project.statements] == [0, 1]
    (tmp_path / "kim.txt").write_text("@project name=x voice=y\n1 | use tabs\n3 | use spaces\n")
    with pytest.raises(ValueError, match="next number"):
        list(read_changes(tmp_path))


def test_pairs_hold_what_was_replaced_and_nothing_that_is_over(model: MiniLM) -> None:
    texts = ["Staging is on port 8081", "Anna owns the importer", "Staging is on port 9090", "Staging is on port 8081"]
    statements = [
        Statement(Candidate(text, "fact", "user"), 0, replaced)
        for text, replaced in zip(texts, [(), (), (0,), (2,)], strict=True)
    ]
    pairs = list(create_pairs([Project("kim", statements)], model))
    assert [(pair["group"], pair["label"]) for pair in pairs] == [
        ("0.1.True", 0), ("0.2.True", 1), ("0.2.True", 0), ("0.3.True", 0), ("0.3.True", 1),
    ]  # fmt: skip
