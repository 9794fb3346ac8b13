"""Memories of which some contradict each other, and others only look as if they did.

A family writes the same statement in several ways, with a value that changes. Two statements of a family about the same
subject with other values contradict each other, however they are put. The look-alikes differ in their subject, say
the same in other words, add to each other, or tell of two different occasions.
"""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from athena.evaluation.planting import COMPONENTS, DAY, PEOPLE, START
from athena.memory.consolidation.material import Note
from athena.memory.consolidation.signature import listed

DAYS = listed("Monday Tuesday Wednesday Thursday Friday")
TOOLS = [
    ("pytest", "unittest"),
    ("npm", "pnpm"),
    ("Jenkins", "Buildkite"),
    ("Redis", "Memcached"),
    ("Slack", "Teams"),
    ("black", "ruff"),
    ("Webpack", "Vite"),
    ("MySQL", "PostgreSQL"),
    ("REST", "gRPC"),
    ("Kafka", "RabbitMQ"),
]
CITIES = listed("Lisbon Oslo Berlin Osaka Quito Dublin Turin")
ENVIRONMENTS = listed("staging production sandbox")

Value = Callable[[random.Random], list[str]]


def _numbers(low: int, high: int) -> Value:
    return lambda c: [str(n) for n in c.sample(range(low, high), 2)]


def _of(words: list[str]) -> Value:
    return lambda c: c.sample(words, 2)


def _one_time(c: random.Random) -> list[str]:
    """Return one time of day in two notations."""
    hour, minute = c.randint(1, 23), c.choice([0, 0, 15, 30])
    half = f"{(hour - 1) % 12 + 1}{f':{minute:02d}' if minute else ''}{c.choice([' ', ''])}{'ap'[hour >= 12]}m"
    return [f"{hour:02d}:{minute:02d}", half]


def _one_span(c: random.Random) -> list[str]:
    """Return one span of time in two notations."""
    n = c.randint(2, 9)
    return c.choice(
        [[f"{n * 60} seconds", f"{n} minutes"], [f"{n} hours", f"{n * 60} minutes"], [f"{n} weeks", f"{7 * n} days"],
         [f"{n} s", f"{n} seconds"], [f"{n} minutes", f"{n} min"], ["half an hour", "30 minutes"]]
    )  # fmt: skip


def _times(c: random.Random) -> list[str]:
    """Return two times of day, each in a notation of its own."""
    one, other = c.sample(range(1, 23), 2)
    return [f"{one:02d}:00", c.choice([f"{other:02d}:00", f"{(other - 1) % 12 + 1} {'ap'[other >= 12]}m"])]


class Family(NamedTuple):
    """Ways to statement something; `{x}` is the value, `{c}` the subject, `{y}` what the value was before."""

    values: Value
    ways: list[str]
    changes: Sequence[str] = ()  # ways to say that it is {x} now and was {y}


