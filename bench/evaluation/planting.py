"""Streams of events with patterns planted in them, to see whether consolidation finds these and nothing else.

A stream is the work of a few coding agents: most of it never comes twice, though its words do. Into it go episodes
that recur (reworded each time, with other numbers, irregular or by the clock) and sequences (after A, or A and B, the
outcome of C is mostly the same), with other events between the steps, and steps that come just as often and mean
nothing, or are the very opposite of a step that means something. A session may hold several ends. Nothing here knows
how the miners work.
"""

import random
from typing import NamedTuple

from athena.memory.consolidation.events import split_words
from athena.memory.consolidation.values import MinedEvent

DAY_S = 86_400.0
START_TIME_S = 1_780_000_000.0  # a moment in 2026; only differences matter

COMPONENTS = split_words(
    """checkout billing auth search orders inventory payments gateway scheduler notifier exporter importer
    dashboard profile catalog pricing shipping webhook limiter mailer ledger uploader crawler indexer
    recommender onboarding subscriptions audit reporting geocoder"""
)
VERBS = split_words(
    """fixed refactored reviewed renamed extracted simplified traced profiled documented benchmarked rewrote
    removed investigated reproduced merged reverted split typed mocked inlined cached validated logged wrapped
    ported measured sketched discussed explained checked"""
)
OBJECTS = split_words(
    """parser retry-loop serializer timeout handler query fixture test build config route template schema form
    migration backup certificate cache pool lock queue worker token header cursor index snapshot report hook
    flag validator pipeline deploy release branch ticket endpoint table column stylesheet banner chart export
    script"""
)
QUALITIES = split_words(
    """slow flaky stale missing broken duplicated unused confusing nested generic legacy brittle empty wrong
    unclear large recursive optional hidden outdated"""
)
PEOPLE = split_words("Ann Bob Carla Dmitri Elena Farid Grace Hiro Ines Jonas")
ASIDE_TEXTS = [
    "",
    "",
    "",
    " while at it",
    " as asked",
    ", took a while",
    " after lunch",
    ", more later",
    " (see notes)",
]

NOISE_TEMPLATES = [
    ("action", "{verb} the {object} in {component}{aside}"),
    ("action", "{verb} a {quality} {object}, {component} and {component2}"),
    ("action", "{verb} {component}/{object}.py near line {n}"),
    ("observation", "{component} has a {quality} {object}"),
    ("observation", "the {object} of {component} looks {quality}, {person} agrees"),
    ("question", "asked {person} whether the {object} in {component} may be {verb}"),
    ("message", "{person} wrote about the {quality} {object}{aside}"),
    ("tool_call", "grep -rn {object} src/{component} | head -{n}"),
    ("tool_call", "opened src/{component}/{object}_{quality}.py"),
    ("decision", "leave the {object} {quality} until {component} is {verb}"),
]

# Each is one kind of thing and several ways to write it down.
EPISODE_TEMPLATES = [
    (
        "job",
        [
            "nightly backup of the {component} database finished in {n} s",
            "{component} db backup done, {n} MB",
            "backup of {component} database completed after {n} seconds",
        ],
    ),
    (
        "alert",
        [
            "disk usage on {component}-worker-{d} at {n}%",
            "{component} worker {d}: disk usage {n} percent",
            "disk usage warning for {component} worker {d} ({n}%)",
        ],
    ),
    (
        "job",
        [
            "renewed TLS certificate of {component}.example.com, valid {n} days",
            "TLS certificate for {component}.example.com was renewed",
            "TLS certificate renewal, {component}: ok",
        ],
    ),
    (
        "alert",
        [
            "{component} latency p99 above {n} ms",
            "p99 latency of {component} is {n} ms",
            "high p99 latency on {component}: {n}ms",
        ],
    ),
    (
        "error",
        [
            "connection pool exhausted in {component} ({n} waiting)",
            "{component}: connection pool is exhausted",
            "exhausted the connection pool of {component} again, {n} clients waiting",
        ],
    ),
    (
        "error",
        [
            "OOM killed {component} pod {hex}",
            "{component} pod {hex} was OOM killed at {n} MB",
            "pod {hex} of {component}: OOM kill",
        ],
    ),
    (
        "action",
        [
            "rotated the signing keys of {component}",
            "signing keys for {component} rotated, old ones kept {n} h",
            "{component}: rotated signing keys",
        ],
    ),
    (
        "job",
        [
            "synced {n} invoices from {component} to the warehouse",
            "warehouse sync of {component} invoices: {n} rows",
            "invoices of {component} synced to warehouse ({n})",
        ],
    ),
    (
        "message",
        [
            "{person} asked for the weekly metrics of {component}",
            "{person} needs the weekly metrics about {component}",
            "weekly metrics of {component} requested by {person}",
        ],
    ),
    (
        "action",
        [
            "cleared redis keys of {component} by hand, {n} gone",
            "had to clear {component} redis keys by hand",
            "{n} redis keys of {component} cleared by hand",
        ],
    ),
    (
        "error",
        [
            "flaky selenium screenshot in {component} suite, retry {d}",
            "selenium screenshot flaky again in {component}",
            "{component}: flaky selenium screenshot, passed on retry {d}",
        ],
    ),
    (
        "job",
        [
            "vacuumed {component} partitions, freed {n} GB",
            "vacuum of {component} partitions freed {n} GB",
            "{component} partitions vacuumed in {n} s",
        ],
    ),
    (
        "alert",
        [
            "dependabot opened PR #{n} for lodash in {component}",
            "lodash update for {component}: dependabot PR #{n}",
            "dependabot: lodash bump in {component} (#{n})",
        ],
    ),
    (
        "action",
        [
            "standup with {person} about {component}",
            "daily standup, {component}, {person} led",
            "{component} standup: {person} reported, {n} min",
        ],
    ),
]

