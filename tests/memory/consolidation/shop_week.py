"""A week of work on a shop with several test runs a session, written without knowledge of the miners."""

import random

from athena.memory.consolidation.values import MinedEvent

FILES = (
    "billing/refund.py", "billing/models.py", "api/routes.py", "web/cart.tsx", "auth/session.py", "search/index.py",
    "infra/deploy.yml",
)  # fmt: skip
DECISIONS = (
    "decided to keep the retry in the client",
    "decided to cache the session in Redis",
    "decided against GraphQL",
    "decided to split the billing module",
)
CARELESS = "edited billing/models.py without writing a migration"
TESTS = "ran the integration tests"


def week(end: float, seed: int = 7) -> list[MinedEvent]:
    """Return the events of the seven days before a time; careless edits make the tests fail."""
    r = random.Random(seed)
    events: list[MinedEvent] = []
    at, session = 0.0, ""

    def add(kind: str, text: str, outcome: str | None = None) -> None:
        nonlocal at
        at += 60 * r.randint(1, 6)
        events.append(MinedEvent(len(events) + 1, at, kind, text, outcome, session))

    for day in range(7):
        for part in range(4):
            at, session = end - (7 - day) * 86_400 + 5_760 * part + 60 * r.randint(0, 20), f"day{day}-{part}"
            add("session", f"session started: work on {r.choice(FILES)}")
            for _ in range(r.randint(2, 3)):
                file = r.choice(FILES)
                add("action", f"read {file}", "success")
                add("action", f"edited {file}", "success")
                careless = r.random() < 0.45
                if careless:
                    add("action", CARELESS, "success")
                elif r.random() < 0.4:
                    add("action", "wrote a migration", "success")
                add("test", TESTS, "failure" if r.random() < (0.85 if careless else 0.1) else "success")
                if r.random() < 0.5:
                    add("action", f"grep for {r.choice(['refund', 'TODO', 'cart total'])} in {r.choice(FILES)}")
                if r.random() < 0.3:
                    add("error", f"{r.choice(['TypeError', 'KeyError'])} in {r.choice(FILES)} line {r.randint(1, 300)}")
            if r.random() < 0.5:
                add("decision", r.choice(DECISIONS))
            if r.random() < 0.6:
                add("commit", f"committed {r.randint(1, 6)} files to main", "success")
            if part == 2:
                add("build", "docker build ran out of disk space", "failure")
    return events
