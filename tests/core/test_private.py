"""Removal of clauses with private details. Numbers and names are invented; keys are built at run time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from athena.core.private import find_private_details, remove_private_clauses
from conftest import rounds, sample
from linear_time import is_time_linear

TOKEN = "ghp_" + "a1B2c3D4e5F6" * 3

# text, what is left of it
PRIVATE = [
    ("My back is killing me. Tabs, not spaces.", "Tabs, not spaces."),
    ("Selkä on ihan paskana, lopetan. Seuraavaksi testit.", "Seuraavaksi testit."),
    ("Moja żona jest chora. Testy są w CI.", "Testy są w CI."),
    ("У меня болит голова. Порт 8091.", "Порт 8091."),
    ("He goes to my school. The key is WASD.", "The key is WASD."),
    ("My salary is 60,000. Money is stored in cents.", "Money is stored in cents."),
    ("The display is in German because my mother has dementia.", "The display is in German."),
    ("My mother, who is 82, has dementia, so the font must be large.", "The font must be large."),
    (
        "Use dark mode. My wife is pregnant, so I leave at 4. Tests run in CI.",
        "Use dark mode. I leave at 4. Tests run in CI.",
    ),
    ("I prefer tabs and my son has asthma.", "I prefer tabs."),
    ("Call me at +49 171 2345678 when it is done, and use PDF for the report.", "Use PDF for the report."),
    ("Reach me on my cell: 555-867-5309. Deploys happen on Friday.", "Deploys happen on Friday."),
    ("Send the report to anna.schmidt@example.org, we use Postgres 16.", "We use Postgres 16."),
    ("My mother has dementia. She forgets her PIN. The app shows big buttons.", "The app shows big buttons."),
    ("We live at 12 Baker Street, London; the timezone is UTC.", "the timezone is UTC."),
    ("Meine Adresse ist Hauptstraße 14, 10115 Berlin. Das Format ist A4.", "Das Format ist A4."),
    (f"The deploy key is {TOKEN}, rotate it in May.", "Rotate it in May."),
    ("My birthday is 3 May 1980. We deploy on Fridays.", "We deploy on Fridays."),
    ("use large fonts for my mother who has dementia", "use large fonts"),
    ("Die Anzeige ist auf Deutsch, weil meine Mutter Demenz hat.", "Die Anzeige ist auf Deutsch."),
    ("L'affichage est en français parce que ma mère est malade.", "L'affichage est en français."),
    ("La pantalla está en español porque mi madre tiene demencia.", "La pantalla está en español."),
    ("Het scherm is in het Nederlands omdat mijn moeder dementie heeft.", "Het scherm is in het Nederlands."),
    ("I decided to use SQLite (my brother's laptop has no Docker) and pytest.", "I decided to use SQLite and pytest."),
    ("I'm 43 and I like vim.", "I like vim."),
    ("my partner is sick today so move the demo to Monday", "move the demo to Monday"),
    ("I have ADHD, keep answers short.", "Keep answers short."),
    ("Please keep answers short because of my ADHD", "Please keep answers short"),
    ("I take metformin at 8, remind me of stand-up at 9", "Remind me of stand-up at 9"),
    ("Pay to IBAN DE89 3704 0044 0532 0130 00. Amounts are in euros.", "Amounts are in euros."),
    ("My SSN is 078-05-1120, the form is W-9.", "The form is W-9."),
    ("Card 4111 1111 1111 1111 is on file. The shop runs on Stripe.", "The shop runs on Stripe."),
    ("- use uv\n- my sister's number is 0171 2345678\n- tests in CI", "- use uv\n- tests in CI"),
]

HARMLESS = [
    "A cold start takes 3 s, a cold cache 9.",
    "The rent is stored in cents, they live in config/vat.json.",
    "Deploys are headache-free; the head of the list is slow.",
    "",
    "The display is in German.",
    "The child process dies when my parent process ends.",
    "Run athena doctor first, the health check is at /health.",
    "git@github.com:acme/app.git is the remote and react@18.2.0 the version",
    "The model predicts diabetes from 8 columns.",
    "The wedding app uses Django",
    "SVG stroke width is 2",
    "The server at 10.0.0.12 port 5432 answers 555 times",
    "Release 2024-10-11 12:30:44 build 1234567890",
    "Our partner API returns 500",
    "I am sick of flaky tests",
    "We chose PostgreSQL 16 because SQLite locks, and we pin Python 3.11.2.",
    "The parent folder has 12 child folders; the sister project is archived.",
    "Add a birthday column to the users table.",
    "Validate e.g. phone numbers and emails in the form.",
    "Born out of frustration, the tool has 3 commands.",
    "Commits are signed by noreply@github.com",
    "The palette must be safe for color-blind users.",
    "0171 is the exit code of nothing, 1700000000 a timestamp, 192.168.100.200 an address",
    "Ticket 555-1234 and order 2024-0001-0002",
    "The main street example in docs/address.md",
    "I'm 100 percent sure; he's 2 commits behind.",
]  # fmt: skip


@pytest.mark.parametrize(("text", "rest"), PRIVATE)
def test_private_clause_is_left_out(text: str, rest: str) -> None:
    assert remove_private_clauses(text) == rest


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_stays(text: str) -> None:
    assert find_private_details(text) == []
    assert remove_private_clauses(text) == text


# Joined without a space, "CI" and "My mother" are one word: "tests in CIMy mother has dementia" is about tests.
SENTENCES = st.tuples(st.sampled_from([part for row in PRIVATE for part in row]), st.sampled_from([" ", ", ", "\n"]))


@settings(max_examples=rounds(60, 1_000), deadline=None)
@given(st.lists(SENTENCES.map("".join), max_size=8).map("".join))
def test_what_is_left_has_no_detail_of_its_own(text: str) -> None:
    rest = remove_private_clauses(text)
    assert len(rest) <= len(text)
    assert TOKEN not in rest
    assert "dement" not in rest.lower().replace("demenz", "dement")


UNITS = [
    "my ",
    "my-",
    "a's ",
    "   ",
    "...x",
    "my mother, ",
    "+1 ",
    "1 2 3 ",
    "I ",
    "because ",
    "((",
    "a@b.",
    "x@y.zz ",
    "12 Baker ",
    "!?",
]


@pytest.mark.parametrize("unit", sample(UNITS, 8))
def test_removal_time_is_linear(unit: str) -> None:
    assert is_time_linear(remove_private_clauses, "My mother is ill. ", unit, rounds(5_000, 10_000))