STEP_TEMPLATES = [
    ("action", ["skipped lint to save time", "lint skipped, in a hurry", "did not run lint: skipped"]),
    (
        "action",
        ["edited the helm values by hand", "helm values changed by hand", "changed helm values manually by hand"],
    ),
    ("action", ["bumped protobuf to {v}", "protobuf version bumped ({v})", "bump protobuf {v}"]),
    ("action", ["rebased the branch onto main, {n} commits", "branch rebased onto main", "rebase of branch onto main"]),
    ("tool_call", ["docker system prune --all -f", "docker system prune, {n} GB free", "ran docker system prune"]),
    ("action", ["wrote a rollback plan first", "rollback plan written", "rollback plan: {n} steps written"]),
    ("action", ["warmed up the CDN edge with {n} urls", "CDN edge warmed up", "warmed CDN edge nodes"]),
    (
        "tool_call",
        ["terraform plan shows {n} changes", "ran terraform plan: {n} to change", "terraform plan, {n} changes"],
    ),
    (
        "action",
        ["paired with {person} on the review", "review paired with {person}", "paired review, {person}, {n} min"],
    ),
    ("action", ["froze the feature toggles", "feature toggles frozen for {n} h", "toggles of all features frozen"]),
    (
        "action",
        ["ran the seed script on postgres", "postgres seeded by the seed script", "seed script for postgres, {n} rows"],
    ),
    (
        "message",
        ["announced it in the ops channel", "ops channel announcement sent", "sent announcement to ops channel"],
    ),
]
# The opposite of a step, in nearly the same words; it comes where the step does not.
OPPOSITE_STEPS = {
    "skipped lint to save time": ("action", ["ran lint", "lint was run", "ran lint as asked"]),
    "edited the helm values by hand": ("action", ["read the helm values", "read helm values, {n} lines"]),
    "wrote a rollback plan first": ("action", ["went on without a rollback plan", "no rollback plan was written"]),
    "froze the feature toggles": ("action", ["did not freeze the feature toggles", "feature toggles not frozen"]),
    "bumped protobuf to {v}": ("action", ["removed protobuf", "protobuf removed"]),
}
END_TEMPLATES = [
    ("deploy", ["deploy to production", "production deploy #{n}", "deploying build {hex} to production"]),
    (
        "test",
        ["integration tests against staging", "staging integration tests, {n} cases", "ran staging integration tests"],
    ),
    ("build", ["release build for arm64", "arm64 release build {v}", "built the arm64 release"]),
    ("merge", ["merge queue run for PR #{n}", "merge queue: PR #{n}", "PR {n} through the merge queue"]),
    (
        "load",
        ["load test with {n} virtual users", "k6 load test, {n} virtual users", "load test run, virtual users {n}"],
    ),
]


_Step = tuple[str, list[str]]  # event type, wordings


class PlantedPattern(NamedTuple):
    """A pattern in a stream, and its events."""

    type: str  # recurring, sequence
    evidence: frozenset[int]
    outcome: str | None = None


