"""The miners find planted patterns, and none in noise. `python -m bench --only patterns` has the figures."""

import pytest
from bench.evaluation import planted
from bench.evaluation.planting import START_TIME_S, generate_noise, generate_stream
from bench.evaluation.statements import generate_statements
from shop_week import CARELESS, TESTS, week

from athena.memory.consolidation import contradictions, sequences, stages
from athena.memory.consolidation.events import compute_signature, group_events
from athena.memory.consolidation.statements import parse_statement
from athena.memory.consolidation.values import MinedEvent, MinedMemory
from conftest import rounds

SIZES = (200, 600, 1_500)
DAY = 86_400.0
HELD_OUT = range(planted.FIRST_TEST_SEED, planted.FIRST_TEST_SEED + rounds(24, 120), 2)
# These do not contradict each other: another subject, or the same value in another notation.
AGREED = [
    ("Standup is at 9:30", "Retro is at 16:00"),
    ("Lunch is at 12:00", "Dinner is at 19:00"),
    ("The API server listens on port 8080", "The metrics server listens on port 9090"),
    ("Ann owns payments", "Bob owns search"),
    ("Ann owns payments", "Ann owns refunds"),
    ("Logs are kept for 30 days", "Backups are kept for 90 days"),
    ("Build 41 took 12 minutes", "Build 42 took 14 minutes"),
    ("Unit tests take 2 minutes", "Integration tests take 20 minutes"),
    ("The blue team meets on Mondays", "The red team meets on Tuesdays"),
    ("CI has 4 runners", "Staging has 2 replicas"),
    ("Production runs PostgreSQL 16", "Staging runs PostgreSQL 15"),
    ("Backups run nightly at 02:00", "Nightly backups are made at 2 am"),
    ("The timeout is 30 seconds", "The timeout is half a minute"),
    ("Sessions last 1 hour", "Sessions last 60 minutes"),
    ("The API allows 1,000 requests/min", "The API allows 1000 requests per minute"),
    ("Reviews need two people", "Reviews need 2 people"),
]
OPPOSED = [
    ("We use npm in web/", "We do not use npm in web/ any more"),
    ("The team moved to Berlin", "The team moved to Oslo"),
    ("Bob owns search", "Carol owns search now"),
    ("Deploys run on Fridays at 15:00", "Deploys run on Tuesdays at 15:00"),
    ("The public API allows 100 requests/min", "The public API allows 250 requests/min"),
    ("Backups run nightly at 02:00", "Backups run nightly at 3 am"),
    ("Logs are kept for 30 days", "Logs are kept for 8 weeks"),
]


def test_planted_patterns_are_found() -> None:
    results = []
    for i, seed in enumerate(HELD_OUT):
        one = generate_stream(seed, SIZES[i % 3], recurring=2 + i % 3, sequences=1 + i % 3)
        results += [
            planted.judge_stream(one, planted.find_event_patterns(one)),
            planted.judge_statements(generate_statements(seed)),
        ]
    found = planted.sum_scores(results)
    assert set(found) == {"recurring", "sequence", "contradiction"}
    for kind, score in found.items():
        assert score.precision >= 0.9, (kind, score)
        assert score.recall >= 0.9, (kind, score)
        error = planted.compute_calibration_error(one for judged, _ in results for one in judged if one.type == kind)
        assert error <= 0.1, (kind, error)


def test_noise_yields_no_patterns() -> None:
    for i in range(rounds(8, 60)):
        quiet = generate_noise(100_001 + 2 * i, SIZES[i % 3])
        assert [
            one.summary
            for one in planted.find_event_patterns(quiet)
            if one.confidence >= planted.MIN_REPORTED_CONFIDENCE
        ] == []


def test_numbers_do_not_split_kinds() -> None:
    one = compute_signature("Deploy of build 1f3a9c2e to production failed after 12.5 s (2026-03-01T10:00)")
    other = compute_signature("deploying builds 77 to prod: failed after 3 minutes")
    assert one == other
    assert "p99" in compute_signature("p99 latency is high")


def test_weekly_event_names_weekday() -> None:
    monday = 1_780_272_000.0  # 2026-06-01 00:00 UTC
    times = [monday + 43_200 + week * 7 * DAY for week in range(6)]
    assert sequences.describe_rhythm(times) == "every Monday"
    assert sequences.describe_rhythm([START_TIME_S + day * DAY for day in range(12)]) == "every day"
    assert sequences.describe_rhythm([START_TIME_S + hours * 3_600 for hours in range(0, 72, 6)]) == "every 6 hours"
    assert (
        sequences.describe_rhythm(
            [
                START_TIME_S,
                START_TIME_S + 100,
                START_TIME_S + 3 * DAY,
                START_TIME_S + 3.2 * DAY,
                START_TIME_S + 11 * DAY,
            ]
        )
        is None
    )


def test_quick_retry_counts_once() -> None:
    again = [
        MinedEvent(i, START_TIME_S + i * 20, "action", "upload of chunk 7 retried", "failure", "s1") for i in range(9)
    ]
    found, vocabulary, background = group_events(again)
    assert len(found[0].occasions) == 1
    assert sequences.find_recurring(found, vocabulary, background) == []