FAMILIES = [
    Family(
        _of(DAYS),
        ["Deploys of {c} run every {x}.", "{C} is deployed on {x}s.", "We deploy {c} on {x}."],
        ["Deploys of {c} moved from {y} to {x}.", "{C} is now deployed on {x}s."],
    ),
    Family(
        _numbers(20, 900),
        [
            "The {c} API is limited to {x} requests per minute.",
            "Rate limit of the {c} API: {x} requests per minute.",
            "The rate limit for {c} API calls is {x} requests per minute.",
        ],
        ["The {c} API limit was raised from {y} to {x} requests per minute."],
    ),
    Family(
        _of(PEOPLE),
        ["{x} owns the {c} service.", "The owner of the {c} service is {x}.", "{C} service owner: {x}."],
        ["{x} took over the {c} service from {y}.", "{y} no longer owns the {c} service, {x} does."],
    ),
    Family(
        lambda c: list(c.choice(TOOLS)),
        ["The {c} team uses {x} for everything.", "{C}: we work with {x}.", "{x} is what we use in {c}."],
        ["{C} switched from {y} to {x}.", "We replaced {y} with {x} in {c}.", "{C} uses {x} instead of {y} now."],
    ),
    Family(
        _numbers(3_001, 9_999),
        [
            "The {c} dev server listens on port {x}.",
            "Port of the {c} dev server: {x}.",
            "{C} dev server runs on port {x}.",
        ],
        ["The {c} dev server moved from port {y} to {x}."],
    ),
    Family(
        _of(["enabled", "disabled"]),
        ["The dark mode flag of {c} is {x}.", "Dark mode in {c} is {x}.", "{C}: dark mode flag {x}."],
        [],
    ),
    Family(
        _numbers(5, 90),
        [
            "Sessions in {c} expire after {x} minutes.",
            "The session timeout of {c} is {x} minutes.",
            "{C} sessions time out after {x} minutes.",
        ],
        ["Session expiry in {c} changed from {y} to {x} minutes."],
    ),
    Family(
        _of(CITIES),
        ["{p} lives in {x}.", "{p}'s home is in {x}.", "{p} is based in {x}."],
        ["{p} moved from {y} to {x}.", "{p} no longer lives in {y} but in {x}."],
    ),
    Family(
        lambda c: [f"{n}.{c.randint(0, 9)}" for n in c.sample(range(2, 20), 2)],
        ["{C} is pinned to Python {x}.", "The Python version of {c} is {x}.", "{C} runs on Python {x}."],
        ["{C} was upgraded from Python {y} to {x}."],
    ),
    Family(
        _of(["always", "never"]),
        ["{X} squash commits in {c}.", "Commits in {c} are {x} squashed.", "In {c}, {x} squash commits."],
        [],
    ),
    Family(
        _of(["may", "must not"]),
        ["Agents {x} push to the main branch of {c}.", "The main branch of {c}: agents {x} push to it."],
        [],
    ),
    Family(
        _of(["tabs", "spaces"]),
        ["Indent {c} code with {x}.", "{C} code is indented with {x}.", "The {c} code base uses {x} for indentation."],
        ["{C} code is indented with {x}, no longer with {y}."],
    ),
    Family(
        _of(["does", "does not"]),
        ["The {c} client {x} retry failed uploads.", "Failed uploads: the {c} client {x} retry them."],
        [],
    ),
    Family(
        _numbers(5, 60),
        ["The {c} budget is {x} thousand euros a month.", "{C} has a monthly budget of {x} thousand euros."],
        ["The monthly budget of {c} was cut from {y} to {x} thousand euros."],
    ),
    Family(
        _of(["02:00", "03:30", "04:15", "23:00"]),
        ["The nightly job of {c} starts at {x}.", "{C} nightly job: {x}.", "At {x} the nightly job of {c} begins."],
        [],
    ),
    Family(
        _numbers(10, 400),
        ["Logs of {c} are kept for {x} days.", "{C} log retention is {x} days.", "We keep {c} logs {x} days."],
        ["Log retention of {c} went from {y} to {x} days."],
    ),
]

FAMILIES += [
    Family(_times, ["The {c} sync is at {x}.", "{C} sync: {x}.", "We have the {c} sync at {x}."], []),
    Family(
        _of(["use", "do not use"]),
        ["We {x} npm in {c}.", "In {c} we {x} npm."],
        ["We {x} npm in {c} any more."],
    ),
    Family(
        _of(CITIES), ["The {c} team moved to {x}.", "{C} has moved to {x}."], ["The {c} team moved from {y} to {x}."]
    ),
    Family(
        lambda c: [f"{n} {c.choice(['minutes', 'hours'])}" for n in c.sample(range(3, 50), 2)],
        ["Tokens of {c} are valid for {x}.", "{C} tokens expire after {x}."],
        ["Tokens of {c} are valid for {x} now, no longer {y}."],
    ),
]

# Only in streams of odd seeds, so that what is reported holds for statements that nothing was tuned on.
UNSEEN = [
    Family(
        _of(["euros", "dollars", "pounds"]),
        ["{C} invoices are issued in {x}.", "{C} invoices: {x}."],
        ["{C} invoices are issued in {x} instead of {y}."],
    ),
    Family(_of(["open", "closed"]), ["The {c} beta is {x} to new users.", "{C} beta: {x} to new users."], []),
    Family(
        _of(PEOPLE),
        ["{x} signs off {c} releases.", "{C} releases are signed off by {x}."],
        ["{x} signs off {c} releases, no longer {y}."],
    ),
    Family(
        _numbers(2, 72),
        ["Support answers {c} tickets within {x} hours.", "{C} support: an answer takes {x} hours at most."],
        ["Support now answers {c} tickets within {x} hours, it was {y}."],
    ),
    Family(
        _of(["Debian", "Alpine", "Ubuntu"]),
        ["{C} images are built from {x}.", "The {c} image is based on {x}."],
        ["{C} images are built from {x} rather than {y}."],
    ),
]

