"""A week of three people: 40 sessions in 3 projects with changes of mind; the last briefings tell what holds."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from athena.app.compose import App
from athena.core.threads import run_sync
from conftest import MovingTime

BEFORE_PATTERN = re.compile(r"\(before: [^\n]*?\)(?= \()")  # what a statement replaces
SCRIPT = Path(__file__).parents[2] / "data/week.txt"
FIRST_MORNING = 1_794_700_800.0
SESSION_GAP_S = 4 * 3_600.0
MIN_TOLD = 0.8  # of the phrases that a briefing must tell
PRIVATE = ("sk_live", "daughter", "physio", "hunter2", "back hurts", "my boss", "Salary")
# For each project: what its last briefing must tell (one of the alternatives), and what it must not.
BRIEFINGS: dict[str, tuple[list[str], list[str]]] = {
    "ferry": (
        [
            "django 5", "integer cents", "utc", "15 minutes", "Duarte", "stripe checkout", "max 60 chars",
            "48 hours", "emails from staging", "ferry-stage-2", "own trips", "semicolons", "phone numbers",
            "portuguese is the default", "locale files", "10 years", "24 hours before", "tracking pixels", "cdn",
            "june 1", "release tag", "ferry-ops", "docs/postmortems", "tuesday to thursday", "the winter timetable",
        ],
        [
            "20 minutes", "sk_live", "daughter", "physio", "hunter2", "dark mode", "the payment page",
            "the refund page", "seat map now", "postmortem template",
        ],
    ),
    "kiln": (
        [
            "ESP32-S3", "ESP-IDF 5.2", "thermocouple", "40 lines", "20 Hz", "1280 degrees", "per second", "1250",
            "Unity", "GPIO 18", "port 80", "below 60 degrees", "signed", "4 lines of 20", "German", "12 segments",
            "32 cents", "semantic versions", "Petra owns", "2 kHz", "AsciiDoc", "90 seconds", "8 digits",
            "branch stable", "the certificate for the EU",
        ],
        [
            "10 Hz", "every 5 seconds", "GPIO 21", "fuzzy", "back hurts", "green below", "WiFi", "the PID loop.",
            "the menu on the display", "time: the factory test",
        ],
    ),
    "atlas": (
        [
            "HNSW", "bullet points", "0.97", "25 ms", "float16", "date-topic-number", "ISO codes",
            "benchmark before", "hashes of queries", "10000 queries", "docs/api", "emojis", "128", "atlas-search",
            "5 percent", "less than one minute", "50 ms", "3.12", "reports/", "with outputs", "two approvals",
            "90 days", "map office in Porto", "German", "hand over to the map office",
        ],
        [
            "0.95", "quantization", "FAISS", "forum", "never use HNSW", "Salary", "my boss", "memory of the index",
            "3.11 only", "record the demo video",
        ],
    ),
}  # fmt: skip


@pytest.fixture
def app(timed_app: App, time: MovingTime) -> App:
    time.now = FIRST_MORNING
    return timed_app


def call(app: App, project: str, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(project, "python"), **arguments))


def read_script() -> Iterator[tuple[str, list[str]]]:
    """Yield the project and the lines of each session."""
    for part in SCRIPT.read_text("utf-8").strip().split("\n\n"):
        project, *lines = part.splitlines()
        yield project, lines


def play_session(app: App, project: str, session: str, lines: list[str]) -> None:
    """Learn a session: "> " is an answer of the agent, "$ " a command, "! " an edit, and the rest the person's."""
    messages = []
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind in ("$", "!"):
            event_type, text = ("command", f"Bash: {rest}") if kind == "$" else ("edit", f"Edit: {rest}")
            event = {"event_type": event_type, "content": text, "session_id": session}
            call(app, project, "record_event", **event, outcome="success")
        else:
            messages.append({"role": "assistant", "text": rest} if kind == ">" else {"role": "user", "text": line})
    call(app, project, "learn", session_id=session, messages=messages)


@pytest.mark.sqlite_only("what is told, not how it is stored; test_supersede.py has the links on both engines")
def test_last_briefings_tell_what_holds(app: App, time: MovingTime) -> None:
    sessions = list(read_script())
    assert len(sessions) == 40
    for number, (project, lines) in enumerate(sessions):
        time.now += SESSION_GAP_S
        play_session(app, project, f"s{number}", lines)
    time.now += SESSION_GAP_S
    absent: list[str] = []
    for project, (musts, must_nots) in BRIEFINGS.items():
        briefing = call(app, project, "briefing")
        text = BEFORE_PATTERN.sub("", briefing.text).casefold()
        assert [phrase for phrase in must_nots if phrase.casefold() in text] == [], project
        assert f"next: {musts[-1]}".casefold() in text, "the next step of the last session"
        assert briefing.tokens <= 900
        absent += [phrase for phrase in musts if phrase.casefold() not in text]
    count = sum(len(musts) for musts, _ in BRIEFINGS.values())
    assert count - len(absent) >= MIN_TOLD * count, absent
    stored = str([call(app, project, "search_by_tag", tags=["auto"], k=500) for project in BRIEFINGS])
    assert [word for word in PRIVATE if word in stored] == []
