"""Families of statements that contradict each other: one thing said in several ways, with a value that changes."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from athena.memory.consolidation.signature import listed
from bench.evaluation.planting import PEOPLE

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


def numbers(low: int, high: int) -> Value:
    return lambda c: [str(n) for n in c.sample(range(low, high), 2)]


def one_of(words: list[str]) -> Value:
    return lambda c: c.sample(words, 2)


def one_time(c: random.Random) -> list[str]:
    """Return one time of day in two notations."""
    hour, minute = c.randint(1, 23), c.choice([0, 0, 15, 30])
    half = f"{(hour - 1) % 12 + 1}{f':{minute:02d}' if minute else ''}{c.choice([' ', ''])}{'ap'[hour >= 12]}m"
    return [f"{hour:02d}:{minute:02d}", half]


def one_span(c: random.Random) -> list[str]:
    """Return one span of time in two notations."""
    n = c.randint(2, 9)
    return c.choice(
        [[f"{n * 60} seconds", f"{n} minutes"], [f"{n} hours", f"{n * 60} minutes"], [f"{n} weeks", f"{7 * n} days"],
         [f"{n} s", f"{n} seconds"], [f"{n} minutes", f"{n} min"], ["half an hour", "30 minutes"]]
    )  # fmt: skip


def times(c: random.Random) -> list[str]:
    """Return two times of day, each in a notation of its own."""
    one, other = c.sample(range(1, 23), 2)
    return [f"{one:02d}:00", c.choice([f"{other:02d}:00", f"{(other - 1) % 12 + 1} {'ap'[other >= 12]}m"])]


class Family(NamedTuple):
    """Ways to state something; `{x}` is the value, `{c}` the subject, `{y}` what the value was before."""

    values: Value
    ways: list[str]
    changes: Sequence[str] = ()  # ways to say that it is {x} now and was {y}


FAMILIES = [
    Family(
        one_of(DAYS),
        ["Deploys of {c} run every {x}.", "{C} is deployed on {x}s.", "We deploy {c} on {x}."],
        ["Deploys of {c} moved from {y} to {x}.", "{C} is now deployed on {x}s."],
    ),
    Family(
        numbers(20, 900),
        [
            "The {c} API is limited to {x} requests per minute.",
            "Rate limit of the {c} API: {x} requests per minute.",
            "The rate limit for {c} API calls is {x} requests per minute.",
        ],
        ["The {c} API limit was raised from {y} to {x} requests per minute."],
    ),
    Family(
        one_of(PEOPLE),
        ["{x} owns the {c} service.", "The owner of the {c} service is {x}.", "{C} service owner: {x}."],
        ["{x} took over the {c} service from {y}.", "{y} no longer owns the {c} service, {x} does."],
    ),
    Family(
        lambda c: list(c.choice(TOOLS)),
        ["The {c} team uses {x} for everything.", "{C}: we work with {x}.", "{x} is what we use in {c}."],
        ["{C} switched from {y} to {x}.", "We replaced {y} with {x} in {c}.", "{C} uses {x} instead of {y} now."],
    ),
    Family(
        numbers(3_001, 9_999),
        [
            "The {c} dev server listens on port {x}.",
            "Port of the {c} dev server: {x}.",
            "{C} dev server runs on port {x}.",
        ],
        ["The {c} dev server moved from port {y} to {x}."],
    ),
    Family(
        one_of(["enabled", "disabled"]),
        ["The dark mode flag of {c} is {x}.", "Dark mode in {c} is {x}.", "{C}: dark mode flag {x}."],
        [],
    ),
    Family(
        numbers(5, 90),
        [
            "Sessions in {c} expire after {x} minutes.",
            "The session timeout of {c} is {x} minutes.",
            "{C} sessions time out after {x} minutes.",
        ],
        ["Session expiry in {c} changed from {y} to {x} minutes."],
    ),
    Family(
        one_of(CITIES),
        ["{p} lives in {x}.", "{p}'s home is in {x}.", "{p} is based in {x}."],
        ["{p} moved from {y} to {x}.", "{p} no longer lives in {y} but in {x}."],
    ),
    Family(
        lambda c: [f"{n}.{c.randint(0, 9)}" for n in c.sample(range(2, 20), 2)],
        ["{C} is pinned to Python {x}.", "The Python version of {c} is {x}.", "{C} runs on Python {x}."],
        ["{C} was upgraded from Python {y} to {x}."],
    ),
    Family(
        one_of(["always", "never"]),
        ["{X} squash commits in {c}.", "Commits in {c} are {x} squashed.", "In {c}, {x} squash commits."],
        [],
    ),
    Family(
        one_of(["may", "must not"]),
        ["Agents {x} push to the main branch of {c}.", "The main branch of {c}: agents {x} push to it."],
        [],
    ),
    Family(
        one_of(["tabs", "spaces"]),
        ["Indent {c} code with {x}.", "{C} code is indented with {x}.", "The {c} code base uses {x} for indentation."],
        ["{C} code is indented with {x}, no longer with {y}."],
    ),
    Family(
        one_of(["does", "does not"]),
        ["The {c} client {x} retry failed uploads.", "Failed uploads: the {c} client {x} retry them."],
        [],
    ),
    Family(
        numbers(5, 60),
        ["The {c} budget is {x} thousand euros a month.", "{C} has a monthly budget of {x} thousand euros."],
        ["The monthly budget of {c} was cut from {y} to {x} thousand euros."],
    ),
    Family(
        one_of(["02:00", "03:30", "04:15", "23:00"]),
        ["The nightly job of {c} starts at {x}.", "{C} nightly job: {x}.", "At {x} the nightly job of {c} begins."],
        [],
    ),
    Family(
        numbers(10, 400),
        ["Logs of {c} are kept for {x} days.", "{C} log retention is {x} days.", "We keep {c} logs {x} days."],
        ["Log retention of {c} went from {y} to {x} days."],
    ),
]

FAMILIES += [
    Family(times, ["The {c} sync is at {x}.", "{C} sync: {x}.", "We have the {c} sync at {x}."], []),
    Family(
        one_of(["use", "do not use"]),
        ["We {x} npm in {c}.", "In {c} we {x} npm."],
        ["We {x} npm in {c} any more."],
    ),
    Family(
        one_of(CITIES), ["The {c} team moved to {x}.", "{C} has moved to {x}."], ["The {c} team moved from {y} to {x}."]
    ),
    Family(
        lambda c: [f"{n} {c.choice(['minutes', 'hours'])}" for n in c.sample(range(3, 50), 2)],
        ["Tokens of {c} are valid for {x}.", "{C} tokens expire after {x}."],
        ["Tokens of {c} are valid for {x} now, no longer {y}."],
    ),
    Family(
        one_of(["euros", "dollars", "pounds"]),
        ["{C} invoices are issued in {x}.", "{C} invoices: {x}."],
        ["{C} invoices are issued in {x} instead of {y}."],
    ),
]

# Only among statements of odd seeds, so that what is reported holds for families that nothing was tuned on.
UNSEEN = [
    Family(one_of(["open", "closed"]), ["The {c} beta is {x} to new users.", "{C} beta: {x} to new users."], []),
    Family(
        one_of(PEOPLE),
        ["{x} signs off {c} releases.", "{C} releases are signed off by {x}."],
        ["{x} signs off {c} releases, no longer {y}."],
    ),
    Family(
        numbers(2, 72),
        ["Support answers {c} tickets within {x} hours.", "{C} support: an answer takes {x} hours at most."],
        ["Support now answers {c} tickets within {x} hours, it was {y}."],
    ),
    Family(
        one_of(["Debian", "Alpine", "Ubuntu"]),
        ["{C} images are built from {x}.", "The {c} image is based on {x}."],
        ["{C} images are built from {x} rather than {y}."],
    ),
    Family(
        numbers(2, 40),
        ["The {c} pool holds {x} connections.", "{C} pool size: {x} connections."],
        ["The {c} pool was reduced from {y} to {x} connections."],
    ),
    Family(
        one_of(["mandatory", "optional"]),
        ["Two-factor login is {x} in {c}.", "In {c}, two-factor login is {x}."],
        [],
    ),
    Family(
        one_of(["Stripe", "Adyen", "Braintree"]),
        ["The payment provider of {c} is {x}.", "{C} payment provider: {x}."],
        ["{C} payments go through {x} instead of {y}."],
    ),
    Family(
        one_of(["weekly", "daily", "hourly"]),
        ["{C} snapshots are taken {x}.", "Snapshots of {c} are taken {x}."],
        ["{C} snapshots are now taken {x} instead of {y}."],
    ),
    Family(
        one_of(DAYS),
        ["The {c} retro is on {x}.", "{C} retro: every {x}.", "We hold the {c} retro on {x}s."],
        ["The {c} retro moved from {y} to {x}."],
    ),
    Family(
        one_of(["can", "cannot"]),
        ["Guests {x} export {c} reports.", "Reports of {c}: guests {x} export them."],
        [],
    ),
    Family(
        numbers(2, 12),
        ["{C} changes need {x} approvals.", "Approvals needed for {c} changes: {x}."],
        ["{C} changes need {x} approvals now, no longer {y}."],
    ),
]