# Pairs that contradict nothing; {c} and {d} are two components, {x} and {y} two values.
LOOKALIKES = [
    (
        _numbers(20, 900),
        "The {c} API is limited to {x} requests per minute.",
        "The {d} API is limited to {y} requests per minute.",
    ),
    (_of(DAYS), "Deploys of {c} run every {x}.", "Deploys of {d} run every {y}."),
    (_of(ENVIRONMENTS), "The {x} database of {c} runs PostgreSQL 15.", "The {y} database of {c} runs PostgreSQL 16."),
    (_of(DAYS), "{C} is deployed on {x}s.", "The {c} standup is on {y}s."),
    (_of(PEOPLE), "{x} owns the {c} service.", "{y} reviewed the {c} service."),
    (_of(PEOPLE), "{x} owns the {c} service.", "{y} owns the {d} service."),
    (_numbers(3, 59), "The {c} migration on May 3 took {x} minutes.", "The {c} migration on May 9 took {y} minutes."),
    (_numbers(100, 900), "Ticket #{x} is about the {c} login page.", "Ticket #{y} is about the {c} login page."),
    (_of(CITIES), "{p} lives in {x}.", "{q} lives in {y}."),
    (_of(CITIES), "{p} lives in {x}.", "{p} likes the food of {y}."),
    (_of(["tea", "coffee", "cocoa"]), "{p} likes {x}.", "{p} likes {y}."),
    (_numbers(5, 90), "Sessions in {c} expire after {x} minutes.", "Passwords in {c} expire after {y} days."),
    (_numbers(3_001, 9_999), "The {c} dev server listens on port {x}.", "The {c} metrics server listens on port {y}."),
    (_of(DAYS), "We deploy {c} on {x}.", "{C} is deployed on {x}s."),
    (_of(["pytest", "ruff", "mypy"]), "The {c} checks include {x}.", "The {c} checks include {y}."),
    (_numbers(2, 9), "{C} v{x} needs a license key.", "{C} v{y} needs no license key."),
    (_numbers(3, 90), "The {c} build took {x} s today.", "The {c} build took {y} s today."),
    (_of(["enabled", "disabled"]), "The dark mode flag of {c} is {x}.", "The beta search flag of {c} is {y}."),
    (_of(["enabled", "disabled"]), "Dark mode in {c} is {x} for admins.", "Dark mode in {c} is {y} for guests."),
    (_numbers(2, 50), "Pull request {x} fixes the {c} login.", "Pull request {y} does not fix the {c} login."),
    (
        _numbers(20, 900),
        "The rate limit of the {c} API is {x} requests per minute.",
        "The {c} API allows {x} requests per minute.",
    ),
    (_of(DAYS), "Do not deploy {c} on {x}.", "{C} must not be deployed on {x}s."),
    (_numbers(10, 400), "Logs of {c} are kept for {x} days.", "Backups of {c} are kept for {y} days."),
]
# Another subject with the same predicate, and the same value in another notation.
LOOKALIKES += [
    (_times, "Standup is at {x}.", "Retro is at {y}."),
    (_times, "The {c} sync is at {x}.", "The {d} sync is at {y}."),
    (_times, "Lunch in {c} is at {x}.", "Dinner in {c} is at {y}."),
    (_numbers(2, 60), "Unit tests of {c} take {x} minutes.", "Integration tests of {c} take {y} minutes."),
    (_of(DAYS), "The blue team of {c} meets on {x}s.", "The red team of {c} meets on {y}s."),
    (_of(CITIES), "The {c} team moved to {x}.", "The {d} team moved to {y}."),
    (_of(["npm", "pip"]), "We use {x} in {c}.", "We do not use {y} in {c} any more."),
    (_one_time, "The nightly job of {c} starts at {x}.", "The {c} nightly job begins at {y}."),
    (_one_time, "Backups of {c} run nightly at {x}.", "Nightly backups of {c} are made at {y}."),
    (_one_span, "Sessions in {c} expire after {x}.", "The session timeout of {c} is {y}."),
    (_one_span, "The {c} job times out after {x}.", "The timeout of the {c} job is {y}."),
    (
        lambda c: ["1,200", "1200"],
        "The {c} API allows {x} requests/min.",
        "The {c} API allows {y} requests per minute.",
    ),
]
UNSEEN_LOOKALIKES = [
    (_times, "The {c} office opens at {x}.", "The {c} canteen opens at {y}."),
    (_one_time, "{C} doors close at {x}.", "The doors of {c} are closed at {y}."),
    (_one_span, "Invoices of {c} are cached for {x}.", "The {c} invoice cache lasts {y}."),
    (_numbers(3, 40), "{C} has {x} runners.", "The {d} cluster has {y} replicas."),
    (_of(PEOPLE), "{x} signs off {c} releases.", "{y} signs off {d} releases."),
    (_numbers(2, 60), "Incident #{x} was about {c} retries.", "Incident #{y} was about {c} retries."),
    (_of(["euros", "dollars"]), "{C} invoices are issued in {x}.", "{C} salaries are paid in {y}."),
]
FILLER = [
    "{p} prefers short pull requests for {c}.",
    "The {c} logs are in JSON.",
    "{C} has a {t} cache in front of it.",
    "Read the {c} runbook before touching {d}.",
    "{C} and {d} share a schema.",
    "{p} knows the history of {c}.",
    "The {c} tests need Docker and {n} GB of memory.",
    "Errors in {c} are reported to {p}.",
    "{C} was written by {p} in {city}.",
    "The feed of {c} reads {n} files an hour.",
]