class EventStream(NamedTuple):
    seed: int
    events: list[MinedEvent]
    planted: list[PlantedPattern]
    steps: list[frozenset[int]]  # events of one kind that recur because sequences are made of them


class _StreamWriter:
    """Collects events in any order; `build_stream` numbers them by time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.events: list[tuple[float, str, str, str | None, str]] = []

    def add_event(self, at: float, kind: str, text: str, session: str, outcome: str | None = None) -> int:
        self.events.append((at, kind, text, outcome, session))
        return len(self.events) - 1

    def fill_template(self, template: str, **fixed: str) -> str:
        c = self.rng
        values = {
            "verb": _choose_common_word(c, VERBS),
            "object": _choose_common_word(c, OBJECTS),
            "component": _choose_common_word(c, COMPONENTS),
            "component2": _choose_common_word(c, COMPONENTS),
            "quality": _choose_common_word(c, QUALITIES),
            "person": c.choice(PEOPLE),
            "aside": c.choice(ASIDE_TEXTS),
            "n": c.randint(2, 900),
            "d": c.randint(1, 4),
            "hex": f"{c.getrandbits(32):08x}",
            "v": f"{c.randint(1, 9)}.{c.randint(0, 30)}.{c.randint(0, 9)}",
        }
        text = template.format(**values | fixed)
        return text[0].upper() + text[1:] if c.random() < 0.3 else text

    def add_noise(self, at: float, session: str) -> int:
        kind, template = self.rng.choice(NOISE_TEMPLATES)
        outcome = self.rng.choices([None, "success", "failure", "partial"], [6, 3, 1, 0.3])[0]
        return self.add_event(at, kind, self.fill_template(template), session, outcome)

    def build_stream(
        self, seed: int, planted: list[tuple[str, set[int], str | None]], steps: list[set[int]]
    ) -> EventStream:
        order = sorted(range(len(self.events)), key=lambda i: (self.events[i][0], i))
        number = {old: new + 1 for new, old in enumerate(order)}
        events = [MinedEvent(number[i], at, kind, text, outcome, session)
                  for i in order for at, kind, text, outcome, session in [self.events[i]]]  # fmt: skip
        return EventStream(
            seed,
            events,
            [PlantedPattern(kind, frozenset(number[i] for i in ids), outcome) for kind, ids, outcome in planted],
            [frozenset(number[i] for i in ids) for ids in steps],
        )


def _choose_common_word(chance: random.Random, words: list[str]) -> str:
    """Choose a word; the first words of a list are more frequent, as in real texts."""
    return words[min(int(chance.expovariate(2.5 / len(words))), len(words) - 1)]


def generate_stream(
    seed: int, size: int = 600, *, recurring: int = 3, sequences: int = 2, days: float = 28.0
) -> EventStream:
    """Generate a stream of about `size` events over some days."""
    w = _StreamWriter(seed)
    c = w.rng
    planted: list[tuple[str, set[int], str | None]] = []
    steps: list[set[int]] = []
    end = START_TIME_S + days * DAY_S
    for kind, templates in c.sample(EPISODE_TEMPLATES, recurring):
        planted.append(("recurring", _plant_episode(w, kind, templates, days), None))
    if sequences:
        found, steps = _plant_sequences(w, sequences, days)
        planted += found
    number = 0
    while len(w.events) < size:
        number += 1
        at, session = c.uniform(START_TIME_S, end), f"work-{number}"
        if c.random() < 0.04:  # repeated within minutes: one occasion
            kind, template = c.choice(NOISE_TEMPLATES)
            text = w.fill_template(template)
            for _ in range(c.randint(4, 9)):
                at += c.uniform(5, 60)
                w.add_event(at, kind, text, session, "failure")
            continue
        for _ in range(c.randint(2, 12)):
            at += c.expovariate(1 / 240)
            w.add_noise(at, session)
    return w.build_stream(seed, planted, steps)


def _plant_episode(w: _StreamWriter, kind: str, templates: list[str], days: float) -> set[int]:
    """Plant a recurring event: at regular times with some jitter, or at random times."""
    c = w.rng
    fixed = {"component": c.choice(COMPONENTS)}
    rhythm = c.choice(["daily", "weekly", "hours", "irregular", "irregular"])
    if rhythm == "weekly" and days < 28:
        rhythm = "irregular"
    step = {"daily": DAY_S, "weekly": 7 * DAY_S, "hours": c.choice([6, 8, 12]) * 3_600.0, "irregular": 0.0}[rhythm]
    if step:
        first = START_TIME_S + c.uniform(0, min(step, DAY_S))
        count = min(int((days * DAY_S - (first - START_TIME_S)) / step) + 1, 30)
        moments = [first + i * step + c.gauss(0, step * 0.02) for i in range(count) if c.random() > 0.05 or count < 6]
    else:
        moments = [c.uniform(START_TIME_S, START_TIME_S + days * DAY_S) for _ in range(c.randint(5, 20))]
    known = c.sample(templates, c.randint(1, len(templates)))
    alone = c.random() < 0.5  # in sessions of their own, or among other work
    ids = set()
    for i, at in enumerate(moments):
        session = f"{kind}-{i}"
        ids.add(
            w.add_event(at, kind, w.fill_template(c.choice(known), **fixed), session, c.choice([None, None, "success"]))
        )
        for _ in range(0 if alone else c.randint(1, 3)):
            w.add_noise(at + c.uniform(-900, 900), session)
    return ids


def _plant_sequences(
    w: _StreamWriter, sequences: int, days: float
) -> tuple[list[tuple[str, set[int], str | None]], list[set[int]]]:
    """Plant sequences into sessions of work, among sessions where the same steps mean nothing."""
    c = w.rng
    ends, steps = c.sample(END_TEMPLATES, sequences), c.sample(STEP_TEMPLATES, len(STEP_TEMPLATES))
    ids: dict[str, set[int]] = {}

    def add_step(at: float, session: str, one: tuple[str, list[str]], outcome: str | None = None) -> int:
        number = w.add_event(at, one[0], w.fill_template(c.choice(one[1])), session, outcome)
        ids.setdefault(one[1][0], set()).add(number)
        return number

    def add_noise_until_next(at: float, session: str) -> float:
        for _ in range(c.choice([0, 0, 1, 2, 3])):
            at += c.expovariate(1 / 120)
            w.add_noise(at, session)
        return at + c.expovariate(1 / 200) + 1

    planted: list[tuple[str, set[int], str | None]] = []
    for i, end in enumerate(ends):
        cause = [steps.pop() for _ in range(c.choice([1, 2, 2]))]
        decoys = [steps.pop() for _ in range(2)]
        outcome, other = c.choice([("failure", "success"), ("success", "failure")])
        base, strong = c.uniform(0.1, 0.35), c.uniform(0.85, 1.0)
        evidence: set[int] = set()
        opposites = [OPPOSITE_STEPS[one[1][0]] for one in cause if one[1][0] in OPPOSITE_STEPS]
        runs = [True] * c.randint(12, 24) + [False] * c.randint(16, 40)
        c.shuffle(runs)
        many = c.random() < 0.5  # ends in one session
        while runs:
            at, session = START_TIME_S + c.uniform(0, days * DAY_S), f"seq-{i}-{len(runs)}"
            for _ in range(c.randint(2, 4) if many else 1):
                if not runs:
                    break
                caused = runs.pop()
                made = []
                if caused and c.random() < 0.3:
                    add_step(at, session, c.choice(decoys))
                for step in cause if caused else _select_other_steps(c, cause, decoys, opposites):
                    at = add_noise_until_next(at, session)
                    made.append(add_step(at, session, step))
                at = add_noise_until_next(at, session)
                met = c.random() < (strong if caused else base)
                made.append(add_step(at, session, end, outcome if met else other))
                evidence |= set(made) if met and caused else set()
        planted.append(("sequence", evidence, outcome))
    return planted, list(ids.values())


def _select_other_steps(
    c: random.Random, cause: list[_Step], decoys: list[_Step], opposites: list[_Step]
) -> list[_Step]:
    """Return the steps before an end without the cause: meaningless ones, a part of the cause, or its opposite."""
    before = [one for one in decoys if c.random() < 0.4]
    if len(cause) > 1 and c.random() < 0.3:
        before.append(c.choice(cause))
    elif opposites and c.random() < 0.6:
        before.append(c.choice(opposites))
    return before


def generate_noise(seed: int, size: int = 600, days: float = 28.0) -> EventStream:
    """Generate a stream without any planted pattern."""
    return generate_stream(seed, size, recurring=0, sequences=0, days=days)
