"""Templates of contradicting statements: one fact in several wordings, with a value that changes."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from athena.memory.consolidation.events import split_words
from bench.evaluation.planting import PEOPLE

WORKDAY_NAMES = split_words("Monday Tuesday Wednesday Thursday Friday")
TOOL_PAIRS = [
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
CITIES = split_words("Lisbon Oslo Berlin Osaka Quito Dublin Turin")
ENVIRONMENTS = split_words("staging production sandbox")

ValueSampler = Callable[[random.Random], list[str]]


def create_number_sampler(low: int, high: int) -> ValueSampler:
    return lambda c: [str(n) for n in c.sample(range(low, high), 2)]


def create_choice_sampler(words: list[str]) -> ValueSampler:
    return lambda c: c.sample(words, 2)


def sample_same_time(c: random.Random) -> list[str]:
    """Return one time of day in two notations."""
    hour, minute = c.randint(1, 23), c.choice([0, 0, 15, 30])
    half = f"{(hour - 1) % 12 + 1}{f':{minute:02d}' if minute else ''}{c.choice([' ', ''])}{'ap'[hour >= 12]}m"
    return [f"{hour:02d}:{minute:02d}", half]


def sample_same_duration(c: random.Random) -> list[str]:
    """Return one span of time in two notations."""
    n = c.randint(2, 9)
    return c.choice(
        [[f"{n * 60} seconds", f"{n} minutes"], [f"{n} hours", f"{n * 60} minutes"], [f"{n} weeks", f"{7 * n} days"],
         [f"{n} s", f"{n} seconds"], [f"{n} minutes", f"{n} min"], ["half an hour", "30 minutes"]]
    )  # fmt: skip


def sample_two_times(c: random.Random) -> list[str]:
    """Return two times of day, each in a notation of its own."""
    one, other = c.sample(range(1, 23), 2)
    return [f"{one:02d}:00", c.choice([f"{other:02d}:00", f"{(other - 1) % 12 + 1} {'ap'[other >= 12]}m"])]


class StatementFamily(NamedTuple):
    """Wordings of one fact; `{x}` is the value, `{c}` the subject, `{y}` the former value."""

    sample_values: ValueSampler
    templates: list[str]
    change_templates: Sequence[str] = ()  # wordings of a change from {y} to {x}


FAMILIES = [
    StatementFamily(
        create_choice_sampler(WORKDAY_NAMES),
        ["Deploys of {c} run every {x}.", "{C} is deployed on {x}s.", "We deploy {c} on {x}."],
        ["Deploys of {c} moved from {y} to {x}.", "{C} is now deployed on {x}s."],
    ),
    StatementFamily(
        create_number_sampler(20, 900),
        [
            "The {c} API is limited to {x} requests per minute.",
            "Rate limit of the {c} API: {x} requests per minute.",
            "The rate limit for {c} API calls is {x} requests per minute.",
        ],
        ["The {c} API limit was raised from {y} to {x} requests per minute."],
    ),
    StatementFamily(
        create_choice_sampler(PEOPLE),
        ["{x} owns the {c} service.", "The owner of the {c} service is {x}.", "{C} service owner: {x}."],
        ["{x} took over the {c} service from {y}.", "{y} no longer owns the {c} service, {x} does."],
    ),
    StatementFamily(
        lambda c: list(c.choice(TOOL_PAIRS)),
        ["The {c} team uses {x} for everything.", "{C}: we work with {x}.", "{x} is what we use in {c}."],
        ["{C} switched from {y} to {x}.", "We replaced {y} with {x} in {c}.", "{C} uses {x} instead of {y} now."],
    ),
    StatementFamily(
        create_number_sampler(3_001, 9_999),
        [
            "The {c} dev server listens on port {x}.",
            "Port of the {c} dev server: {x}.",
            "{C} dev server runs on port {x}.",
        ],
        ["The {c} dev server moved from port {y} to {x}."],
    ),
    StatementFamily(
        create_choice_sampler(["enabled", "disabled"]),
        ["The dark mode flag of {c} is {x}.", "Dark mode in {c} is {x}.", "{C}: dark mode flag {x}."],
        [],
    ),
    StatementFamily(
        create_number_sampler(5, 90),
        [
            "Sessions in {c} expire after {x} minutes.",
            "The session timeout of {c} is {x} minutes.",
            "{C} sessions time out after {x} minutes.",
        ],
        ["Session expiry in {c} changed from {y} to {x} minutes."],
    ),
    StatementFamily(
        create_choice_sampler(CITIES),
        ["{p} lives in {x}.", "{p}'s home is in {x}.", "{p} is based in {x}."],
        ["{p} moved from {y} to {x}.", "{p} no longer lives in {y} but in {x}."],
    ),
    StatementFamily(
        lambda c: [f"{n}.{c.randint(0, 9)}" for n in c.sample(range(2, 20), 2)],
        ["{C} is pinned to Python {x}.", "The Python version of {c} is {x}.", "{C} runs on Python {x}."],
        ["{C} was upgraded from Python {y} to {x}."],
    ),
    StatementFamily(
        create_choice_sampler(["always", "never"]),
        ["{X} squash commits in {c}.", "Commits in {c} are {x} squashed.", "In {c}, {x} squash commits."],
        [],
    ),
    StatementFamily(
        create_choice_sampler(["may", "must not"]),
        ["Agents {x} push to the main branch of {c}.", "The main branch of {c}: agents {x} push to it."],
        [],
    ),
    StatementFamily(
        create_choice_sampler(["tabs", "spaces"]),
        ["Indent {c} code with {x}.", "{C} code is indented with {x}.", "The {c} code base uses {x} for indentation."],
        ["{C} code is indented with {x}, no longer with {y}."],
    ),
    StatementFamily(
        create_choice_sampler(["does", "does not"]),
        ["The {c} client {x} retry failed uploads.", "Failed uploads: the {c} client {x} retry them."],
        [],
    ),
    StatementFamily(
        create_number_sampler(5, 60),
        ["The {c} budget is {x} thousand euros a month.", "{C} has a monthly budget of {x} thousand euros."],
        ["The monthly budget of {c} was cut from {y} to {x} thousand euros."],
    ),
    StatementFamily(
        create_choice_sampler(["02:00", "03:30", "04:15", "23:00"]),
        ["The nightly job of {c} starts at {x}.", "{C} nightly job: {x}.", "At {x} the nightly job of {c} begins."],
        [],
    ),
    StatementFamily(
        create_number_sampler(10, 400),
        ["Logs of {c} are kept for {x} days.", "{C} log retention is {x} days.", "We keep {c} logs {x} days."],
        ["Log retention of {c} went from {y} to {x} days."],
    ),
]

FAMILIES += [
    StatementFamily(
        sample_two_times, ["The {c} sync is at {x}.", "{C} sync: {x}.", "We have the {c} sync at {x}."], []
    ),
    StatementFamily(
        create_choice_sampler(["use", "do not use"]),
        ["We {x} npm in {c}.", "In {c} we {x} npm."],
        ["We {x} npm in {c} any more."],
    ),
    StatementFamily(
        create_choice_sampler(CITIES),
        ["The {c} team moved to {x}.", "{C} has moved to {x}."],
        ["The {c} team moved from {y} to {x}."],
    ),
    StatementFamily(
        lambda c: [f"{n} {c.choice(['minutes', 'hours'])}" for n in c.sample(range(3, 50), 2)],
        ["Tokens of {c} are valid for {x}.", "{C} tokens expire after {x}."],
        ["Tokens of {c} are valid for {x} now, no longer {y}."],
    ),
    StatementFamily(
        create_choice_sampler(["euros", "dollars", "pounds"]),
        ["{C} invoices are issued in {x}.", "{C} invoices: {x}."],
        ["{C} invoices are issued in {x} instead of {y}."],
    ),
]

# Only among statements of odd seeds, so that what is reported holds for families that nothing was tuned on.
UNSEEN_FAMILIES = [
    StatementFamily(
        create_choice_sampler(["open", "closed"]),
        ["The {c} beta is {x} to new users.", "{C} beta: {x} to new users."],
        [],
    ),
    StatementFamily(
        create_choice_sampler(PEOPLE),
        ["{x} signs off {c} releases.", "{C} releases are signed off by {x}."],
        ["{x} signs off {c} releases, no longer {y}."],
    ),
    StatementFamily(
        create_number_sampler(2, 72),
        ["Support answers {c} tickets within {x} hours.", "{C} support: an answer takes {x} hours at most."],
        ["Support now answers {c} tickets within {x} hours, it was {y}."],
    ),
    StatementFamily(
        create_choice_sampler(["Debian", "Alpine", "Ubuntu"]),
        ["{C} images are built from {x}.", "The {c} image is based on {x}."],
        ["{C} images are built from {x} rather than {y}."],
    ),
    StatementFamily(
        create_number_sampler(2, 40),
        ["The {c} pool holds {x} connections.", "{C} pool size: {x} connections."],
        ["The {c} pool was reduced from {y} to {x} connections."],
    ),
    StatementFamily(
        create_choice_sampler(["mandatory", "optional"]),
        ["Two-factor login is {x} in {c}.", "In {c}, two-factor login is {x}."],
        [],
    ),
    StatementFamily(
        create_choice_sampler(["Stripe", "Adyen", "Braintree"]),
        ["The payment provider of {c} is {x}.", "{C} payment provider: {x}."],
        ["{C} payments go through {x} instead of {y}."],
    ),
    StatementFamily(
        create_choice_sampler(["weekly", "daily", "hourly"]),
        ["{C} snapshots are taken {x}.", "Snapshots of {c} are taken {x}."],
        ["{C} snapshots are now taken {x} instead of {y}."],
    ),
    StatementFamily(
        create_choice_sampler(WORKDAY_NAMES),
        ["The {c} retro is on {x}.", "{C} retro: every {x}.", "We hold the {c} retro on {x}s."],
        ["The {c} retro moved from {y} to {x}."],
    ),
    StatementFamily(
        create_choice_sampler(["can", "cannot"]),
        ["Guests {x} export {c} reports.", "Reports of {c}: guests {x} export them."],
        [],
    ),
    StatementFamily(
        create_number_sampler(2, 12),
        ["{C} changes need {x} approvals.", "Approvals needed for {c} changes: {x}."],
        ["{C} changes need {x} approvals now, no longer {y}."],
    ),
]