def test_newer_statement_contradicts_older() -> None:
    notes = [
        MinedMemory(2, START_TIME_S + DAY, "Deploys of billing moved from Friday to Monday."),
        MinedMemory(1, START_TIME_S, "Billing is deployed on Fridays."),
        MinedMemory(3, START_TIME_S, "Search is deployed on Mondays."),
    ]
    patterns = [one for one in contradictions.find_contradictions(notes) if one.confidence >= 0.5]
    assert [(one.evidence, one.details["older"]) for one in patterns] == [((1, 2), 1)]


def test_statement_has_subject_and_value() -> None:
    one = parse_statement(1, START_TIME_S, "The billing API must not exceed 200 requests per minute on Mondays.")
    assert one.is_negated
    assert {(value.value_type, value.text) for value in one.values} == {("number request", "200"), ("weekday", "mon")}
    assert "bil" in " ".join(one.subject_stems)


def test_names_mentioned_together_are_topic() -> None:
    items = [(i, f"@ann changed `parse_date` in case {i}", ()) for i in range(5)]
    items += [(10 + i, f"@bob did not, nor did they {i}", ()) for i in range(10)]
    assert stages.find_topics(items)[0].details["topics"] == ["@ann", "parse_date"]


def test_cause_of_failure_is_found() -> None:
    events = week(START_TIME_S)
    found, vocabulary, background = group_events(events)
    sequences.find_recurring(found, vocabulary, background)
    sure = [one for one in sequences.find_sequences(events, found) if one.confidence >= planted.MIN_REPORTED_CONFIDENCE]
    runs = _runs(events)
    after = [outcome for careless, outcome in runs if careless]
    others = [outcome for careless, outcome in runs if not careless]
    assert [one.summary for one in sure] == [
        f"After '{CARELESS}', '{TESTS}' ends in failure {after.count('failure')} of {len(after)} times, "
        f"otherwise in {others.count('failure')} of {len(others)}"
    ]
    assert sure[0].support == after.count("failure")
    assert sure[0].details["otherwise"] == [others.count("failure"), len(others)]


def _runs(events: list[MinedEvent]) -> list[tuple[bool, str | None]]:
    """Return for each test run whether the edit before it was careless, and its outcome."""
    before = [event for event in events if event.event_type == "test" or event.text == CARELESS]
    return [
        (place > 0 and before[place - 1].text == CARELESS, event.outcome)
        for place, event in enumerate(before)
        if event.event_type == "test"
    ]


def test_opposite_actions_are_different_kinds() -> None:
    texts = [
        CARELESS, "edited billing/models.py", "read billing/models.py", "edited api/routes.py", "wrote a migration",
        "skipped the migration", "applied the migration", "ran the unit tests", "ran the integration tests",
    ]  # fmt: skip
    events = [MinedEvent(i, START_TIME_S + i * DAY, "action", text, None, f"s{i}") for i, text in enumerate(texts * 5)]
    found = [sorted({event.text for event in kind.events}) for kind in group_events(events)[0]]
    assert sorted(found) == sorted([text] for text in texts)


def test_recurring_episode_text_is_true() -> None:
    events = week(START_TIME_S)
    patterns = sequences.find_recurring(*group_events(events))
    assert patterns
    for one in patterns:
        assert one.support == len(one.evidence) == int(one.summary.split()[0])
    said = {one.summary.rpartition(": ")[2]: one.support for one in patterns}
    for text in (
        CARELESS,
        TESTS,
        "edited auth/session.py",
        "read auth/session.py",
        "docker build ran out of disk space",
    ):
        assert said[text] == sum(event.text == text for event in events)
    assert said["committed N files to main"] == sum(event.event_type == "commit" for event in events)
    assert sequences.describe_rhythm([START_TIME_S + day * DAY for day in (0, 1, 2, 3, 5, 6, 7)]) == "nearly every day"


@pytest.mark.parametrize(("one", "other"), AGREED)
def test_other_subject_or_notation_no_contradiction(one: str, other: str) -> None:
    patterns = contradictions.find_contradictions(
        [MinedMemory(1, START_TIME_S, one), MinedMemory(2, START_TIME_S + DAY, other)]
    )
    assert [p.confidence for p in patterns if p.confidence >= planted.MIN_REPORTED_CONFIDENCE] == []


@pytest.mark.parametrize(("one", "other"), OPPOSED)
def test_different_statement_is_contradiction(one: str, other: str) -> None:
    patterns = contradictions.find_contradictions(
        [MinedMemory(1, START_TIME_S, one), MinedMemory(2, START_TIME_S + DAY, other)]
    )
    assert [p.evidence for p in patterns if p.confidence >= planted.MIN_REPORTED_CONFIDENCE] == [(1, 2)]
    assert (
        not contradictions.are_consistent(one, other) or "moved" in one or "owns" in one
    )  # a paraphrase may use other words