class Statements(NamedTuple):
    seed: int
    notes: list[Note]
    contradictions: list[tuple[int, int]]  # the older and the newer memory


def statements(seed: int, planted: int = 6, lookalikes: int = 8, filler: int = 40) -> Statements:
    """Write memories over four weeks."""
    c = random.Random(seed)
    texts: list[str] = []
    pairs: list[tuple[int, int]] = []
    subjects = iter(c.sample(COMPONENTS, len(COMPONENTS)))
    people = iter(c.sample(PEOPLE, len(PEOPLE)))

    def named(template: str, **values: str) -> str:
        text = template.format(**values)
        return text[0].upper() + text[1:]

    def pair(one: str, other: str) -> tuple[int, int]:
        texts.extend([one, other])
        return len(texts) - 2, len(texts) - 1

    unseen = seed % 2 == 1
    for family in c.sample([*FAMILIES, *UNSEEN] if unseen else FAMILIES, planted):
        names = _names(next(subjects), c.choice(COMPONENTS), family.ways[0], people)
        old, new = family.values(c)
        later = c.choice([*family.ways, *family.changes])
        pairs.append(
            pair(
                named(c.choice(family.ways), x=old, X=old.title(), y=new, **names),
                named(later, x=new, X=new.title(), y=old, **names),
            )
        )
    for values, one, other in c.sample([*LOOKALIKES, *UNSEEN_LOOKALIKES] if unseen else LOOKALIKES, lookalikes):
        names = _names(next(subjects), next(subjects), one + other, people)
        x, y = values(c)
        pair(named(one, x=x, y=y, **names), named(other, x=x, y=y, **names))
    for _ in range(filler):
        component = c.choice(COMPONENTS)
        fixed = random.Random(component)  # what is said of a component twice is the same
        values_of = {
            "n": str(fixed.randint(2, 64)),
            "city": fixed.choice(CITIES),
            "t": fixed.choice(["small", "local"]),
        }
        template = c.choice(FILLER)
        who = (c if "prefers" in template else fixed).choice(PEOPLE)
        names = {"c": component, "C": component.title(), "d": c.choice(COMPONENTS), "p": who}
        texts.append(named(template, **names, **values_of))
    return _in_time(c, seed, texts, pairs)


def _names(component: str, other: str, template: str, people: "object") -> dict[str, str]:
    """Return the names of a pair; people are not shared between pairs, so that each statement has its own subject."""
    who: list[str] = []
    if "{p}" in template:
        who = [next(people), next(people)] if "{q}" in template else [next(people)]  # type: ignore[call-overload]
    return {"c": component, "C": component.title(), "d": other, "p": [*who, ""][0], "q": [*who, "", ""][1]}


def _in_time(c: random.Random, seed: int, texts: list[str], pairs: list[tuple[int, int]]) -> Statements:
    """Give each memory a time, the second of a pair after the first, and number them by it."""
    moments = [c.uniform(0, 28) * DAY + START for _ in texts]
    for old, new in pairs:
        moments[old], moments[new] = sorted((moments[old], moments[new]))
    order = sorted(dict.fromkeys(texts), key=lambda text: moments[texts.index(text)])
    number = {text: i + 1 for i, text in enumerate(order)}
    notes = [Note(number[text], moments[texts.index(text)], text) for text in order]
    return Statements(seed, notes, [(number[texts[old]], number[texts[new]]) for old, new in pairs])
