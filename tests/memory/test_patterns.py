"""The miners find what was planted, and nothing in noise. `python -m bench --only patterns` has the figures."""

from athena.evaluation import planted
from athena.evaluation.planting import START, noise, stream
from athena.evaluation.statements import statements
from athena.memory.consolidation import contradictions, recurring, together
from athena.memory.consolidation.kinds import kinds
from athena.memory.consolidation.material import Event, Note
from athena.memory.consolidation.signature import signature
from athena.memory.consolidation.statement import read
from conftest import rounds

SIZES = (200, 600, 1_500)
DAY = 86_400.0
HELD_OUT = range(1, rounds(25, 121), 2)


def test_what_was_planted_is_found_and_little_else() -> None:
    results = []
    for i, seed in enumerate(HELD_OUT):
        one = stream(seed, SIZES[i % 3], recurring=2 + i % 3, sequences=1 + i % 3)
        results += [planted.judge_stream(one, planted.mine(one)), planted.judge_statements(statements(seed))]
    found = planted.scores(results)
    assert set(found) == {"recurring", "sequence", "contradiction"}
    for kind, score in found.items():
        assert score.precision >= 0.9, (kind, score)
        assert score.recall >= 0.85, (kind, score)  # few seeds here; the benchmark holds it to 0.9
        error = planted.calibration_error(one for judged, _ in results for one in judged if one.type == kind)
        assert error <= 0.1, (kind, error)


def test_nothing_is_found_in_noise() -> None:
    for i in range(rounds(8, 60)):
        quiet = noise(100_001 + 2 * i, SIZES[i % 3])
        assert [one.summary for one in planted.mine(quiet) if one.confidence >= planted.REPORTED] == []


def test_numbers_ids_and_endings_do_not_tell_kinds_apart() -> None:
    one = signature("Deploy of build 1f3a9c2e to production failed after 12.5 s (2026-03-01T10:00)")
    other = signature("deploying builds 77 to prod: failed after 3 minutes")
    assert one == other
    assert "p99" in signature("p99 latency is high")


def test_what_happens_every_monday_is_said_to() -> None:
    monday = 1_780_272_000.0  # 2026-06-01 00:00 UTC
    times = [monday + 43_200 + week * 7 * DAY for week in range(6)]
    assert recurring.period(times) == "every Monday"
    assert recurring.period([START + day * DAY for day in range(12)]) == "every day"
    assert recurring.period([START + hours * 3_600 for hours in range(0, 72, 6)]) == "every 6 hours"
    assert recurring.period([START, START + 100, START + 3 * DAY, START + 3.2 * DAY, START + 11 * DAY]) is None


def test_a_step_tried_again_within_minutes_happened_once() -> None:
    again = [Event(i, START + i * 20, "action", "upload of chunk 7 retried", "failure", "s1") for i in range(9)]
    found, vocabulary, background = kinds(again)
    assert len(found[0].occasions) == 1
    assert recurring.find(found, vocabulary, background) == []


def test_the_newer_of_two_statements_contradicts_the_older() -> None:
    notes = [
        Note(2, START + DAY, "Deploys of billing moved from Friday to Monday."),
        Note(1, START, "Billing is deployed on Fridays."),
        Note(3, START, "Search is deployed on Mondays."),
    ]
    found = [one for one in contradictions.find(notes) if one.confidence >= 0.5]
    assert [(one.evidence, one.details["older"]) for one in found] == [((1, 2), 1)]


def test_a_statement_says_of_what_it_speaks_and_which_value_it_gives() -> None:
    one = read(1, START, "The billing API must not exceed 200 requests per minute on Mondays.")
    assert one.denies
    assert {(value.kind, value.text) for value in one.values} == {("number request", "200"), ("weekday", "mon")}
    assert "bil" in " ".join(one.words)


def test_names_that_are_mentioned_together_are_a_topic() -> None:
    items = [(i, f"@ann changed `parse_date` in case {i}", ()) for i in range(5)]
    items += [(10 + i, f"@bob did not, nor did they {i}", ()) for i in range(10)]
    assert together.find(items)[0].details["topics"] == ["@ann", "parse_date"]
