"""Generate memories of which some contradict each other and others only seem to.

A family writes the same statement in several ways, with a value that changes. Two statements of a family about the same
subject with other values contradict each other, however they are put. The look-alikes differ in their subject, say
the same in other words, add to each other, or tell of two different occasions.
"""

import random
from typing import NamedTuple

from athena.memory.consolidation.values import MinedMemory
from bench.evaluation.families import (
    CITIES,
    ENVIRONMENTS,
    FAMILIES,
    UNSEEN_FAMILIES,
    WORKDAY_NAMES,
    create_choice_sampler,
    create_number_sampler,
    sample_same_duration,
    sample_same_time,
    sample_two_times,
)
from bench.evaluation.planting import COMPONENTS, DAY_S, PEOPLE, START_TIME_S

# Pairs that contradict nothing; {c} and {d} are two components, {x} and {y} two values.
LOOKALIKE_PAIRS = [
    (
        create_number_sampler(20, 900),
        "The {c} API is limited to {x} requests per minute.",
        "The {d} API is limited to {y} requests per minute.",
    ),
    (create_choice_sampler(WORKDAY_NAMES), "Deploys of {c} run every {x}.", "Deploys of {d} run every {y}."),
    (
        create_choice_sampler(ENVIRONMENTS),
        "The {x} database of {c} runs MySQL 15.",
        "The {y} database of {c} runs MySQL 16.",
    ),
    (create_choice_sampler(WORKDAY_NAMES), "{C} is deployed on {x}s.", "The {c} standup is on {y}s."),
    (create_choice_sampler(PEOPLE), "{x} owns the {c} service.", "{y} reviewed the {c} service."),
    (create_choice_sampler(PEOPLE), "{x} owns the {c} service.", "{y} owns the {d} service."),
    (
        create_number_sampler(3, 59),
        "The {c} migration on May 3 took {x} minutes.",
        "The {c} migration on May 9 took {y} minutes.",
    ),
    (
        create_number_sampler(100, 900),
        "Ticket #{x} is about the {c} login page.",
        "Ticket #{y} is about the {c} login page.",
    ),
    (create_choice_sampler(CITIES), "{p} lives in {x}.", "{q} lives in {y}."),
    (create_choice_sampler(CITIES), "{p} lives in {x}.", "{p} likes the food of {y}."),
    (create_choice_sampler(["tea", "coffee", "cocoa"]), "{p} likes {x}.", "{p} likes {y}."),
    (
        create_number_sampler(5, 90),
        "Sessions in {c} expire after {x} minutes.",
        "Passwords in {c} expire after {y} days.",
    ),
    (
        create_number_sampler(3_001, 9_999),
        "The {c} dev server listens on port {x}.",
        "The {c} metrics server listens on port {y}.",
    ),
    (create_choice_sampler(WORKDAY_NAMES), "We deploy {c} on {x}.", "{C} is deployed on {x}s."),
    (create_choice_sampler(["pytest", "ruff", "mypy"]), "The {c} checks include {x}.", "The {c} checks include {y}."),
    (create_number_sampler(2, 9), "{C} v{x} needs a license key.", "{C} v{y} needs no license key."),
    (create_number_sampler(3, 90), "The {c} build took {x} s today.", "The {c} build took {y} s today."),
    (
        create_choice_sampler(["enabled", "disabled"]),
        "The dark mode flag of {c} is {x}.",
        "The beta search flag of {c} is {y}.",
    ),
    (
        create_choice_sampler(["enabled", "disabled"]),
        "Dark mode in {c} is {x} for admins.",
        "Dark mode in {c} is {y} for guests.",
    ),
    (
        create_number_sampler(2, 50),
        "Pull request {x} fixes the {c} login.",
        "Pull request {y} does not fix the {c} login.",
    ),
    (
        create_number_sampler(20, 900),
        "The rate limit of the {c} API is {x} requests per minute.",
        "The {c} API allows {x} requests per minute.",
    ),
    (create_choice_sampler(WORKDAY_NAMES), "Do not deploy {c} on {x}.", "{C} must not be deployed on {x}s."),
    (create_number_sampler(10, 400), "Logs of {c} are kept for {x} days.", "Backups of {c} are kept for {y} days."),
]
# Another subject with the same predicate, and the same value in another notation.
LOOKALIKE_PAIRS += [
    (create_choice_sampler(["euros", "dollars"]), "{C} invoices are issued in {x}.", "{C} salaries are paid in {y}."),
    (
        create_number_sampler(50, 900),
        "The {c} limit is {x} calls for free users.",
        "The {c} limit is {y} calls for paid users.",
    ),
    (
        create_number_sampler(2, 90),
        "{C} pages are cached {x} minutes in staging.",
        "{C} pages are cached {y} minutes in production.",
    ),
    (create_number_sampler(2, 90), "Version 1.{x} of {c} was released.", "Version 1.{y} of {c} was released."),
    (create_number_sampler(2, 900), "Invoice {x} of {c} was paid.", "Invoice {y} of {c} was not paid."),
    (
        create_number_sampler(2, 90),
        "Release 2.{x} of {c} went out on Tuesday.",
        "Release 2.{y} of {c} went out on Friday.",
    ),
    (create_number_sampler(9, 19), "{C} lunch is at {x} on Mondays.", "{C} lunch is at {y} on Fridays."),
    (create_number_sampler(2, 90), "{C} memory peaked at {x} GB on Monday.", "{C} memory peaked at {y} GB on Tuesday."),
    (create_number_sampler(2, 900), "Customer {x} asked for {c} exports.", "Customer {y} asked for {c} exports."),
    (sample_two_times, "Standup is at {x}.", "Retro is at {y}."),
    (sample_two_times, "The {c} sync is at {x}.", "The {d} sync is at {y}."),
    (sample_two_times, "Lunch in {c} is at {x}.", "Dinner in {c} is at {y}."),
    (create_number_sampler(2, 60), "Unit tests of {c} take {x} minutes.", "Integration tests of {c} take {y} minutes."),
    (create_choice_sampler(WORKDAY_NAMES), "The blue team of {c} meets on {x}s.", "The red team of {c} meets on {y}s."),
    (create_choice_sampler(CITIES), "The {c} team moved to {x}.", "The {d} team moved to {y}."),
    (create_choice_sampler(["npm", "pip"]), "We use {x} in {c}.", "We do not use {y} in {c} any more."),
    (sample_same_time, "The nightly job of {c} starts at {x}.", "The {c} nightly job begins at {y}."),
    (sample_same_time, "Backups of {c} run nightly at {x}.", "Nightly backups of {c} are made at {y}."),
    (sample_same_duration, "Sessions in {c} expire after {x}.", "The session timeout of {c} is {y}."),
    (sample_same_duration, "The {c} job times out after {x}.", "The timeout of the {c} job is {y}."),
    (
        lambda c: ["1,200", "1200"],
        "The {c} API allows {x} requests/min.",
        "The {c} API allows {y} requests per minute.",
    ),
]
UNSEEN_LOOKALIKE_PAIRS = [
    (create_number_sampler(2, 90), "Draft {x} of the {c} plan is ready.", "Draft {y} of the {c} plan is not ready."),
    (create_choice_sampler(["manual", "automatic"]), "Failover is {x} in {c} tests.", "Failover is {y} in {c} drills."),
    (create_choice_sampler(WORKDAY_NAMES), "{C} sends digests on {x}s at 9.", "{C} sends invoices on {y}s at 8."),
    (create_number_sampler(2, 90), "{C} spent {x} euros on servers.", "{C} spent {y} euros on travel."),
    (sample_two_times, "The {c} office opens at {x}.", "The {c} canteen opens at {y}."),
    (sample_same_time, "{C} doors close at {x}.", "The doors of {c} are closed at {y}."),
    (sample_same_duration, "Invoices of {c} are cached for {x}.", "The {c} invoice cache lasts {y}."),
    (create_number_sampler(3, 40), "{C} has {x} runners.", "The {d} cluster has {y} replicas."),
    (create_choice_sampler(PEOPLE), "{x} signs off {c} releases.", "{y} signs off {d} releases."),
    (create_number_sampler(2, 60), "Incident #{x} was about {c} retries.", "Incident #{y} was about {c} retries."),
    (create_number_sampler(2, 60), "{C} tasks retry {x} times for emails.", "{C} tasks retry {y} times for webhooks."),
    (create_number_sampler(2, 60), "Order {x} of {c} was shipped.", "Order {y} of {c} was not shipped."),
    (create_choice_sampler(WORKDAY_NAMES), "{C} backups run on {x} at 3.", "{C} restores run on {y} at 5."),
    (
        create_choice_sampler(["open", "closed"]),
        "The {c} forum is {x} to members.",
        "The {c} forum is {y} to visitors.",
    ),
    (create_number_sampler(2, 60), "{C} drains {x} rows at night.", "{C} drains {y} rows at noon."),
    (create_choice_sampler(PEOPLE), "{x} presented {c} in the spring.", "{y} presented {c} in the autumn."),
    (create_number_sampler(2, 9), "Episode {x} explains {c}.", "Episode {y} does not explain {c}."),
    (
        create_number_sampler(2, 60),
        "The {c} export reached {x} rows yesterday.",
        "The {c} export reached {y} rows today.",
    ),
    (create_choice_sampler(["can", "cannot"]), "Admins {x} export {c} data.", "Guests {y} export {c} data."),
    (create_choice_sampler(CITIES), "{C} met customers in {x}.", "{C} met customers in {y}."),
    (
        create_choice_sampler(["mandatory", "optional"]),
        "Signing is {x} for {c} tags.",
        "Signing is {y} for {c} branches.",
    ),
    (create_number_sampler(2, 60), "{C} keeps {x} snapshots by hour.", "{C} keeps {y} snapshots by week."),
]
FILLER_TEMPLATES = [
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


class StatementSet(NamedTuple):
    seed: int
    memories: list[MinedMemory]
    contradictions: list[tuple[int, int]]  # the older and the newer memory


def generate_statements(
    seed: int, planted: int = 6, lookalikes: int = 8, filler: int = 40, *, unseen_only: bool = False
) -> StatementSet:
    """Generate memories over four weeks; odd seeds also use families that nothing was tuned on."""
    c = random.Random(seed)
    texts: list[str] = []
    pairs: list[tuple[int, int]] = []
    subjects = iter(c.sample(COMPONENTS, len(COMPONENTS)))
    people = iter(c.sample(PEOPLE, len(PEOPLE)))

    def fill_template(template: str, **values: str) -> str:
        text = template.format(**values)
        return text[0].upper() + text[1:]

    def add_pair(one: str, other: str) -> tuple[int, int]:
        texts.extend([one, other])
        return len(texts) - 2, len(texts) - 1

    unseen = seed % 2 == 1
    families = UNSEEN_FAMILIES if unseen_only else [*FAMILIES, *UNSEEN_FAMILIES] if unseen else FAMILIES
    alike = (
        UNSEEN_LOOKALIKE_PAIRS
        if unseen_only
        else [*LOOKALIKE_PAIRS, *UNSEEN_LOOKALIKE_PAIRS]
        if unseen
        else LOOKALIKE_PAIRS
    )
    for family in c.sample(families, planted):
        names = _choose_names(next(subjects), c.choice(COMPONENTS), family.templates[0], people)
        old, new = family.sample_values(c)
        later = c.choice([*family.templates, *family.change_templates])
        pairs.append(
            add_pair(
                fill_template(c.choice(family.templates), x=old, X=old.title(), y=new, **names),
                fill_template(later, x=new, X=new.title(), y=old, **names),
            )
        )
    for values, one, other in c.sample(alike, lookalikes):
        names = _choose_names(next(subjects), next(subjects), one + other, people)
        x, y = values(c)
        add_pair(fill_template(one, x=x, y=y, **names), fill_template(other, x=x, y=y, **names))
    for _ in range(filler):
        component = c.choice(COMPONENTS)
        fixed = random.Random(component)  # so that a component always has the same facts
        values_of = {
            "n": str(fixed.randint(2, 64)),
            "city": fixed.choice(CITIES),
            "t": fixed.choice(["small", "local"]),
        }
        template = c.choice(FILLER_TEMPLATES)
        who = (c if "prefers" in template else fixed).choice(PEOPLE)
        names = {"c": component, "C": component.title(), "d": c.choice(COMPONENTS), "p": who}
        texts.append(fill_template(template, **names, **values_of))
    return _assign_times(c, seed, texts, pairs)


def _choose_names(component: str, other: str, template: str, people: "object") -> dict[str, str]:
    """Return the names of a pair; people are not shared between pairs, so that each statement has its own subject."""
    who: list[str] = []
    if "{p}" in template:
        who = [next(people), next(people)] if "{q}" in template else [next(people)]  # type: ignore[call-overload]
    return {"c": component, "C": component.title(), "d": other, "p": [*who, ""][0], "q": [*who, "", ""][1]}


def _assign_times(c: random.Random, seed: int, texts: list[str], pairs: list[tuple[int, int]]) -> StatementSet:
    """Assign each memory a time, the second of a pair after the first, and ids by time."""
    moments = [c.uniform(0, 28) * DAY_S + START_TIME_S for _ in texts]
    for old, new in pairs:
        moments[old], moments[new] = sorted((moments[old], moments[new]))
    order = sorted(dict.fromkeys(texts), key=lambda text: moments[texts.index(text)])
    number = {text: i + 1 for i, text in enumerate(order)}
    notes = [MinedMemory(number[text], moments[texts.index(text)], text) for text in order]
    return StatementSet(seed, notes, [(number[texts[old]], number[texts[new]]) for old, new in pairs])
